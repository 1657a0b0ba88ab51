package pgfeed_test

import (
	"context"
	"testing"

	"promethean/changefeed"
	"promethean/changefeed/pgfeed"
	"promethean/internal/pgtest"
)

func TestSnapshotThenChanges(t *testing.T) {
	uri := database(t)
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 10), (2, NULL)")
	s, l := newSource(t, uri, "things", pgfeed.Options{Snapshot: true}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (3, 30)")
	pgtest.Exec(t, uri, "UPDATE things SET n = 11 WHERE id = 1")
	pgtest.Exec(t, uri, "DELETE FROM things WHERE id = 2")
	got := l.has(t, 5)
	run.stop()
	same(t, got,
		`snapshot 1 {"id":1,"n":10}`, `snapshot 2 {"id":2,"n":null}`,
		`insert 3 {"id":3,"n":30}`, `update 1 {"id":1,"n":11}`, `delete 2`)
	if got[0].At != (got[1].At) || got[2].At.IsZero() || got[3].At.Before(got[2].At) {
		t.Errorf("times are %v", got)
	}
	for _, c := range got {
		for _, h := range []string{"x-pg-op", "x-pg-lsn", "x-pg-xid"} {
			if v, ok := c.Headers.Get(h); !ok || v == "" {
				t.Errorf("%s lacks the header %s", line(c), h)
			}
		}
	}
	if op, _ := got[4].Headers.Get("x-pg-op"); op != "delete" {
		t.Errorf("x-pg-op is %s", op)
	}
}

// TestGoesOn stops and goes on, without a snapshot, with changes in between.
func TestGoesOn(t *testing.T) {
	uri := database(t)
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 10)")
	s, l := newSource(t, uri, "public.things", pgfeed.Options{}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	run.stop()
	for n := range 5 {
		pgtest.Exec(t, uri, "INSERT INTO things VALUES ($1, 0)", 10+n)
		run = stream(t, s, l)
		l.has(t, n+1)
		run.stop()
	}
	same(t, l.get(), `insert 10 {"id":10,"n":0}`, `insert 11 {"id":11,"n":0}`, `insert 12 {"id":12,"n":0}`,
		`insert 13 {"id":13,"n":0}`, `insert 14 {"id":14,"n":0}`)
	if l.again != 0 {
		t.Errorf("%d changes came again", l.again)
	}
}

// TestRolledBack wants nothing of what was rolled back, in whole or to a
// savepoint.
func TestRolledBack(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	pgtest.Exec(t, uri, `
		BEGIN; INSERT INTO things VALUES (1, 1); ROLLBACK;
		BEGIN; INSERT INTO things VALUES (2, 2); SAVEPOINT a; INSERT INTO things VALUES (3, 3); ROLLBACK TO a;
			SAVEPOINT b; INSERT INTO things VALUES (4, 4); RELEASE b; COMMIT;
		DO $$ BEGIN INSERT INTO things VALUES (5, 5); RAISE 'no'; EXCEPTION WHEN OTHERS THEN NULL; END $$;
		INSERT INTO things VALUES (6, 6);`)
	l.has(t, 3)
	run.stop()
	same(t, l.get(), `insert 2 {"id":2,"n":2}`, `insert 4 {"id":4,"n":4}`, `insert 6 {"id":6,"n":6}`)
}

