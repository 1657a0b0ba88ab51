package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"promethean/store"
)

const (
	minBackOff = 100 * time.Millisecond
	maxBackOff = 30 * time.Second
	// ownFor is how long a hub is the one that projects without renewing that.
	ownFor = 10 * time.Second
	// lookEvery is how often the others look where the documents are.
	lookEvery = 500 * time.Millisecond
	// closeFor is how long Close takes at most to make things durable.
	closeFor = 10 * time.Second
)

// pause asks the live line to stand still for a moment.
type pause struct {
	held    chan struct{} // closed when it stands still
	release chan struct{} // closed when it may go on
}

func (p *pause) hold(ctx context.Context) {
	close(p.held)
	select {
	case <-p.release:
	case <-ctx.Done():
	}
}

// begin finds out who projects, and makes ready for it. own says that we do.
func (v *View) begin(ctx context.Context) (own *store.Lease, err error) {
	if v.leases == nil {
		v.setOwns(true)
		if err := v.prepare(ctx); err != nil {
			return nil, err
		}
		return nil, v.show(ctx, v.at())
	}
	l, err := v.leases.Acquire(ctx, v.leaseName(), v.owner, ownFor)
	if errors.Is(err, store.ErrHeld) {
		return nil, v.look(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := v.prepare(ctx); err != nil {
		return nil, errors.Join(err, v.leases.Release(ctx, l))
	}
	return &l, nil
}

func (v *View) leaseName() string { return "view:" + v.name }

// ownerSep is between the owner that a hub is and what tells apart the views that
// it has opened: a second one of the same name does not project beside the first.
const ownerSep = "\n"

// Projects says whether this hub projects.
func (v *View) Projects() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.owns
}

// Projector gives the owner, as in [promethean.Options], that projects. If none
// does at the moment that is [store.ErrUnavailable].
func (v *View) Projector(ctx context.Context) (owner string, err error) {
	holds, ok := store.As[store.Holds](v.log)
	if v.leases == nil || !ok || v.Projects() {
		return v.hub.Engine().Owner(), nil
	}
	l, err := holds.Holder(ctx, v.leaseName())
	if errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("%w: no hub projects view %s at the moment", store.ErrUnavailable, v.name)
	}
	owner, _, _ = strings.Cut(l.Owner, ownerSep)
	return owner, err
}

func (v *View) setOwns(owns bool) {
	v.mu.Lock()
	v.owns = owns
	v.mu.Unlock()
}

// run projects until the view is closed.
func (v *View) run(own *store.Lease) {
	wait := minBackOff
	for v.ctx.Err() == nil {
		before := v.at()
		var err error
		if v.leases == nil {
			err = v.project(v.ctx)
		} else {
			own, err = v.share(own)
		}
		if v.ctx.Err() != nil {
			break
		}
		if err == nil || errors.Is(err, errAgain) {
			continue
		}
		if v.at() != before {
			wait = minBackOff
		}
		v.failed(err)
		if errors.Is(err, store.ErrClosed) {
			wait = maxBackOff // the hub was closed before its views
		}
		v.idle(wait)
		wait = min(2*wait, maxBackOff)
	}
	v.finish(own)
}

// finish makes durable what there is.
func (v *View) finish(own *store.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), closeFor)
	defer cancel()
	var err error
	if v.leases == nil || own != nil {
		err = v.flush(ctx)
	}
	if own != nil {
		err = errors.Join(err, v.leases.Release(ctx, *own))
	}
	if errors.Is(err, store.ErrClosed) {
		err = nil // the engine was closed before, and has made durable what it had
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.closeErr = fmt.Errorf("close view %s: %w", v.name, err)
	}
}

// at gives the place.
func (v *View) at() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.place
}

// failed notes why the view stands still.
func (v *View) failed(err error) {
	v.mu.Lock()
	told := v.err != nil && v.err.Error() == err.Error()
	v.err = err
	v.mu.Unlock()
	if !told {
		v.o.Logger.Error("a view stands still", "view", v.name, "topic", v.topic, "err", err)
	}
}

