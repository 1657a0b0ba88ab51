package prometheantest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Kind is what a [Record] is about.
type Kind string

// What a recorder knows of.
const (
	// Publishing is an event that is not stored yet.
	Publishing Kind = "publishing"
	// Published is an event that was stored, a dead letter too.
	Published Kind = "published"
	// Duplicate is one whose id was known: nothing was stored.
	Duplicate Kind = "duplicate"
	// Refused is an event that was not stored; Err says why.
	Refused Kind = "refused"
	// Delivered is one delivery to a group.
	Delivered Kind = "delivered"
	// Acked is an event that was settled, durably.
	Acked Kind = "acked"
	// Nacked is one that has failed; Err is what its handler returned.
	Nacked Kind = "nacked"
	// Expired is what ExpireLeases did, and Dropped what DropConnections did.
	Expired Kind = "expired"
	Dropped Kind = "dropped"
	// Logged is a warning of the hub's; Err is its text.
	Logged Kind = "logged"
)

// Record is one thing that has happened.
type Record struct {
	// After is how long after the start of the hub it was.
	After        time.Duration
	Kind         Kind
	Topic, Group string
	// Event is the one that it happened to. What a group did over HTTP or a
	// WebSocket is recorded without one: only the gateway knows it.
	Event event.Event
	// Attempt counts the deliveries of the event to the group.
	Attempt int
	Err     error
}

// maxRecords bounds what is kept; the oldest are given up.
const maxRecords = 10_000

// printed is how many records String gives.
const printed = 50

// Recorder keeps what happens in a hub: everything that is published, by
// whomever, and everything that is delivered. It is printed when the test has
// failed. It keeps the last 10,000 records.
type Recorder struct {
	began time.Time

	mu      sync.Mutex
	records []*Record
	lost    int
	handled map[[2]string]bool // topics and groups that handlers in this process serve
}

func newRecorder() *Recorder {
	return &Recorder{began: time.Now(), handled: make(map[[2]string]bool)}
}

func (r *Recorder) add(x Record) *Record {
	x.After = time.Since(r.began)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.records) >= 2*maxRecords {
		r.records = slices.Delete(r.records, 0, maxRecords)
		r.lost += maxRecords
	}
	r.records = append(r.records, &x)
	return &x
}

// Records gives what has happened, the oldest first.
func (r *Recorder) Records() []Record {
	out, _ := r.get()
	return out
}

func (r *Recorder) get() (out []Record, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.records {
		// Of what handlers do we know more than the groups tell.
		if x.Group != "" && x.Event.ID.IsZero() && x.Kind != Expired && r.handled[[2]string{x.Topic, x.Group}] {
			continue
		}
		out = append(out, *x)
	}
	over := max(len(out)-maxRecords, 0)
	return out[over:], r.lost + over
}

// String gives the last records, one in a line.
func (r *Recorder) String() string {
	list, lost := r.get()
	over := max(len(list)-printed, 0)
	var b strings.Builder
	if n := lost + over; n > 0 {
		fmt.Fprintf(&b, "    … %d earlier\n", n)
	}
	for _, x := range list[over:] {
		b.WriteString("    " + x.String() + "\n")
	}
	if b.Len() == 0 {
		return "    nothing\n"
	}
	return b.String()
}

// String gives the record as a line.
func (x Record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%10s  %-10s", "+"+x.After.Round(time.Millisecond).String(), x.Kind)
	if x.Topic != "" {
		fmt.Fprintf(&b, "  %s", x.Topic)
	}
	if !x.Event.ID.IsZero() {
		fmt.Fprintf(&b, " %s", label(&x.Event))
	}
	if x.Group != "" {
		fmt.Fprintf(&b, " → %s", x.Group)
	}
	if x.Attempt > 1 {
		fmt.Fprintf(&b, " (attempt %d)", x.Attempt)
	}
	if x.Kind == Publishing || x.Kind == Published || x.Kind == Refused {
		fmt.Fprintf(&b, "  %s", short(x.Event.Payload))
	}
	if x.Err != nil {
		first, _, more := strings.Cut(x.Err.Error(), "\n")
		if more {
			first += " …"
		}
		fmt.Fprintf(&b, "  %s", first)
	}
	return b.String()
}

// label names an event in its topic.
func label(e *event.Event) string {
	s := "?"
	if e.Seq > 0 {
		s = fmt.Sprint(e.Seq)
	}
	s = "#" + s
	if e.Key != "" {
		s += " " + e.Key
	}
	return s
}