// TestWholeTransactions wants small transactions in one batch each at least, and
// a large one in parts whose tokens go on in the midst of it.
func TestWholeTransactions(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{BatchSize: 100}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	run.stop()
	const small, each, large = 20, 30, 1050
	for i := range small {
		pgtest.Exec(t, uri, "INSERT INTO things SELECT g, 0 FROM generate_series($1::int, $2::int) g", i*each, i*each+each-1)
	}
	pgtest.Exec(t, uri, "INSERT INTO things SELECT g, 0 FROM generate_series(10000, 10000 + $1::int - 1) g", large)
	pgtest.Exec(t, uri, "DELETE FROM things WHERE id = 1")
	parts := 0
	l.fail = func(b changefeed.Batch) failure {
		xids := map[string]int{}
		for _, c := range b.Changes {
			x, _ := c.Headers.Get("x-pg-xid")
			xids[x]++
		}
		for x, n := range xids {
			if len(xids) > 1 && n != each && n != 1 && n != large%100 { // the last is the end of the large one
				t.Errorf("a batch has %d of the changes of transaction %s", n, x)
			}
		}
		if len(b.Changes) > 100 {
			t.Errorf("a batch has %d changes", len(b.Changes))
		}
		// A part of the large one is stored, and then the feed ends.
		if len(xids) == 1 && len(b.Changes) == 100 {
			if parts++; parts%3 == 0 {
				return noToken
			}
		}
		return fine
	}
	ended := 0
	run = stream(t, s, l)
	for next := l.next(); len(l.get()) < small*each+large+1; next = l.next() {
		select {
		case <-run.done:
			ended++
			if p := l.position(); p.Done == 0 || p.Commit == "" {
				t.Errorf("the place in the midst of a transaction is %+v", p)
			}
			run = stream(t, s, l)
		case <-next:
		}
	}
	run.stop()
	if ended == 0 || l.again != ended*100 {
		t.Errorf("after %d ends %d changes came again, want those of the batches without a token only", ended, l.again)
	}
	if got := state(l.get()); len(got) != small*each+large-1 {
		t.Errorf("there are %d keys", len(got))
	}
}

// next is closed at the next batch.
func (l *topic) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func TestTruncate(t *testing.T) {
	uri := database(t)
	pgtest.Exec(t, uri, "CREATE TABLE others (id int PRIMARY KEY)")
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 1)")
	pgtest.Exec(t, uri, "TRUNCATE others, things")
	pgtest.Exec(t, uri, "TRUNCATE others")
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 2)")
	l.has(t, 3)
	run.stop()
	same(t, l.get(), `insert 1 {"id":1,"n":1}`, `truncate`, `insert 1 {"id":1,"n":2}`)
}

func TestKeys(t *testing.T) {
	uri := pgtest.Database(t)
	pgtest.Exec(t, uri, `
		CREATE SCHEMA "Odd.Names";
		CREATE TABLE "Odd.Names"."A ""table""" (z int, "Ä b" text, a text, PRIMARY KEY (a, "Ä b"));
		CREATE TABLE indexed (id int PRIMARY KEY, code text NOT NULL UNIQUE, n int);
		ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code_key;
		CREATE TABLE whole (id int PRIMARY KEY, n int);
		ALTER TABLE whole REPLICA IDENTITY FULL;`)
	for _, x := range []struct {
		table, first, then string
		want               []string
	}{
		{
			`"Odd.Names"."A ""table"""`, `INSERT INTO "Odd.Names"."A ""table""" VALUES (1, 'x"', 'y')`,
			`UPDATE "Odd.Names"."A ""table""" SET z = 2; UPDATE "Odd.Names"."A ""table""" SET a = 'w'; DELETE FROM "Odd.Names"."A ""table"""`,
			[]string{
				`snapshot ["x\"","y"] {"z":1,"Ä b":"x\"","a":"y"}`, `update ["x\"","y"] {"z":2,"Ä b":"x\"","a":"y"}`,
				`delete ["x\"","y"]`, `update ["x\"","w"] {"z":2,"Ä b":"x\"","a":"w"}`, `delete ["x\"","w"]`,
			},
		},
		{
			"indexed", `INSERT INTO indexed VALUES (1, 'one', 1)`,
			`UPDATE indexed SET n = 2; UPDATE indexed SET id = 7; UPDATE indexed SET code = 'two'; DELETE FROM indexed`,
			[]string{
				`snapshot one {"id":1,"code":"one","n":1}`, `update one {"id":1,"code":"one","n":2}`, `update one {"id":7,"code":"one","n":2}`,
				`delete one`, `update two {"id":7,"code":"two","n":2}`, `delete two`,
			},
		},
		{
			"whole", `INSERT INTO whole VALUES (1, 1)`,
			`UPDATE whole SET n = 2; UPDATE whole SET id = 7, n = NULL; DELETE FROM whole`,
			[]string{
				`snapshot 1 {"id":1,"n":1}`, `update 1 {"id":1,"n":2}`, `delete 1`, `update 7 {"id":7,"n":null}`, `delete 7`,
			},
		},
	} {
		t.Run(x.table, func(t *testing.T) {
			pgtest.Exec(t, uri, x.first)
			s, l := newSource(t, uri, x.table, pgfeed.Options{Snapshot: true}), newTopic()
			run := stream(t, s, l)
			l.begun(t)
			pgtest.Exec(t, uri, x.then)
			l.has(t, len(x.want))
			run.stop()
			same(t, l.get(), x.want...)
		})
	}
}