// idle waits, and lets a rebuild go on meanwhile.
func (v *View) idle(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case <-v.ctx.Done():
			return
		case p := <-v.pauses:
			p.hold(v.ctx)
		}
	}
}

// project runs the live line, or builds anew what does not fit any more.
func (v *View) project(ctx context.Context) error {
	v.mu.Lock()
	must, l := v.must, v.live
	v.mu.Unlock()
	if must == "" && l.place.Load() == 0 && v.from == Snapshot {
		if err := v.warmNew(ctx, l); err != nil {
			return err
		}
	}
	if must != "" {
		v.o.Logger.Warn("a view is built anew", "view", v.name, "topic", v.topic, "cause", must)
		return v.rebuildOwn(ctx)
	}
	err := l.session(ctx, 0, v.pauses, v.flush)
	if errors.Is(err, errBeyond) {
		v.o.Logger.Error("a view does not fit its topic", "view", v.name, "topic", v.topic, "err", err)
		v.mu.Lock()
		v.must = err.Error()
		v.mu.Unlock()
		return nil
	}
	return err
}

// moved takes over a place that somebody else has set.
func (v *View) moved(seq uint64) {
	v.mu.Lock()
	v.place = seq
	v.mu.Unlock()
	v.feed.jump(seq)
}

// note counts a commit of the live line.
func (v *View) note(b *batch, stale int) {
	v.mu.Lock()
	v.place, v.err = b.to, nil
	c := &v.counts
	c.noKey += b.counts.noKey
	c.stale += b.counts.stale + uint64(stale)
	c.expired += b.counts.expired
	c.dead += uint64(len(b.dead))
	noKey := c.noKey
	v.mu.Unlock()
	if now := time.Now(); noKey != v.noKeyOld && now.Sub(v.noKeyAt) >= time.Minute {
		v.o.Logger.Warn("events without a key change nothing", "view", v.name, "topic", v.topic, "events", noKey-v.noKeyOld)
		v.noKeyAt, v.noKeyOld = now, noKey
	}
}

// committed takes note of a commit of the live line, and tells watchers.
func (v *View) committed(b *batch, stale int) {
	v.note(b, stale)
	ops := b.ops
	if stale > 0 {
		ops = v.effective(b)
	}
	if !slices.IsSortedFunc(ops, bySeq) {
		ops = slices.Clone(ops)
		slices.SortStableFunc(ops, bySeq)
	}
	v.feed.add(b.to, ops)
}

func bySeq(a, b store.DocOp) int {
	switch {
	case a.Seq < b.Seq:
		return -1
	case a.Seq > b.Seq:
		return 1
	}
	return 0
}

// effective gives what of a batch is so now; the documents do not say which
// operations were stale. An operation that was overtaken within the batch, and
// a deletion of what was not there, may or may not be among them.
func (v *View) effective(b *batch) []store.DocOp {
	var out []store.DocOp
	for _, op := range b.ops {
		d, err := v.docs.Doc(v.ctx, op.Collection, op.Key)
		switch {
		case errors.Is(err, store.ErrNotFound) && op.Body == nil, err == nil && d.Seq == op.Seq:
			out = append(out, op)
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return b.ops // watchers may see what did not come to be, rather than miss something
		}
	}
	return out
}

// mark says where the view was at a time.
type mark struct {
	at  time.Time
	seq uint64
}

// flush makes durable what was committed, then shows how far the view is.
func (v *View) flush(ctx context.Context) error {
	place := v.at()
	v.mu.Lock()
	synced := v.synced
	v.mu.Unlock()
	if place != synced {
		if err := v.docs.Sync(ctx); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
		v.mu.Lock()
		v.synced = place
		v.mu.Unlock()
	}
	if err := v.show(ctx, place); err != nil {
		return err
	}
	return v.forget(ctx, place)
}

