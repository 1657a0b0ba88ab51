package mongostore

import (
	"context"
	"fmt"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/event"
	"promethean/store"
)

const (
	// pageBytes is about how much one query of a scan should bring.
	pageBytes  = 2 << 20
	smallPage  = 128 << 10
	largePage  = 8 << 20
	minWidth   = 16
	maxWidth   = 20_000
	keyWidth   = 4096
	widestScan = 1 << 40
)

// scan reads a topic in windows: ranges of seqs, as wide as brings about a
// page. A limit alone would not do: a server that cannot read its index in
// order sorts all that is in the range before it cuts.
//
// After each window the topic's document is read, and judges what was found:
// see the package doc.
type scan struct {
	s *Store
	q store.Query

	begun     bool
	filtered  bool
	lo, hi    uint64 // the seqs that are wanted
	pos, stop uint64 // the next window begins, or ends, at pos; after stop is nothing
	width     uint64
	left      int // how many events may still be given; -1: any number
}

// Read implements [store.Log].
func (s *Store) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		fail := func(err error) {
			yield(event.Event{}, fmt.Errorf("read topic %s: %w", shorten(q.Topic), err))
		}
		sc := &scan{s: s, q: q}
		for done := false; !done; {
			var page []event.Event
			err := s.call(ctx, func(ctx context.Context) (err error) {
				page, done, err = sc.next(ctx)
				return err
			})
			if err != nil {
				fail(err)
				return
			}
			for i := range page {
				if err := ctx.Err(); err != nil {
					fail(err)
					return
				}
				if !yield(page[i], nil) {
					return
				}
			}
		}
	}
}

func (sc *scan) begin(ctx context.Context) error {
	q := sc.q
	sc.begun = true
	sc.filtered = q.Key != "" || q.Partition != 0
	sc.left = -1
	if q.Limit > 0 {
		sc.left = q.Limit
	}
	sc.lo, sc.hi = clamped(q.After)+1, noEnd
	if q.Until != 0 {
		sc.hi = clamped(q.Until)
	}
	t, loaded := sc.s.laneOf(q.Topic).known()
	// Forwards, the end shows itself. A scan that finds nothing for long
	// stretches, or begins at the end, has to know it.
	if !loaded || (sc.filtered || q.Reverse) && t.last < sc.hi {
		var err error
		if t, err = sc.s.refresh(ctx, q.Topic); err != nil {
			return err
		}
	}
	sc.width = keyWidth
	if q.Key == "" {
		sc.width = maxWidth
		if t.last > 0 && t.cum > 0 {
			sc.width = min(max(pageBytes/(uint64(t.cum)/t.last+1), minWidth), maxWidth)
		}
	}
	sc.stop = noEnd
	if sc.filtered || q.Reverse {
		sc.stop = t.last
	}
	if sc.hi < noEnd-maxEvents {
		sc.stop = min(sc.stop, sc.hi+maxEvents-1) // the commit that holds hi ends here at the latest
	}
	sc.pos = sc.lo
	if q.Reverse {
		sc.pos = sc.stop + 1
	}
	return nil
}

// clamped keeps a seq so small that one can be added to it.
func clamped(seq uint64) uint64 { return min(seq, noEnd-1) }

