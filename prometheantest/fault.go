package prometheantest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"promethean/event"
	"promethean/group"
	"promethean/store"
	"promethean/store/logstore"
)

// faults are the appends that are to fail.
type faults struct {
	recorder *Recorder

	mu    sync.Mutex
	armed []fault
	met   []error
}

type fault struct {
	err    error
	topics []string
	where  string // who asked for it
}

// FailNextAppend lets the next append fail with err: the next one that has an
// event of one of the topics or, without topics, the next publish of anybody.
// Nothing of it is stored. Called twice, the next two fail. Progress of groups is
// not touched, but for dead letters: name a topic under dlq. to let those fail.
// The group stops then, as it does when the disk fails.
//
// A fault that no append has met when the test ends fails the test: it would
// prove nothing.
func (h *Hub) FailNextAppend(err error, topics ...string) {
	h.t.Helper()
	if err == nil {
		h.t.Fatalf("FailNextAppend: the error is nil")
	}
	_, file, line, _ := runtime.Caller(1)
	h.faults.mu.Lock()
	defer h.faults.mu.Unlock()
	h.faults.armed = append(h.faults.armed, fault{err: err, topics: topics, where: fmt.Sprintf("%s:%d", filepath.Base(file), line)})
}

// meet gives the fault that an append meets.
func (f *faults) meet(b *store.Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, x := range f.armed {
		if !slices.ContainsFunc(b.Events, func(e event.Event) bool {
			return slices.Contains(x.topics, e.Topic) || len(x.topics) == 0 && !b.Internal
		}) {
			continue
		}
		f.armed = slices.Delete(f.armed, i, i+1)
		f.met = append(f.met, x.err)
		return x.err
	}
	return nil
}

// left says who has asked for faults that nobody has met.
func (f *faults) left() (where []string) {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range f.armed {
		where = append(where, x.where)
	}
	return where
}

// without gives what is left of an error when that is taken out which the test
// has asked for: a group that was stopped by a fault says so when it is closed.
func (f *faults) without(err error) error {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		var left []error
		for _, part := range list.Unwrap() {
			left = append(left, f.without(part))
		}
		return errors.Join(left...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.met, func(x error) bool { return errors.Is(err, x) }) {
		return nil
	}
	return err
}

// faultyLog is the embedded engine, whose appends fail where they are told to.
// It keeps all abilities of the engine.
type faultyLog struct {
	*logstore.Store
	faults *faults
}

// Append implements [store.Log].
func (l *faultyLog) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	return l.faults.recorder.append(&b, func() ([]store.Appended, error) {
		if err := l.faults.meet(&b); err != nil {
			return nil, err
		}
		return l.Store.Append(ctx, b)
	})
}

// DropConnections ends all connections to the hub as a network does that fails:
// nobody is told, and what is on its way is lost. New ones are taken at once. It
// says how many there were.
//
// Events that a WebSocket had been handed come back, and count as delivered.
func (h *Hub) DropConnections() int {
	n := h.listener.drop()
	h.recorder.add(Record{Kind: Dropped, Err: fmt.Errorf("%d connections", n)})
	return n
}

// ExpireLeases ends the leases of all events that a group has in hand, as if
// nobody had answered for the group's whole AckTimeout: the events count as
// delivered and come back. It waits until there is such an event, and gives how
// many there were; it ends the test if there are none in time.
func (h *Hub) ExpireLeases(topic, name string) int {
	h.t.Helper()
	n := 0
	err := h.eventually(func() error {
		var err error
		n, err = h.expire(topic, name)
		return err
	})
	if err != nil {
		h.t.Fatalf("ExpireLeases: topic %s, group %s: %v, waited %v", topic, name, err, h.patience)
	}
	h.recorder.add(Record{Kind: Expired, Topic: topic, Group: name, Err: fmt.Errorf("%d leases", n)})
	h.settle()
	return n
}

var errNoLease = errors.New("the group has no event in hand")

func (h *Hub) expire(topic, name string) (n int, err error) {
	events, err := h.read(topic, 0)
	if err != nil {
		return 0, err
	}
	held := make([]group.Selected, len(events))
	for i := range events {
		held[i].ID = events[i].ID
	}
	// A lease that lasts until now is over.
	got, err := h.hub.Engine().Extend(topic, name, held, 0)
	if err != nil {
		return 0, err
	}
	for _, r := range got {
		if r.Err == nil {
			n++
		}
	}
	if n == 0 {
		return 0, errNoLease
	}
	return n, nil
}
