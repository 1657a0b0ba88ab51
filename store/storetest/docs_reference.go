package storetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"

	"promethean/event"
	"promethean/store"
)

// DocsReference is [store.Docs] in its simplest form: maps, and a scan for every
// question. Suites compare engines with it; it keeps nothing over Close.
type DocsReference struct {
	mu      sync.Mutex
	closed  bool
	readers map[string]*refReader
}

type refReader struct {
	place uint64
	meta  []byte
	cols  []*refCollection
}

type refCollection struct {
	name      string
	indexes   []store.Index
	docs      map[string]store.Doc
	forgotten uint64
}

var (
	_ store.Docs      = (*DocsReference)(nil)
	_ store.Transacts = (*DocsReference)(nil)
)

// NewDocsReference makes an empty one.
func NewDocsReference() *DocsReference {
	return &DocsReference{readers: make(map[string]*refReader)}
}

// CommitsAsOne says that a batch is one step.
func (d *DocsReference) CommitsAsOne() {}

// Clone gives a copy that goes its own way.
func (d *DocsReference) Clone() *DocsReference {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := NewDocsReference()
	for name, r := range d.readers {
		out.readers[name] = r.clone()
	}
	return out
}

func (r *refReader) clone() *refReader {
	c := &refReader{place: r.place, meta: r.meta}
	for _, x := range r.cols {
		y := *x
		y.docs = maps.Clone(x.docs)
		c.cols = append(c.cols, &y)
	}
	return c
}

// begin is the first line of every call.
func (d *DocsReference) begin(ctx context.Context) (func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, store.ErrClosed
	}
	return d.mu.Unlock, nil
}

// Close ends it.
func (d *DocsReference) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// Sync implements [store.Docs].
func (d *DocsReference) Sync(ctx context.Context) error {
	end, err := d.begin(ctx)
	if err == nil {
		end()
	}
	return err
}

func refName(name string) error {
	const others = "._-~:"
	ok := len(name) >= 1 && len(name) <= 128
	for _, c := range name {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = ok && (letter || strings.ContainsRune(others, c))
	}
	if !ok {
		return fmt.Errorf("%w: name %q", store.ErrInvalid, name)
	}
	return nil
}

// Declare implements [store.Docs].
func (d *DocsReference) Declare(ctx context.Context, r store.Reader) error {
	end, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := refName(r.Name); err != nil {
		return err
	}
	next := &refReader{meta: slices.Clone(r.Meta)}
	old := d.readers[r.Name]
	if old != nil {
		next.place = old.place
	}
	seen := make(map[string]bool)
	for _, c := range r.Collections {
		if err := refName(c.Name); err != nil {
			return err
		}
		if seen[c.Name] {
			return fmt.Errorf("%w: collection %s twice", store.ErrInvalid, c.Name)
		}
		seen[c.Name] = true
		owner, was := d.owner(c.Name)
		if was != nil && owner != r.Name {
			return fmt.Errorf("%w: collection %s is that of %s", store.ErrConflict, c.Name, owner)
		}
		made := &refCollection{name: c.Name, indexes: c.Indexes, docs: make(map[string]store.Doc)}
		if was != nil {
			made.docs, made.forgotten = was.docs, was.forgotten
		}
		for _, x := range c.Indexes {
			if len(x.Fields) == 0 || slices.Contains(x.Fields, "") || len(x.Fields) != len(setOf(x.Fields)) {
				return fmt.Errorf("%w: index over %q", store.ErrInvalid, x.Fields)
			}
		}
		for key := range made.docs {
			if err := made.unique(made.docs[key]); err != nil {
				return err
			}
		}
		next.cols = append(next.cols, made)
	}
	d.readers[r.Name] = next
	return nil
}

func setOf(list []string) map[string]bool {
	out := make(map[string]bool)
	for _, x := range list {
		out[x] = true
	}
	return out
}

// owner finds a collection and whose it is.
func (d *DocsReference) owner(collection string) (string, *refCollection) {
	for name, r := range d.readers {
		for _, c := range r.cols {
			if c.name == collection {
				return name, c
			}
		}
	}
	return "", nil
}

func (d *DocsReference) collection(name string) (*refCollection, error) {
	if _, c := d.owner(name); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%w: collection %s", store.ErrNotFound, name)
}

// Reader implements [store.Docs].
func (d *DocsReference) Reader(ctx context.Context, name string) (store.Reader, error) {
	end, err := d.begin(ctx)
	if err != nil {
		return store.Reader{}, err
	}
	defer end()
	r := d.readers[name]
	if r == nil {
		return store.Reader{}, fmt.Errorf("%w: reader %s", store.ErrNotFound, name)
	}
	out := store.Reader{Name: name, Seq: r.place, Meta: slices.Clone(r.meta)}
	for _, c := range r.cols {
		out.Collections = append(out.Collections, store.Collection{Name: c.name, Indexes: c.indexes})
	}
	return out, nil
}

