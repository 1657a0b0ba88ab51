package natsstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"promethean/event"
	"promethean/store"
)

// Append implements [store.Log].
func (s *Store) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if err := s.validate(&b); err != nil {
		return nil, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	switch {
	case len(b.Events) > 0:
		a := appending{s: s, b: &b, t: s.topic(b.Events[0].Topic)}
		out, err := a.run(ctx)
		if err != nil {
			return nil, fmt.Errorf("append topic %s: %w", a.t.name, s.outcome(ctx, err))
		}
		return out, nil
	case len(b.Settle) > 0:
		return nil, s.settleAll(ctx, b.Settle)
	}
	return nil, nil
}

// validate checks what needs no server.
func (s *Store) validate(b *store.Batch) error {
	limits := s.o.Limits
	if b.Internal {
		limits = limits.Internal()
	}
	bytes := 0
	for i := range b.Events {
		e := &b.Events[i]
		if err := e.Check(limits); err != nil {
			return fmt.Errorf("append topic %s: %w", shorten(e.Topic), &store.EventError{Index: i, Err: err})
		}
		bytes += len(e.Key) + len(e.Payload)
		for _, h := range e.Headers {
			bytes += len(h.Name) + len(h.Value)
		}
	}
	for i := range b.Events {
		if e := &b.Events[i]; e.Topic != b.Events[0].Topic {
			return fmt.Errorf("append: %w: events of topics %s and %s in one batch: a NATS stream holds one topic, and no batch spans streams", store.ErrInvalid, b.Events[0].Topic, e.Topic)
		}
	}
	if len(b.Events) > maxEvents || bytes > maxBytes {
		return fmt.Errorf("append topic %s: %w: %d events with %d bytes, the limits are %d and %d", b.Events[0].Topic, store.ErrTooLarge, len(b.Events), bytes, maxEvents, maxBytes)
	}
	for i := range b.Expect {
		x := &b.Expect[i]
		if err := event.CheckTopic(x.Topic); err != nil {
			return fmt.Errorf("append: expectation %d: %w", i, err)
		}
		if len(b.Events) > 0 && x.Topic != b.Events[0].Topic {
			return fmt.Errorf("append: %w: expectation %d is about topic %s, the events are of %s: a NATS server judges one stream at a time", store.ErrInvalid, i, x.Topic, b.Events[0].Topic)
		}
	}
	if len(b.Events) == 0 && len(b.Expect) > 0 {
		return fmt.Errorf("append: %w: expectations without events: a NATS server judges them when it stores", store.ErrInvalid)
	}
	if len(b.Events) > 0 && len(b.Settle) > 0 {
		return fmt.Errorf("append topic %s: %w: events and settlements in one batch: they are in different NATS streams", b.Events[0].Topic, store.ErrInvalid)
	}
	return nil
}

func shorten(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%.60q…", s)
	}
	return s
}

// appending is one call of Append with events on its way.
//
// The usual way: ids that the index knows are duplicates; the rest is published
// and the server judges ids that are younger than the index, and expectations.
//
// The strong way, for what the server cannot judge: the index is brought up to
// the leader's last seq L, everything is judged here, and the batch is
// published on condition that L is still the last seq. So nothing came between
// judgement and commit. It is taken when the server knows an id whose event was
// trimmed, and for several expectations at once.
//
// If no answer comes, the events may be there. They carry the call's own random
// number, by which it knows them from those of others with the same ids.
type appending struct {
	s *Store
	b *store.Batch
	t *topic

	call   []string // the header with the random number
	unsure bool     // an attempt had no clear answer

	answers []store.Appended
	fresh   []int            // indexes of the events that are new
	first   map[event.ID]int // where an id stands first in the batch; nil: no id stands twice

	solo   bool // do not share a commit with others
	strong bool
	synced bool // the index is complete up to last
	last   uint64
}

