package group

import (
	"context"
	"errors"
	"fmt"
	"time"

	"promethean/event"
	"promethean/store"
)

// AckAs is Ack by somebody who has these partitions: what lies in others is
// fenced, and so is a lease of an epoch that is over.
func (e *Engine) AckAs(as []*Member, topic string, ids []Selected, async bool) ([]Result, error) {
	return e.inParts(topic, theirs(as), ids, func(r *runner, ids []Selected) ([]Result, error) { return r.ackAll(ids, async) })
}

// NackAs is Nack by somebody who has these partitions.
func (e *Engine) NackAs(as []*Member, topic string, ids []Selected, n Nack) ([]Result, error) {
	return e.inParts(topic, theirs(as), ids, func(r *runner, ids []Selected) ([]Result, error) { return r.changeAll(ids, nacking(&n)) })
}

// ExtendAs is Extend by somebody who has these partitions.
func (e *Engine) ExtendAs(as []*Member, topic string, ids []Selected, by time.Duration) ([]Result, error) {
	do := extending(by)
	return e.inParts(topic, theirs(as), ids, func(r *runner, ids []Selected) ([]Result, error) { return r.changeAll(ids, do) })
}

// theirs gives the runners of partitions that these members still have.
func theirs(as []*Member) []*runner {
	out := make([]*runner, 0, len(as))
	for _, m := range as {
		m.r.mu.Lock()
		if !m.gone {
			out = append(out, m.r)
		}
		m.r.mu.Unlock()
	}
	return out
}

// inParts has each of these partitions do something with the deliveries that
// are its own. What is not theirs is fenced.
func (e *Engine) inParts(topic string, runners []*runner, ids []Selected, do func(*runner, []Selected) ([]Result, error)) ([]Result, error) {
	out := make([]Result, len(ids))
	mine := make(map[*runner][]int, len(runners))
	for i, s := range ids {
		out[i] = Result{ID: s.ID}
		r, err := e.partOf(topic, runners, s)
		switch {
		case errors.Is(err, ErrFenced), errors.Is(err, ErrUnknownID):
			out[i].Err = err
		case err != nil:
			return nil, err
		default:
			mine[r] = append(mine[r], i)
		}
	}
	for r, list := range mine {
		part := make([]Selected, len(list))
		for k, i := range list {
			part[k] = ids[i]
		}
		results, err := do(r, part)
		if err != nil && !errors.Is(err, ErrNotOwner) && !errors.Is(err, ErrFenced) {
			return nil, err
		}
		for k, i := range list {
			if out[i].Err = ErrFenced; err == nil {
				out[i] = results[k]
			}
		}
	}
	return out, nil
}

// partOf finds the runner of a delivery among some.
func (e *Engine) partOf(topic string, runners []*runner, s Selected) (*runner, error) {
	for _, r := range runners {
		r.mu.Lock()
		held, epoch := r.meant(s) != nil, r.cur.Epoch
		r.mu.Unlock()
		if held {
			return r, ofEpoch(s, epoch)
		}
	}
	seq, err := e.log.LocateID(e.ctx, topic, s.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrUnknownID
	}
	if err != nil {
		return nil, err
	}
	for ev, err := range e.log.Read(e.ctx, store.Query{Topic: topic, After: seq - 1, Until: seq}) {
		if err != nil {
			return nil, err
		}
		for _, r := range runners {
			r.mu.Lock()
			n, epoch := r.part.div.of(&ev), r.cur.Epoch
			beyond := r.part.ends && seq > r.part.until
			r.mu.Unlock()
			if n == r.part.number && !beyond {
				return r, ofEpoch(s, epoch)
			}
		}
	}
	return nil, ErrFenced
}

// ofEpoch says whether a delivery is of that epoch, or does not tell.
func ofEpoch(s Selected, epoch uint64) error {
	if s.Lease != 0 && s.Lease>>epochShift != epoch {
		return ErrFenced
	}
	return nil
}