// Readers implements [store.Docs].
func (d *DocsReference) Readers(ctx context.Context) iter.Seq2[store.Reader, error] {
	return func(yield func(store.Reader, error) bool) {
		end, err := d.begin(ctx)
		if err != nil {
			yield(store.Reader{}, err)
			return
		}
		names := slices.Sorted(maps.Keys(d.readers))
		end()
		for _, name := range names {
			if r, err := d.Reader(ctx, name); !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// Commit implements [store.Docs].
func (d *DocsReference) Commit(ctx context.Context, b store.DocBatch) (stale int, err error) {
	end, err := d.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	old := d.readers[b.Reader]
	if old == nil {
		return 0, fmt.Errorf("%w: reader %s", store.ErrNotFound, b.Reader)
	}
	if old.place != b.From {
		return 0, fmt.Errorf("%w: reader %s is at %d", store.ErrConflict, b.Reader, old.place)
	}
	r := old.clone()
	for i, op := range b.Ops {
		at := slices.IndexFunc(r.cols, func(c *refCollection) bool { return c.name == op.Collection })
		if at < 0 {
			return 0, fmt.Errorf("%w: collection %s", store.ErrNotFound, op.Collection)
		}
		was, err := r.cols[at].apply(op.Doc)
		if err != nil {
			return 0, &store.DocError{Op: i, Err: err}
		}
		if was {
			stale++
		}
	}
	r.place = b.To
	d.readers[b.Reader] = r
	return stale, nil
}

func (c *refCollection) apply(d store.Doc) (stale bool, err error) {
	if len(d.Key) == 0 || len(d.Key) > event.MaxKey {
		return false, fmt.Errorf("%w: a key of %d bytes", store.ErrInvalid, len(d.Key))
	}
	var object map[string]json.RawMessage
	if d.Body != nil && (event.CheckJSON(d.Body) != nil || json.Unmarshal(d.Body, &object) != nil || object == nil) {
		return false, fmt.Errorf("%w: no object", store.ErrInvalid)
	}
	was, there := c.docs[d.Key]
	if there {
		if was.Seq >= d.Seq || was.Version != nil && d.Version != nil && *was.Version >= *d.Version {
			return true, nil
		}
		if d.Body == nil && d.Version == nil {
			d.Version = was.Version
		}
	}
	d.Body = bytes.Clone(d.Body)
	if err := c.unique(d); err != nil {
		return false, err
	}
	c.docs[d.Key] = d
	return false, nil
}

// unique tells whether some other document has the values of d.
func (c *refCollection) unique(d store.Doc) error {
	for _, x := range c.indexes {
		mine := x.Unique && d.Body != nil
		values := valuesOf(d.Body, x.Fields)
		if !mine || values == nil {
			continue
		}
		for _, o := range c.docs {
			if o.Key != d.Key && o.Body != nil && slices.Equal(valuesOf(o.Body, x.Fields), values) {
				return fmt.Errorf("%w: %s", store.ErrUnique, o.Key)
			}
		}
	}
	return nil
}

// valuesOf gives the fields of a body in a form that is equal where values are;
// nil if one is missing or no scalar.
func valuesOf(body []byte, fields []string) (out []string) {
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) != nil {
		return nil
	}
	for _, f := range fields {
		v := refValue(object[f])
		if v == "" {
			return nil
		}
		out = append(out, v)
	}
	return out
}

// refValue brings a scalar to a form that is equal where values are.
func refValue(v json.RawMessage) string {
	v = bytes.TrimSpace(v)
	if len(v) == 0 || v[0] == '{' || v[0] == '[' {
		return ""
	}
	if v[0] == '"' {
		var text string
		_ = json.Unmarshal(v, &text)
		return "text " + text
	}
	if v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return string(v)
	}
	digits, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e")
	exp, _ := new(big.Int).SetString(strings.TrimPrefix(cmp.Or(exponent, "0"), "+"), 10)
	whole, fraction, _ := strings.Cut(digits, ".")
	exp.Sub(exp, big.NewInt(int64(len(fraction))))
	n, _ := new(big.Int).SetString(whole+fraction, 10)
	if n.Sign() == 0 {
		return "number 0"
	}
	for ten, rest := big.NewInt(10), new(big.Int); ; {
		q, _ := new(big.Int).QuoRem(n, ten, rest)
		if rest.Sign() != 0 {
			return fmt.Sprintf("number %de%d", n, exp)
		}
		n = q
		exp.Add(exp, big.NewInt(1))
	}
}

// Doc implements [store.Docs].
func (d *DocsReference) Doc(ctx context.Context, collection, key string) (store.Doc, error) {
	end, err := d.begin(ctx)
	if err != nil {
		return store.Doc{}, err
	}
	defer end()
	c, err := d.collection(collection)
	if err != nil {
		return store.Doc{}, err
	}
	if x, ok := c.docs[key]; ok && x.Body != nil {
		x.Body = bytes.Clone(x.Body)
		return x, nil
	}
	return store.Doc{}, fmt.Errorf("%w: document %s", store.ErrNotFound, key)
}

// Count implements [store.Docs].
func (d *DocsReference) Count(ctx context.Context, collection string) (n int64, err error) {
	end, err := d.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	c, err := d.collection(collection)
	if err != nil {
		return 0, err
	}
	for _, x := range c.docs {
		if x.Body != nil {
			n++
		}
	}
	return n, nil
}

// pick gives the documents of a collection that fn accepts, in an order.
func (d *DocsReference) pick(ctx context.Context, collection string, check func(*refCollection) (func(store.Doc) bool, error), order func(a, b store.Doc) int) ([]store.Doc, error) {
	end, err := d.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	c, err := d.collection(collection)
	if err != nil {
		return nil, err
	}
	accept, err := check(c)
	if err != nil {
		return nil, err
	}
	var out []store.Doc
	for _, x := range c.docs {
		if accept(x) {
			x.Body = bytes.Clone(x.Body)
			out = append(out, x)
		}
	}
	slices.SortFunc(out, order)
	return out, nil
}

// each yields a list, and looks at every step whether it may go on.
func (d *DocsReference) each(ctx context.Context, list []store.Doc, err error, yield func(store.Doc, error) bool) {
	for _, x := range list {
		if err = d.Sync(ctx); err != nil || !yield(x, nil) {
			break
		}
	}
	if err != nil {
		yield(store.Doc{}, err)
	}
}

// List implements [store.Docs].
func (d *DocsReference) List(ctx context.Context, collection string, q store.DocQuery) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		list, err := d.pick(ctx, collection, func(c *refCollection) (func(store.Doc) bool, error) {
			if q.Offset < 0 || q.Limit < 0 {
				return nil, fmt.Errorf("%w: offset %d, limit %d", store.ErrInvalid, q.Offset, q.Limit)
			}
			for f, values := range q.Filter {
				if !slices.ContainsFunc(c.indexes, func(x store.Index) bool { return slices.Contains(x.Fields, f) }) {
					return nil, fmt.Errorf("%w: field %s", store.ErrInvalid, f)
				}
				for _, v := range values {
					if !json.Valid(v) || refValue(v) == "" {
						return nil, fmt.Errorf("%w: value %s", store.ErrInvalid, v)
					}
				}
			}
			return func(x store.Doc) bool { return x.Body != nil && refMatches(x, q.Filter) }, nil
		}, func(a, b store.Doc) int { return cmp.Or(cmp.Compare(b.TS, a.TS), cmp.Compare(a.Key, b.Key)) })
		if err != nil {
			yield(store.Doc{}, err)
			return
		}
		list = list[min(q.Offset, len(list)):]
		if q.Limit > 0 {
			list = list[:min(q.Limit, len(list))]
		}
		d.each(ctx, list, nil, yield)
	}
}

