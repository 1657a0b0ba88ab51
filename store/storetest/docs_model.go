package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"promethean/store"
)

// DocsModel runs random operations on an engine and on a [DocsReference] at
// once and compares every answer. The engine must be one that Transacts. On a
// difference rapid looks for a shorter sequence that shows it.
func DocsModel(t *testing.T, h DocsHarness) {
	rapid.Check(t, func(rt *rapid.T) {
		d := h.Open(t)
		// Closed here and not by the cleanup of the test, which may be
		// thousands of stores away.
		defer func() { _ = d.Close() }()
		m := &docsModel{ref: NewDocsReference(), ctx: context.Background()}
		step := func(rt *rapid.T) {
			if err := m.step(d, rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))); err != nil {
				rt.Fatal(err)
			}
		}
		actions := map[string]func(*rapid.T){
			"step": step, "another": step, "a third": step,
			"ask": func(rt *rapid.T) {
				if err := m.ask(d, rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))); err != nil {
					rt.Fatal(err)
				}
			},
			"compare": func(rt *rapid.T) {
				if err := m.compare(d); err != nil {
					rt.Fatal(err)
				}
			},
		}
		if h.Flush != nil {
			actions["flush"] = func(*rapid.T) { h.Flush(t, d) }
		}
		if h.Reopen != nil {
			actions["reopen"] = func(*rapid.T) { d = h.Reopen(t, d) }
		}
		rt.Repeat(actions)
		if err := m.compare(d); err != nil {
			rt.Fatal(err)
		}
	})
}

// docsModel does to an engine what it does to the reference.
type docsModel struct {
	ref *DocsReference
	ctx context.Context
	seq uint64
}

// call is something to do to both.
type docsDo struct {
	what string
	do   func(store.Docs) (int, error)
}

var (
	modelReaders = []string{"r", "s", "r~next"}
	modelIndexes = []store.Index{on("a"), on("b"), only("u"), on("a", "b"), only("b", "c"), on("c", "u", "a"), on("c")}
)

// next chooses something to do.
func (m *docsModel) next(rng *rand.Rand) docsDo {
	reader := modelReaders[rng.IntN(len(modelReaders))]
	r, err := m.ref.Reader(m.ctx, reader)
	if err != nil || rng.IntN(20) == 0 {
		return m.declare(rng, reader)
	}
	switch rng.IntN(24) {
	case 0:
		return docsDo{"drop " + reader, func(d store.Docs) (int, error) { return 0, d.Drop(m.ctx, reader) }}
	case 1, 2:
		return docsDo{"replace r by r~next", func(d store.Docs) (int, error) { return 0, d.Replace(m.ctx, "r", "r~next") }}
	case 3:
		if len(r.Collections) > 0 {
			c, upTo := r.Collections[rng.IntN(len(r.Collections))].Name, m.seq-min(m.seq, rng.Uint64N(40))
			return docsDo{fmt.Sprintf("forget %s up to %d", c, upTo), func(d store.Docs) (int, error) { return 0, d.Forget(m.ctx, c, upTo) }}
		}
	}
	return m.commit(rng, r)
}

func (m *docsModel) declare(rng *rand.Rand, name string) docsDo {
	r := store.Reader{Name: name, Meta: fmt.Append(nil, rng.IntN(100))}
	for i := range 1 + rng.IntN(2) {
		c := store.Collection{Name: fmt.Sprintf("%s.%d", name, (i+rng.IntN(2))%3)}
		if slices.ContainsFunc(r.Collections, func(o store.Collection) bool { return o.Name == c.Name }) {
			continue
		}
		for _, x := range modelIndexes {
			if rng.IntN(2) == 0 {
				c.Indexes = append(c.Indexes, x)
			}
		}
		r.Collections = append(r.Collections, c)
	}
	return docsDo{fmt.Sprintf("declare %+v", r), func(d store.Docs) (int, error) { return 0, d.Declare(m.ctx, r) }}
}

func (m *docsModel) commit(rng *rand.Rand, r store.Reader) docsDo {
	b := store.DocBatch{Reader: r.Name, From: r.Seq, To: r.Seq + 1 + rng.Uint64N(5)}
	if rng.IntN(20) == 0 {
		b.From++
	}
	for range rng.IntN(12) {
		if len(r.Collections) == 0 {
			break
		}
		m.seq++
		op := putOp(r.Collections[rng.IntN(len(r.Collections))].Name, fmt.Sprint("k", rng.IntN(25)), m.seq, "")
		op.TS = int64(rng.IntN(10))
		if rng.IntN(10) == 0 {
			op.Seq -= min(op.Seq, rng.Uint64N(60))
		}
		if rng.IntN(5) == 0 {
			v := int64(rng.IntN(30))
			op.Version = &v
		}
		if rng.IntN(4) > 0 {
			op.Body = modelBody(rng)
		}
		if rng.IntN(150) == 0 {
			op.Body = json.RawMessage(`[]`)
		}
		b.Ops = append(b.Ops, op)
	}
	return docsDo{fmt.Sprintf("commit to %s from %d: %d operations", b.Reader, b.From, len(b.Ops)), func(d store.Docs) (int, error) { return d.Commit(m.ctx, b) }}
}

