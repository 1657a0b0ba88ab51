package migrate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/migrate"
	"promethean/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is what the tests copy from and to.
type engine interface {
	migrate.Engine
	store.Begins
	store.Compacts
}

var errDead = errors.New("dead")

// mortal is an engine that dies after some changes: the last one is lost, or
// done without an answer.
type mortal struct {
	engine
	left *atomic.Int64
	late bool // the one that kills is done
}

// dying gives an engine that dies after so many changes.
func dying(e engine, changes int, late bool) mortal {
	m := mortal{engine: e, left: new(atomic.Int64), late: late}
	m.left.Store(int64(changes))
	return m
}

func (m mortal) MaxBatch() (events, bytes int) { return 7, 1 << 20 }

func (m mortal) change(do func() error) error {
	left := m.left.Add(-1)
	if left >= 0 {
		return do()
	}
	if m.late && left == -1 {
		_ = do() // whatever comes of it, nobody hears
	}
	return errDead
}

func (m mortal) Append(ctx context.Context, b store.Batch) (out []store.Appended, err error) {
	err = m.change(func() error { out, err = m.engine.Append(ctx, b); return err })
	return out, err
}

func (m mortal) Begin(ctx context.Context, topic string, seq uint64) error {
	return m.change(func() error { return m.engine.Begin(ctx, topic, seq) })
}

func (m mortal) Compact(ctx context.Context, topic string, c store.Compaction) (out store.Compacted, err error) {
	err = m.change(func() error { out, err = m.engine.Compact(ctx, topic, c); return err })
	return out, err
}

func (m mortal) SetTopic(ctx context.Context, topic string, s store.Settings) error {
	return m.change(func() error { return m.engine.SetTopic(ctx, topic, s) })
}

func (m mortal) PutCursor(ctx context.Context, c store.Cursor) (v uint64, err error) {
	err = m.change(func() error { v, err = m.engine.PutCursor(ctx, c); return err })
	return v, err
}

