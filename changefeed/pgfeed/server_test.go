package pgfeed_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean/changefeed"
	"promethean/changefeed/pgfeed"
	"promethean/internal/pgtest"
)

// within wants a condition to come true.
func within(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticks := time.NewTicker(10 * time.Millisecond)
	defer ticks.Stop()
	for late := time.After(patience); !holds(); {
		select {
		case <-ticks.C:
		case <-late:
			t.Fatalf("%s did not come", what)
		}
	}
}

// TestServerRestarts stops the server hard while a feed reads and others write.
func TestServerRestarts(t *testing.T) {
	server := pgtest.Start(t)
	uri := server.URI()
	pgtest.Exec(t, uri, "CREATE TABLE things (id int PRIMARY KEY, n int)")
	s, l := newSource(t, uri, "things", pgfeed.Options{Snapshot: true}), newTopic()
	for round := range 3 {
		run := stream(t, s, l)
		l.begun(t)
		for i := range 20 {
			pgtest.Exec(t, uri, "INSERT INTO things VALUES ($1, 0)", round*20+i)
		}
		server.Restart(t)
		err := run.ends(t)
		for _, e := range []error{changefeed.ErrRefused, changefeed.ErrGone, changefeed.ErrHistoryLost, nil} {
			if errors.Is(err, e) {
				t.Fatalf("round %d ends with %v", round, err)
			}
		}
	}
	stream(t, s, l)
	got := l.has(t, 60)
	for i, c := range got {
		if c.Key != fmt.Sprint(i) {
			t.Fatalf("change %d is %s", i, line(c))
		}
	}
}

// TestTLS reads through TLS, also after silence, and finds the server among
// several addresses.
func TestTLS(t *testing.T) {
	server := pgtest.Start(t)
	uri := server.URI()
	cert, key := certificate(t)
	for file, content := range map[string][]byte{"server.crt": cert, "server.key": key} {
		pgtest.Exec(t, uri, "COPY (SELECT '"+base64.StdEncoding.EncodeToString(content)+"') TO PROGRAM 'umask 077; base64 -d > "+file+"'")
	}
	pgtest.Exec(t, uri, "ALTER SYSTEM SET ssl = on")
	server.Restart(t)
	pgtest.Exec(t, uri, "CREATE TABLE things (id int PRIMARY KEY, n int)")
	secure := strings.Replace(strings.Replace(uri, "sslmode=disable", "sslmode=require", 1), "@", "@127.0.0.1:1,", 1)
	s, l := newSource(t, secure, "things", pgfeed.Options{Snapshot: true}), newTopic()
	stream(t, s, l)
	l.begun(t)
	within(t, "a reader with TLS", func() bool {
		return count(t, uri, "SELECT count(*) FROM pg_stat_replication r JOIN pg_stat_ssl s USING (pid) WHERE s.ssl") == 1
	})
	var first, last time.Time
	replied := "SELECT reply_time FROM pg_stat_replication"
	conn := pgtest.Connect(t, uri)
	within(t, "an answer after silence", func() bool { // reads have ended in vain by then
		if err := conn.QueryRow(context.Background(), replied).Scan(&last); err != nil {
			return false
		}
		if first.IsZero() {
			first = last
		}
		return last.After(first)
	})
	pgtest.Exec(t, uri, "INSERT INTO things SELECT g, 0 FROM generate_series(1, 5000) g")
	l.has(t, 5000)
}

