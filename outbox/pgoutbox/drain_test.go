package pgoutbox_test

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean"
	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
	"promethean/store"
)

// openHub opens a hub on disk.
func openHub(t testing.TB) *promethean.Hub {
	t.Helper()
	hub, err := promethean.Open(t.TempDir(), promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	return hub
}

// drain starts a drainer that ends with the test.
func drain(t testing.TB, s outbox.Store, p outbox.Publisher, o outbox.Options) *outbox.Drainer {
	t.Helper()
	d, err := outbox.New(s, p, o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d
}

// wantLog reads the topic until it has n events, and expects the payloads of each
// key to be 0, 1, … without a gap or a repetition.
func wantLog(t testing.TB, hub *promethean.Hub, topic string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next := make(map[string]int)
	seen, last := 0, uint64(0)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ; seen < n; <-tick.C {
		for e, err := range hub.Read(ctx, store.Query{Topic: topic, After: last}) {
			if err != nil {
				t.Fatalf("after %d events: %v", seen, err)
			}
			if string(e.Payload) != strconv.Itoa(next[e.Key]) {
				t.Fatalf("event %d of key %s is %s, want %d", e.Seq, e.Key, e.Payload, next[e.Key])
			}
			next[e.Key]++
			seen, last = seen+1, e.Seq
		}
		if ctx.Err() != nil {
			t.Fatalf("%d events came, want %d", seen, n)
		}
	}
	if seen != n {
		t.Fatalf("%d events came, want %d", seen, n)
	}
}

// addMany adds n rows of some keys, numbered by key, in one transaction.
func (b *bench) addMany(t testing.TB, topic string, n, keys int) {
	t.Helper()
	var rows []outbox.Row
	for i := range n {
		rows = append(rows, numbered(topic, fmt.Sprint("k", i%keys), i/keys))
	}
	b.add(t, rows...)
}

// One drainer moves rows from PostgreSQL into a hub on disk.
func TestDrainSpeed(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	hub := openHub(t)
	const rows = 20_000
	b.addMany(t, "speed", rows, 500)
	start := time.Now()
	d := drain(t, b.Outbox, outbox.ToBus(hub.Publish), outbox.Options{})
	wantLog(t, hub, "speed", rows)
	took := time.Since(start)
	t.Logf("%d rows in %s: %.0f rows/s", rows, took.Round(time.Millisecond), rows/took.Seconds())
	if st := d.Status(); st.LastError != "" {
		t.Errorf("the drainer met %s", st.LastError)
	}
}

// A drainer that waits publishes what is committed at once.
func TestDrainIsWoken(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	came := make(chan time.Time, 1)
	d := drain(t, b.Outbox, outbox.PublisherFunc(func(context.Context, []event.Event) error {
		came <- time.Now()
		return nil
	}), outbox.Options{Every: time.Hour})
	until(t, func() bool { st := d.Status(); return st.Waking && !st.StatsAt.IsZero() })
	var sum, worst time.Duration
	const times = 20
	for n := range times {
		b.add(t, numbered("a", "k", n))
		start := time.Now()
		took := (<-came).Sub(start)
		sum, worst = sum+took, max(worst, took)
	}
	t.Logf("published %s after the commit, %s at worst", sum/times, worst)
}

// until waits for a condition.
func until(t testing.TB, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it has not happened")
		}
	}
}

// tracer counts queries by their text.
type tracer struct {
	mu    sync.Mutex
	texts []string
	times []time.Time
}

func (x *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.texts, x.times = append(x.texts, data.SQL), append(x.times, time.Now())
	return ctx
}

func (x *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (x *tracer) list() ([]string, []time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]string(nil), x.texts...), append([]time.Time(nil), x.times...)
}

// notWaking hides that a store wakes.
type notWaking struct{ outbox.Store }

// An empty outbox costs less than a query a second, also where nobody wakes.
func TestIdleCost(t *testing.T) {
	x := &tracer{}
	b := open(t, pgoutbox.Options{}, func(c *pgxpool.Config) { c.ConnConfig.Tracer = x })
	drain(t, notWaking{b.Outbox}, outbox.PublisherFunc(nil), outbox.Options{})
	// The pauses grow at first. From one look to another, a few looks later:
	looks := func() (at []int) {
		texts, _ := x.list()
		for i, text := range texts {
			if text == b.Statements()["peek"] {
				at = append(at, i)
			}
		}
		return at
	}
	const first, last = 4, 6
	until(t, func() bool { return len(looks()) > last })
	at := looks()
	_, times := x.list()
	queries, took := at[last]-at[first], times[at[last]].Sub(times[at[first]])
	t.Logf("%d queries in %s", queries, took)
	if float64(queries) >= took.Seconds() {
		t.Errorf("an empty outbox costs %d queries in %s, want less than one a second", queries, took)
	}
}

// Backends are terminated all the time while drainers work: the log has every
// row once and in order.
func TestDrainWhileBackendsDie(t *testing.T) {
	b := open(t, pgoutbox.Options{Logger: quiet})
	victim := "victim of " + b.table
	name := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = victim }
	hub := openHub(t)
	const rows = 4_000
	b.addMany(t, "dying", rows, 50)
	for range 2 {
		s := b.again(t, b.connect(t, name), pgoutbox.Options{Logger: quiet})
		drain(t, s, outbox.ToBus(hub.Publish), outbox.Options{Every: 5 * time.Millisecond, Lease: 500 * time.Millisecond})
	}
	killed := 0
	for left := int64(rows); left > rows/4; {
		// They get somewhere in between, however slow the machine is.
		until(t, func() bool {
			st, err := b.Stats(t.Context())
			if err != nil || st.Pending > left-20 {
				return false
			}
			left = st.Pending
			return true
		})
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1`, victim).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		killed += n
	}
	wantLog(t, hub, "dying", rows)
	t.Logf("%d backends terminated", killed)
	until(t, func() bool { st, err := b.Stats(t.Context()); return err == nil && st == outbox.Stats{} })
}

// While the server is away errors say so, and the drainer waits; when it is back
// the drainer goes on.
func TestServerAway(t *testing.T) {
	b := open(t, pgoutbox.Options{Logger: quiet})
	hub := openHub(t)
	address, err := url.Parse(b.uri)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, address.Host)
	address.Host = p.addr
	away, err := pgoutbox.Open(t.Context(), address.String(), pgoutbox.Options{Table: b.table, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = away.Close() })
	p.leave()

	// It is away from the beginning.
	errs := make(map[string]error)
	errs["set up"] = away.Setup(t.Context())
	_, errs["claim rows"] = away.ClaimBatch(t.Context(), "me", 1, lease)
	errs["mark rows as sent"] = away.MarkSent(t.Context(), numbered("a", "", 1).ID)
	_, errs["listen for rows"] = away.Wake(t.Context())
	_, errs["count rows"] = away.Stats(t.Context())
	for what, err := range errs {
		if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), b.table[:14]) {
			t.Errorf("%s: %v", what, err)
		}
	}

	d := drain(t, away, outbox.ToBus(hub.Publish), outbox.Options{Every: 10 * time.Millisecond})
	until(t, func() bool { return d.Status().Outage != "" })
	b.add(t, numbered("away", "k", 0))
	p.come()
	wantLog(t, hub, "away", 1)
	until(t, func() bool { return d.Status().Outage == "" })

	// It goes while the drainer waits.
	p.leave()
	b.add(t, numbered("away", "k", 1))
	p.come()
	wantLog(t, hub, "away", 2)
	until(t, func() bool { return d.Status().SentTotal == 2 })
}
