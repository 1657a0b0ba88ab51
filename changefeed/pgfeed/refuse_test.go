package pgfeed_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"promethean/changefeed"
	"promethean/changefeed/pgfeed"
	"promethean/internal/pgtest"
	"promethean/store"
)

func TestBadOptions(t *testing.T) {
	const uri = "postgres://127.0.0.1:1/x"
	for _, x := range []struct {
		uri, table string
		o          pgfeed.Options
		word       string
	}{
		{uri, "", pgfeed.Options{}, "1 to 63 bytes"},
		{uri, "a.b.c", pgfeed.Options{}, "schema.table"},
		{uri, "a.", pgfeed.Options{}, "1 to 63 bytes"},
		{uri, `"a`, pgfeed.Options{}, "no end"},
		{uri, `"a"b`, pgfeed.Options{}, "dot"},
		{uri, strings.Repeat("x", 64), pgfeed.Options{}, "1 to 63 bytes"},
		{uri, "t", pgfeed.Options{Slot: "Big-Slot"}, "lower case"},
		{uri, "t", pgfeed.Options{Slot: strings.Repeat("x", 62)}, "1 to 61"},
		{uri, "t", pgfeed.Options{BatchSize: -1}, "not negative"},
		{"nonsense://", "t", pgfeed.Options{}, "address"},
	} {
		_, err := pgfeed.New(x.uri, x.table, x.o)
		refuses(t, err, store.ErrInvalid, x.word)
	}
}

// TestServerAway is no refusal: it is to be tried again.
func TestServerAway(t *testing.T) {
	s := newSource(t, "postgres://nobody:secret@127.0.0.1:1/x", "t", pgfeed.Options{})
	err := s.Stream(context.Background(), nil, newTopic().sink)
	if err == nil {
		t.Fatal("no error")
	}
	for _, e := range []error{changefeed.ErrRefused, changefeed.ErrGone, changefeed.ErrHistoryLost} {
		refusesNot(t, err, e)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells the password: %v", err)
	}
	if st, err := s.Status(context.Background()); err == nil || st.LagBytes != -1 {
		t.Errorf("the status is %+v, %v", st, err)
	}
}

func refusesNot(t *testing.T, err, kind error) {
	t.Helper()
	if strings.Contains(err.Error(), kind.Error()) {
		t.Errorf("the error is %v", err)
	}
}

// TestRefusedTables tries what cannot be fed from, and wants nothing left of it.
func TestRefusedTables(t *testing.T) {
	uri := database(t)
	pgtest.Exec(t, uri, `
		CREATE TABLE keyless (a int);
		CREATE TABLE whole (a int); ALTER TABLE whole REPLICA IDENTITY FULL;
		CREATE TABLE nothing (a int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
		CREATE UNLOGGED TABLE unlogged (a int PRIMARY KEY);
		CREATE VIEW looks AS SELECT * FROM things;
		CREATE TABLE parted (a int PRIMARY KEY) PARTITION BY RANGE (a);
		CREATE PUBLICATION others FOR TABLE nothing;
		CREATE PUBLICATION inserts FOR TABLE things WITH (publish = 'insert');
		CREATE PUBLICATION leaves FOR TABLE parted;`)
	for _, x := range []struct {
		table string
		o     pgfeed.Options
		words []string
	}{
		{"missing", pgfeed.Options{}, []string{"no table", "missing"}},
		{"keyless", pgfeed.Options{}, []string{"ADD PRIMARY KEY", "REPLICA IDENTITY USING INDEX"}},
		{"whole", pgfeed.Options{}, []string{"ADD PRIMARY KEY"}},
		{"nothing", pgfeed.Options{}, []string{"REPLICA IDENTITY"}},
		{"looks", pgfeed.Options{}, []string{"not a table"}},
		{"unlogged", pgfeed.Options{}, []string{"unlogged"}},
		{"things", pgfeed.Options{Publication: "others"}, []string{"ALTER PUBLICATION", "ADD TABLE"}},
		{"things", pgfeed.Options{Publication: "inserts"}, []string{"ALTER PUBLICATION", "publish ="}},
		{"parted", pgfeed.Options{Publication: "leaves"}, []string{"publish_via_partition_root"}},
	} {
		t.Run(x.table+x.o.Publication, func(t *testing.T) {
			err := once(t, newSource(t, uri, x.table, x.o), newTopic())
			refuses(t, err, changefeed.ErrRefused, x.words...)
			slots(t, uri)
		})
	}
	pgtest.Exec(t, uri, "INSERT INTO keyless VALUES (1); UPDATE keyless SET a = 2; DELETE FROM keyless")
}

