package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"promethean/event"
)

// Drainer publishes the rows of an outbox. Any number of them may work on one
// outbox, in one process or several.
type Drainer struct {
	store     Store
	publisher Publisher
	o         Options
	stop      chan struct{} // closed by Close
	closing   sync.Once

	mu      sync.Mutex
	running bool
	ended   chan struct{} // closed when the run ends
	status  Status
}

// New makes a drainer; [Drainer.Run] has it work. The store must have been set
// up.
func New(s Store, p Publisher, o Options) (*Drainer, error) {
	if s == nil || p == nil {
		return nil, errors.New("drainer: store and publisher must be given")
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Drainer{store: s, publisher: p, o: o, stop: make(chan struct{}), status: Status{Name: o.Name}}, nil
}

// Status is what a drainer has done, and what it last saw of its outbox.
type Status struct {
	// Name is the drainer's, Owner that of its claims.
	Name, Owner string
	Running     bool
	// Stats are the counts as of StatsAt, which is zero before the first.
	Stats
	StatsAt time.Time
	// SentTotal is how many rows were sent, RefusedTotal how many refusals
	// there were, since the drainer was made.
	SentTotal, RefusedTotal uint64
	// LastSent is when rows were last sent.
	LastSent time.Time
	// LastError is of the last outage or refusal, be it over or not.
	LastError   string
	LastErrorAt time.Time
	// Outage says why nothing goes on at present; "" if all is well.
	Outage string
	// Waking says that the store tells when rows come.
	Waking bool
}

// Lag is the age of the oldest row that is not sent, 0 if there was none. If the
// rows could not be counted since, it grows all the same.
func (s Status) Lag() time.Duration {
	if s.Oldest > 0 && s.Outage != "" {
		return s.Oldest + time.Since(s.StatsAt)
	}
	return s.Oldest
}

// Status tells how the drainer is. It asks no database.
func (d *Drainer) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

// ErrRunning says that a drainer runs already, or was closed.
var ErrRunning = errors.New("the drainer runs already or is closed")

// Run drains until the context ends or [Drainer.Close] is called, and then
// returns nil. Nothing that goes wrong with hub or database ends it: it tries
// again, and says so in [Drainer.Status]. It is called once.
func (d *Drainer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	select {
	case <-d.stop:
		d.running = true
	default:
	}
	if d.running {
		d.mu.Unlock()
		return fmt.Errorf("drainer %s: %w", d.o.Name, ErrRunning)
	}
	d.running, d.ended = true, make(chan struct{})
	d.status.Running, d.status.Owner = true, d.o.Name+"/"+event.NewID().String()
	r := &run{Drainer: d, owner: d.status.Owner}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.status.Running, d.status.Waking = false, false
		d.mu.Unlock()
		close(d.ended)
	}()
	go func() { // ends with the context at the latest
		select {
		case <-d.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	r.loop(ctx)
	return nil
}

// Close ends Run and waits for it. Rows under way are given back.
func (d *Drainer) Close() error {
	d.closing.Do(func() { close(d.stop) })
	d.mu.Lock()
	ended := d.ended
	d.mu.Unlock()
	if ended != nil {
		<-ended
	}
	return nil
}

// judge is what an error of the publisher is about. One that comes when the time
// is over is not the rows'.
func (d *Drainer) judge(ctx context.Context, err error) verdict {
	if ctx.Err() != nil || d.o.Outage != nil && d.o.Outage(err) {
		return outage
	}
	return judge(err)
}

// note changes the status.
func (d *Drainer) note(change func(s *Status)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.status)
}

// trouble notes and logs what keeps the drainer from going on; once, while it
// stays the same.
func (d *Drainer) trouble(err error) {
	text := err.Error()
	d.mu.Lock()
	news := d.status.Outage != text
	d.status.Outage, d.status.LastError, d.status.LastErrorAt = text, text, time.Now()
	d.mu.Unlock()
	if news {
		d.o.Logger.Warn("outbox: cannot go on, trying again", "outbox", d.o.Name, "error", err)
	}
}

// fine notes that all is well.
func (d *Drainer) fine() {
	d.mu.Lock()
	had := d.status.Outage
	d.status.Outage = ""
	d.mu.Unlock()
	if had != "" {
		d.o.Logger.Info("outbox: going on", "outbox", d.o.Name)
	}
}
