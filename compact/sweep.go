package compact

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"promethean/event"
	"promethean/store"
)

const (
	// dense is how many moments are remembered within a time as long as they
	// are old, so that Before is late by that part of History at most.
	dense = 16
	// large is the size from which on a topic is not rewritten for little.
	large = 64 << 20
	// rarely is when it is anyway.
	rarely = time.Hour
	// keepMarks is how many records of marks there are before old ones go, and
	// how many stay in any case: whoever reads the newest one of a topic must
	// not miss it because it was replaced a moment ago.
	keepMarks = 512
	// mostStored is how long moments are kept in memory alone at most.
	mostStored = 10 * time.Minute
)

// tick remembers what the end of the topic is.
func (w *worker) tick(now time.Time, last uint64, set *Settings) {
	list := w.mark.Ticks
	at := now.UnixMilli()
	n := len(list)
	if n > 0 && list[n-1].Last == last {
		return // what was so before is still so
	}
	list = append(append(make([]Tick, 0, n+1), list...), Tick{at, last})
	if n > 0 && list[n-1].At >= at {
		// No time has passed, or the clock was set back: it is later than that.
		list[n-1].Last = last
		list = list[:n]
		at = list[n-1].At
	}
	w.mark.Ticks, w.ticked = thin(list, at, max(time.Duration(set.History), set.grace()).Milliseconds()), true
}

// thin leaves out moments that lie close together for their age, and those of
// which a later one is older than any window.
func thin(list []Tick, now, window int64) []Tick {
	out := list[:0]
	for i, t := range list {
		if i+1 < len(list) && list[i+1].At <= now-window {
			continue // the next one serves as well
		}
		if n := len(out); n > 0 && i+1 < len(list) && list[i+1].At-out[n-1].At < (now-t.At)/dense {
			continue
		}
		out = append(out, t)
	}
	return out
}

// before gives the first seq that may have been committed within a time.
func (m *Mark) before(now time.Time, window time.Duration) uint64 {
	limit := now.Add(-window).UnixMilli()
	seq := uint64(1)
	for _, t := range m.Ticks {
		if t.At <= limit {
			seq = t.Last + 1
		}
	}
	return seq
}

// due says what is to be removed now.
func (w *worker) due(now time.Time, set *Settings) store.Compaction {
	c := store.Compaction{
		Before:     w.mark.before(now, time.Duration(set.History)),
		Tombstones: min(w.mark.before(now, set.grace()), w.c.o.Hold(w.topic)),
	}
	if set.SnapshotTopic(w.topic) != "" {
		c.Before = min(c.Before, w.snap.covered+1)
	}
	c.Tombstones = min(c.Tombstones, c.Before)
	return c
}

// worth says whether a compaction is worth its while.
func (w *worker) worth(now time.Time, b store.Bounds, c store.Compaction, force bool) bool {
	m := &w.mark
	if m.Before > 0 && !m.Done {
		return true // it was broken off
	}
	done := store.Compaction{Before: max(m.Before, w.tried.Before), Tombstones: max(m.Tombstones, w.tried.Tombstones)}
	if c.Before <= max(done.Before, 1) && c.Tombstones <= max(done.Tombstones, 1) {
		return false
	}
	if force || b.Bytes <= large || m.At == 0 || now.Sub(time.UnixMilli(m.At)) >= rarely {
		return true
	}
	// Every event that has come supersedes one at most.
	fresh := c.Before - min(c.Before, done.Before)
	return fresh >= (m.Kept+fresh)/4
}

// compact records what is to go, removes it, and records that it is gone.
func (w *worker) compact(ctx context.Context, now time.Time, c store.Compaction, r *Report) error {
	w.c.one.Lock()
	defer w.c.one.Unlock()
	was := w.mark
	c.Before = max(c.Before, was.Before) // there nothing is left to remove
	next := was
	next.Before, next.Tombstones = c.Before, max(was.Tombstones, c.Tombstones)
	next.Done, next.At = false, now.UnixMilli()
	if c.Tombstones > 1 {
		bound, err := w.maxTS(ctx, c.Tombstones)
		if err != nil {
			return err
		}
		next.MaxTS = max(was.MaxTS, bound)
	}
	if err := w.store(ctx, next); err != nil {
		return err
	}
	got, err := w.c.compacts.Compact(ctx, w.topic, c)
	r.Before, r.Compacted = c.Before, got
	if err != nil {
		return err
	}
	w.tried = c
	b, err := w.c.hub.Log().Bounds(ctx, w.topic)
	if err != nil {
		return err
	}
	end := w.mark
	end.Done, end.First, end.Kept = true, b.First, got.Kept
	if was.Before == 0 || was.Done {
		// All that was ever removed by compaction is known.
		end.MaxTS = max(was.MaxTS, got.MaxTS)
		if got.Removed == 0 {
			end.Before, end.Tombstones, end.MaxTS = was.Before, was.Tombstones, was.MaxTS
		}
	}
	return w.store(ctx, end)
}

// maxTS finds the largest TS of the events below a seq.
func (w *worker) maxTS(ctx context.Context, below uint64) (int64, error) {
	low, high := int64(0), int64(event.MaxTS) // one at low or above it is there, if any is
	for low < high {
		mid := low + (high-low+1)/2
		seq, err := w.c.hub.Log().LocateTime(ctx, w.topic, mid)
		if err != nil {
			return 0, err
		}
		if seq < below {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low, nil
}

// store records a mark, which holds from then on.
func (w *worker) store(ctx context.Context, m Mark) error {
	m.Topic = w.topic
	text, err := encode(m)
	if err != nil {
		return err
	}
	seq, err := w.c.marks.AppendKeyed(ctx, w.topic, w.mark.seq, text)
	if err != nil {
		return err
	}
	m.seq = seq
	w.mark, w.ticked, w.stored = m, false, w.c.o.Now()
	if w.grown++; w.grown < keepMarks || seq <= keepMarks {
		return nil
	}
	w.grown = 0
	_, err = w.c.compacts.Compact(ctx, Topic, store.Compaction{Before: seq - keepMarks})
	return err
}

// storeEvery is how often moments are stored.
func (w *worker) storeEvery(set *Settings) time.Duration {
	window := set.grace()
	if set.History > 0 {
		window = min(window, time.Duration(set.History))
	}
	return min(max(window/dense, w.c.o.Every), mostStored)
}

// encode is JSON without escapes that only HTML needs: payloads keep their
// bytes.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
