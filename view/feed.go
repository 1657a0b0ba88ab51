package view

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"promethean/store"
)

// feed holds what has changed lately, for those who watch. Nobody waits for
// them: whoever is behind what it holds asks the documents.
type feed struct {
	mu      sync.Mutex
	top     uint64 // the place of the view
	base    uint64 // changes after it are held
	life    uint64 // changes when the documents were put in place of others
	held    []changes
	size    int
	changed chan struct{} // closed at the next change
}

// changes are those of one commit, in the order of seqs.
type changes struct {
	to   uint64
	ops  []store.DocOp
	size int
}

// Bounds of what a feed holds. A commit holds on to all of its documents.
const (
	feedCommits = 1024
	feedBytes   = 16 << 20
)

func (f *feed) init() { f.changed = make(chan struct{}) }

// state gives the place, and what is closed when it changes.
func (f *feed) state() (top uint64, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.top, f.changed
}

func (f *feed) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// reset says that the documents were replaced.
func (f *feed) reset(place uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.top, f.base, f.held, f.size = place, place, nil, 0
	f.life++
	f.tell()
}

// jump says that the place has moved, and nothing about how.
func (f *feed) jump(place uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if place == f.top {
		return
	}
	f.top, f.base, f.held, f.size = place, place, nil, 0
	f.tell()
}

// add takes in what a commit has changed.
func (f *feed) add(to uint64, ops []store.DocOp) {
	c := changes{to: to, ops: ops}
	for i := range ops {
		c.size += len(ops[i].Body) + 100
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.top = to
	if len(ops) > 0 {
		f.held = append(f.held, c)
		f.size += c.size
	}
	for len(f.held) > 0 && (f.size > feedBytes || len(f.held) > feedCommits) {
		f.base = f.held[0].to
		f.size -= f.held[0].size
		f.held[0] = changes{}
		f.held = f.held[1:]
	}
	f.tell()
}

// after gives what changed after a seq, if it is held. The lists are shared.
func (f *feed) after(seq uint64) (list []changes, held bool) {
	if seq < f.base {
		return nil, false
	}
	for i := len(f.held); i > 0 && f.held[i-1].to > seq; i-- {
		list = f.held[i-1:]
	}
	return slices.Clone(list), true
}

// watcher follows the changes of one collection.
type watcher struct {
	c     *Collection
	place uint64 // everything up to it was seen
	life  uint64
}

// Bounds of what is looked up at a time for a watcher who is behind. To find
// changes may take a look at all documents, so they are large.
const (
	pageDocs  = 50_000
	pageBytes = 8 << 20
)

// newWatcher begins after a seq.
func (c *Collection) newWatcher(after uint64) *watcher {
	f := &c.v.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	return &watcher{c: c, place: after, life: f.life}
}

// latest begins with what comes from now on.
func (c *Collection) latest() *watcher {
	f := &c.v.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	return &watcher{c: c, place: f.top, life: f.life}
}

// next gives changes in the order of seqs; those of one seq stay together. With
// none, it gives what to wait for. Changes that are not remembered are
// store.ErrGone.
func (w *watcher) next(ctx context.Context) (list []store.Doc, wait <-chan struct{}, err error) {
	v := w.c.v
	f := &v.feed
	for len(list) == 0 {
		f.mu.Lock()
		top, life, changed := f.top, f.life, f.changed
		recent, held := f.after(w.place)
		f.mu.Unlock()
		switch {
		case life != w.life:
			return nil, nil, fmt.Errorf("%w: the documents were replaced", store.ErrGone)
		case w.place > top:
			b, err := v.log.Bounds(ctx, v.topic)
			if err != nil {
				return nil, nil, err
			}
			if w.place > b.Last {
				return nil, nil, fmt.Errorf("%w: seq %d is beyond the topic's end", store.ErrGone, w.place)
			}
			return nil, changed, nil
		case w.place == top:
			return nil, changed, nil
		case held:
			for _, c := range recent {
				for i := range c.ops {
					if op := &c.ops[i]; op.Collection == w.c.c.Name && op.Seq > w.place {
						list = append(list, op.Doc)
					}
				}
			}
			w.place = top
		default:
			if list, err = w.page(ctx, top); err != nil {
				return nil, nil, err
			}
		}
	}
	return list, nil, nil
}

// page asks the documents for some of what changed, up to a seq: what is later
// the feed has.
func (w *watcher) page(ctx context.Context, top uint64) (list []store.Doc, err error) {
	size := 0
	for d, err := range w.c.v.docs.Changes(ctx, w.c.c.Name, w.place) {
		if errors.Is(err, store.ErrNotFound) {
			break // it has never been written
		}
		if err != nil {
			return nil, err
		}
		if d.Seq > top {
			break
		}
		if n := len(list); (n >= pageDocs || size >= pageBytes) && list[n-1].Seq != d.Seq {
			w.place = list[n-1].Seq
			return list, nil
		}
		list = append(list, d)
		size += len(d.Body) + 100
	}
	w.place = top
	return list, nil
}

// Watch yields what changes after a seq, and waits for more: documents and
// deletions, whose Body is nil, in the order of Seq. Of what is long past it
// yields how things came to be, not each step. It ends with an error: that of
// the context, store.ErrClosed, or store.ErrGone where not everything after the
// seq is remembered, or the view was rebuilt: read the collection anew, and
// watch from [Collection.Seq] on.
//
// Several documents may have one Seq. Who keeps his place keeps it once one with
// a higher Seq has come, or is prepared to see some again.
func (c *Collection) Watch(ctx context.Context, after uint64) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		w := c.newWatcher(after)
		for {
			list, wait, err := w.next(ctx)
			if err != nil {
				yield(store.Doc{}, err)
				return
			}
			for _, d := range list {
				d.Body = slices.Clone(d.Body)
				if !yield(d, nil) {
					return
				}
			}
			if wait == nil {
				continue
			}
			select {
			case <-wait:
			case <-ctx.Done():
				yield(store.Doc{}, ctx.Err())
				return
			case <-c.v.ctx.Done():
				yield(store.Doc{}, fmt.Errorf("view %s: %w", c.v.name, store.ErrClosed))
				return
			}
		}
	}
}

// Collection is one collection of a view.
type Collection struct {
	v *View
	c *store.Collection
}

// Name is the collection's.
func (c *Collection) Name() string { return c.c.Name }

// View is whose it is.
func (c *Collection) View() *View { return c.v }

// Source implements [Source].
func (c *Collection) Source() *Collection { return c }

// Indexes gives what was declared.
func (c *Collection) Indexes() []store.Index { return slices.Clone(c.c.Indexes) }

// Seq is the place of the view: what is read after it was asked for is of that
// event or later.
func (c *Collection) Seq() uint64 {
	top, _ := c.v.feed.state()
	return top
}

// Get gives a document as it is served, or store.ErrNotFound.
func (c *Collection) Get(ctx context.Context, key string) (store.Doc, error) {
	return c.v.docs.Doc(ctx, c.c.Name, key)
}

// List gives documents, newest first.
func (c *Collection) List(ctx context.Context, q store.DocQuery) iter.Seq2[store.Doc, error] {
	return c.v.docs.List(ctx, c.c.Name, q)
}

// Source is a collection that can be served: a View stands for its first one.
type Source interface{ Source() *Collection }
