package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean/event"
	"promethean/store"
)

// Engine is what the suites judge. Abilities such as [store.Settles] are found
// by assertion.
type Engine interface {
	store.Log
	store.Cursors
}

// Harness tells the suites how to get at an engine.
type Harness struct {
	// Name is the engine's, for messages.
	Name string
	// Open opens an empty store of its own each time and registers a cleanup
	// that closes it. The suites may have closed it by then.
	Open func(t testing.TB) Engine
	// Reopen closes e and opens the same data again, with a cleanup as in
	// Open. Default nil: the engine keeps nothing, and the cases that need it
	// are skipped.
	Reopen func(t testing.TB, e Engine) Engine
	// Skip declares cases that the engine does not meet, with the reason. A
	// key is the name of a case, or of a theme ("watch") for all of its
	// cases. A name that does not exist fails the run. Default: none.
	Skip map[string]string
	// Many is how many events are more than the engine keeps at hand in
	// memory. Default 20,000; a fifth of that with -short.
	Many int
	// MaxBatch is the largest number of events in one batch. Default 1,000.
	MaxBatch int
	// Payload is the payload limit that the engine was opened with. Default
	// event.DefaultPayload.
	Payload int
	// Timeout bounds each case. Default 1 minute.
	Timeout time.Duration
}

func (h Harness) withDefaults() Harness {
	if h.Many == 0 {
		h.Many = 20_000
		if testing.Short() {
			h.Many /= 5
		}
	}
	if h.MaxBatch == 0 {
		h.MaxBatch = 1_000
	}
	if h.Payload == 0 {
		h.Payload = event.DefaultPayload
	}
	if h.Timeout == 0 {
		h.Timeout = time.Minute
	}
	return h
}

// Case is one promise and the code that tries it.
type Case struct {
	// Name is theme/promise, such as "order/first seq is 1".
	Name string

	needs need
	run   func(*trial)
}

// need is what a case asks of an engine beyond the two ports.
type need uint

const (
	needsReopen need = 1 << iota
	needsSettles
	needsTopics
	needsLeases
	needsHolds
	needsCompacts
	needsBegins
)

// Cases lists all conformance cases. [Run] runs them; who wants a single one
// calls [Case.Run].
func Cases() []Case {
	return slices.Concat(
		orderCases, concurrentCases, atomicCases, idempotenceCases, expectCases,
		readCases, locateCases, trimCases, topicCases, cursorCases, settleCases,
		leaseCases, watchCases, asyncCases, cancelCases, lifecycleCases, inputCases,
		compactCases, beginCases,
	)
}

// Run runs all conformance cases as subtests of t.
func Run(t *testing.T, h Harness) {
	cases := Cases()
	for name := range h.Skip {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name || c.theme() == name }) {
			t.Errorf("storetest: Skip names %q, and there is no such case or theme", name)
		}
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, h) })
	}
}

func (c Case) theme() string {
	theme, _, _ := strings.Cut(c.Name, "/")
	return theme
}

