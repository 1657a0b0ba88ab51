package view_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math/big"
	"slices"
	"strings"
	"sync"

	"promethean/store"
)

// memDocs is a plain reference of store.Docs that can be made to fail.
type memDocs struct {
	mu      sync.Mutex
	readers map[string]*memReader
	fail    func(op string) error // may be nil
	commits int
	syncs   int
}

type memReader struct {
	store.Reader
	colls []*memColl
}

type memColl struct {
	store.Collection
	docs      map[string]store.Doc // Body nil: a remembered deletion
	forgotten uint64
}

// txDocs commits as one.
type txDocs struct{ *memDocs }

func (txDocs) CommitsAsOne() {}

func newMemDocs() *memDocs { return &memDocs{readers: make(map[string]*memReader)} }

func (m *memDocs) enter(op string) (func(), error) {
	m.mu.Lock()
	if m.fail != nil {
		if err := m.fail(op); err != nil {
			m.mu.Unlock()
			return nil, err
		}
	}
	return m.mu.Unlock, nil
}

func (m *memDocs) setFail(f func(op string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

func (m *memDocs) coll(name string) (*memColl, *memReader) {
	for _, r := range m.readers {
		for _, c := range r.colls {
			if c.Name == name {
				return c, r
			}
		}
	}
	return nil, nil
}

func (m *memDocs) Declare(_ context.Context, r store.Reader) error {
	done, err := m.enter("declare")
	if err != nil {
		return err
	}
	defer done()
	was := m.readers[r.Name]
	now := &memReader{Reader: r}
	now.Seq = 0
	if was != nil {
		now.Seq = was.Seq
	}
	for _, c := range r.Collections {
		mc, owner := m.coll(c.Name)
		if owner != nil && owner != was {
			return fmt.Errorf("collection %s: %w", c.Name, store.ErrConflict)
		}
		if mc == nil {
			mc = &memColl{docs: make(map[string]store.Doc)}
		}
		now.colls = append(now.colls, &memColl{Collection: c, docs: mc.docs, forgotten: mc.forgotten})
	}
	m.readers[r.Name] = now
	return nil
}

func (m *memDocs) Reader(_ context.Context, name string) (store.Reader, error) {
	done, err := m.enter("reader")
	if err != nil {
		return store.Reader{}, err
	}
	defer done()
	r := m.readers[name]
	if r == nil {
		return store.Reader{}, store.ErrNotFound
	}
	return r.Reader, nil
}

func (m *memDocs) Readers(context.Context) iter.Seq2[store.Reader, error] {
	return func(yield func(store.Reader, error) bool) {
		m.mu.Lock()
		var list []store.Reader
		for _, r := range m.readers {
			list = append(list, r.Reader)
		}
		m.mu.Unlock()
		slices.SortFunc(list, func(a, b store.Reader) int { return strings.Compare(a.Name, b.Name) })
		for _, r := range list {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (m *memDocs) Commit(_ context.Context, b store.DocBatch) (stale int, err error) {
	done, err := m.enter("commit")
	if err != nil {
		return 0, err
	}
	defer done()
	r := m.readers[b.Reader]
	if r == nil {
		return 0, store.ErrNotFound
	}
	if r.Seq != b.From {
		return 0, store.ErrConflict
	}
	next := make(map[*memColl]map[string]store.Doc)
	for i, op := range b.Ops {
		c, owner := m.coll(op.Collection)
		if c == nil || owner != r {
			return 0, fmt.Errorf("collection %s: %w", op.Collection, store.ErrNotFound)
		}
		if next[c] == nil {
			next[c] = make(map[string]store.Doc)
		}
		get := func(key string) (store.Doc, bool) {
			if d, ok := next[c][key]; ok {
				return d, true
			}
			d, ok := c.docs[key]
			return d, ok
		}
		d := op.Doc
		was, had := get(d.Key)
		if had && (was.Seq >= d.Seq || was.Version != nil && d.Version != nil && *was.Version >= *d.Version) {
			stale++
			continue
		}
		if d.Body == nil {
			if d.Version == nil {
				d.Version = was.Version
			}
			next[c][d.Key] = d
			continue
		}
		if len(d.Body) == 0 || d.Body[0] != '{' {
			return 0, &store.DocError{Op: i, Err: store.ErrInvalid}
		}
		for _, x := range c.Indexes {
			v, ok := indexed(d.Body, x.Fields)
			if !x.Unique || !ok {
				continue
			}
			for key := range merged(c.docs, next[c]) {
				o, _ := get(key)
				if ov, has := indexed(o.Body, x.Fields); has && ov == v && key != d.Key {
					return 0, &store.DocError{Op: i, Err: store.ErrUnique}
				}
			}
		}
		d.Body = bytes.Clone(d.Body)
		next[c][d.Key] = d
	}
	for c, docs := range next {
		for k, d := range docs {
			c.docs[k] = d
		}
	}
	r.Seq = b.To
	m.commits++
	return stale, nil
}

func merged(a, b map[string]store.Doc) map[string]struct{} {
	out := make(map[string]struct{})
	for k := range a {
		out[k] = struct{}{}
	}
	for k := range b {
		out[k] = struct{}{}
	}
	return out
}

// canon gives a scalar so that equal ones are equal texts.
func canon(v json.RawMessage) (string, bool) {
	switch v[0] {
	case '{', '[':
		return "", false
	case '"':
		var s string
		_ = json.Unmarshal(v, &s)
		return "s" + s, true
	case 't', 'f', 'n':
		return string(v), true
	}
	r, ok := new(big.Rat).SetString(string(v))
	if !ok {
		return "", false
	}
	return "n" + r.RatString(), true
}

func indexed(body json.RawMessage, fields []string) (string, bool) {
	if body == nil {
		return "", false
	}
	var obj map[string]json.RawMessage
	if json.Unmarshal(body, &obj) != nil {
		return "", false
	}
	out := ""
	for _, f := range fields {
		v, ok := obj[f]
		if !ok {
			return "", false
		}
		s, ok := canon(v)
		if !ok {
			return "", false
		}
		out += s + "\x00"
	}
	return out, true
}

func (m *memDocs) Sync(context.Context) error {
	done, err := m.enter("sync")
	if err != nil {
		return err
	}
	defer done()
	m.syncs++
	return nil
}

func (m *memDocs) Doc(_ context.Context, collection, key string) (store.Doc, error) {
	done, err := m.enter("doc")
	if err != nil {
		return store.Doc{}, err
	}
	defer done()
	c, _ := m.coll(collection)
	if c == nil || c.docs[key].Body == nil {
		return store.Doc{}, store.ErrNotFound
	}
	d := c.docs[key]
	d.Body = bytes.Clone(d.Body)
	return d, nil
}

func (m *memDocs) all(collection string) []store.Doc {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, _ := m.coll(collection)
	if c == nil {
		return nil
	}
	var out []store.Doc
	for _, d := range c.docs {
		out = append(out, d)
	}
	return out
}

func (m *memDocs) List(_ context.Context, collection string, q store.DocQuery) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		var list []store.Doc
	docs:
		for _, d := range m.all(collection) {
			if d.Body == nil {
				continue
			}
			for f, want := range q.Filter {
				got, ok := indexed(d.Body, []string{f})
				if !ok || !slices.ContainsFunc(want, func(w json.RawMessage) bool { s, ok := canon(w); return ok && s+"\x00" == got }) {
					continue docs
				}
			}
			list = append(list, d)
		}
		slices.SortFunc(list, func(a, b store.Doc) int {
			if a.TS != b.TS {
				return int(b.TS - a.TS)
			}
			return strings.Compare(a.Key, b.Key)
		})
		list = list[min(q.Offset, len(list)):]
		if q.Limit > 0 {
			list = list[:min(q.Limit, len(list))]
		}
		for _, d := range list {
			if !yield(d, nil) {
				return
			}
		}
	}
}

func (m *memDocs) Changes(_ context.Context, collection string, after uint64) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		m.mu.Lock()
		c, _ := m.coll(collection)
		gone := c != nil && c.forgotten > after
		m.mu.Unlock()
		if gone {
			yield(store.Doc{}, store.ErrGone)
			return
		}
		list := m.all(collection)
		slices.SortFunc(list, func(a, b store.Doc) int { return int(int64(a.Seq) - int64(b.Seq)) })
		for _, d := range list {
			if d.Seq > after && !yield(d, nil) {
				return
			}
		}
	}
}

func (m *memDocs) Forget(_ context.Context, collection string, upTo uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, _ := m.coll(collection)
	for k, d := range c.docs {
		if d.Body == nil && d.Seq <= upTo {
			delete(c.docs, k)
			c.forgotten = max(c.forgotten, d.Seq)
		}
	}
	return nil
}

func (m *memDocs) Count(_ context.Context, collection string) (n int64, err error) {
	for _, d := range m.all(collection) {
		if d.Body != nil {
			n++
		}
	}
	return n, nil
}

func (m *memDocs) Replace(_ context.Context, name, by string) error {
	done, err := m.enter("replace")
	if err != nil {
		return err
	}
	defer done()
	old, now := m.readers[name], m.readers[by]
	if old == nil || now == nil || len(old.colls) != len(now.colls) {
		return store.ErrNotFound
	}
	for i := range now.colls {
		now.colls[i].Name = old.colls[i].Name
		now.Collections[i].Name = old.colls[i].Name
	}
	now.Name = name
	m.readers[name] = now
	delete(m.readers, by)
	return nil
}

func (m *memDocs) Drop(_ context.Context, reader string) error {
	done, err := m.enter("drop")
	if err != nil {
		return err
	}
	defer done()
	delete(m.readers, reader)
	return nil
}

func (m *memDocs) count(what *int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *what
}