var modelValues = []string{`0`, `1`, `1.0`, `10e-1`, `2`, `"1"`, `"x"`, `"\u0078"`, `true`, `null`, `{}`, `[1]`}

func modelBody(rng *rand.Rand) json.RawMessage {
	body := []byte(`{`)
	for _, f := range []string{"a", "b", "c"} {
		if rng.IntN(6) > 0 {
			body = fmt.Appendf(body, `"%s":%s,`, f, modelValues[rng.IntN(len(modelValues))])
		}
	}
	// Unique ones seldom meet.
	return fmt.Appendf(body, `"u":%d,"pad":"%0*d"}`, rng.IntN(400), rng.IntN(200), 7)
}

// errKinds are what answers are compared by.
var errKinds = []error{store.ErrNotFound, store.ErrConflict, store.ErrInvalid, store.ErrUnique, store.ErrGone, store.ErrClosed}

func kindOf(err error) string {
	if err == nil {
		return "no error"
	}
	text := ""
	if de := (*store.DocError)(nil); errors.As(err, &de) {
		text = fmt.Sprintf("operation %d: ", de.Op)
	}
	for _, kind := range errKinds {
		if errors.Is(err, kind) {
			return text + kind.Error()
		}
	}
	return "unexpected: " + err.Error()
}

// step does something to the reference and the engine.
func (m *docsModel) step(d store.Docs, rng *rand.Rand) error {
	x := m.next(rng)
	want, wantErr := x.do(m.ref)
	got, err := x.do(d)
	if got != want || kindOf(err) != kindOf(wantErr) {
		return broken("%s: %d, %v; want %d, %v", x.what, got, err, want, wantErr)
	}
	return nil
}

// ask compares the answers to a question.
func (m *docsModel) ask(d store.Docs, rng *rand.Rand) error {
	readers, err := collect2(m.ref.Readers(m.ctx))
	if err != nil || len(readers) == 0 {
		return err
	}
	r := readers[rng.IntN(len(readers))]
	if len(r.Collections) == 0 {
		return nil
	}
	c := r.Collections[rng.IntN(len(r.Collections))].Name
	q := store.DocQuery{Offset: rng.IntN(4) * rng.IntN(4), Limit: rng.IntN(12), Filter: make(map[string][]json.RawMessage)}
	for _, f := range []string{"a", "b", "c"} {
		if rng.IntN(2) == 0 {
			for range 1 + rng.IntN(3) {
				q.Filter[f] = append(q.Filter[f], json.RawMessage(modelValues[rng.IntN(10)]))
			}
		}
	}
	want, wantErr := collect2(m.ref.List(m.ctx, c, q))
	got, err := collect2(d.List(m.ctx, c, q))
	if kindOf(err) != kindOf(wantErr) || !slices.EqualFunc(got, want, sameDoc) {
		return broken("list %s %s: %q, %v; want %q, %v", c, describeQuery(q), keysOf(got), err, keysOf(want), wantErr)
	}
	after := m.seq - min(m.seq, rng.Uint64N(100))
	want, wantErr = collect2(m.ref.Changes(m.ctx, c, after))
	got, err = collect2(d.Changes(m.ctx, c, after))
	if kindOf(err) != kindOf(wantErr) || !slices.EqualFunc(got, want, sameDoc) {
		return broken("changes of %s after %d: %q, %v; want %q, %v", c, after, keysOf(got), err, keysOf(want), wantErr)
	}
	key := fmt.Sprint("k", rng.IntN(25))
	one, wantErr := m.ref.Doc(m.ctx, c, key)
	other, err := d.Doc(m.ctx, c, key)
	if kindOf(err) != kindOf(wantErr) || !sameDoc(one, other) {
		return broken("document %s of %s: %s, %v; want %s, %v", key, c, describeDoc(other), err, describeDoc(one), wantErr)
	}
	return nil
}

func sameDoc(a, b store.Doc) bool { return describeDoc(a) == describeDoc(b) }

// compare compares all there is.
func (m *docsModel) compare(d store.Docs) error {
	for _, name := range modelReaders {
		if got, want := digestReader(m.ctx, d, name), digestReader(m.ctx, m.ref, name); got != want {
			return broken("reader %s: got\n%s\nwant\n%s", name, got, want)
		}
	}
	list, err := collect2(d.Readers(m.ctx))
	want, _ := collect2(m.ref.Readers(m.ctx))
	if err != nil || len(list) != len(want) {
		return broken("%d readers, %v; want %d", len(list), err, len(want))
	}
	return nil
}