// as gives the address for another role.
func as(t *testing.T, uri, role string) string {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// TestRights gives a role one right after the other.
func TestRights(t *testing.T) {
	uri := database(t)
	role := "r" + uri[strings.LastIndexByte(uri, '/')+1:strings.IndexByte(uri, '?')]
	pgtest.Exec(t, uri, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() { pgtest.Exec(t, uri, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	try := func(words ...string) {
		t.Helper()
		refuses(t, once(t, newSource(t, as(t, uri, role), "things", pgfeed.Options{Snapshot: true}), newTopic()), changefeed.ErrRefused, words...)
	}
	try("REPLICATION", role)
	pgtest.Exec(t, uri, "ALTER ROLE "+role+" REPLICATION")
	try("CREATE PUBLICATION", role)
	slot := "promethean_" + role[1:] + "_things"
	pgtest.Exec(t, uri, "CREATE PUBLICATION "+slot+" FOR TABLE things")
	try("SELECT", role)
	pgtest.Exec(t, uri, "GRANT SELECT ON things TO "+role+"; INSERT INTO things VALUES (1, 1)")
	pgtest.Exec(t, uri, "ALTER TABLE things ENABLE ROW LEVEL SECURITY")
	try("row-level security", "BYPASSRLS")
	pgtest.Exec(t, uri, "ALTER TABLE things DISABLE ROW LEVEL SECURITY")
	s, l := newSource(t, as(t, uri, role), "things", pgfeed.Options{Snapshot: true}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (2, 2)")
	l.has(t, 2)
	if st, err := s.Status(context.Background()); err != nil || st.LagBytes < 0 {
		t.Errorf("the status is %+v, %v", st, err)
	}
	run.stop()
	if err := s.Forget(context.Background()); err != nil {
		t.Fatal(err)
	}
	slots(t, uri)
	if n := count(t, uri, "SELECT count(*) FROM pg_publication WHERE pubname = '"+slot+"'"); n != 1 {
		t.Error("a publication that somebody else has made was dropped")
	}
}

func count(t *testing.T, uri, sql string) (n int) {
	t.Helper()
	if err := pgtest.Connect(t, uri).QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWALLevel(t *testing.T) {
	server := pgtest.Start(t, "wal_level = replica")
	pgtest.Exec(t, server.URI(), "CREATE TABLE things (id int PRIMARY KEY, n int)")
	s := newSource(t, server.URI(), "things", pgfeed.Options{})
	refuses(t, once(t, s, newTopic()), changefeed.ErrRefused, "wal_level = logical", "postgresql.conf")
}

func TestNoSlotLeft(t *testing.T) {
	for _, most := range []string{"0", "1"} {
		server := pgtest.Start(t, "max_replication_slots = "+most)
		pgtest.Exec(t, server.URI(), "CREATE TABLE things (id int PRIMARY KEY, n int)")
		if most == "1" {
			pgtest.Exec(t, server.URI(), "SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
		}
		s := newSource(t, server.URI(), "things", pgfeed.Options{})
		refuses(t, once(t, s, newTopic()), changefeed.ErrRefused, "max_replication_slots")
	}
}

func TestBadTokens(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	run.stop()
	good := string(l.token)
	for _, x := range []struct {
		token string
		kind  error
		word  string
	}{
		{"", changefeed.ErrRefused, "token"},
		{"\x00\x01", changefeed.ErrRefused, "token"},
		{`{"_data":"8263"}`, changefeed.ErrRefused, "token"},
		{strings.Replace(good, `"v":1`, `"v":99`, 1), changefeed.ErrRefused, "later version"},
		{strings.Replace(good, `"slot":"`, `"slot":"x`, 1), changefeed.ErrRefused, "slot"},
		{strings.Replace(good, `"system":"`, `"system":"1`, 1), changefeed.ErrHistoryLost, "server"},
		{strings.Replace(good, `"member":`, `"member":1`, 1), changefeed.ErrHistoryLost, "publication"},
		{strings.Replace(good, `"lsn":"`+l.position().LSN, `"lsn":"0/1`, 1), changefeed.ErrHistoryLost, "somebody else"},
	} {
		l := newTopic()
		l.token = []byte(x.token)
		refuses(t, once(t, s, l), x.kind, x.word)
	}
}

// TestHistory loses it in all ways that need no server of its own.
func TestHistory(t *testing.T) {
	for _, x := range []struct {
		name, sql string
		word      string
	}{
		{"slot dropped", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()", "was dropped"},
		{"slot moved", "INSERT INTO things VALUES (1, 1); SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots WHERE database = current_database()", "somebody else"},
		{"publication dropped", "DROP PUBLICATION feed", "publication"},
		{"publication made anew", "DROP PUBLICATION feed; CREATE PUBLICATION feed FOR TABLE things", "publication"},
		{"table taken out", "ALTER PUBLICATION feed DROP TABLE things", "taken out"},
		{"table put in again", "ALTER PUBLICATION feed DROP TABLE things; INSERT INTO things VALUES (2, 2); ALTER PUBLICATION feed ADD TABLE things", "put in again"},
	} {
		t.Run(x.name, func(t *testing.T) {
			uri := database(t)
			s, l := newSource(t, uri, "things", pgfeed.Options{Publication: "feed", Snapshot: true}), newTopic()
			run := stream(t, s, l)
			l.begun(t)
			run.stop()
			for _, sql := range strings.Split(x.sql, "; ") {
				pgtest.Exec(t, uri, sql)
			}
			refuses(t, once(t, s, l), changefeed.ErrHistoryLost, x.word)
			// Beginning anew helps.
			pgtest.Exec(t, uri, "INSERT INTO things VALUES (100, 0)")
			if err := s.Forget(context.Background()); err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, uri, "DROP PUBLICATION IF EXISTS feed") // one that was made by hand
			l.token = nil
			stream(t, s, l)
			l.await(t, "the row", func(c []changefeed.Change) bool { return state(c)["100"] != "" })
		})
	}
}

// TestGone drops, renames and replaces the table, while it is read and while
// not. What was done before comes first.
func TestGone(t *testing.T) {
	for _, x := range []struct{ name, sql string }{
		{"dropped", "DROP TABLE things"},
		{"renamed", "ALTER TABLE things RENAME TO others"},
		{"renamed and used", "ALTER TABLE things RENAME TO others; INSERT INTO others VALUES (9, 9)"},
		{"moved", "CREATE SCHEMA s; ALTER TABLE things SET SCHEMA s"},
		{"replaced", "DROP TABLE things; CREATE TABLE things (id int PRIMARY KEY, n int)"},
	} {
		for _, reading := range []bool{true, false} {
			name := x.name + " while read"
			if !reading {
				name = x.name + " before"
			}
			t.Run(name, func(t *testing.T) {
				uri := database(t)
				s, l := newSource(t, uri, "things", pgfeed.Options{CheckEvery: 50 * time.Millisecond}), newTopic()
				run := stream(t, s, l)
				l.begun(t)
				if !reading {
					run.stop()
				}
				pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 1)")
				pgtest.Exec(t, uri, "DELETE FROM things")
				for _, sql := range strings.Split(x.sql, "; ") {
					pgtest.Exec(t, uri, sql)
				}
				if !reading {
					run = stream(t, s, l)
				}
				refuses(t, run.ends(t), changefeed.ErrGone, "things")
				same(t, l.get(), `insert 1 {"id":1,"n":1}`, `delete 1`)
			})
		}
	}
}
