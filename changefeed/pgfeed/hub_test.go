package pgfeed_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/changefeed"
	"promethean/changefeed/pgfeed"
	"promethean/event"
	"promethean/internal/pgtest"
	"promethean/store"
)

// feedTo starts a feed of a table into the topic rows.changed of a hub, with its
// place in the same database.
func feedTo(hub *promethean.Hub, uri, table string, o pgfeed.Options) (stop func(), err error) {
	src, err := pgfeed.New(uri, table, o)
	if err != nil {
		return nil, err
	}
	tokens, err := pgfeed.NewTokens(uri)
	if err != nil {
		return nil, err
	}
	feed, err := changefeed.Start(hub, src, changefeed.Options{Topic: "rows.changed", Tokens: tokens})
	if err != nil {
		return nil, err
	}
	return func() {
		_ = feed.Close()
		_ = tokens.Close()
	}, nil
}

// stored reads the topic as changes.
func stored(t testing.TB, hub *promethean.Hub) (list []changefeed.Change) {
	t.Helper()
	for e, err := range hub.Read(context.Background(), store.Query{Topic: "rows.changed"}) {
		if err != nil {
			t.Fatal(err)
		}
		c := changefeed.Change{ID: e.ID, Key: e.Key, Doc: e.Payload}
		op, _ := e.Headers.Get("x-pg-op")
		if c.Op = changefeed.Op(op); string(e.Payload) == "null" {
			c.Doc = nil
		}
		list = append(list, c)
	}
	return list
}

// childEnv has the test program be a hub with a feed, until it is killed: the
// address of the database and the directory of the hub.
const childEnv = "PGFEED_TEST_CHILD"

func runChild(arg string) {
	uri, dir, _ := strings.Cut(arg, " ")
	hub, err := promethean.Open(dir, promethean.Options{})
	if err == nil {
		_, err = feedTo(hub, uri, "versions", pgfeed.Options{Snapshot: true, BatchSize: 50})
	}
	if err != nil {
		fmt.Println("child:", err)
		os.Exit(1)
	}
	fmt.Println("runs")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
	os.Exit(0)
}

// TestKilled kills hub and feed as a process, again and again, at any moment:
// in the snapshot, between storing and saving, and while starting.
func TestKilled(t *testing.T) {
	uri, dir := versions(t), t.TempDir()
	w := startWriters(t, uri, 2)
	kills := 20
	if testing.Short() {
		kills = 5
	}
	for i := range kills {
		child := exec.Command(os.Args[0]) //nolint:gosec // this program
		child.Env = append(os.Environ(), childEnv+"="+uri+" "+dir)
		in, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if line != "runs\n" {
			t.Fatalf("child %d says %q, %v", i, line, err)
		}
		w.await(t, int64(i*i%97)) // another moment each time
		_ = child.Process.Kill()
		_ = child.Wait()
		_ = in.Close()
	}
	w.stop()
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	before := len(stored(t, hub))
	stop, err := feedTo(hub, uri, "versions", pgfeed.Options{Snapshot: true, BatchSize: 50})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	want := rowsOf(t, uri)
	within(t, "what the table has", func() bool { return maps.Equal(state(stored(t, hub)), want) })
	got := stored(t, hub)
	forward(t, got)
	ids := map[event.ID]bool{}
	for _, c := range got {
		if ids[c.ID] {
			t.Errorf("%s is there twice", line(c))
		}
		ids[c.ID] = true
	}
	t.Logf("%d transactions, %d kills, %d events before the last start, %d in all", w.writes.Load(), kills, before, len(got))
}

// waits is a sink that counts.
type waits struct {
	n, want int
	done    chan struct{}
	token   []byte
}

func (w *waits) sink(_ context.Context, b changefeed.Batch) error {
	w.token = b.Token
	if w.n += len(b.Changes); w.n >= w.want && len(b.Changes) > 0 {
		close(w.done)
		w.want = 1 << 62
	}
	return nil
}

