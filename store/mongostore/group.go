package mongostore

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/event"
	"promethean/store"
)

// group is the requests that become one commit.
type group struct {
	s    *Store
	l    *lane
	reqs []*request

	tail  tail
	have  bool // tail was read from the server, or is our own last commit
	fresh bool // tail was read after the group was formed

	stored map[event.ID]*event.Event // ids that are known to be retained
	looked map[event.ID]bool         // ids that were looked up
	keys   map[string]uint64         // last seq of keys, as of tail
}

// plan is what a group comes to if tail is the topic's end.
type plan struct {
	items    []*item
	outs     [][]store.Appended
	errs     []error
	later    []later
	unlooked []event.ID // of batches that fail unless they are retries
	refused  bool
}

// later is a duplicate of an event in the same commit.
type later struct {
	req, at, item int
}

func (p *plan) ids() []event.ID {
	ids := make([]event.ID, len(p.items))
	for i, it := range p.items {
		ids[i] = it.id
	}
	return ids
}

// commit answers all requests of the group.
func (g *group) commit() {
	ctx, cancel := context.WithTimeout(g.s.life, 3*g.s.o.RetryFor)
	defer cancel()
	p, err := g.run(ctx)
	if err != nil {
		switch {
		case g.s.life.Err() != nil:
			err = store.ErrClosed
		case ctx.Err() != nil:
			err = unavailable(errors.New("other writers came first for too long"))
		}
		for _, r := range g.reqs {
			r.err = err
			close(r.done)
		}
		return
	}
	for _, x := range p.later {
		it := p.items[x.item]
		stored := storedEvent{seq: g.tail.first + uint64(x.item), doc: it.doc}
		if e, err := stored.decode(g.l.topic); err == nil {
			p.outs[x.req][x.at].Original = &e
		}
	}
	for i, r := range g.reqs {
		if r.err = p.errs[i]; r.err == nil {
			r.out = p.outs[i]
		}
		close(r.done)
	}
}

// run plans and writes until both agree. An insert succeeds only at the topic's
// end: nobody can have come in between the reading of the tail, and of
// whatever else the plan rests on, and the insert, because whoever did would
// stand where we insert.
func (g *group) run(ctx context.Context) (*plan, error) {
	g.tail, g.have = g.l.known()
	for try := 0; ; try++ {
		if !g.have {
			if err := g.refresh(ctx); err != nil {
				return nil, err
			}
		}
		if err := g.lookUpKeys(ctx); err != nil {
			return nil, err
		}
		p := g.plan()
		if p.refused && !g.fresh {
			// Somebody else may have appended what is expected.
			g.have = false
			continue
		}
		if len(p.unlooked) > 0 {
			if err := g.lookUp(ctx, p.unlooked); err != nil {
				return nil, err
			}
			continue
		}
		if len(p.items) == 0 {
			return p, nil
		}
		if err := g.s.ensureTopic(ctx, g.l.topic); err != nil {
			return nil, err
		}
		d := encodeCommit(g.l.topic, g.tail, time.Now(), newNonce(), p.items)
		done, err := g.insert(ctx, &d, p)
		if err != nil {
			return nil, err
		}
		if done {
			g.tail = d.next
			g.l.learn(d.next)
			g.s.watch.visible(g.l.topic, d.next.last)
			return p, nil
		}
		if err := g.collided(ctx, p, try); err != nil {
			return nil, err
		}
	}
}

func newNonce() (n [12]byte) {
	_, _ = crand.Read(n[:]) // never fails
	return n
}

func (g *group) refresh(ctx context.Context) (err error) {
	if g.tail, err = g.s.refresh(ctx, g.l.topic); err != nil {
		return err
	}
	g.have, g.fresh, g.keys = true, true, nil
	return nil
}

