package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"promethean/event"
	"promethean/store"
)

// watchMemory samples what this process holds every 100 ms. The function it
// returns ends that and gives the peak in bytes.
func watchMemory() func() (int64, error) {
	stop, result := make(chan struct{}), make(chan int64)
	var failed error // written before result is sent
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		var peak int64
		for ended := false; ; {
			n, err := residentBytes()
			if err != nil {
				failed = err
			}
			peak = max(peak, n)
			if ended {
				result <- peak
				return
			}
			select {
			case <-tick.C:
			case <-stop:
				ended = true // one sample more, so that a short run has one
			}
		}
	}()
	return func() (int64, error) {
		close(stop)
		return <-result, failed
	}
}

// allocResult is the cost of one append on the heap.
type allocResult struct {
	Allocs, Bytes float64
}

// Appends of the measurement of allocations: enough that what an engine does
// once in a while has its share.
const (
	allocWarmUp  = 2_000
	allocAppends = 20_000
)

// measureAllocs counts allocations around single appends by one goroutine,
// those of the engine's own goroutines included.
func (b *bench) measureAllocs(ctx context.Context) (res allocResult, err error) {
	dir, err := os.MkdirTemp(b.work, "allocs-")
	if err != nil {
		return res, err
	}
	defer func() {
		if e := discard(dir); err == nil {
			err = e
		}
	}()
	log, err := openLog(dir)
	if err != nil {
		return res, err
	}
	defer func() {
		if e := log.Close(); err == nil {
			err = e
		}
	}()
	b.progress("allocs: %d appends", allocAppends)
	return countAllocs(ctx, log, allocWarmUp, allocAppends)
}

func countAllocs(ctx context.Context, log store.Log, warmUp, appends int) (allocResult, error) {
	// Goroutines of the runtime and of this program allocate next to nothing
	// while this runs; one processor keeps it so.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := load{Topics: loadTopics, Keys: loadKeys}
	gen := newGenerator(l, topicNames(l), 0)
	evs := make([]event.Event, 1)
	var before, after runtime.MemStats
	for i := range warmUp + appends {
		if i == warmUp {
			runtime.ReadMemStats(&before)
		}
		gen.fill(evs)
		if _, err := log.Append(ctx, store.Batch{Events: evs}); err != nil {
			return allocResult{}, fmt.Errorf("append %d: %w", i, err)
		}
	}
	runtime.ReadMemStats(&after)
	n := float64(appends)
	return allocResult{
		Allocs: float64(after.Mallocs-before.Mallocs) / n,
		Bytes:  float64(after.TotalAlloc-before.TotalAlloc) / n,
	}, nil
}