// next gives the events of one window and whether it was the last.
func (sc *scan) next(ctx context.Context) (page []event.Event, done bool, err error) {
	if !sc.begun {
		if err := sc.begin(ctx); err != nil {
			return nil, false, err
		}
	}
	if sc.lo > sc.hi {
		return nil, true, nil
	}
	w := sc.window()
	if w.from >= w.to {
		return nil, true, nil
	}
	found, err := sc.s.findCommits(ctx, w)
	if err != nil {
		return nil, false, err
	}
	d, err := sc.s.topicDoc(ctx, sc.q.Topic) // after the commits: see the package doc
	if err != nil {
		return nil, false, err
	}
	sc.lo = max(sc.lo, uint64(d.First))
	size, last := 0, uint64(0)
	kept := make([]*commit, 0, len(found))
	for _, c := range found {
		if !d.hides(c) {
			kept = append(kept, c)
			last = max(last, c.last)
			for i := range c.events {
				size += len(c.events[i].doc)
			}
		}
	}
	full := w.limit > 0 && int64(len(found)) == w.limit
	page, err = sc.collect(kept)
	if err != nil || sc.left == 0 {
		return page, true, err
	}
	if sc.q.Reverse {
		sc.pos = w.from
		if full {
			sc.pos = found[len(found)-1].last
		}
		done = sc.pos <= sc.lo
	} else {
		done = sc.advance(w, kept, full, last, uint64(d.First))
	}
	switch {
	case size < smallPage:
		sc.width = min(8*sc.width, widestScan)
	case size > largePage:
		sc.width = max(sc.width/4, minWidth)
	}
	return page, done, nil
}

// window says which commits to look at next, by their last seq.
func (sc *scan) window() query {
	w := query{topic: sc.q.Topic, down: sc.q.Reverse}
	if sc.q.Reverse {
		w.to = sc.pos
		w.from = max(min(w.to, sc.hi)-min(sc.width, min(w.to, sc.hi)), sc.lo)
		if w.to > sc.hi {
			w.more = append(w.more, bson.E{Key: "_id.s", Value: bson.D{{Key: "$lte", Value: clamp(sc.hi)}}})
		}
	} else {
		w.from = sc.pos
		w.to = w.from + sc.width
		if t, loaded := sc.s.laneOf(sc.q.Topic).known(); !sc.filtered && loaded && w.to > t.last {
			// Near the end look so far that finding nothing proves that there
			// is nothing: a commit has at most maxEvents.
			w.to = max(t.last+1, w.from) + maxEvents
		}
		if sc.stop < noEnd {
			w.to = min(w.to, sc.stop+1)
		}
	}
	if sc.q.Key != "" {
		w.more = append(w.more, bson.E{Key: "events.key", Value: sc.q.Key})
	}
	if n, ok := sc.q.Partition.Get(); ok {
		w.more = append(w.more, bson.E{Key: "events.partition", Value: int32(n)})
	}
	if sc.left > 0 && sc.left < 1000 {
		w.limit = int64(sc.left) + 1 // commits that count hold an event each, but for trimmed ones
	}
	return w
}

// advance moves a forward scan on and says whether it is at its end.
func (sc *scan) advance(w query, kept []*commit, full bool, last, first uint64) bool {
	switch {
	case full && len(kept) > 0:
		sc.pos = last + 1
	case full:
		sc.pos = max(w.from+1, first)
	case sc.filtered:
		sc.pos = max(w.to, first)
	case len(kept) == 0:
		if first > w.from { // trimmed meanwhile: go on where it begins now
			sc.pos = max(first, w.from+1)
			return sc.pos > sc.stop
		}
		if w.to-w.from >= maxEvents {
			return true
		}
		sc.pos = w.to
	default:
		if last >= sc.hi || w.to > last+maxEvents {
			return true
		}
		sc.pos = last + 1
	}
	return sc.pos > sc.stop
}

// collect decodes what is wanted.
func (sc *scan) collect(found []*commit) (page []event.Event, err error) {
	for _, c := range found {
		for i := range c.events {
			if sc.left == 0 {
				return page, nil
			}
			e := &c.events[i]
			if sc.q.Reverse {
				e = &c.events[len(c.events)-1-i]
			}
			if e.seq < sc.lo || e.seq > sc.hi || sc.q.Key != "" && e.key() != sc.q.Key || sc.q.Partition != 0 && e.partition() != sc.q.Partition {
				continue
			}
			decoded, err := e.decode(c.topic)
			if err != nil {
				return page, err
			}
			page = append(page, decoded)
			if sc.left > 0 {
				sc.left--
			}
		}
	}
	return page, nil
}