// Run runs the case on a fresh store, or skips it where the harness says so or
// the engine lacks an ability that it is about.
func (c Case) Run(t testing.TB, h Harness) {
	h = h.withDefaults()
	for _, name := range []string{c.Name, c.theme()} {
		if reason, ok := h.Skip[name]; ok {
			t.Skipf("%s: declared: %s", h.Name, reason)
		}
	}
	if c.needs&needsReopen != 0 && h.Reopen == nil {
		t.Skipf("%s: keeps nothing over Close", h.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
	t.Cleanup(cancel)
	x := &trial{TB: t, h: h, ctx: ctx, e: h.Open(t)}
	if _, ok := x.e.(store.Settles); !ok && c.needs&needsSettles != 0 {
		t.Skipf("%s: lacks the ability Settles", h.Name)
	}
	if !x.spans() && c.needs&needsTopics != 0 {
		t.Skipf("%s: lacks the ability AtomicTopics", h.Name)
	}
	if _, ok := x.e.(store.Leases); !ok && c.needs&needsLeases != 0 {
		t.Skipf("%s: lacks the port Leases", h.Name)
	}
	if _, ok := x.e.(store.Holds); !ok && c.needs&needsHolds != 0 {
		t.Skipf("%s: lacks the ability Holds", h.Name)
	}
	if _, ok := x.e.(store.Compacts); !ok && c.needs&needsCompacts != 0 {
		t.Skipf("%s: lacks the ability Compacts", h.Name)
	}
	if _, ok := x.e.(store.Begins); !ok && c.needs&needsBegins != 0 {
		t.Skipf("%s: lacks the ability Begins", h.Name)
	}
	c.run(x)
}

// trial is one case under way: the engine, a context that ends when the case
// has taken too long, and calls that end the case when they fail.
type trial struct {
	testing.TB
	h   Harness
	ctx context.Context
	e   Engine
}

// spans says whether one batch may go over several topics.
func (t *trial) spans() bool {
	_, ok := t.e.(store.AtomicTopics)
	return ok
}

// settlesBeside says whether settlements may stand beside events.
func (t *trial) settlesBeside() bool {
	_, ok := t.e.(store.Settles)
	return ok
}

// reopen closes the store and opens it again.
func (t *trial) reopen() {
	t.Helper()
	t.e = t.h.Reopen(t.TB, t.e)
}

// reopens runs check and, where the engine keeps its data, once more after a
// close and an open: what a case found must be true of stored data too.
func (t *trial) reopens(check func(when string)) {
	t.Helper()
	check("at once")
	if t.h.Reopen != nil {
		t.reopen()
		check("after reopening")
	}
}

// ok ends the case on an error.
func (t *trial) ok(err error, doing string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// append stores b, and checks what is true of every answer.
func (t *trial) append(b store.Batch) []store.Appended {
	t.Helper()
	got, err := t.e.Append(t.ctx, b)
	t.ok(err, "append")
	if err := answersFit(b, got); err != nil {
		t.Fatal(err)
	}
	return got
}

// answersFit checks what holds for every answer, whatever was stored before.
func answersFit(b store.Batch, got []store.Appended) error {
	if len(got) != len(b.Events) {
		return fmt.Errorf("append of %d events gave %d answers", len(b.Events), len(got))
	}
	for i, a := range got {
		switch e := b.Events[i]; {
		case a.Seq == 0:
			return fmt.Errorf("append: answer %d has seq 0", i)
		case a.Original == nil:
		case !a.Duplicate:
			return fmt.Errorf("append: answer %d is new and has an original", i)
		case a.Original.ID != e.ID || a.Original.Topic != e.Topic || a.Original.Seq != a.Seq:
			return fmt.Errorf("append: answer %d, seq %d: the original is %s of topic %s with seq %d, want id %s of topic %s",
				i, a.Seq, a.Original.ID, a.Original.Topic, a.Original.Seq, e.ID, e.Topic)
		}
	}
	return nil
}

// put stores events as one batch and gives them back as they must now stand in
// the log.
func (t *trial) put(events ...event.Event) []event.Event {
	t.Helper()
	answers := t.append(store.Batch{Events: events})
	out := make([]event.Event, len(events))
	for i, e := range events {
		if answers[i].Duplicate {
			t.Fatalf("append: event %d with a new id is called a duplicate of seq %d", i, answers[i].Seq)
		}
		out[i] = at(e, answers[i].Seq)
	}
	return out
}

// putAll stores any number of events in batches that the engine takes.
func (t *trial) putAll(events []event.Event) []event.Event {
	t.Helper()
	var out []event.Event
	for part := range slices.Chunk(events, min(t.h.MaxBatch, 500)) {
		out = append(out, t.put(part...)...)
	}
	return out
}

// read collects what q selects.
func (t *trial) read(q store.Query) []event.Event {
	t.Helper()
	got, err := readAll(t.ctx, t.e, q)
	t.ok(err, "read %s", describe(q))
	return got
}

// bounds gives the extent of a topic.
func (t *trial) bounds(topic string) store.Bounds {
	t.Helper()
	b, err := t.e.Bounds(t.ctx, topic)
	t.ok(err, "bounds of topic %s", topic)
	return b
}

// wantBounds checks the extent of a topic.
func (t *trial) wantBounds(topic string, first, last uint64) {
	t.Helper()
	if b := t.bounds(topic); b.First != first || b.Last != last {
		t.Fatalf("bounds of topic %s: first %d, last %d; want first %d, last %d", topic, b.First, b.Last, first, last)
	}
}

// wantRead checks what q selects, event by event.
func (t *trial) wantRead(q store.Query, want []event.Event) {
	t.Helper()
	if diff := differ(t.read(q), want); diff != "" {
		t.Fatalf("read %s: %s", describe(q), diff)
	}
}

// wantLog checks that a topic holds exactly want.
func (t *trial) wantLog(topic string, want []event.Event) {
	t.Helper()
	t.wantRead(store.Query{Topic: topic}, want)
}

// wait receives a signal or ends the case.
func (t *trial) wait(c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-t.ctx.Done():
		t.Fatalf("waited in vain for %s", what)
	}
}

// readAll collects what q selects up to the first error.
func readAll(ctx context.Context, e store.Log, q store.Query) ([]event.Event, error) {
	var out []event.Event
	for ev, err := range e.Read(ctx, q) {
		if err != nil {
			return out, err
		}
		out = append(out, ev)
	}
	return out, nil
}
