package changefeed

import (
	"context"
	"time"

	"promethean"
)

// State is what a feed is at.
type State string

// The states.
const (
	Starting  State = "starting"
	Snapshot  State = "snapshot"  // it publishes what was there at the beginning
	Streaming State = "streaming" // it publishes changes as they come
	Waiting   State = "waiting"   // something failed; it tries again soon
	Gone      State = "gone"      // what is watched was dropped or renamed
	Failed    State = "failed"    // it cannot go on until somebody does something
	Stopped   State = "stopped"
)

// Status is how a feed is doing.
type Status struct {
	Name  string
	Topic string
	State State
	Since time.Time // when it came to be in that state

	// Counts since the feed was started.
	Published   uint64
	Duplicates  uint64 // known to the hub: published before a crash
	Filtered    uint64
	Oversized   uint64
	Refused     uint64 // left out, since SkipRefused is set
	Failures    uint64
	HistoryLost uint64

	// Position is the place in the source up to which everything is published.
	Position string
	// LastChange is when the last change that was published was made.
	LastChange time.Time
	// Lag is how long after that it was published. While a change is at hand and
	// cannot be published it is the age of that one, and grows.
	Lag time.Duration
	// LagBytes is how much of its log the source keeps for the feed; -1: unknown.
	LagBytes int64
	// Warning is what somebody should look after at the source.
	Warning string
	// Server is what is at the other end.
	Server string

	Error   string // the last; empty once it went on
	ErrorAt time.Time
}

// Status tells how the feed is doing.
func (f *Feed) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	if !f.held.IsZero() {
		s.Lag = max(s.Lag, time.Since(f.held))
	}
	return s
}

func (f *Feed) count(do func(*Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(&f.status)
}

// set comes to a state. mu must not be held.
func (f *Feed) set(s State) { f.count(func(st *Status) { st.become(s) }) }

func (st *Status) become(s State) {
	if st.State != s {
		st.State, st.Since = s, time.Now()
	}
}

// begin takes note of a batch.
func (f *Feed) begin(b Batch) {
	f.count(func(st *Status) {
		if b.Snapshot {
			st.become(Snapshot)
		}
		if f.held = (time.Time{}); len(b.Changes) > 0 {
			f.held = b.Changes[0].At
		}
	})
}

// passed takes note of a batch whose place is saved.
func (f *Feed) passed(b Batch) {
	f.count(func(st *Status) {
		f.saved++
		f.held = time.Time{}
		if b.Position != "" {
			st.Position = b.Position
		}
		if n := len(b.Changes); n > 0 && !b.Changes[n-1].At.IsZero() {
			st.LastChange = b.Changes[n-1].At
			st.Lag = max(time.Since(st.LastChange), 0)
		}
		if st.Error, st.ErrorAt = "", (time.Time{}); !b.Snapshot {
			st.become(Streaming)
		}
	})
}

func (f *Feed) stored(got []promethean.Receipt) {
	f.count(func(st *Status) {
		for i := range got {
			if got[i].Duplicate {
				st.Duplicates++
			} else {
				st.Published++
			}
		}
	})
}

// refused takes note of a change that is left out.
func (f *Feed) refused(key string, err error) {
	f.count(func(st *Status) { st.Refused++ })
	f.o.Logger.Error("a change is refused, and left out", "key", key, "err", err)
}

// fail takes note of why a round has ended. What was known already is told to
// the log once.
func (f *Feed) fail(to State, err error) {
	known := false
	f.count(func(st *Status) {
		known = st.State == to && st.Error == err.Error()
		st.become(to)
		st.Failures++
		st.Error, st.ErrorAt = err.Error(), time.Now()
	})
	if known {
		return
	}
	if to == Waiting {
		f.o.Logger.Warn("the feed tries again", "err", err)
		return
	}
	f.o.Logger.Error("the feed cannot go on", "state", to, "err", err)
}

// lost takes note of missed history.
func (f *Feed) lost(err error) {
	f.count(func(st *Status) { st.HistoryLost++ })
	f.fail(Failed, err)
	if f.o.Resnapshot {
		f.o.Logger.Error("changes are missed: the feed begins anew with a snapshot")
	}
}

// progress changes whenever a place was saved.
func (f *Feed) progress() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.saved
}

// look asks the source how far it is behind, again and again.
func (f *Feed) look(ctx context.Context) {
	for {
		look, cancel := context.WithTimeout(ctx, lookFor)
		s, err := f.src.Status(look)
		cancel()
		f.count(func(st *Status) {
			if st.LagBytes = -1; err == nil {
				st.LagBytes, st.Server, st.Warning = s.LagBytes, s.Server, s.Warning
			}
		})
		if !pause(ctx, nil, lookEvery) {
			return
		}
	}
}
