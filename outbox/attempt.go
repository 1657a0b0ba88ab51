package outbox

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"promethean/event"
)

// attempt is one try to publish claimed rows. Every row ends in one of sent,
// refusals and back.
type attempt struct {
	d        *Drainer
	sent     []event.ID
	refusals []Refusal
	back     []event.ID    // not tried, or not known to be stored
	held     map[lane]bool // keys of which a row was refused: those behind it wait
	strikes  int           // rows in turn that met an error of no known kind
	outage   error         // why it was broken off
}

// lane is what order goes by.
type lane struct{ topic, key string }

// maxStrikes is how many rows in turn may meet errors of no known kind before
// that counts as an outage. They are refused all the same, so that the next
// attempt gets to others.
const maxStrikes = 8

// anySize leaves the size of payloads to the hub, which may be set to take more.
var anySize = event.Limits{Payload: math.MaxInt}

// publish tries rows in order, in parts that are not too large.
func (a *attempt) publish(ctx context.Context, rows []Row) {
	good := make([]Row, 0, len(rows))
	for _, r := range rows {
		if a.waits(&r) {
			continue
		}
		if err := r.Check(anySize); err != nil {
			a.refuse(&r, err)
			continue
		}
		good = append(good, r)
	}
	for len(good) > 0 {
		n, size := 0, 0
		for n < len(good) {
			e := good[n].Event()
			if size += e.Size(); n > 0 && size > a.d.o.MaxBytes {
				break
			}
			n++
		}
		a.part(ctx, good[:n])
		good = good[n:]
	}
}

// part publishes rows as a whole, or takes them apart until it is known which
// are refused.
func (a *attempt) part(ctx context.Context, rows []Row) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return a.waits(&r) })
	if len(rows) == 0 {
		return
	}
	events := make([]event.Event, len(rows))
	for i := range rows {
		events[i] = rows[i].Event()
	}
	err := a.d.publisher.PublishBatch(ctx, events)
	if err == nil {
		a.strikes = 0
		for i := range rows {
			a.sent = append(a.sent, rows[i].ID)
		}
		return
	}
	v := a.d.judge(ctx, err)
	if v == outage {
		a.breakOff(err, rows)
		return
	}
	if i, ok := indexOf(err); ok && v == refused && i >= 0 && i < len(rows) {
		a.without(ctx, rows, i)
		a.refuse(&rows[i], err)
		return
	}
	if len(rows) == 1 {
		a.refuse(&rows[0], err)
		if v == unknown {
			a.strike(err)
		}
		return
	}
	half := len(rows) / 2
	a.part(ctx, rows[:half])
	a.part(ctx, rows[half:])
}

// without publishes the others of a part that was refused for one row, but those
// behind it.
func (a *attempt) without(ctx context.Context, rows []Row, i int) {
	bad := lane{rows[i].Topic, rows[i].Key}
	rest := slices.Clone(rows[:i])
	for _, r := range rows[i+1:] {
		if bad.key != "" && bad == (lane{r.Topic, r.Key}) {
			a.back = append(a.back, r.ID)
			continue
		}
		rest = append(rest, r)
	}
	a.part(ctx, rest)
}

// waits gives a row back if it cannot be tried: one before it was refused, or
// nothing goes on.
func (a *attempt) waits(r *Row) bool {
	if a.outage == nil && !a.held[lane{r.Topic, r.Key}] {
		return false
	}
	a.back = append(a.back, r.ID)
	return true
}

func (a *attempt) strike(err error) {
	if a.strikes++; a.strikes >= maxStrikes {
		a.breakOff(fmt.Errorf("%d rows in turn failed for no known reason, the last with: %w", a.strikes, err), nil)
	}
}

func (a *attempt) breakOff(err error, rows []Row) {
	a.outage = err
	for i := range rows {
		a.back = append(a.back, rows[i].ID)
	}
}

// refuse notes that a row was refused, and that those behind it wait.
func (a *attempt) refuse(r *Row, err error) {
	if r.Key != "" {
		if a.held == nil {
			a.held = make(map[lane]bool)
		}
		a.held[lane{r.Topic, r.Key}] = true
	}
	o := &a.d.o
	f := Refusal{ID: r.ID, Reason: err.Error(), After: o.pause(r.Attempts), GiveUp: o.MaxAttempts > 0 && r.Attempts+1 >= o.MaxAttempts}
	a.refusals = append(a.refusals, f)
	level := o.Logger.Warn
	if f.GiveUp {
		level = o.Logger.Error
	}
	level("outbox: a row was refused", "outbox", o.Name, "id", r.ID, "topic", r.Topic, "key", r.Key,
		"attempt", r.Attempts+1, "failed", f.GiveUp, "error", err)
}

// pause is the back-off of a row that was refused so many times before.
func (o *Options) pause(attempts int) time.Duration {
	d := o.MaxBackoff
	if attempts < 40 { // else it would not fit
		if grown := o.MinBackoff << attempts; grown>>attempts == o.MinBackoff {
			d = min(d, grown)
		}
	}
	if fifth := d / 5; fifth > 0 {
		d += rand.N(2*fifth) - fifth
	}
	return d
}