// benchTable makes a table and gives a function that writes rows into it, so
// many in a transaction.
func benchTable(b *testing.B) (uri string, write func(rows, each int)) {
	b.Helper()
	uri = pgtest.Database(b)
	pgtest.Exec(b, uri, `CREATE TABLE orders (id bigserial PRIMARY KEY, customer text NOT NULL, amount numeric(12,2) NOT NULL,
		paid boolean NOT NULL, placed timestamptz NOT NULL, lines jsonb NOT NULL)`)
	return uri, func(rows, each int) {
		pgtest.Exec(b, uri+"&synchronous_commit=off", fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
			INSERT INTO orders (customer, amount, paid, placed, lines)
			SELECT 'customer ' || g, g * 1.25, g %% 2 = 0, now(), '[{"sku": "a-1", "count": 2}]' FROM generate_series(1, %d) g;
			COMMIT; END LOOP; END $$`, rows/each, each))
	}
}

// BenchmarkStream reads rows that wait in the log, in transactions of one, 100
// and 100,000 rows, into a sink that only counts.
func BenchmarkStream(b *testing.B) {
	const rows = 100_000
	for _, each := range []int{1, 100, rows} {
		b.Run(fmt.Sprint("transactions=", each), func(b *testing.B) {
			uri, write := benchTable(b)
			s := newSource(b, uri, "orders", pgfeed.Options{})
			w := &waits{}
			var spent time.Duration
			run := func(rows int) {
				w.n, w.want, w.done = 0, rows, make(chan struct{})
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				begin := time.Now()
				go func() { ended <- s.Stream(ctx, w.token, w.sink) }()
				select {
				case <-w.done:
				case err := <-ended:
					b.Fatal(err)
				}
				spent += time.Since(begin)
				cancel()
				<-ended
			}
			l := newTopic()
			first := stream(b, s, l)
			l.begun(b)
			first.stop()
			w.token = l.place()
			for b.Loop() {
				write(rows, each)
				run(rows)
			}
			b.ReportMetric(rows*float64(b.N)/spent.Seconds(), "rows/s")
		})
	}
}

// BenchmarkSnapshot reads a table.
func BenchmarkSnapshot(b *testing.B) {
	const rows = 200_000
	uri, write := benchTable(b)
	write(rows, rows)
	s := newSource(b, uri, "orders", pgfeed.Options{Snapshot: true})
	for b.Loop() {
		w := &waits{want: rows, done: make(chan struct{})}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Stream(ctx, nil, w.sink) }()
		<-w.done
		cancel()
		<-ended
	}
	b.ReportMetric(rows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkHub publishes rows that wait in the log to a hub on the file engine,
// where every batch is on disk, and its place saved in the same database.
func BenchmarkHub(b *testing.B) {
	const rows = 100_000
	for _, each := range []int{1, 100} {
		b.Run(fmt.Sprint("transactions=", each), func(b *testing.B) {
			uri, write := benchTable(b)
			hub, err := promethean.Open(b.TempDir(), promethean.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = hub.Close() }()
			tail := func() uint64 {
				for topic, err := range hub.Topics(context.Background()) {
					if err == nil && topic.Name == "rows.changed" {
						return topic.Bounds.Last
					}
				}
				return 0
			}
			var spent time.Duration
			begin := func() func() {
				stop, err := feedTo(hub, uri, "orders", pgfeed.Options{})
				if err != nil {
					b.Fatal(err)
				}
				return stop
			}
			stop := begin()
			conn := pgtest.Connect(b, uri)
			for n := 0; n == 0; {
				_ = conn.QueryRow(context.Background(), "SELECT count(*) FROM changefeed_tokens").Scan(&n)
			}
			stop()
			for b.Loop() {
				want := tail() + rows
				write(rows, each)
				start := time.Now()
				stop := begin()
				within(b, "the last row", func() bool { return tail() >= want })
				spent += time.Since(start)
				stop()
			}
			b.ReportMetric(rows*float64(b.N)/spent.Seconds(), "rows/s")
		})
	}
}
