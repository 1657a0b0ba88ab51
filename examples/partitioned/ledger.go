package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
)

// ledger holds members to what a partitioned group promises: a partition is at
// one member at a time, and the events of a key come one after the other, in
// order, to the member that has its partition.
type ledger struct {
	mu      sync.Mutex
	changed chan struct{} // closed when anything has changed

	holder  [partitions]string         // who has which partition
	working map[string]string          // by key, who is at work on it
	last    map[string]uint64          // by key, the seq that was handled last
	digest  map[string]string          // by key, what came of it
	members map[string]map[string]bool // by key, who handled some of it
	seqs    map[uint64]bool            // those that were handled
	count   map[string]int             // by member, how many
	total   int                        // events that were handled
	again   int                        // events that came again
	faults  []error
}

func newLedger() *ledger {
	return &ledger{
		changed: make(chan struct{}), working: make(map[string]string), last: make(map[string]uint64), digest: make(map[string]string),
		members: make(map[string]map[string]bool), seqs: make(map[uint64]bool), count: make(map[string]int),
	}
}

// change does something under the lock and wakes who waits.
func (l *ledger) change(do func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := do()
	if err != nil {
		l.faults = append(l.faults, err)
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return err
}

// fault takes note of a promise that was broken.
func (l *ledger) fault(err error) { _ = l.change(func() error { return err }) }

// assigned takes note that a member gets a partition.
func (l *ledger) assigned(n int, member string) error {
	return l.change(func() error {
		if at := l.holder[n]; at != "" {
			return fmt.Errorf("partition %d comes to %s while %s has it", n, member, at)
		}
		l.holder[n] = member
		return nil
	})
}

// revoked takes note that a member has let go of a partition.
func (l *ledger) revoked(n int, member string) error {
	return l.change(func() error {
		if at := l.holder[n]; at != member {
			return fmt.Errorf("partition %d is taken from %s while %q has it", n, member, at)
		}
		l.holder[n] = ""
		return nil
	})
}

// begin takes note that a member is handed an event.
func (l *ledger) begin(member string, e *event.Event, d *promethean.Delivery) error {
	return l.change(func() error {
		n := event.PartitionFor(e.Key, e.ID, partitions)
		switch other, busy := l.working[e.Key]; {
		case busy:
			return fmt.Errorf("seq %d of %s comes to %s while %s is at work on it", e.Seq, e.Key, member, other)
		case l.holder[n] != member:
			return fmt.Errorf("seq %d of %s comes to %s, but partition %d is at %q", e.Seq, e.Key, member, n, l.holder[n])
		case e.Seq < l.last[e.Key] || e.Seq == l.last[e.Key] && d.Attempt == 1:
			return fmt.Errorf("seq %d of %s comes after %d", e.Seq, e.Key, l.last[e.Key])
		}
		l.working[e.Key] = member
		return nil
	})
}

// end takes note that a member has handled an event, or why it could not.
func (l *ledger) end(member string, e *event.Event, digest string, err error) error {
	return l.change(func() error {
		delete(l.working, e.Key)
		if err != nil {
			return fmt.Errorf("%s analyses seq %d of %s: %w", member, e.Seq, e.Key, err)
		}
		if l.seqs[e.Seq] {
			l.again++
			return nil
		}
		if l.members[e.Key] == nil {
			l.members[e.Key] = make(map[string]bool)
		}
		l.members[e.Key][member], l.seqs[e.Seq] = true, true
		l.last[e.Key], l.digest[e.Key] = e.Seq, digest
		l.count[member]++
		l.total++
		return nil
	})
}

// patience is how long nothing at all may happen while something is waited for.
const patience = time.Minute

// wait waits until something is so, or a promise was broken: that work goes on is
// one. It is asked under the lock.
func (l *ledger) wait(ctx context.Context, so func() bool) error {
	stalled := time.NewTimer(patience)
	defer stalled.Stop()
	for {
		l.mu.Lock()
		changed, yes, err := l.changed, so(), errors.Join(l.faults...)
		l.mu.Unlock()
		if yes || err != nil {
			return err
		}
		select {
		case <-changed:
			stalled.Reset(patience)
		case <-stalled.C:
			return fmt.Errorf("nothing has happened for %v; the members have %s", patience, l.shares())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// even says whether these members have all partitions between them, nobody two
// more than another. mu must be held.
func (l *ledger) even(members map[string]promethean.Subscription) bool {
	count := make(map[string]int)
	for _, member := range l.holder {
		if _, there := members[member]; !there {
			return false
		}
		count[member]++
	}
	for member := range members {
		if count[member] < partitions/len(members) {
			return false
		}
	}
	return true
}

// shares says who has which partitions.
func (l *ledger) shares() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	parts := make(map[string][]int)
	for n, member := range l.holder {
		parts[member] = append(parts[member], n)
	}
	var text []string
	for _, member := range slices.Sorted(maps.Keys(parts)) {
		text = append(text, fmt.Sprintf("%s %v", member, parts[member]))
	}
	return strings.Join(text, ", ")
}

// done says whether an event was handled.
func (l *ledger) done(seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seqs[seq]
}

// verdict says which promises were broken, given the last state of each process.
// What a run before this one has handled is not judged.
func (l *ledger) verdict(last map[string]event.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(l.faults...); err != nil {
		return err
	}
	for key, e := range last {
		seq, handled := l.last[key]
		if !handled {
			continue
		}
		s, err := promethean.Payload[process.State](&e)
		if err != nil {
			return err
		}
		want, err := expensive(&s)
		if err != nil {
			return err
		}
		if seq != e.Seq || l.digest[key] != want {
			return fmt.Errorf("%s was analysed up to %d, and comes to %s: the last state is %d, and makes %s", key, seq, l.digest[key], e.Seq, want)
		}
	}
	return nil
}

// summary says what was done.
func (l *ledger) summary() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var shares []string
	for _, member := range slices.Sorted(maps.Keys(l.count)) {
		shares = append(shares, fmt.Sprintf("%d by %s", l.count[member], member))
	}
	moved := 0
	for _, by := range l.members {
		if len(by) > 1 {
			moved++
		}
	}
	text := fmt.Sprintf("%d states are analysed, %s; every process at one member at a time, in order, and %d of %d went from one member to another",
		l.total, strings.Join(shares, ", "), moved, len(l.members))
	if l.again > 0 {
		text += fmt.Sprintf("; %d came again", l.again)
	}
	return text
}
