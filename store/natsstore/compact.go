package natsstore

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"promethean/event"
	"promethean/store"
	"promethean/store/internal/superseded"
)

const (
	// purges is how many requests of a compaction are under way at a time.
	purges = 16
	// mostAsked is how many keys are remembered to have been purged.
	mostAsked = 100_000
	// settleFor bounds how long a compaction waits for a replica to have done it.
	settleFor = 10 * time.Second
)

// Compact implements [store.Compacts]. The events of a key have a subject of
// their own, so what is superseded is purged by subject, up to a seq: one
// request for each key that has something to remove. A scan finds out what that
// is, another one, from the end, comes to the last such event of each key first.
//
// Several processes may compact a topic at once: a purge that is repeated does
// nothing.
func (s *Store) Compact(ctx context.Context, name string, c store.Compaction) (store.Compacted, error) {
	if err := event.CheckTopic(name); err != nil {
		return store.Compacted{}, fmt.Errorf("compact: %w", err)
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return store.Compacted{}, err
	}
	defer end()
	j := compaction{s: s, name: name}
	if err := j.run(ctx, c); err != nil {
		return j.done, fmt.Errorf("compact topic %s: %w", name, s.outcome(ctx, err))
	}
	return j.done, nil
}

// compaction is one call of Compact.
type compaction struct {
	s      *Store
	name   string
	scan   scan
	from   uint64
	until  uint64
	find   *superseded.Finder
	single bool   // it is about one key
	bytes  uint64 // what the events up to until take

	mu   sync.Mutex // guards the rest while purges are under way
	done store.Compacted
	last []uint64 // the seqs of the purges that were answered last
}

func (j *compaction) run(ctx context.Context, c store.Compaction) error {
	s := j.s
	i, err := s.inspect(ctx, j.name)
	if err != nil || i == nil {
		return err
	}
	b := s.extent(j.name, i)
	c.Before = min(c.Before, b.Last+1)
	if b.First >= c.Before {
		return nil
	}
	j.from, j.until, j.single = b.First, c.Before-1, c.Key != ""
	j.scan = scan{s: s, stream: s.streamName(j.name), lags: i.Config.Replicas > 1, last: j.until}
	j.find = superseded.New(c, 0)
	for j.find.Next() {
		if err := j.look(ctx); err != nil {
			return err
		}
	}
	gone := j.find.Dead.Count(0, j.until)
	j.done.Kept = j.find.Count
	if gone == 0 {
		return nil
	}
	err = j.purge(ctx)
	if err == nil {
		j.done.Removed = gone // answers may have been lost
		if j.scan.lags {
			j.settle(ctx)
		}
	}
	j.done.Removed = min(j.done.Removed, gone)
	j.done.Kept -= j.done.Removed
	j.done.Bytes = int64(float64(j.bytes) * float64(j.done.Removed) / float64(j.find.Count))
	if t := s.known(j.name); t != nil {
		if err == nil {
			t.index.forgetAll(j.find.Dead)
		}
		t.readers.clear()
	}
	return err
}

// look shows the finder all events.
func (j *compaction) look(ctx context.Context) error {
	j.bytes = 0
	return j.scan.up(ctx, j.from, j.until, 0, func(seq uint64, m *nats.Msg) (bool, error) {
		e, err := j.s.decode(j.name, m.Header.Get(hdrSubject), seq, m.Header, m.Data)
		if err == nil {
			j.bytes += uint64(m.Size())
			j.find.See(seq, e.Key, e.Payload)
		}
		return err == nil, err
	})
}

// purge removes what is superseded. Of the events of a key that go, the last
// comes first, and the purge takes those before it along.
func (j *compaction) purge(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	room := make(chan struct{}, purges)
	asked := make(map[string]bool)
	var wg sync.WaitGroup
	err := j.scan.down(ctx, j.name, j.from, j.until, 0, func(e *event.Event) bool {
		if !j.find.Dead.Has(e.Seq) || asked[e.Key] {
			return true
		}
		if len(asked) == mostAsked {
			clear(asked) // asking again does no harm
		}
		asked[e.Key] = true
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		key, seq, ts := e.Key, e.Seq, e.TS
		wg.Go(func() {
			defer func() { <-room }()
			if err := j.purgeKey(ctx, key, seq, ts); err != nil {
				cancel(err)
			}
		})
		return !j.single // of one key there is no other to come to
	})
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// settle waits until the replica that answers this process has done what the
// leader has: one that lags would show for a moment more what was removed. All
// replicas purge in one order, and the last in it is among those that were
// answered last, as no more than that are under way at a time. Readers at
// another server may still be shown it, for as long as its replica lags.
func (j *compaction) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	var wait time.Duration
	for _, seq := range j.last {
		for ctx.Err() == nil {
			p, err := j.scan.page(ctx, seq, 1)
			if err != nil || len(p.msgs) == 0 || p.msgs[0].Header.Get(hdrSeq) != strconv.FormatUint(seq, 10) {
				break // it is gone, or nobody can tell: it was removed all the same
			}
			pause(ctx, &wait)
		}
	}
}

// purgeKey removes the events of a key up to a seq.
func (j *compaction) purgeKey(ctx context.Context, key string, seq uint64, ts int64) error {
	var a struct {
		answer
		Purged uint64 `json:"purged"`
	}
	err := j.s.retry(ctx, func(ctx context.Context) error {
		return j.s.ask(ctx, "STREAM.PURGE."+j.s.streamName(j.name), map[string]any{"filter": j.s.subject(j.name, key), "seq": seq + 1}, &a)
	})
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done.Removed += a.Purged
	if j.last = append(j.last, seq); len(j.last) > purges {
		j.last = j.last[1:]
	}
	if j.find.Tombs.Has(seq) {
		j.done.MaxTS = max(j.done.MaxTS, ts)
	}
	return nil
}
