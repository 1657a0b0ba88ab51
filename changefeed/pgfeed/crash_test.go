package pgfeed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"promethean/changefeed"
	"promethean/changefeed/pgfeed"
	"promethean/internal/pgtest"
)

// writers change a table versions (id, v, sum) at random: every change of a key
// has a higher v. Some transactions are rolled back.
type writers struct {
	wait   sync.WaitGroup
	over   atomic.Bool
	writes atomic.Int64
}

const writersKeys = 200

func startWriters(t *testing.T, uri string, n int) *writers {
	t.Helper()
	w := &writers{}
	for i := range n {
		conn := pgtest.Connect(t, uri)
		random := rand.New(rand.NewPCG(uint64(i), 7)) //nolint:gosec // to be repeated
		w.wait.Go(func() {
			for !w.over.Load() {
				if err := w.write(conn, random); err != nil {
					t.Errorf("a writer: %v", err)
					return
				}
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

var errBack = errors.New("roll it back")

func (w *writers) write(conn *pgx.Conn, random *rand.Rand) error {
	ctx := context.Background()
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// One lock keeps the writers from each other's rows: versions come from
		// a sequence, and must be given in the order of commits.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(1)"); err != nil {
			return err
		}
		for range 1 + random.IntN(5) {
			id := random.IntN(writersKeys)
			sql := "INSERT INTO versions VALUES ($1, nextval('version')) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
			if random.IntN(4) == 0 {
				sql = "DELETE FROM versions WHERE id = $1"
			}
			if _, err := tx.Exec(ctx, sql, id); err != nil {
				return err
			}
		}
		if random.IntN(6) == 0 {
			return errBack
		}
		return nil
	})
	w.writes.Add(1)
	if errors.Is(err, errBack) {
		return nil
	}
	return err
}

func (w *writers) stop() {
	w.over.Store(true)
	w.wait.Wait()
}

// await waits for so many more transactions.
func (w *writers) await(t *testing.T, n int64) {
	t.Helper()
	want := w.writes.Load() + n
	within(t, "more transactions", func() bool { return w.writes.Load() >= want || t.Failed() })
}

func versions(t *testing.T) (uri string) {
	t.Helper()
	uri = pgtest.Database(t)
	pgtest.Exec(t, uri, "CREATE TABLE versions (id int PRIMARY KEY, v bigint NOT NULL); CREATE SEQUENCE version")
	pgtest.Exec(t, uri, "INSERT INTO versions SELECT g, nextval('version') FROM generate_series(0, $1::int - 1, 2) g", writersKeys)
	return uri
}

// table gives the rows as they are, as documents by key.
func rowsOf(t *testing.T, uri string) map[string]string {
	t.Helper()
	rows, err := pgtest.Connect(t, uri).Query(context.Background(), "SELECT id::text, v FROM versions")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	var id string
	var v int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &v}, func() error {
		want[id] = fmt.Sprintf(`{"id":%s,"v":%d}`, id, v)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return want
}

// forward wants that no key goes back: versions grow, and a delete is told once
// for each time that the key was there.
func forward(t *testing.T, changes []changefeed.Change) {
	t.Helper()
	last := map[string]int64{}
	for i, c := range changes {
		if c.Doc == nil {
			continue
		}
		var doc struct{ V int64 }
		if err := json.Unmarshal(c.Doc, &doc); err != nil {
			t.Fatal(err)
		}
		if doc.V < last[c.Key] || doc.V == last[c.Key] && c.Op != changefeed.OpSnapshot {
			t.Errorf("change %d: key %s goes from version %d to %s", i, c.Key, last[c.Key], line(c))
		}
		last[c.Key] = doc.V
	}
}

// arrives waits until the topic has what the table has.
func arrives(t *testing.T, uri string, l *topic) {
	t.Helper()
	want := rowsOf(t, uri)
	l.await(t, "what the table has", func(c []changefeed.Change) bool { return maps.Equal(state(c), want) })
	forward(t, l.get())
}

// TestSnapshotUnderWriters begins while others write, again and again.
func TestSnapshotUnderWriters(t *testing.T) {
	for i := range 3 {
		uri := versions(t)
		w := startWriters(t, uri, 3)
		s, l := newSource(t, uri, "versions", pgfeed.Options{Snapshot: true, BatchSize: 7 + 10*i}), newTopic()
		w.await(t, 20)
		run := stream(t, s, l)
		l.begun(t)
		w.await(t, 100)
		w.stop()
		arrives(t, uri, l)
		run.stop()
		if l.again != 0 {
			t.Errorf("%d changes came again", l.again)
		}
	}
}

// TestCrashes ends the feed at every batch in turn, in all ways, while others
// write: before it is stored, in the midst, and before the token is saved.
func TestCrashes(t *testing.T) {
	for _, how := range []failure{before, halfway, noToken} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			uri := versions(t)
			w := startWriters(t, uri, 2)
			s, l := newSource(t, uri, "versions", pgfeed.Options{Snapshot: true, BatchSize: 15}), newTopic()
			// The first Stream fails at its first batch, the second at its second…
			// A snapshot begins again each time, and so it gets further each time.
			batch, streams := 0, 0
			l.fail = func(changefeed.Batch) failure {
				if batch++; batch > streams {
					return how
				}
				return fine
			}
			for streams = range 25 {
				batch = 0
				if err := once(t, s, l); !errors.Is(err, errSink) {
					t.Fatalf("stream %d ends with %v", streams, err)
				}
			}
			w.stop()
			l.mu.Lock()
			l.fail = nil
			l.mu.Unlock()
			run := stream(t, s, l)
			arrives(t, uri, l)
			run.stop()
			t.Logf("%d changes, %d came again", len(l.get()), l.again)
		})
	}
}