// short is a payload that fits a line.
func short(payload []byte) string {
	const most = 200
	if len(payload) > most {
		return strings.ToValidUTF8(string(payload[:most]), "") + "…"
	}
	return string(payload)
}

// append records a batch around the append that stores it. It has its place
// among the records before what the append sets off.
func (r *Recorder) append(b *store.Batch, store func() ([]store.Appended, error)) ([]store.Appended, error) {
	list := make([]*Record, len(b.Events))
	for i := range b.Events {
		e := b.Events[i].Clone() // it may lie in a buffer that is used again
		list[i] = r.add(Record{Kind: Publishing, Topic: e.Topic, Event: e})
	}
	got, err := store()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, x := range list {
		switch {
		case err != nil:
			x.Kind, x.Err = Refused, err
		case got[i].Duplicate:
			x.Kind, x.Event.Seq = Duplicate, got[i].Seq
		default:
			x.Kind, x.Event.Seq = Published, got[i].Seq
		}
	}
	return got, err
}

// observe has the hub tell the recorder, beside those whom it tells already.
func (r *Recorder) observe(o *promethean.Options) {
	if o.Metrics == nil {
		o.Metrics = promethean.NoMetrics{}
	}
	o.Metrics = &groupRecorder{Metrics: o.Metrics, r: r}
	o.Tracer = &handlerRecorder{next: o.Tracer, r: r}
}

// groupRecorder records what groups tell, who do not say which event it is.
type groupRecorder struct {
	promethean.Metrics
	r *Recorder
}

var _ group.Observer = (*groupRecorder)(nil)

// Delivered implements [group.Observer].
func (g *groupRecorder) Delivered(topic, name string, redelivered bool) {
	x := Record{Kind: Delivered, Topic: topic, Group: name}
	if redelivered {
		x.Attempt = 2 // at least
	}
	g.r.add(x)
	g.Metrics.Delivered(topic, name, redelivered)
}

// Acked implements [group.Observer].
func (g *groupRecorder) Acked(topic, name string, since time.Duration) {
	g.r.add(Record{Kind: Acked, Topic: topic, Group: name})
	g.Metrics.Acked(topic, name, since)
}

// Nacked implements [group.Observer].
func (g *groupRecorder) Nacked(topic, name string) {
	g.r.add(Record{Kind: Nacked, Topic: topic, Group: name})
	g.Metrics.Nacked(topic, name)
}

// handlerRecorder records what handlers in this process do.
type handlerRecorder struct {
	next promethean.Tracer // may be nil
	r    *Recorder
}

// Publish implements [promethean.Tracer]. The log tells what is stored.
func (h *handlerRecorder) Publish(ctx context.Context, events []event.Event) (context.Context, func(error)) {
	if h.next == nil {
		return ctx, func(error) {}
	}
	return h.next.Publish(ctx, events)
}

// Deliver implements [promethean.Tracer].
func (h *handlerRecorder) Deliver(ctx context.Context, name string, e *event.Event, attempt int) (context.Context, func(error)) {
	x := Record{Kind: Delivered, Topic: e.Topic, Group: name, Event: *e, Attempt: attempt}
	h.r.mu.Lock()
	h.r.handled[[2]string{e.Topic, name}] = true
	h.r.mu.Unlock()
	h.r.add(x)
	ended := func(error) {}
	if h.next != nil {
		ctx, ended = h.next.Deliver(ctx, name, e, attempt)
	}
	return ctx, func(err error) {
		if err != nil {
			x.Kind, x.Err = Nacked, err
			h.r.add(x)
		}
		ended(err)
	}
}

// Settle implements [promethean.Tracer].
func (h *handlerRecorder) Settle(ctx context.Context, name string, e *event.Event, outcome string) func(error) {
	x := Record{Kind: Acked, Topic: e.Topic, Group: name, Event: *e}
	ended := func(error) {}
	if h.next != nil {
		ended = h.next.Settle(ctx, name, e, outcome)
	}
	return func(err error) {
		switch {
		case outcome != "ack": // recorded when its handler returned
		case err != nil:
			x.Kind, x.Err = Logged, fmt.Errorf("the ack does not count: %w", err)
			h.r.add(x)
		default:
			h.r.add(x)
		}
		ended(err)
	}
}

// logWriter takes what the hub logs.
type logWriter struct{ r *Recorder }

// Write implements [io.Writer].
func (w logWriter) Write(b []byte) (int, error) {
	w.r.add(Record{Kind: Logged, Err: fmt.Errorf("%s", strings.TrimSpace(string(b)))})
	return len(b), nil
}

// withoutTime leaves the time of a log line out: the record has one.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