func (m mortal) DeleteCursor(ctx context.Context, topic, group string, version uint64) error {
	return m.change(func() error { return m.engine.DeleteCursor(ctx, topic, group, version) })
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// random makes an event that may use every field.
func random(rng *rand.Rand, topic string) event.Event {
	e := event.New(topic, json.RawMessage(fmt.Sprintf(`{"n": %d,"é":"\u00e9\/"}`, rng.IntN(1000))))
	e.TS = rng.Int64N(1000)
	if rng.IntN(4) > 0 {
		e.Key = fmt.Sprintf("k%d é", rng.IntN(4))
	}
	switch rng.IntN(4) {
	case 0:
		e.Payload = json.RawMessage("null")
	case 1:
		e.Partition = event.PartitionOf(rng.IntN(3))
		e.SID, e.Tags, e.CausedBy = "s", []string{"#a", ""}, []string{event.NewID().String()}
		e.Headers = event.Headers{{Name: "x-b", Value: "1"}, {Name: "x-a", Value: ""}}
	}
	return e
}

// grow makes random changes in an engine: events, gaps, groups, settings.
func grow(t *testing.T, rng *rand.Rand, e engine, steps int) {
	t.Helper()
	ctx := context.Background()
	for range steps {
		topic := []string{"a.x", "a.y", "b", "dlq.b"}[rng.IntN(4)]
		b, err := e.Bounds(ctx, topic)
		must(t, err)
		switch rng.IntN(10) {
		case 0:
			_, err = e.Compact(ctx, topic, store.Compaction{Before: rng.Uint64N(b.Last + 2), Tombstones: rng.Uint64N(b.Last + 2)})
		case 1:
			err = e.Trim(ctx, topic, b.First+rng.Uint64N(8))
		case 2:
			s := store.Settings{Partitions: rng.IntN(4), Async: rng.IntN(2) == 0}
			if rng.IntN(2) == 0 {
				s.Meta = []byte(`{"x":1}`)
			}
			if rng.IntN(4) == 0 {
				s.Retention, s.MaxBytes = time.Hour, 1<<30
			}
			err = e.SetTopic(ctx, topic, s)
		case 3:
			c := store.Cursor{Topic: topic, Group: fmt.Sprintf("g%d", rng.IntN(3))}
			old, _ := e.Cursor(ctx, topic, c.Group)
			c.Version, c.Epoch = old.Version, old.Epoch+rng.Uint64N(3)
			c.Floor, c.Handed, c.Generation = rng.Uint64N(b.Last+3), rng.Uint64N(b.Last+9), rng.Uint64N(4)
			for range rng.IntN(3) {
				c.Settled.Add(store.Range{First: c.Floor + 2 + rng.Uint64N(9), Last: c.Floor + 2 + rng.Uint64N(9)})
			}
			if rng.IntN(2) == 0 {
				c.Attempts, c.Meta = map[uint64]uint32{c.Floor + 1: 3}, []byte("m")
			}
			_, err = e.PutCursor(ctx, c)
		default:
			var batch []event.Event
			for range 1 + rng.IntN(6) {
				batch = append(batch, random(rng, topic))
			}
			_, err = e.Append(ctx, store.Batch{Events: batch})
		}
		must(t, err)
	}
}

// image is all that an engine keeps, as text.
func image(t *testing.T, e migrate.Engine) string {
	t.Helper()
	ctx := context.Background()
	var b strings.Builder
	for row, err := range e.Topics(ctx) {
		must(t, err)
		row.Settings.Partitions = max(row.Settings.Partitions, 1)
		if len(row.Settings.Meta) == 0 {
			row.Settings.Meta = nil
		}
		fmt.Fprintf(&b, "%s %d..%d %+v\n", row.Name, row.Bounds.First, row.Bounds.Last, row.Settings)
		for e, err := range e.Read(ctx, store.Query{Topic: row.Name}) {
			must(t, err)
			fmt.Fprintf(&b, "  %x\n", event.AppendBinary(nil, &e, true))
		}
	}
	for c, err := range e.Cursors(ctx, "") {
		must(t, err)
		fmt.Fprintf(&b, "%s %s %d %d %d %d %v", c.Topic, c.Group, c.Epoch, c.Generation, c.Floor, c.Handed, []store.Range(c.Settled))
		for _, seq := range slices.Sorted(maps.Keys(c.Attempts)) {
			fmt.Fprintf(&b, " %d:%d", seq, c.Attempts[seq])
		}
		fmt.Fprintf(&b, " %q\n", c.Meta)
	}
	return b.String()
}

func reference(*testing.T) engine { return storetest.NewReference(event.Limits{}) }

func memory(t *testing.T) engine {
	s, err := logstore.OpenMemory(logstore.Options{SegmentSize: 256 << 10, Limits: event.Limits{Payload: 16 << 10}})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// Whatever the source holds, and wherever the migration is cut off, the target
// is equal in the end, and the source is as it was.
func TestEqual(t *testing.T) {
	kinds := map[string]func(*testing.T) engine{"reference": reference, "memory": memory}
	for from, open := range kinds {
		for to, make := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				rounds := 30
				if testing.Short() || from == "memory" || to == "memory" {
					rounds = 6
				}
				for seed := range uint64(rounds) {
					equal(t, seed, open, make)
				}
			})
		}
	}
}

func equal(t *testing.T, seed uint64, open, target func(*testing.T) engine) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(seed, 1))
	from, to := open(t), target(t)
	grow(t, rng, from, 120)
	before := image(t, from)
	attempts := 0
	for ; ; attempts++ {
		_, err := migrate.Run(ctx, from, dying(to, rng.IntN(3+attempts), rng.IntN(2) == 0), migrate.Options{Source: "s", Parallel: 1 + rng.IntN(3)})
		if err == nil {
			break
		}
		if errors.Is(err, migrate.ErrOccupied) {
			break // the last step was done, and nobody heard of it
		}
		if !errors.Is(err, errDead) {
			t.Fatalf("seed %d: attempt %d: %v", seed, attempts, err)
		}
		if rng.IntN(4) == 0 { // the source goes on between two attempts
			more := []event.Event{random(rng, "a.x"), random(rng, "c.new")}
			_, err := from.Append(ctx, store.Batch{Events: more})
			must(t, err)
			before = image(t, from)
		}
	}
	if got := image(t, to); got != before {
		t.Fatalf("seed %d, after %d attempts:\n%s\nwant\n%s", seed, attempts, got, before)
	}
	if got := image(t, from); got != before {
		t.Fatalf("seed %d: the source has changed", seed)
	}
	sum, err := migrate.Verify(ctx, from, to, migrate.Options{})
	must(t, err)
	if want := strings.Count(before, "\n  "); sum.Compared != int64(want) {
		t.Fatalf("seed %d: %d events compared, want %d", seed, sum.Compared, want)
	}
	// The target goes on where the source was.
	for row, err := range from.Topics(ctx) {
		must(t, err)
		got, err := to.Append(ctx, store.Batch{Events: []event.Event{random(rng, row.Name)}})
		must(t, err)
		if got[0].Seq != row.Bounds.Last+1 {
			t.Fatalf("seed %d: topic %s goes on with seq %d, want %d", seed, row.Name, got[0].Seq, row.Bounds.Last+1)
		}
	}
}