// plan gives seqs behind the tail, judges expectations in order, and finds
// duplicates inside the group: a unique index does not bind within one
// document.
func (g *group) plan() *plan {
	p := &plan{outs: make([][]store.Appended, len(g.reqs)), errs: make([]error, len(g.reqs))}
	pending := make(map[event.ID]int)
	lastOf := make(map[string]uint64)
	for i, r := range g.reqs {
		if err := r.ctx.Err(); err != nil {
			p.errs[i] = err // nobody waits for it
			continue
		}
		fresh := 0
		var unlooked []event.ID
		for j := range r.items {
			id := r.items[j].id
			if _, twin := pending[id]; !twin && g.stored[id] == nil {
				fresh++
				if !g.looked[id] {
					unlooked = append(unlooked, id)
				}
			}
		}
		if fresh > 0 {
			if conflict := g.judge(r, len(p.items), lastOf); conflict != nil {
				p.errs[i], p.refused = conflict, true
				p.unlooked = append(p.unlooked, unlooked...)
				continue
			}
		}
		p.outs[i] = make([]store.Appended, len(r.items))
		for j := range r.items {
			it, out := &r.items[j], &p.outs[i][j]
			if e := g.stored[it.id]; e != nil {
				c := e.Clone()
				*out = store.Appended{Seq: e.Seq, Duplicate: true, Original: &c}
				continue
			}
			if at, twin := pending[it.id]; twin {
				*out = store.Appended{Seq: g.tail.last + uint64(at) + 1, Duplicate: true}
				p.later = append(p.later, later{req: i, at: j, item: at})
				continue
			}
			pending[it.id] = len(p.items)
			p.items = append(p.items, it)
			out.Seq = g.tail.last + uint64(len(p.items))
			if it.key != "" {
				lastOf[it.key] = out.Seq
			}
		}
	}
	return p
}

// judge compares the expectations of a request with the log as it is when the
// requests before it are in.
func (g *group) judge(r *request, before int, lastOf map[string]uint64) error {
	for _, x := range r.expect {
		actual := g.tail.last + uint64(before)
		if x.Key != "" {
			var ours bool
			if actual, ours = lastOf[x.Key]; !ours {
				actual = g.keys[x.Key]
			}
		}
		if actual != x.Seq {
			return &store.SeqConflictError{Topic: x.Topic, Key: x.Key, Expected: x.Seq, Actual: actual}
		}
	}
	return nil
}

// lookUpKeys finds the last seq of every key that is expected something of.
// It happens after the tail was read, so an insert behind that tail proves
// that no later event of the key was missed.
func (g *group) lookUpKeys(ctx context.Context) error {
	for _, r := range g.reqs {
		for _, x := range r.expect {
			if x.Key == "" {
				continue
			}
			if _, ok := g.keys[x.Key]; ok {
				continue
			}
			if g.keys == nil {
				g.keys = make(map[string]uint64)
			}
			seq, err := g.s.lastOfKey(ctx, g.l.topic, x.Key, g.tail)
			if err != nil {
				return err
			}
			g.keys[x.Key] = seq
		}
	}
	return nil
}

// lookUp finds which ids are retained.
func (g *group) lookUp(ctx context.Context, ids []event.ID) error {
	if g.stored == nil {
		g.stored, g.looked = make(map[event.ID]*event.Event), make(map[event.ID]bool)
	}
	for _, id := range ids {
		g.looked[id] = true
	}
	return g.s.findIDs(ctx, g.l.topic, ids, g.stored)
}

// collided finds out why an insert was refused: the place is taken, or an id.
func (g *group) collided(ctx context.Context, p *plan, try int) error {
	before := g.tail
	if err := g.refresh(ctx); err != nil {
		return err
	}
	if g.tail.last != before.last && try == 0 {
		return nil // the place was taken; most likely no id is known
	}
	known := len(g.stored)
	if err := g.lookUp(ctx, p.ids()); err != nil {
		return err
	}
	if len(g.stored) > known {
		return nil
	}
	if g.tail.last == before.last {
		// Neither: the other commit is not on the majority yet, or the id
		// belongs to an event that is trimmed and not yet removed.
		if err := g.s.purge(ctx, g.l.topic); err != nil {
			return err
		}
	}
	return sleep(ctx, rand.N(time.Duration(min(try, 20)+1)*time.Millisecond))
}

