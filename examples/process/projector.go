package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// Hub is what a projector needs; [*promethean.Hub] has it.
type Hub interface {
	// PublishIf publishes on the condition that nobody else did meanwhile.
	PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error)
	// Subscribe hands it the heartbeats.
	Subscribe(ctx context.Context, topic, group string, h promethean.Handler, opts ...promethean.SubscribeOption) (promethean.Subscription, error)
	// Read gives it the states that are there.
	Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error]
	// Lag tells how old the oldest heartbeat is that was not handled yet.
	Lag(ctx context.Context, topic, group string) (promethean.Lag, error)
}

var _ Hub = (*promethean.Hub)(nil)

// Options change a projector. The zero value works.
type Options struct {
	// StaleAfter is how long a process is silent when it becomes stale. The
	// default is 15 s.
	StaleAfter time.Duration
	// ScanEvery is how often it is looked for who is silent. The default is
	// 5 s.
	ScanEvery time.Duration
	// Logger hears of scans that fail; the next one tries again. The default
	// discards.
	Logger *slog.Logger
}

// Projector is at work until it is stopped.
type Projector struct {
	hub Hub
	o   Options
	sub promethean.Subscription

	cancel context.CancelFunc // ends the scanner
	ended  chan struct{}      // closed when it has

	read uint64 // the scanner's: StateTopic was followed up to here

	mu    sync.Mutex
	alive map[string]known // processes that are to be watched, by process id
}

// known is the last state of a process, as far as this projector knows.
type known struct {
	state State
	seq   uint64 // of its event in StateTopic; 0 if there is none
	ok    bool   // there is a state, and it can be read
}

// Start reads which processes there are and begins to project. A group that is
// new begins with the first heartbeat. ctx is for starting only.
func Start(ctx context.Context, hub Hub, o Options) (*Projector, error) {
	if o.StaleAfter <= 0 {
		o.StaleAfter = 15 * time.Second
	}
	if o.ScanEvery <= 0 {
		o.ScanEvery = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Projector{hub: hub, o: o, ended: make(chan struct{}), alive: make(map[string]known)}
	if err := p.follow(ctx); err != nil {
		return nil, fmt.Errorf("process projector: %w", err)
	}
	sub, err := hub.Subscribe(ctx, HeartbeatTopic, Group, p.handle, promethean.FromEarliest())
	if err != nil {
		return nil, fmt.Errorf("process projector: %w", err)
	}
	p.sub = sub
	scanning, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	go p.scan(scanning)
	return p, nil
}

// Stop ends the projector. What is being handled may finish until ctx ends.
func (p *Projector) Stop(ctx context.Context) error {
	p.cancel()
	err := p.sub.Stop(ctx)
	select {
	case <-p.ended:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("process projector: the scan is still at work: %w", ctx.Err()))
	}
	return err
}

// handle takes one heartbeat.
func (p *Projector) handle(ctx context.Context, e event.Event, _ *promethean.Delivery) error {
	beat, err := ParseHeartbeat(e.Payload)
	if err != nil {
		return promethean.Dead(err)
	}
	next := State{
		ProcessID: beat.ProcessID(), Name: beat.Name, Host: beat.Host, PID: beat.PID, SID: beat.SID,
		CPUPct: beat.CPUPct, MemMB: beat.MemMB, Status: Alive,
		// A clock that is fast would make the process live longer than its
		// heartbeats, and hide those that come after it was set right.
		LastSeenTS: min(e.TS, time.Now().UnixMilli()),
	}
	last, found := p.watched(next.ProcessID)
	for {
		if !found {
			if last, err = p.look(ctx, next.ProcessID, 0); err != nil {
				return err
			}
		}
		if last.ok && !newer(&next, &last.state) {
			return nil
		}
		err := p.publish(ctx, aliveID(e.ID), next, last.seq, e.ID)
		var conflict *store.SeqConflictError
		if !errors.As(err, &conflict) {
			return fatal(err)
		}
		// Somebody else was first: another heartbeat, or the scan.
		if last, err = p.look(ctx, next.ProcessID, conflict.Actual); err != nil {
			return err
		}
		found = true
	}
}