// TestNothingTwice counts: after crashes between storing and saving, every
// change that was made is there once.
func TestNothingTwice(t *testing.T) {
	uri := database(t)
	s, l := newSource(t, uri, "things", pgfeed.Options{BatchSize: 10}), newTopic()
	run := stream(t, s, l)
	l.begun(t)
	run.stop()
	const rows, updates = 50, 6
	pgtest.Exec(t, uri, "INSERT INTO things SELECT g, 0 FROM generate_series(1, $1::int) g", rows)
	for u := range updates - 1 {
		pgtest.Exec(t, uri, "UPDATE things SET n = $1", u+1)
	}
	calls := 0
	l.fail = func(changefeed.Batch) failure {
		calls++
		return []failure{noToken, halfway, fine, before}[calls%4]
	}
	for len(l.get()) < rows*updates {
		if err := once(t, s, l); !errors.Is(err, errSink) {
			t.Fatal(err)
		}
	}
	if got := l.get(); len(got) != rows*updates {
		t.Errorf("there are %d changes of %d", len(got), rows*updates)
	}
	for i, c := range l.get() {
		if want := fmt.Sprintf(`"n":%d}`, i/rows); !endsWith(c.Doc, want) {
			t.Fatalf("change %d is %s, want %s", i, c.Doc, want)
		}
	}
	if l.again == 0 {
		t.Error("nothing came again, so that nothing was tried")
	}
}

func endsWith(doc []byte, end string) bool {
	return len(doc) >= len(end) && string(doc[len(doc)-len(end):]) == end
}

// TestSnapshotBeginsAgain changes and deletes rows between two attempts: what
// was told by the first must be set right, and what has not changed not be
// repeated.
func TestSnapshotBeginsAgain(t *testing.T) {
	uri := database(t)
	pgtest.Exec(t, uri, "INSERT INTO things SELECT g, 0 FROM generate_series(1, 100) g")
	s, l := newSource(t, uri, "things", pgfeed.Options{Snapshot: true, BatchSize: 10}), newTopic()
	batches := 0
	l.fail = func(changefeed.Batch) failure {
		if batches++; batches == 7 { // the place, 5 batches, and one that fails
			return before
		}
		return fine
	}
	if err := once(t, s, l); !errors.Is(err, errSink) {
		t.Fatal(err)
	}
	if n := len(l.get()); n != 50 || !l.position().Snapshot {
		t.Fatalf("the first attempt has told %d rows, and is at %+v", n, l.position())
	}
	first := l.position().Slot
	pgtest.Exec(t, uri, "DELETE FROM things WHERE id <= 10")
	pgtest.Exec(t, uri, "UPDATE things SET n = 1 WHERE id BETWEEN 11 AND 20")
	pgtest.Exec(t, uri, "DELETE FROM things WHERE id = 100; INSERT INTO things VALUES (5, 9)")
	run := stream(t, s, l)
	l.begun(t)
	pgtest.Exec(t, uri, "INSERT INTO things VALUES (1000, 0)")
	l.await(t, "the last", func(c []changefeed.Change) bool { return c[len(c)-1].Key == "1000" })
	run.stop()
	got := state(l.get())
	if len(got) != 91 || got["5"] != `{"id":5,"n":9}` || got["15"] != `{"id":15,"n":1}` || got["1"] != "" || got["99"] == "" {
		t.Errorf("the topic ends with %d keys: %v", len(got), got)
	}
	// 21 to 50 of the first attempt are as they were.
	if l.again != 30 {
		t.Errorf("%d rows came again with a known id, want the 30 that have not changed", l.again)
	}
	if second := l.position().Slot; second == first {
		t.Errorf("the slot is still %s", second)
	}
	slots(t, uri, l.position().Slot)
	// And back: the name of the first is free again.
	if err := s.Forget(context.Background()); err != nil {
		t.Fatal(err)
	}
	slots(t, uri)
}

// slots wants these slots in the database, and no other.
func slots(t *testing.T, uri string, want ...string) {
	t.Helper()
	rows, err := pgtest.Connect(t, uri).Query(context.Background(), "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("there are the slots %v, want %v (%v)", got, want, err)
	}
}
