package partition

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"promethean/event"
)

// Membership is a member of a partitioned group.
type Membership struct {
	o      Join
	id     string
	static bool
	agent  *agent
	hooks  chan struct{} // holds one for every Assigned at work
	seen   atomic.Int64  // when it was heard of last, in epoch ns
	ready  chan struct{} // closed once it is on the list
	gone   chan struct{} // closed once it is over

	// All below is under agent.mu.
	session   uint64
	joined    bool
	leaving   bool
	forced    bool // it leaves at once, whatever it holds
	over      error
	parts     map[int]*part
	refused   map[int]bool      // what it could not take, not yet told
	notBefore map[int]time.Time // what it is to try again, and when
	told      bool
	has       []int // what Changed was told last
}

// atOnce is how many partitions a member takes at the same time.
const atOnce = 16

func newMembership(o Join) *Membership {
	ms := &Membership{
		o: o, id: o.Member, static: o.Member != "", hooks: make(chan struct{}, atOnce),
		ready: make(chan struct{}), gone: make(chan struct{}), session: newSession(),
		parts: make(map[int]*part), refused: make(map[int]bool), notBefore: make(map[int]time.Time),
	}
	if !ms.static {
		ms.id = event.NewID().String()
	}
	ms.o.Meta = maps.Clone(o.Meta)
	ms.seen.Store(time.Now().UnixNano())
	return ms
}

// newSession gives a number that no other membership has, small enough for
// every reader of JSON.
func newSession() uint64 { return rand.Uint64N(1<<53-1) + 1 }

// ID is the member's, made up if none was given.
func (ms *Membership) ID() string { return ms.id }

// Heartbeat says that the member lives. Who does not say so for the TTL is
// swept: its partitions go to others at once. The error says that the
// membership is over, and why.
func (ms *Membership) Heartbeat() error {
	ms.seen.Store(time.Now().UnixNano())
	ms.agent.mu.Lock()
	defer ms.agent.mu.Unlock()
	return ms.over
}

// Leave ends the membership: its partitions are drained, their hooks called,
// and others get them. It returns when that is done, or when ctx ends; what is
// still held then goes back at once, uncounted.
func (ms *Membership) Leave(ctx context.Context) error {
	a := ms.agent
	a.mu.Lock()
	if ms.over != nil {
		a.mu.Unlock()
		return nil
	}
	ms.leaving = true
	a.mu.Unlock()
	a.wakeUp()
	select {
	case <-ms.gone:
		return nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	ms.forced = true
	left := ms.over == nil && len(ms.parts) > 0
	a.end(ms, ErrLeft, false)
	a.mu.Unlock()
	a.wakeUp()
	if !left {
		return nil
	}
	return fmt.Errorf("leave topic %s, group %s: partitions were not let go of in time: %w", a.name.topic, a.name.group, ctx.Err())
}

// Drop ends the membership of somebody who is gone without a word: what it
// holds has failed. If it chose its id, its partitions wait for it for the TTL.
// It does not wait for anything.
func (ms *Membership) Drop() {
	a := ms.agent
	a.mu.Lock()
	a.end(ms, ErrLeft, true)
	a.mu.Unlock()
	a.wakeUp()
}

// Done is closed once the membership is over.
func (ms *Membership) Done() <-chan struct{} { return ms.gone }

// heard is when the member was heard of last.
func (ms *Membership) heard(now time.Time) time.Time {
	if ms.o.present {
		return now
	}
	return time.Unix(0, ms.seen.Load())
}

// member is the entry on the list.
func (ms *Membership) member(hub string) member {
	return member{ID: ms.id, Static: ms.static, Hub: hub, Session: ms.session, Meta: ms.o.Meta}
}