// newer says whether a heartbeat tells something that is not known. One of the
// same millisecond does, unless the process was silent since.
func newer(next, last *State) bool {
	if last.Status == Stale {
		return next.LastSeenTS > last.LastSeenTS
	}
	return next.LastSeenTS >= last.LastSeenTS
}

// fatal makes an error dead that trying again does not mend: names that are too
// long for a key.
func fatal(err error) error {
	var rule *event.RuleError
	if errors.As(err, &rule) {
		return promethean.Dead(err)
	}
	return err
}

// newEvent makes the event of a state.
func newEvent(id event.ID, s *State) (event.Event, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return event.Event{}, fmt.Errorf("state of %s: %w", s.ProcessID, err)
	}
	e := event.New(StateTopic, payload)
	e.ID, e.Key = id, s.ProcessID
	if s.Status == Alive {
		e.TS = s.LastSeenTS // when it was so, for who asks for the past
	}
	return e, nil
}

// publish states something about a process whose last state has that seq.
func (p *Projector) publish(ctx context.Context, id event.ID, s State, after uint64, cause event.ID) error {
	e, err := newEvent(id, &s)
	if err != nil {
		return err
	}
	if !cause.IsZero() {
		e.CausedBy = []string{cause.String()}
	}
	got, err := p.hub.PublishIf(ctx, []store.Expect{{Topic: StateTopic, Key: s.ProcessID, Seq: after}}, e)
	if err != nil {
		return err
	}
	// A duplicate has the seq of the one that is there; if others have come
	// since, the next condition fails, and the log is read.
	p.remember(known{state: s, seq: got[0].Seq, ok: true})
	return nil
}

// watched gives what is known of a process that is alive.
func (p *Projector) watched(id string) (known, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.alive[id]
	return k, ok
}

// remember takes the state of a process, unless a later one is known. Those
// that are stale need no watching: memory is for the living.
func (p *Projector) remember(k known) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := k.state.ProcessID
	switch was := p.alive[id]; {
	case was.seq >= k.seq:
	case k.state.Status == Alive:
		p.alive[id] = k
	default:
		delete(p.alive, id)
	}
}

// lookAgain is how soon it is looked again for an event that is committed and
// not visible yet.
const lookAgain = 5 * time.Millisecond

// look reads the last state of a process, once the event at least can be read.
func (p *Projector) look(ctx context.Context, id string, least uint64) (known, error) {
	for {
		var k known
		for e, err := range p.hub.Read(ctx, store.Query{Topic: StateTopic, Key: id, Reverse: true, Limit: 1}) {
			if err != nil {
				return known{}, err
			}
			k = p.take(&e)
		}
		if k.seq >= least {
			return k, nil
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return known{}, ctx.Err()
		}
	}
}

// follow reads the states that were published since the last time.
func (p *Projector) follow(ctx context.Context) error {
	for e, err := range p.hub.Read(ctx, store.Query{Topic: StateTopic, After: p.read}) {
		if err != nil {
			return err
		}
		p.take(&e)
		p.read = e.Seq
	}
	return nil
}

// take learns from an event of StateTopic. One that is not a state of the
// process that its key names is somebody else's and says nothing, but it has a
// place: what is published next comes after it.
func (p *Projector) take(e *event.Event) known {
	k := known{seq: e.Seq}
	if err := json.Unmarshal(e.Payload, &k.state); err != nil || k.state.ProcessID != e.Key || k.state.Status != Alive && k.state.Status != Stale {
		p.mu.Lock()
		defer p.mu.Unlock()
		if was, ok := p.alive[e.Key]; ok && was.seq < e.Seq {
			was.seq = e.Seq
			p.alive[e.Key] = was
		}
		return known{seq: e.Seq}
	}
	k.ok = true
	p.remember(k)
	return k
}
