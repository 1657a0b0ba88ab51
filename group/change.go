package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"promethean/event"
	"promethean/store"
)

// Change gives a group that exists other settings; fields that are left out
// stay as they are. MaxAttempts and AckTimeout can change while members are at
// work and hold from the next delivery on; what was blocked goes on if it has
// attempts again. The others decide what was already
// handed out, or skipped: asking for another value is ErrConflict.
func (e *Engine) Change(ctx context.Context, topic, group string, set Settings) error {
	if err := set.check(); err != nil {
		return fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	r, err := e.acting(ctx, topic, group)
	if err != nil && !errors.Is(err, errParted) {
		return err
	}
	if r == nil {
		err = e.changeParted(ctx, topic, group, set)
	} else {
		err = r.change(set)
	}
	if err != nil {
		return fmt.Errorf("change the settings of topic %s, group %s: %w", topic, group, err)
	}
	return nil
}

func (r *runner) change(set Settings) error {
	return r.do(func() error {
		now, err := r.set.with(set)
		if err != nil {
			return err
		}
		if now == r.set {
			return nil
		}
		c, life := r.cur, r.life
		c.Meta = now.encode()
		r.mu.Unlock()
		v, err := r.e.log.PutCursor(r.e.ctx, c)
		r.mu.Lock()
		if err != nil || life != r.life {
			return err // whoever takes the group over reads the settings again
		}
		r.cur.Version, r.cur.Meta, r.set = v, c.Meta, now
		for _, it := range r.held {
			r.unblock(it)
		}
		r.feed()
		return nil
	})
}

// with gives settings that have changed in what can change.
func (s Settings) with(set Settings) (Settings, error) {
	if set.MaxAttempts != 0 {
		s.MaxAttempts = set.MaxAttempts
	}
	if set.AckTimeout != 0 {
		s.AckTimeout = set.AckTimeout
	}
	return s, s.fits(set)
}

// unblock lets an item go on that was blocked when it had fewer attempts. mu
// must be held.
func (r *runner) unblock(it *item) {
	if it.state == blocked && it.recorded >= it.delivered && int(it.delivered) < r.set.MaxAttempts {
		it.suspect = r.mark != 0 && it.seq <= r.counted // after a crash it may be what caused it
		r.activate(it)
	}
}

// fits says whether settings that are asked for contradict those of the group.
func (r *runner) fits(asked *Settings) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set.fits(*asked)
}

// refresh reads the settings again where somebody else may have changed them.
func (r *runner) refresh(ctx context.Context) error {
	r.mu.Lock()
	owner := r.isOwner()
	r.mu.Unlock()
	if owner {
		return nil
	}
	c, err := r.e.log.Cursor(ctx, r.topic, r.cursor)
	if err != nil {
		return err
	}
	return r.adopt(&c)
}

// adopt takes over the settings that a cursor carries.
func (r *runner) adopt(c *store.Cursor) error {
	for {
		meta := r.meta(c)
		set, err := decodeSettings(meta)
		if err != nil {
			return err
		}
		filter, err := CompileFilter(set.Filter)
		if err != nil {
			return err
		}
		if r.use(meta, set, filter) {
			return nil
		}
	}
}

// meta gives the settings of a cursor. Those of partitions are kept in one place
// for all of them.
func (r *runner) meta(c *store.Cursor) []byte {
	if r.part == nil {
		return c.Meta
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.part.meta
}

// use makes settings those of the runner, unless others have come meanwhile.
func (r *runner) use(meta []byte, set Settings, filter func(*event.Event) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.part != nil && !bytes.Equal(r.part.meta, meta) {
		return false
	}
	r.set, r.filter = set, filter
	return true
}
