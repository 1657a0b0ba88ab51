package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"promethean/event"
	"promethean/group"
)

// board is what is known of the work of others, to wait for.
type board struct {
	mu      sync.Mutex
	changed chan struct{} // closed when anything has changed

	hosts   map[string]bool // those that the group knows
	handled map[event.ID]int
	letters map[event.ID]group.Letter  // by the id of the original
	mirror  map[string]json.RawMessage // what the mirror says last of each key
	told    func(change)
	faults  []error
}

// change is one that the mirror tells.
type change struct {
	key     string
	payload json.RawMessage
}

func newBoard() *board {
	return &board{
		changed: make(chan struct{}), hosts: make(map[string]bool), handled: make(map[event.ID]int),
		letters: make(map[event.ID]group.Letter), mirror: make(map[string]json.RawMessage),
	}
}

// note does something under the lock and wakes who waits. An error is a promise
// that was broken.
func (b *board) note(do func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := do(); err != nil {
		b.faults = append(b.faults, err)
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// knows says whether a host is known.
func (b *board) knows(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hosts[host]
}

// meet makes hosts known.
func (b *board) meet(hosts ...string) {
	b.note(func() error {
		for _, h := range hosts {
			b.hosts[h] = true
		}
		return nil
	})
}

// tell has f told what the mirror says from now on; nil: nobody.
func (b *board) tell(f func(change)) {
	b.note(func() error {
		b.told = f
		return nil
	})
}

const (
	// lookEvery is how often it is asked whether there is still something to
	// wait for.
	lookEvery = 50 * time.Millisecond
	// patience is how long nothing at all may happen meanwhile.
	patience = time.Minute
)

// wait waits until something is so, a promise was broken, or so or stuck says
// that it will never be. so is asked under the lock.
func (b *board) wait(ctx context.Context, stuck func() error, so func() (bool, error)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	stalled := time.NewTimer(patience)
	defer stalled.Stop()
	var seen chan struct{}
	for {
		b.mu.Lock()
		changed, err := b.changed, errors.Join(b.faults...)
		yes, never := so()
		b.mu.Unlock()
		if err = errors.Join(err, never); yes || err != nil {
			return err
		}
		if changed != seen { // a tick may have come first
			seen = changed
			stalled.Reset(patience)
		}
		select {
		case <-changed:
		case <-stalled.C:
			return fmt.Errorf("nothing has happened for %v", patience)
		case <-tick.C:
			if err := stuck(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// has says whether all these were handled, and fails if one never will be. mu
// must be held.
func (b *board) has(ids ...event.ID) (bool, error) {
	all := true
	for _, id := range ids {
		if b.handled[id] > 0 {
			continue
		}
		if l, dead := b.letters[id]; dead {
			return false, fmt.Errorf("heartbeat of %s failed for good: %s", l.Original.Key, l.Err)
		}
		all = false
	}
	return all, nil
}