// certificate gives one of its own, as PEM.
func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// TestConnectionsKilled ends all connections of a feed again and again.
func TestConnectionsKilled(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	conn := pgtest.Connect(t, uri)
	run := stream(t, s, l)
	l.begun(t)
	ended := 0
	for n := range 20 {
		pgtest.Exec(t, uri, "INSERT INTO things VALUES ($1, 0)", n)
		if n%2 == 0 {
			if _, err := conn.Exec(context.Background(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'promethean' AND datname = current_database()"); err != nil {
				t.Fatal(err)
			}
		}
		// A connection that waits for its use is found dead later.
		for next := l.next(); len(l.get()) <= n; next = l.next() {
			select {
			case <-next:
			case <-run.done:
				ended++
				for _, e := range []error{changefeed.ErrRefused, changefeed.ErrGone, changefeed.ErrHistoryLost, nil} {
					if errors.Is(run.err, e) {
						t.Fatalf("after a connection was ended: %v", run.err)
					}
				}
				run = stream(t, s, l)
			case <-time.After(patience):
				t.Fatalf("row %d did not come", n)
			}
		}
	}
	if ended < 10 {
		t.Errorf("the stream has ended %d times", ended)
	}
	if got := l.get(); len(got) != 20 {
		t.Errorf("there are %d changes", len(got))
	}
}

// TestLogRemoved has the server remove its log although the slot needs it.
func TestLogRemoved(t *testing.T) {
	server := pgtest.Start(t, "max_slot_wal_keep_size = 1MB", "max_wal_size = 32MB", "min_wal_size = 32MB")
	uri := server.URI()
	pgtest.Exec(t, uri, "CREATE TABLE things (id int PRIMARY KEY, n int); CREATE TABLE noise (a text)")
	for _, how := range []string{"before", "while read"} {
		s, l := newSource(t, uri, "things", pgfeed.Options{Snapshot: true}), newTopic()
		blocked := make(chan struct{})
		l.fail = nil
		run := stream(t, s, l)
		l.begun(t)
		if how == "before" {
			run.stop()
		} else {
			// The sink does not return until the log is gone.
			l.mu.Lock()
			l.fail = func(changefeed.Batch) failure { <-blocked; return before }
			l.mu.Unlock()
		}
		pgtest.Exec(t, uri, "INSERT INTO things SELECT count(*) + 1, 0 FROM things")
		conn := pgtest.Connect(t, uri)
		within(t, "the end of the log", func() bool {
			for _, sql := range []string{"INSERT INTO noise SELECT repeat(md5(g::text), 100) FROM generate_series(1, 5000) g", "SELECT pg_switch_wal()", "CHECKPOINT"} {
				if _, err := conn.Exec(context.Background(), sql); err != nil {
					t.Fatal(err)
				}
			}
			var status string
			if err := conn.QueryRow(context.Background(), "SELECT wal_status FROM pg_replication_slots").Scan(&status); err != nil {
				t.Fatal(err)
			}
			return status == "lost"
		})
		if st, err := s.Status(context.Background()); err != nil || !strings.Contains(st.Warning, "no longer keeps the log") {
			t.Errorf("the status is %+v, %v", st, err)
		}
		if how == "while read" {
			close(blocked)
			if err := run.ends(t); err == nil {
				t.Error("a stream without its log goes on")
			}
			l.mu.Lock()
			l.fail = nil
			l.mu.Unlock()
		}
		refuses(t, once(t, s, l), changefeed.ErrHistoryLost, "max_slot_wal_keep_size")
		if err := s.Forget(context.Background()); err != nil {
			t.Fatal(err)
		}
		l.token = nil
		run = stream(t, s, l)
		l.begun(t)
		run.stop()
		if err := s.Forget(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSlowSink has the sink take several times as long as the server waits for
// an answer, while there is more to read than is held.
func TestSlowSink(t *testing.T) {
	uri := database(t)
	s := newSource(t, uri+"&wal_sender_timeout=1500", "things", pgfeed.Options{BatchSize: 10})
	l := newTopic()
	run := stream(t, s, l)
	l.begun(t)
	const rows = 20000
	conn := pgtest.Connect(t, uri)
	// answers waits until the feed has answered for so long, by the server's clock.
	answers := func(long time.Duration) {
		var first time.Time
		within(t, "an answer", func() bool {
			var at *time.Time
			if err := conn.QueryRow(context.Background(), "SELECT max(reply_time) FROM pg_stat_replication WHERE pid = (SELECT active_pid FROM pg_replication_slots WHERE database = current_database())").Scan(&at); err != nil || at == nil {
				t.Errorf("the server has given up the feed: %v", err)
				return true
			}
			if first.IsZero() {
				first = *at
			}
			return at.Sub(first) > long
		})
	}
	slow := 0
	l.mu.Lock()
	l.fail = func(changefeed.Batch) failure {
		if slow++; slow <= 2 {
			answers(4 * time.Second)
		}
		return fine
	}
	l.mu.Unlock()
	pgtest.Exec(t, uri, "INSERT INTO things SELECT g, 0 FROM generate_series(1, $1::int) g", rows/2)
	pgtest.Exec(t, uri, "INSERT INTO things SELECT g, 0 FROM generate_series($1::int + 1, $2::int) g", rows/2, rows)
	l.has(t, rows)
	select {
	case <-run.done:
		t.Fatalf("the stream has ended: %v", run.err)
	default:
	}
	if l.again != 0 {
		t.Errorf("%d changes came again", l.again)
	}
}

// TestConfirms wants the slot to follow what is saved, and nothing else.
func TestConfirms(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	stream(t, s, l)
	l.begun(t)
	conn := pgtest.Connect(t, uri)
	confirmed := func() (at string) {
		if err := conn.QueryRow(context.Background(), "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = current_database()").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	hold := make(chan struct{})
	stored := make(chan struct{}, 1)
	was := confirmed()
	l.mu.Lock()
	l.fail = func(changefeed.Batch) failure {
		stored <- struct{}{}
		<-hold
		return fine
	}
	l.mu.Unlock()
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 1)")
	<-stored
	// The server has heard from the feed since, and been told nothing new.
	var heard, later time.Time
	reply := func() (at time.Time) {
		if err := conn.QueryRow(context.Background(), "SELECT coalesce(reply_time, 'epoch') FROM pg_stat_replication WHERE pid = (SELECT active_pid FROM pg_replication_slots WHERE database = current_database())").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	heard = reply()
	within(t, "an answer of the feed", func() bool { later = reply(); return later.After(heard) })
	if now := confirmed(); now != was {
		t.Errorf("the slot went from %s to %s before the token was saved", was, now)
	}
	close(hold)
	go func() {
		for range stored {
		}
	}()
	within(t, "what is saved", func() bool { return confirmed() == l.position().LSN && l.position().LSN != was })
	close(stored)
}

// logged keeps what was logged.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestGuard has a feed stand still while the log grows: it warns, and drops the
// slot where it may.
func TestGuard(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprint("running ", running), func(t *testing.T) {
			server := pgtest.Start(t)
			uri := server.URI()
			pgtest.Exec(t, uri, "CREATE TABLE things (id int PRIMARY KEY, n int); CREATE TABLE noise (a text)")
			var log logged
			s := newSource(t, uri, "things", pgfeed.Options{
				MaxSlotBytes: 1 << 20, DropSlotOver: 8 << 20, CheckEvery: 20 * time.Millisecond,
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			l := newTopic()
			run := stream(t, s, l)
			l.begun(t)
			if !running {
				run.stop()
			}
			entered := make(chan struct{}, 1)
			stuck := func(ctx context.Context, b changefeed.Batch) error {
				if len(b.Changes) == 0 {
					return l.sink(ctx, b)
				}
				entered <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			var ended chan error
			if running {
				run.stop()
				ended = make(chan error, 1)
				token := l.place()
				go func() { ended <- s.Stream(context.Background(), token, stuck) }()
			}
			pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 1)")
			if running {
				<-entered
			}
			noise := func() {
				pgtest.Exec(t, uri, "INSERT INTO noise SELECT repeat(md5(g::text), 100) FROM generate_series(1, 1000) g")
			}
			status := func() changefeed.SourceStatus {
				st, err := s.Status(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				return st
			}
			if st := status(); st.Warning != "" || st.LagBytes < 0 || !strings.HasPrefix(st.Server, "PostgreSQL ") {
				t.Errorf("the status at first is %+v", st)
			}
			within(t, "a warning", func() bool { noise(); return status().Warning != "" })
			within(t, "a warning in the log", func() bool { return strings.Contains(log.String(), "disk may fill up") })
			if running {
				within(t, "the end of the stream", func() bool {
					noise()
					select {
					case err := <-ended:
						refuses(t, err, changefeed.ErrHistoryLost, "was dropped")
						return true
					default:
						return false
					}
				})
			} else {
				within(t, "the end of the slot", func() bool { noise(); return status().LagBytes == -1 })
				refuses(t, once(t, s, l), changefeed.ErrHistoryLost, "was dropped")
			}
			slots(t, uri)
		})
	}
}

// TestQuietTable has much written beside the table: the slot must not hold it
// back for ever.
func TestQuietTable(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	uri := database(t)
	pgtest.Exec(t, uri, "CREATE TABLE noise (a text)")
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	stream(t, s, l)
	l.begun(t)
	first := l.position().LSN
	pgtest.Exec(t, uri, "INSERT INTO noise SELECT md5(g::text) FROM generate_series(1, 50000) g")
	within(t, "a place beyond the noise", func() bool { return l.position().LSN != first })
	if n := len(l.get()); n != 0 {
		t.Errorf("there are %d changes", n)
	}
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 1)")
	l.has(t, 1)
}

// TestWaits begins while a transaction is under way: the slot waits for it. Who
// gives up waiting leaves nothing behind.
func TestWaits(t *testing.T) {
	uri := database(t)
	conn := pgtest.Connect(t, uri)
	for _, sql := range []string{"BEGIN", "INSERT INTO things VALUES (1, 1)"} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s, l := newSource(t, uri, "things", pgfeed.Options{Snapshot: true}), newTopic()
	for range 2 {
		run := stream(t, s, l)
		within(t, "a slot that waits", func() bool {
			return count(t, uri, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND wait_event_type = 'Lock' AND datname = current_database()") == 1
		})
		begin := time.Now()
		run.stop()
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("giving up took %v", took)
		}
	}
	run := stream(t, s, l)
	if _, err := conn.Exec(context.Background(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	l.begun(t)
	run.stop()
	same(t, l.get(), `snapshot 1 {"id":1,"n":1}`)
	slots(t, uri, l.position().Slot)
}

// TestAnew takes a second snapshot: all rows come again, as new events.
func TestAnew(t *testing.T) {
	uri := database(t)
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1, 1), (2, 2)")
	s, l := newSource(t, uri, "things", pgfeed.Options{Snapshot: true}), newTopic()
	for range 2 {
		run := stream(t, s, l)
		l.begun(t)
		run.stop()
		if err := s.Forget(context.Background()); err != nil {
			t.Fatal(err)
		}
		l.token = nil
	}
	one, two := `snapshot 1 {"id":1,"n":1}`, `snapshot 2 {"id":2,"n":2}`
	same(t, l.get(), one, two, one, two)
}

func TestForget(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	run.stop()
	slots(t, uri, l.position().Slot)
	for range 2 { // the second time there is nothing
		if err := s.Forget(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	slots(t, uri)
	if n := count(t, uri, "SELECT count(*) FROM pg_publication"); n != 0 {
		t.Errorf("%d publications are left", n)
	}
}

// TestPublications reads through publications that somebody has made.
func TestPublications(t *testing.T) {
	uri := pgtest.Database(t)
	if count(t, uri, "SELECT current_setting('server_version_num')::int") < 150000 {
		t.Skip("needs postgresql 15 or later for row filters")
	}
	pgtest.Exec(t, uri, `
		CREATE TABLE things (id int PRIMARY KEY, n int, secret text);
		CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
		CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);
		CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20);
		CREATE PUBLICATION part FOR TABLE things (id, n) WHERE (id < 100);
		CREATE PUBLICATION everything FOR ALL TABLES;
		CREATE PUBLICATION schema FOR TABLES IN SCHEMA public;
		INSERT INTO things VALUES (1, 1, 'a'), (200, 2, 'b'); INSERT INTO parted VALUES (1, 1), (11, 11)`)
	for _, x := range []struct {
		table, publication, then string
		want                     []string
	}{
		{"things", "part", "INSERT INTO things VALUES (2, 2, 'c'), (300, 3, 'd')", []string{`snapshot 1 {"id":1,"n":1}`, `insert 2 {"id":2,"n":2}`}},
		{"things", "everything", "DELETE FROM things WHERE id = 2", []string{
			`snapshot 1 {"id":1,"n":1,"secret":"a"}`, `snapshot 200 {"id":200,"n":2,"secret":"b"}`, `snapshot 2 {"id":2,"n":2,"secret":"c"}`,
			`snapshot 300 {"id":300,"n":3,"secret":"d"}`, `delete 2`,
		}},
		{"things", "schema", "DELETE FROM things WHERE id > 100", []string{
			`snapshot 1 {"id":1,"n":1,"secret":"a"}`, `snapshot 200 {"id":200,"n":2,"secret":"b"}`, `snapshot 300 {"id":300,"n":3,"secret":"d"}`, `delete 200`, `delete 300`,
		}},
		{"parted", "", "UPDATE parted SET id = 12 WHERE id = 1; DELETE FROM parted WHERE id = 11", []string{
			`snapshot 1 {"id":1,"n":1}`, `snapshot 11 {"id":11,"n":11}`, `delete 1`, `insert 12 {"id":12,"n":1}`, `delete 11`,
		}},
	} {
		t.Run(x.table+" "+x.publication, func(t *testing.T) {
			s, l := newSource(t, uri, x.table, pgfeed.Options{Name: x.table + x.publication, Publication: x.publication, Snapshot: true}), newTopic()
			run := stream(t, s, l)
			l.begun(t)
			pgtest.Exec(t, uri, x.then)
			l.has(t, len(x.want))
			run.stop()
			same(t, l.get(), x.want...)
		})
	}
}

func TestTokens(t *testing.T) {
	uri := pgtest.Database(t)
	ctx := context.Background()
	var wait sync.WaitGroup
	for i := range 4 { // all of them make the table
		wait.Go(func() {
			tokens, err := pgfeed.NewTokens(uri)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = tokens.Close() }()
			key := fmt.Sprint("changefeed:", i)
			if err := tokens.Delete(ctx, key); err != nil {
				t.Error(err)
			}
			if got, err := tokens.Load(ctx, key); got != nil || err != nil {
				t.Errorf("at first there is %q, %v", got, err)
			}
			for _, token := range []string{"one", "\x00\xff"} {
				if err := tokens.Save(ctx, key, []byte(token)); err != nil {
					t.Error(err)
				}
				if got, err := tokens.Load(ctx, key); string(got) != token || err != nil {
					t.Errorf("there is %q, %v, want %q", got, err, token)
				}
			}
			if i%2 == 0 {
				if err := errors.Join(tokens.Delete(ctx, key), tokens.Delete(ctx, key)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if n := count(t, uri, "SELECT count(*) FROM changefeed_tokens"); n != 2 {
		t.Errorf("there are %d tokens", n)
	}
	away, err := pgfeed.NewTokens("postgres://127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = away.Close() }()
	if _, err := away.Load(ctx, "k"); err == nil {
		t.Error("a token comes from a server that is away")
	}
}