func TestRefused(t *testing.T) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(1, 2))
	from := reference(t)
	grow(t, rng, from, 60)

	to := reference(t)
	_, err := to.Append(ctx, store.Batch{Events: []event.Event{random(rng, "other.thing")}})
	must(t, err)
	var occupied *migrate.OccupiedError
	if _, err := migrate.Run(ctx, from, to, migrate.Options{}); !errors.As(err, &occupied) || !strings.Contains(err.Error(), "other.thing") {
		t.Errorf("a target with a topic: %v", err)
	}
	if _, err := migrate.Run(ctx, from, from, migrate.Options{}); !errors.Is(err, migrate.ErrOccupied) {
		t.Errorf("the source as target: %v", err)
	}

	half := reference(t)
	if _, err := migrate.Run(ctx, from, dying(half, 5, true), migrate.Options{Source: "one"}); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	if _, err := migrate.Run(ctx, from, half, migrate.Options{Source: "two"}); !errors.Is(err, migrate.ErrOccupied) || !strings.Contains(err.Error(), "from one") {
		t.Errorf("another's unfinished target: %v", err)
	}
	if _, err := migrate.Verify(ctx, from, half, migrate.Options{}); !errors.Is(err, migrate.ErrMismatch) {
		t.Errorf("comparing with an unfinished target: %v", err)
	}
	if _, err := migrate.Run(ctx, half, reference(t), migrate.Options{}); !errors.Is(err, migrate.ErrUnfinished) {
		t.Errorf("an unfinished target as source: %v", err)
	}
	if _, err := migrate.Run(ctx, reference(t), reference(t), migrate.Options{}); err != nil {
		t.Errorf("an empty source: %v", err)
	}
	// An engine that lacks the abilities takes what needs none.
	plain := storetest.Plain{Engine: reference(t)}
	if _, err := migrate.Run(ctx, from, plain, migrate.Options{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a target without gaps: %v", err)
	}
	whole := reference(t)
	_, err = whole.Append(ctx, store.Batch{Events: []event.Event{random(rng, "a"), random(rng, "a"), random(rng, "a"), random(rng, "a")}})
	must(t, err)
	if _, err := migrate.Run(ctx, whole, storetest.Plain{Engine: reference(t)}, migrate.Options{}); err != nil {
		t.Errorf("a source without gaps: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := migrate.Run(ended, from, reference(t), migrate.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

// altered is an engine whose reads show something else at one place.
type altered struct {
	engine
	event  func(*event.Event)
	cursor func(*store.Cursor)
}

func (a altered) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		for e, err := range a.engine.Read(ctx, q) {
			if a.event != nil && e.Seq == 3 {
				e = e.Clone()
				if a.event(&e); e.Seq == 0 {
					continue
				}
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func (a altered) Cursors(ctx context.Context, topic string) iter.Seq2[store.Cursor, error] {
	return func(yield func(store.Cursor, error) bool) {
		for c, err := range a.engine.Cursors(ctx, topic) {
			if c = c.Clone(); a.cursor != nil {
				a.cursor(&c)
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

// Every difference is found and named.
func TestMismatch(t *testing.T) {
	ctx := context.Background()
	from, to := reference(t), reference(t)
	var batch []event.Event
	for i := range 5 {
		e := event.New("a.b", json.RawMessage(fmt.Sprint(i)))
		e.Key = "k"
		batch = append(batch, e)
	}
	_, err := from.Append(ctx, store.Batch{Events: batch})
	must(t, err)
	_, err = from.PutCursor(ctx, store.Cursor{Topic: "a.b", Group: "g", Floor: 2})
	must(t, err)
	_, err = migrate.Run(ctx, from, to, migrate.Options{})
	must(t, err)

	events := map[string]func(*event.Event){
		"id":        func(e *event.Event) { e.ID[3]++ },
		"ts":        func(e *event.Event) { e.TS++ },
		"key":       func(e *event.Event) { e.Key += "x" },
		"partition": func(e *event.Event) { e.Partition = event.PartitionOf(0) },
		"sid":       func(e *event.Event) { e.SID = "s" },
		"headers":   func(e *event.Event) { e.Headers = event.Headers{{Name: "x-a", Value: "1"}} },
		"caused_by": func(e *event.Event) { e.CausedBy = []string{""} },
		"tags":      func(e *event.Event) { e.Tags = []string{"#a"} },
		"payload":   func(e *event.Event) { e.Payload = append(bytes.Clone(e.Payload), ' ') },
		"event":     func(e *event.Event) { e.Seq = 0 },
	}
	for field, change := range events {
		for _, pair := range [][2]migrate.Engine{{from, altered{engine: to, event: change}}, {altered{engine: from, event: change}, to}} {
			_, err := migrate.Verify(ctx, pair[0], pair[1], migrate.Options{})
			var m *migrate.MismatchError
			if !errors.As(err, &m) || m.Topic != "a.b" || m.Seq != 3 || m.Field != field {
				t.Errorf("another %s: %v", field, err)
			}
		}
	}
	cursors := map[string]func(*store.Cursor){
		"floor":      func(c *store.Cursor) { c.Floor++ },
		"settled":    func(c *store.Cursor) { c.Settled.Add(store.Range{First: 4, Last: 4}) },
		"attempts":   func(c *store.Cursor) { c.Attempts = map[uint64]uint32{3: 1} },
		"handed":     func(c *store.Cursor) { c.Handed++ },
		"generation": func(c *store.Cursor) { c.Generation++ },
		"epoch":      func(c *store.Cursor) { c.Epoch++ },
		"meta":       func(c *store.Cursor) { c.Meta = []byte("x") },
		"group":      func(c *store.Cursor) { c.Group = "h" },
	}
	for field, change := range cursors {
		_, err := migrate.Verify(ctx, from, altered{engine: to, cursor: change}, migrate.Options{})
		var m *migrate.MismatchError
		if !errors.As(err, &m) || m.Topic != "a.b" || m.Group == "" || m.Field != field {
			t.Errorf("another %s: %v", field, err)
		}
	}
	must(t, to.SetTopic(ctx, "a.b", store.Settings{Partitions: 3}))
	if _, err := migrate.Verify(ctx, from, to, migrate.Options{}); !errors.Is(err, migrate.ErrMismatch) || !strings.Contains(err.Error(), "partitions") {
		t.Errorf("other settings: %v", err)
	}
	must(t, to.SetTopic(ctx, "b.c", store.Settings{}))
	if _, err := migrate.Verify(ctx, from, to, migrate.Options{}); !errors.Is(err, migrate.ErrMismatch) || !strings.Contains(err.Error(), "topic b.c") {
		t.Errorf("one topic more: %v", err)
	}
}

// What retention has removed from one side since is no difference; what is
// missing for no reason is one.
func TestExpired(t *testing.T) {
	ctx := context.Background()
	from, to := reference(t), reference(t)
	rng := rand.New(rand.NewPCG(5, 5))
	for range 10 {
		_, err := from.Append(ctx, store.Batch{Events: []event.Event{random(rng, "a")}})
		must(t, err)
	}
	must(t, from.SetTopic(ctx, "a", store.Settings{Retention: time.Hour}))
	_, err := migrate.Run(ctx, from, to, migrate.Options{})
	must(t, err)
	must(t, to.Trim(ctx, "a", 4))
	sum, err := migrate.Verify(ctx, from, to, migrate.Options{})
	if err != nil || sum.Expired != 3 || sum.Compared != 7 {
		t.Fatalf("%+v, %v", sum, err)
	}
	must(t, from.Trim(ctx, "a", 6))
	sum, err = migrate.Verify(ctx, from, to, migrate.Options{})
	if err != nil || sum.Expired != 2 || sum.Compared != 5 {
		t.Fatalf("%+v, %v", sum, err)
	}
	must(t, errors.Join(from.SetTopic(ctx, "a", store.Settings{}), to.SetTopic(ctx, "a", store.Settings{})))
	if _, err := migrate.Verify(ctx, from, to, migrate.Options{}); !errors.Is(err, migrate.ErrMismatch) {
		t.Fatalf("without retention: %v", err)
	}
}

func TestProgress(t *testing.T) {
	ctx := context.Background()
	from := reference(t)
	grow(t, rand.New(rand.NewPCG(9, 9)), from, 200)
	done, total := int64(0), int64(0)
	_, err := migrate.Run(ctx, from, reference(t), migrate.Options{Parallel: 1, Progress: func(d, n int64) {
		if d < done || d > n {
			t.Errorf("%d of %d after %d", d, n, done)
		}
		done, total = d, n
	}})
	must(t, err)
	if done != total || done == 0 {
		t.Errorf("it ends at %d of %d", done, total)
	}
}
