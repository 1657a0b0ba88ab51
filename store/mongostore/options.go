package mongostore

import (
	"log/slog"
	"time"

	"promethean/event"
)

// Options configure a store. The zero value is ready for use.
type Options struct {
	// Database is the database's name. Default: the one that the URL names,
	// and "promethean" if it names none.
	Database string
	// Prefix begins the name of every collection. Stores with different
	// prefixes share nothing. Default: "promethean_".
	Prefix string
	// Limits are what events must keep to. Default: those of package event.
	Limits event.Limits
	// RetryFor is how long a call goes on trying while the server is away,
	// unless its context ends before. Default: 10 s.
	RetryFor time.Duration
	// Timeout bounds one try. Default: 5 s.
	Timeout time.Duration
	// SweepEvery is how often retention is enforced. Default: 30 s.
	SweepEvery time.Duration
	// PollMin is how soon after an event of another process the store looks
	// for the next, where the server has no change streams. Default: 20 ms.
	PollMin time.Duration
	// PollMax is how long that interval grows while nothing comes, and so how
	// late the first event of another process may be noticed. Default: 500 ms.
	PollMax time.Duration
	// Logger hears of what is made at start and of what goes on in the
	// background. Default: nobody does.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = "promethean_"
	}
	if o.RetryFor <= 0 {
		o.RetryFor = 10 * time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.SweepEvery <= 0 {
		o.SweepEvery = 30 * time.Second
	}
	if o.PollMin <= 0 {
		o.PollMin = 20 * time.Millisecond
	}
	o.PollMin = max(o.PollMin, time.Millisecond)
	if o.PollMax <= 0 {
		o.PollMax = 500 * time.Millisecond
	}
	o.PollMax = max(o.PollMax, o.PollMin)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

const (
	// maxEvents is the largest number of events in a commit. Readers rely on
	// it: a commit that holds seq n ends below n+maxEvents.
	maxEvents = 5000
	// maxBatchBytes is what one batch may have in keys, headers and payloads.
	maxBatchBytes = 6 << 20
	// groupBytes is how large a commit is made by merging. One batch may be
	// larger, because tags and causes are not in maxBatchBytes.
	groupBytes = 8 << 20
	// maxCommit bounds a commit's document. The server's own limit is 16 MiB.
	maxCommit = 15 << 20
)

// MaxBatch implements [store.Bounded].
func (s *Store) MaxBatch() (events, bytes int) { return maxEvents, maxBatchBytes }

// SharedByProcesses is the ability [store.Shared].
func (s *Store) SharedByProcesses() {}