func refMatches(x store.Doc, filter map[string][]json.RawMessage) bool {
	for f, values := range filter {
		have := valuesOf(x.Body, []string{f})
		if have == nil || !slices.ContainsFunc(values, func(v json.RawMessage) bool { return refValue(v) == have[0] }) {
			return false
		}
	}
	return true
}

// Changes implements [store.Docs].
func (d *DocsReference) Changes(ctx context.Context, collection string, after uint64) iter.Seq2[store.Doc, error] {
	return func(yield func(store.Doc, error) bool) {
		list, err := d.pick(ctx, collection, func(c *refCollection) (func(store.Doc) bool, error) {
			if c.forgotten > after {
				return nil, fmt.Errorf("%w: up to %d", store.ErrGone, c.forgotten)
			}
			return func(x store.Doc) bool { return x.Seq > after }, nil
		}, func(a, b store.Doc) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Key, b.Key)) })
		d.each(ctx, list, err, yield)
	}
}

// Forget implements [store.Docs].
func (d *DocsReference) Forget(ctx context.Context, collection string, upTo uint64) error {
	end, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	c, err := d.collection(collection)
	if err != nil {
		return err
	}
	for key, x := range c.docs {
		if x.Body == nil && x.Seq <= upTo {
			c.forgotten = max(c.forgotten, x.Seq)
			delete(c.docs, key)
		}
	}
	return nil
}

// Replace implements [store.Docs].
func (d *DocsReference) Replace(ctx context.Context, name, by string) error {
	end, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	a, b := d.readers[name], d.readers[by]
	switch {
	case name == by:
		return fmt.Errorf("%w: reader %s by itself", store.ErrInvalid, name)
	case a == nil || b == nil:
		return fmt.Errorf("%w: reader %s or %s", store.ErrNotFound, name, by)
	case len(a.cols) != len(b.cols):
		return fmt.Errorf("%w: %d collections by %d", store.ErrInvalid, len(a.cols), len(b.cols))
	}
	next := b.clone()
	for i := range next.cols {
		next.cols[i].name = a.cols[i].name
	}
	delete(d.readers, by)
	d.readers[name] = next
	return nil
}

// Drop implements [store.Docs].
func (d *DocsReference) Drop(ctx context.Context, reader string) error {
	end, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	delete(d.readers, reader)
	return nil
}