func (a *appending) run(ctx context.Context) ([]store.Appended, error) {
	a.call = []string{strconv.FormatUint(rand.Uint64()>>14, 36)}
	a.findTwins()
	a.strong = !a.simple()
	began := time.Now()
	end := began.Add(a.s.o.RetryFor)
	for wait := time.Duration(0); ; {
		err := a.try(ctx)
		if err == nil {
			return a.answers, nil
		}
		if ctx.Err() != nil || !errors.Is(err, errAgain) && !transient(err) {
			return nil, explain(err)
		}
		if err := a.s.denied(began); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, unavailable(err)
		}
		if !errors.Is(err, errAgain) {
			a.solo, a.unsure = true, true
		}
		// Whatever happened, the next attempt begins with all that is stored:
		// if this one was stored after all, its ids are known then.
		pause(ctx, &wait)
		a.synced = false
		if err := a.synchronize(ctx); err != nil {
			return nil, err
		}
	}
}

// errAgain asks for another attempt with a fresh index.
var errAgain = errors.New("not stored: others came first")

// findTwins notes ids that stand twice in the batch.
func (a *appending) findTwins() {
	if len(a.b.Events) == 1 {
		return
	}
	at := make(map[event.ID]int, len(a.b.Events))
	twins := false
	for i := range a.b.Events {
		if _, ok := at[a.b.Events[i].ID]; ok {
			twins = true
			continue
		}
		at[a.b.Events[i].ID] = i
	}
	if twins {
		a.first = at
	}
}

// simple says whether the server itself can judge the expectations: one about
// the topic and one about a key fit on a message.
func (a *appending) simple() bool {
	topics, keys := 0, 0
	for i := range a.b.Expect {
		if a.b.Expect[i].Key == "" {
			topics++
		} else {
			keys++
		}
	}
	return topics <= 1 && keys <= 1
}

// synchronize brings the index up to the leader's last seq.
func (a *appending) synchronize(ctx context.Context) error {
	i, err := a.s.sync(ctx, a.t)
	if err != nil {
		return err
	}
	a.synced, a.last = i != nil, 0
	if i != nil {
		a.last = i.State.LastSeq
	}
	return nil
}

func (a *appending) try(ctx context.Context) error {
	if err := a.s.ensure(ctx, a.t); err != nil {
		return err
	}
	if err := a.s.current(ctx, a.t); err != nil {
		return err
	}
	if a.strong && !a.synced {
		if err := a.synchronize(ctx); err != nil {
			return err
		}
	}
	if err := a.classify(ctx); err != nil {
		return err
	}
	if len(a.fresh) == 0 {
		return nil
	}
	if a.strong {
		if err := a.judge(ctx); err != nil {
			return err
		}
	}
	r := a.request()
	seqs, err := a.s.submit(ctx, a.t, r)
	switch code := codeOf(err); {
	case err == nil:
		return a.stored(ctx, seqs)
	case errors.Is(err, errKnown):
		// A single event that the server knows: once the index has it, it is
		// a duplicate. If it was trimmed, only the strong way helps.
		a.strong = true
		return errAgain
	case code == codeBatchDuplicate || code == codeDuplicatePend:
		// The index may lack what the server knows. If the batch was alone
		// and the index complete, the server knows what was trimmed.
		a.strong = a.solo && a.synced
		a.solo = true
		return errAgain
	case code == codeWrongLastSeq || code == codeWrongLastSeq2:
		return a.wrongSeq(ctx)
	case errors.Is(err, nats.ErrNoResponders) || code == codeStreamNotFound:
		a.t.there.Store(false) // look again whether the stream is there
	}
	return err
}

// classify tells duplicates from new events, and reads their originals.
func (a *appending) classify(ctx context.Context) error {
	events := a.b.Events
	a.answers = make([]store.Appended, len(events))
	a.fresh = a.fresh[:0]
	var known []uint64
	for i := range events {
		if seq := a.t.index.get(events[i].ID); seq != 0 {
			a.answers[i] = store.Appended{Seq: seq, Duplicate: true}
			known = append(known, seq)
		}
	}
	originals, err := a.s.originals(ctx, a.t, known)
	if err != nil {
		return fmt.Errorf("read the original of a duplicate: %w", err)
	}
	for i := range events {
		if a.answers[i].Duplicate {
			e, ok := originals[a.answers[i].Seq]
			if ok && e.ID == events[i].ID {
				ours, err := a.ours(ctx, i, e.Seq)
				if err != nil {
					return fmt.Errorf("find out who stored an event: %w", err)
				}
				if ours {
					a.answers[i] = store.Appended{Seq: e.Seq}
				} else {
					a.answers[i].Original = &e
				}
				continue
			}
			a.t.index.forget(events[i].ID, a.answers[i].Seq)
			a.answers[i] = store.Appended{}
		}
		if j, ok := a.first[events[i].ID]; ok && j != i {
			continue // answered with the first of them
		}
		a.fresh = append(a.fresh, i)
	}
	return nil
}