// Parts tells how the partitions of a group stand.
func (e *Engine) Parts(ctx context.Context, topic, group string) (Plan, []PartInfo, error) {
	x, err := e.root(ctx, topic, group)
	if err != nil {
		return Plan{}, nil, fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	b, err := e.log.Bounds(ctx, topic)
	if err != nil {
		return x.plan, nil, err
	}
	list, err := e.partInfos(ctx, x, b)
	return x.plan, list, err
}

func (e *Engine) partInfos(ctx context.Context, x *root, b store.Bounds) ([]PartInfo, error) {
	topic, group := x.cur.Topic, x.cur.Group
	list := make([]PartInfo, x.plan.Count)
	cursors := make([]store.Cursor, x.plan.Count)
	for n := range list {
		stored := partName(group, x, n)
		e.mu.Lock()
		r := e.runners[name{topic, stored}]
		e.mu.Unlock()
		list[n].Number = n
		if r != nil && r.describe(&list[n], &cursors[n]) {
			continue
		}
		c, err := e.log.Cursor(ctx, topic, stored)
		if errors.Is(err, store.ErrNotFound) {
			c, err = store.Cursor{Floor: x.cur.Floor}, nil
		}
		if err != nil {
			return nil, err
		}
		cursors[n] = c
		list[n].Cursor, list[n].Epoch, list[n].Pending = c.Floor, c.Epoch, len(c.Attempts)
	}
	return list, e.countLag(ctx, x, b, list, cursors)
}

// describe tells how a partition stands that this process owns.
func (r *runner) describe(i *PartInfo, c *store.Cursor) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.own.owned {
		return false
	}
	*c = r.cur.Clone()
	c.Settle(&store.Settlement{Done: r.foreign})
	i.Cursor, i.Epoch, i.Here = c.Floor, r.cur.Epoch, true
	for _, it := range r.held {
		if it.state == leased {
			i.InFlight++
		}
		if it.delivered > 0 && it.state != settling {
			i.Pending++
		}
	}
	return true
}

// maxCount is how many events are looked at to tell how far partitions are
// behind.
const maxCount = 20_000

// countLag tells how many events are not settled: exactly at the end of the
// topic, and before that as if all partitions had the same share.
func (e *Engine) countLag(ctx context.Context, x *root, b store.Bounds, list []PartInfo, cursors []store.Cursor) error {
	low := b.Last
	for n := range list {
		low = min(low, cursors[n].Floor)
	}
	low = max(low, b.First-1)
	from := low
	if b.Last > maxCount {
		from = max(from, b.Last-maxCount)
	}
	d := e.dividerOf(x)
	for ev, err := range e.log.Read(ctx, store.Query{Topic: x.cur.Topic, After: from, Until: b.Last}) {
		if err != nil {
			return err
		}
		if n := d.of(&ev); !settled(&cursors[n], ev.Seq) {
			list[n].Lag++
		}
	}
	for n := range list {
		list[n].Exact = cursors[n].Floor >= from || low == from
		if floor := max(cursors[n].Floor, b.First-1); floor < from {
			list[n].Lag += (from - floor) / uint64(x.plan.Count)
		}
	}
	return nil
}

// dividerOf gives the divider of a group's plan.
func (e *Engine) dividerOf(x *root) *divider {
	g := e.partedOf(x.cur.Topic, x.cur.Group)
	if x.set.Partitions == FollowTopic {
		return g.divider(x.set.term, &x.terms)
	}
	return g.ownDivider(x.plan.Count)
}

// partedInfo is Info for a partitioned group.
func (e *Engine) partedInfo(ctx context.Context, topic, group string, b store.Bounds) (Info, error) {
	x, err := e.root(ctx, topic, group)
	if err != nil {
		return Info{}, fmt.Errorf("topic %s, group %s: %w", topic, group, err)
	}
	list, err := e.partInfos(ctx, x, b)
	if err != nil {
		return Info{}, err
	}
	i := Info{Topic: topic, Group: group, Settings: x.set, Cursor: b.Last, Tail: b.Last, Generation: x.cur.Generation}
	i.Paused = e.partedOf(topic, group).isPaused()
	for n := range list {
		p := &list[n]
		if p.Lag > 0 || !p.Exact {
			i.Cursor = min(i.Cursor, p.Cursor)
		}
		i.Lag += p.Lag
		i.InFlight += p.InFlight
		i.Pending += p.Pending
	}
	for _, r := range e.runnersOf(topic, group) {
		r.mu.Lock()
		i.Members += len(r.members)
		r.mu.Unlock()
	}
	return i, nil
}

