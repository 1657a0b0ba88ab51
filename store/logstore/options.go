package logstore

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
)

// Options configure a store. The zero value is ready for use.
type Options struct {
	// FS is where the store keeps its files. Default: the operating system's.
	FS vfs.FS
	// Limits are what events must keep to. Default: those of package event.
	Limits event.Limits
	// SegmentSize is the size of a journal segment, and about that of the
	// chunk that is made of it; a multiple of 4096. It bounds the largest
	// batch, to a little less. Default: 32 MiB.
	SegmentSize int64
	// MaxFrozen is how many full segments may wait to be sealed before
	// appends wait too. Default: 3.
	MaxFrozen int
	// Tail is how many sealed segments stay in memory for readers that are
	// close to the end. Default: 1.
	Tail int
	// SweepEvery is how often retention is enforced. Default: 30 s.
	SweepEvery time.Duration
	// MarkAfter is how long the store is idle before it leaves a durable
	// mark behind the last frame. Default: 10 ms.
	MarkAfter time.Duration
	// Synced is told how long each sync of the journal took. It must not
	// block. Default: nobody is told.
	Synced func(time.Duration)
	// Logger hears of what goes on in the background. Default: nobody does.
	Logger *slog.Logger

	memory   bool // FS is in memory
	mostSeen int  // slots for keys that a compaction looks at in one scan; 0: the default
	// fewEntries stands in for the constant of that name; 0: that.
	fewEntries uint64
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.SegmentSize <= 0 {
		o.SegmentSize = 32 << 20
	}
	o.SegmentSize = max(o.SegmentSize, minSegment) &^ 4095
	if o.MaxFrozen <= 0 {
		o.MaxFrozen = 3
	}
	if o.Tail <= 0 {
		o.Tail = 1
	}
	if o.SweepEvery <= 0 {
		o.SweepEvery = 30 * time.Second
	}
	if o.MarkAfter <= 0 {
		o.MarkAfter = 10 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

const (
	minSegment = 16 << 10
	// maxFrame is about how much one group commit takes at once; a single
	// larger batch is a group of its own.
	maxFrame = 4 << 20
)
