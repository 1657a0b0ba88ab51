package natsstore

import (
	"context"
	"fmt"

	"promethean/event"
	"promethean/store"
)

// LocateID implements [store.Log].
func (s *Store) LocateID(ctx context.Context, name string, id event.ID) (uint64, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	seq := uint64(0)
	if event.CheckTopic(name) == nil {
		i, err := s.synced(ctx, name)
		if err != nil {
			return 0, fmt.Errorf("locate id %s in topic %s: %w", id, name, s.outcome(ctx, err))
		}
		if i != nil {
			seq, err = s.located(ctx, s.topic(name), id)
		}
		if err != nil {
			return 0, fmt.Errorf("locate id %s in topic %s: %w", id, name, s.outcome(ctx, err))
		}
	}
	if seq == 0 {
		return 0, fmt.Errorf("locate id %s in topic %s: %w", id, shorten(name), store.ErrNotFound)
	}
	return seq, nil
}

// located gives the seq of an id, 0 if it is unknown. Another process may have
// removed the event by a compaction, and says so to nobody.
func (s *Store) located(ctx context.Context, t *topic, id event.ID) (uint64, error) {
	seq := t.index.get(id)
	if seq == 0 {
		return 0, nil
	}
	there, err := s.originals(ctx, t, []uint64{seq})
	if err != nil {
		return 0, err
	}
	if e, ok := there[seq]; !ok || e.ID != id {
		t.index.forget(id, seq)
		return 0, nil
	}
	return seq, nil
}

// synced brings the index of a topic up to date. Nil means that there is no
// such topic; it is not made.
func (s *Store) synced(ctx context.Context, name string) (*streamInfo, error) {
	if s.known(name) == nil {
		i, err := s.inspect(ctx, name)
		if err != nil || i == nil {
			return i, err
		}
		s.topic(name).learn(i)
	}
	t := s.topic(name)
	if !t.there.Load() {
		if i, err := s.inspect(ctx, name); err != nil || i == nil {
			return i, err
		}
	}
	return s.sync(ctx, t)
}

// LocateTime implements [store.Log]. The index says in which blocks of events
// to look; a block is read to find the event.
func (s *Store) LocateTime(ctx context.Context, name string, ts int64) (uint64, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if event.CheckTopic(name) != nil {
		return 1, nil
	}
	seq, err := s.locateTime(ctx, name, ts)
	if err != nil {
		return 0, fmt.Errorf("locate time %d in topic %s: %w", ts, name, s.outcome(ctx, err))
	}
	return seq, nil
}

func (s *Store) locateTime(ctx context.Context, name string, ts int64) (uint64, error) {
	i, err := s.synced(ctx, name)
	if err != nil {
		return 0, err
	}
	if i == nil {
		return 1, nil
	}
	b, t := s.extent(name, i), s.topic(name)
	r := scan{s: s, stream: t.stream, lags: i.Config.Replicas > 1, last: b.Last}
	for at := b.First; at <= b.Last; {
		from, to, ok := t.index.blockAfter(at, ts, b.Last)
		if !ok {
			break
		}
		found := uint64(0)
		if err := r.up(ctx, from, min(to, b.Last), 0, s.events(name, func(e *event.Event) bool {
			if e.TS >= ts {
				found = e.Seq
			}
			return found == 0
		})); err != nil {
			return 0, err
		}
		if found != 0 {
			return found, nil
		}
		at = to + 1
	}
	return b.Last + 1, nil
}