// TestAlter changes the table while it is read.
func TestAlter(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	pgtest.Exec(t, uri, `
		INSERT INTO things VALUES (1, 1);
		ALTER TABLE things ADD COLUMN more text DEFAULT 'd';
		ALTER TABLE things ALTER COLUMN more DROP DEFAULT;
		UPDATE things SET n = 2;
		ALTER TABLE things DROP COLUMN n;
		UPDATE things SET more = 'e';
		ALTER TABLE things ALTER COLUMN more TYPE jsonb USING '[1]';
		UPDATE things SET more = '{"a": 1}';
		ALTER TABLE things RENAME COLUMN more TO less;
		ALTER TABLE things ALTER COLUMN id TYPE text;
		INSERT INTO things VALUES ('x', NULL);
		CREATE DOMAIN counts AS int[];
		ALTER TABLE things ADD COLUMN c counts;
		UPDATE things SET c = '{1,2}' WHERE id = 'x'`)
	l.has(t, 6)
	run.stop()
	same(t, l.get(), `insert 1 {"id":1,"n":1}`, `update 1 {"id":1,"n":2,"more":"d"}`, `update 1 {"id":1,"more":"e"}`,
		`update 1 {"id":1,"more":{"a": 1}}`, `insert x {"id":"x","less":null}`, `update x {"id":"x","less":null,"c":[1,2]}`)
}

// TestSeveralFeeds has feeds of two tables and two of one table go on beside
// each other.
func TestSeveralFeeds(t *testing.T) {
	uri := database(t)
	pgtest.Exec(t, uri, "CREATE TABLE others (id int PRIMARY KEY); INSERT INTO things VALUES (1, 1); INSERT INTO others VALUES (1)")
	var topics []*topic
	for _, x := range []struct{ table, name string }{{"things", ""}, {"others", ""}, {"things", "again"}} {
		l := newTopic()
		topics = append(topics, l)
		stream(t, newSource(t, uri, x.table, pgfeed.Options{Name: x.name, Snapshot: true}), l)
	}
	for _, l := range topics {
		l.begun(t)
	}
	pgtest.Exec(t, uri, "BEGIN; INSERT INTO things VALUES (2, 2); INSERT INTO others VALUES (2); DELETE FROM things; COMMIT")
	things := []string{`snapshot 1 {"id":1,"n":1}`, `insert 2 {"id":2,"n":2}`, `delete 1`, `delete 2`}
	same(t, topics[0].has(t, 4), things...)
	same(t, topics[1].has(t, 2), `snapshot 1 {"id":1}`, `insert 2 {"id":2}`)
	same(t, topics[2].has(t, 4), things...)
	ids := map[string]bool{}
	for _, l := range topics[:2] {
		for _, c := range l.get() {
			if ids[c.ID.String()] {
				t.Errorf("two tables share the id of %s", line(c))
			}
			ids[c.ID.String()] = true
		}
	}
	for i, c := range topics[2].get() {
		// A snapshot is each feed's own, changes are the table's.
		if equal := c.ID == topics[0].get()[i].ID; equal != (c.Op != changefeed.OpSnapshot) {
			t.Errorf("two feeds of a table give %s equal ids: %v", line(c), equal)
		}
	}
}

// TestOneSlotTwice has a second stream of a slot that is read.
func TestOneSlotTwice(t *testing.T) {
	uri := database(t)
	l := newTopic()
	stream(t, newSource(t, uri, "things", pgfeed.Options{}), l)
	l.begun(t)
	second := newTopic()
	second.token = l.place()
	err := once(t, newSource(t, uri, "things", pgfeed.Options{}), second)
	if err == nil || len(second.get()) != 0 {
		t.Fatalf("a second reader of the slot ends with %v", err)
	}
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 1)")
	l.has(t, 1)
	// A beginner must not take it away either.
	if err := newSource(t, uri, "things", pgfeed.Options{}).Stream(context.Background(), nil, newTopic().sink); err == nil {
		t.Error("a beginner took the slot of another feed")
	}
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (2, 2)")
	l.has(t, 2)
}