// insert writes a commit. It says no if something stands in its way, and then
// the commit is not there and never will be: a copy of it that is still on its
// way to the server meets the same obstacle, or lies below the topic's base,
// where nothing counts.
func (g *group) insert(ctx context.Context, d *draft, p *plan) (bool, error) {
	deadline := time.Now().Add(g.s.o.RetryFor)
	lost := false // an earlier try was sent and not answered
	for pause := (backOff{}); ; {
		err := g.s.try(ctx, func(ctx context.Context) error {
			_, err := g.s.commits.InsertOne(ctx, d.doc)
			return err
		})
		switch {
		case err == nil:
			return g.guard(ctx, d)
		case duplicate(err) && !lost:
			return false, nil
		case ctx.Err() != nil:
			g.forget()
			return false, ctx.Err()
		case !duplicate(err) && !transient(err):
			g.forget()
			return false, err
		}
		// Ours may be there: a later try collides with it, and an unanswered
		// one may have arrived.
		lost = true
		known := false
		if duplicate(err) {
			// Or an id is known, and the place is free.
			stored := make(map[event.ID]*event.Event)
			if err := g.s.findIDs(ctx, g.l.topic, p.ids(), stored); err != nil {
				g.forget()
				return false, err
			}
			known = len(stored) > 0
		}
		found, mine, err := g.find(ctx, d)
		switch {
		case mine:
			return g.guard(ctx, d)
		case found, known && err == nil:
			return false, nil
		case err != nil && !errors.Is(err, store.ErrUnavailable):
			g.forget()
			return false, err
		case time.Now().After(deadline):
			g.forget()
			if err == nil {
				err = unavailable(errors.New("the server does not say whether it has stored the commit"))
			}
			return false, err
		}
		if err := pause.wait(ctx); err != nil {
			g.forget()
			return false, err
		}
	}
}

// forget makes the next commit of the lane read the tail again: nobody knows
// what became of this one.
func (g *group) forget() {
	g.l.mu.Lock()
	g.l.loaded = false
	g.l.mu.Unlock()
}

// find looks for a commit at the place of d and says whether it is d.
func (g *group) find(ctx context.Context, d *draft) (found, mine bool, err error) {
	var raw bson.Raw
	err = g.s.do(ctx, func(ctx context.Context) (err error) {
		raw, err = g.s.commits.FindOne(ctx, bson.D{{Key: "_id", Value: commitID(g.l.topic, d.next.first)}}).Raw()
		return err
	})
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	_, nonce, _ := raw.Lookup("c").BinaryOK()
	return true, bytes.Equal(nonce, d.nonce[:]), nil
}

// guard makes sure that a commit that was inserted counts. If the topic was
// trimmed beyond its place, it may stand where another commit stood: the tail
// that it was built on was out of date. Then it is taken away again.
//
// base only rises, and it rises before anything below it is deleted. So if it
// is not above our place now, nothing at our place was ever deleted, and the
// insert was the first there.
func (g *group) guard(ctx context.Context, d *draft) (bool, error) {
	doc, err := g.s.topicDoc(ctx, g.l.topic)
	if err != nil {
		g.forget()
		return false, err
	}
	if uint64(doc.Base) <= d.next.first {
		return true, nil
	}
	err = g.s.do(ctx, func(ctx context.Context) error {
		_, err := g.s.commits.DeleteOne(ctx, bson.D{
			{Key: "_id", Value: commitID(g.l.topic, d.next.first)}, {Key: "c", Value: bson.Binary{Data: d.nonce[:]}},
		})
		return err
	})
	g.forget()
	return false, err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