// ours says whether it was an earlier attempt of this call that stored event i of
// the batch, as seq.
func (a *appending) ours(ctx context.Context, i int, seq uint64) (yes bool, err error) {
	if j, ok := a.first[a.b.Events[i].ID]; !a.unsure || ok && j != i {
		return false, nil
	}
	err = a.s.retry(ctx, func(ctx context.Context) error {
		m, err := a.s.fromLeader(ctx, a.t.stream, getRequest{Seq: seq})
		if errors.Is(err, errGone) {
			return nil
		}
		if err != nil {
			return err
		}
		h, err := m.header()
		yes = err == nil && h.Get(hdrCall) == a.call[0]
		return err
	})
	return yes, err
}

// request makes what is published.
func (a *appending) request() *request {
	r := &request{solo: a.solo || a.strong || len(a.b.Expect) > 0, done: make(chan struct{})}
	life := uint64(0)
	if a.strong {
		life = a.last + 1
	}
	for _, i := range a.fresh {
		e := &a.b.Events[i]
		m := a.s.message(e, msgID(e.ID, life), a.call)
		r.msgs = append(r.msgs, m)
		r.ids = append(r.ids, e.ID)
		r.times = append(r.times, e.TS)
		r.bytes += m.Size()
	}
	h := r.msgs[0].Header
	if a.strong {
		h[hdrLastSeq] = []string{fmt.Sprint(a.last)}
		return r
	}
	for i := range a.b.Expect {
		x := &a.b.Expect[i]
		if x.Key == "" {
			h[hdrLastSeq] = []string{fmt.Sprint(x.Seq)}
			continue
		}
		h[hdrLastSubjSeq] = []string{fmt.Sprint(x.Seq)}
		h[hdrLastSubject] = []string{a.s.subject(x.Topic, x.Key)}
	}
	return r
}

// stored completes the answers.
func (a *appending) stored(ctx context.Context, seqs []uint64) error {
	for n, i := range a.fresh {
		a.answers[i] = store.Appended{Seq: seqs[n]}
	}
	for i := range a.b.Events {
		j, ok := a.first[a.b.Events[i].ID]
		if !ok || i == j || a.answers[i].Duplicate {
			continue
		}
		e := a.b.Events[j].Clone()
		e.Seq = a.answers[j].Seq
		a.answers[i] = store.Appended{Seq: e.Seq, Duplicate: true, Original: &e}
	}
	return ctx.Err()
}

// judge compares expectations with what is stored. It gives a conflict only if
// the index is complete and some event is new.
func (a *appending) judge(ctx context.Context) error {
	for i := range a.b.Expect {
		x := &a.b.Expect[i]
		last := a.last
		if x.Key != "" {
			var err error
			if last, err = a.s.lastOfKey(ctx, a.t, x.Key); err != nil {
				return err
			}
		}
		if last != x.Seq {
			return &store.SeqConflictError{Topic: x.Topic, Key: x.Key, Expected: x.Seq, Actual: last}
		}
	}
	return nil
}

// wrongSeq finds out what the server means: a conflict, a retry of what was
// stored, or somebody who was quicker.
func (a *appending) wrongSeq(ctx context.Context) error {
	if err := a.synchronize(ctx); err != nil {
		return err
	}
	if err := a.classify(ctx); err != nil {
		return err
	}
	if len(a.fresh) == 0 {
		return nil
	}
	if err := a.judge(ctx); err != nil {
		return err
	}
	return errAgain
}

// lastOfKey asks the leader for the last seq of a key.
func (s *Store) lastOfKey(ctx context.Context, t *topic, key string) (seq uint64, err error) {
	err = s.retry(ctx, func(ctx context.Context) error {
		m, err := s.fromLeader(ctx, t.stream, getRequest{Last: s.subject(t.name, key)})
		if errors.Is(err, errGone) {
			return nil
		}
		if err == nil {
			seq = m.Seq
		}
		return err
	})
	return seq, err
}