// show moves the group along, which is there for people to see how far the view
// is.
func (v *View) show(ctx context.Context, place uint64) error {
	if !v.shows {
		return nil
	}
	return v.hub.Engine().Shadow(ctx, v.topic, v.group, place)
}

// forget forgets old deletions.
func (v *View) forget(ctx context.Context, place uint64) error {
	if v.o.Forget < 0 {
		return nil
	}
	now := time.Now()
	if n := len(v.marks); n == 0 || now.Sub(v.marks[n-1].at) >= v.o.Forget/16 {
		v.marks = append(v.marks, mark{now, place})
	}
	for len(v.marks) > 0 && now.Sub(v.marks[0].at) >= v.o.Forget {
		for _, c := range v.declared {
			if err := v.docs.Forget(ctx, c.Name, min(v.marks[0].seq, place)); err != nil {
				return fmt.Errorf("forget deletions: %w", err)
			}
		}
		v.marks = v.marks[1:]
	}
	return nil
}

// share is one turn of a view whose documents several hubs share: one of them
// projects.
func (v *View) share(own *store.Lease) (*store.Lease, error) {
	asked := time.Now()
	if own == nil {
		l, err := v.leases.Acquire(v.ctx, v.leaseName(), v.owner, ownFor)
		if errors.Is(err, store.ErrHeld) {
			return nil, v.follow()
		}
		if err != nil {
			return nil, err
		}
		if err := v.prepare(v.ctx); err != nil {
			return nil, errors.Join(err, v.leases.Release(v.ctx, l))
		}
		v.o.Logger.Info("a view is projected here", "view", v.name, "topic", v.topic)
		own = &l
	} else if _, err := v.leases.Renew(v.ctx, *own, ownFor); err != nil {
		return nil, err
	}
	v.setOwns(true)
	defer v.setOwns(false)
	ctx, cancel := context.WithCancelCause(v.ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		v.renew(ctx, *own, asked, cancel)
	}()
	err := v.project(ctx)
	cause := context.Cause(ctx)
	cancel(nil)
	<-renewed
	if errors.Is(cause, errLost) {
		return nil, fmt.Errorf("another hub may project now: %w", cause)
	}
	return own, err
}

var errLost = errors.New("the lease is lost")

// renew keeps the lease while ctx lasts, and ends ctx if it cannot.
func (v *View) renew(ctx context.Context, l store.Lease, asked time.Time, lost context.CancelCauseFunc) {
	until := asked.Add(ownFor)
	for {
		wait := min(ownFor/3, max(time.Until(until), 0))
		if rest(ctx, wait) != nil {
			return
		}
		asked := time.Now()
		_, err := v.leases.Renew(ctx, l, ownFor)
		switch {
		case err == nil:
			until = asked.Add(ownFor)
		case errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrNotFound), !time.Now().Before(until):
			lost(fmt.Errorf("%w: %w", errLost, err))
			return
		}
	}
}

// follow looks where the documents are, twice, while another hub projects.
func (v *View) follow() error {
	for range 2 {
		if err := v.look(v.ctx); err != nil {
			return err
		}
		v.idle(lookEvery)
	}
	return nil
}

// look takes over where the documents are.
func (v *View) look(ctx context.Context) error {
	r, err := v.docs.Reader(ctx, v.name)
	if errors.Is(err, store.ErrNotFound) {
		return nil // whoever projects makes it
	}
	if err != nil {
		return err
	}
	var m meta
	if err := json.Unmarshal(r.Meta, &m); err != nil {
		return fmt.Errorf("what is noted about the view does not decode: %w", err)
	}
	v.mu.Lock()
	other := v.build != m.Build
	v.place, v.synced, v.build, v.err = r.Seq, r.Seq, m.Build, nil
	v.mu.Unlock()
	if other {
		v.feed.reset(r.Seq)
	} else {
		v.feed.jump(r.Seq)
	}
	return nil
}