// moveParted moves all partitions of a group to a place. The cursors of the
// partitions begin anew; whoever is at the old ones is fenced.
func (e *Engine) moveParted(ctx context.Context, topic, group string, floor uint64) error {
	for {
		x, err := e.root(ctx, topic, group)
		if err != nil {
			return err
		}
		was := *x
		x.cur.Generation++
		err = e.place(ctx, &x.cur, x.set, floor)
		if lostRace(err) {
			continue
		}
		if err == nil {
			e.retire(ctx, &was)
		}
		return err
	}
}

// deleteParted removes a partitioned group. It must have no members.
func (e *Engine) deleteParted(ctx context.Context, topic, group string) error {
	for _, r := range e.runnersOf(topic, group) {
		r.mu.Lock()
		n := len(r.members)
		r.mu.Unlock()
		if n > 0 {
			return fmt.Errorf("topic %s, group %s: %w: partition %d has a member", topic, group, ErrInvalid, r.part.number)
		}
	}
	x, err := e.root(ctx, topic, group)
	if err != nil {
		return err
	}
	e.retire(ctx, x)
	e.mu.Lock()
	delete(e.parted, name{topic, group})
	e.mu.Unlock()
	return e.log.DeleteCursor(ctx, topic, group, x.cur.Version)
}

// changeParted is Change for a partitioned group. Partitions learn of it when
// they are taken over next; those of this process do at once.
func (e *Engine) changeParted(ctx context.Context, topic, group string, set Settings) error {
	for {
		x, err := e.root(ctx, topic, group)
		if err != nil {
			return err
		}
		now, err := x.set.with(set)
		if err != nil || now == x.set {
			return err
		}
		x.cur.Meta = now.encode()
		version, err := e.log.PutCursor(ctx, x.cur)
		if lostRace(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, r := range e.runnersOf(topic, group) {
			r.mu.Lock()
			if version < r.part.version { // somebody was quicker with another change
				r.mu.Unlock()
				continue
			}
			r.part.learn(x.cur.Meta, version)
			r.set = now
			for _, it := range r.held {
				r.unblock(it)
			}
			r.feed()
			r.mu.Unlock()
		}
		return nil
	}
}

// redeliverParts hands originals of dead letters to their partitions again. What
// is asked for is durable already.
func (e *Engine) redeliverParts(ctx context.Context, topic, group string, letters []LetterAt) error {
	x, err := e.root(ctx, topic, group)
	if err != nil {
		return err
	}
	d := e.dividerOf(x)
	byPart := make(map[int][]LetterAt)
	for _, l := range letters {
		n := d.of(&l.Original)
		byPart[n] = append(byPart[n], l)
	}
	for n, list := range byPart {
		stored := partName(group, x, n)
		e.mu.Lock()
		r := e.runners[name{topic, stored}]
		e.mu.Unlock()
		if r != nil && r.injectAll(list) {
			continue
		}
		if err := e.disturb(ctx, topic, stored); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) injectAll(letters []LetterAt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isOwner() {
		return false
	}
	for _, l := range letters {
		r.inject(l.Seq, l.Original, 0)
	}
	r.feed()
	return true
}

// disturb has whoever owns a partition elsewhere take it over anew, and so find
// what has been asked for.
func (e *Engine) disturb(ctx context.Context, topic, stored string) error {
	if e.leases == nil {
		return nil // nobody has it; whoever comes finds it
	}
	for {
		c, err := e.log.Cursor(ctx, topic, stored)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err == nil {
			take := store.Settlement{Topic: topic, Group: stored, Epoch: c.Epoch, Take: c.Epoch + 1}
			_, err = e.log.Append(ctx, store.Batch{Settle: []store.Settlement{take}})
		}
		if !lostRace(err) {
			return err
		}
	}
}

// PartitionOf says which partition of its group an event belongs to, as the
// group is divided now.
func (e *Engine) PartitionOf(ctx context.Context, group string, ev *event.Event) (int, error) {
	x, err := e.root(ctx, ev.Topic, group)
	if err != nil {
		return 0, fmt.Errorf("topic %s, group %s: %w", ev.Topic, group, err)
	}
	return e.dividerOf(x).of(ev), nil
}
