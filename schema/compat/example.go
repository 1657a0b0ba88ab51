package compat

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"promethean/schema/internal/sample"
)

// The bounds of the search for documents that show problems.
const (
	maxDocuments = 500     // that are made
	maxWritten   = 2 << 20 // bytes of them
	enough       = 40      // more documents after the first that shows something, for a shorter one
	maxShrink    = 1 << 20 // bytes that are tried to make documents smaller
)

// examples finds a document for each finding, if it can: one that the writer's
// schema takes and the reader's refuses for that very reason.
func examples(rep *report, writer, reader *jsonschema.Schema) map[int]json.RawMessage {
	if sample.Heavy(reader) {
		return nil // trying documents would take too long
	}
	found := make(map[int]any)
	size := make(map[int]int)
	since := 0
	written := 0
	maker := sample.New(writer, 1)
	maker.Hint(reader)
	for range maxDocuments {
		v, ok := maker.Value()
		if !ok {
			break
		}
		n := weight(v)
		if written += n; written > maxWritten {
			break
		}
		if len(found) == len(rep.list) {
			if since++; since > enough {
				break
			}
		}
		e := refusal(reader, v)
		if e == nil {
			continue
		}
		for i := range rep.list {
			if old, ok := size[i]; (!ok || n < old) && mentions(&rep.list[i], e) {
				found[i], size[i] = v, n
			}
		}
	}
	out := make(map[int]json.RawMessage)
	for _, i := range slices.Sorted(maps.Keys(found)) {
		f := &rep.list[i]
		effort := maxShrink / len(found)
		v := shrink(found[i], &effort, func(v any) bool {
			return accepts(writer, v) && mentions(f, refusal(reader, v))
		})
		if text, ok := encode(v); ok {
			out[i] = text
		}
	}
	return out
}

// witness looks for a document that the writer's schema takes and the reader's
// does not.
func witness(writer, reader *jsonschema.Schema) (any, bool) {
	if sample.Heavy(reader) {
		return nil, false
	}
	maker := sample.New(writer, 2)
	maker.Hint(reader)
	for written := 0; written < maxWritten/4; {
		v, ok := maker.Value()
		if !ok {
			return nil, false
		}
		if rejects(reader, v) {
			effort := maxShrink
			return shrink(v, &effort, func(v any) bool { return accepts(writer, v) && rejects(reader, v) }), true
		}
		written += weight(v) + maxWritten/4/maxDocuments
	}
	return nil, false
}

// mentions says whether an error is, or was caused by, what a finding is about.
func mentions(f *finding, e *jsonschema.ValidationError) bool {
	if e == nil {
		return false
	}
	if f.shows(e) {
		return true
	}
	return slices.ContainsFunc(e.Causes, func(sub *jsonschema.ValidationError) bool { return mentions(f, sub) })
}

// weight is about how long a document is.
func weight(v any) (n int) {
	switch v := v.(type) {
	case string:
		return len(v) + 2
	case []any:
		for _, e := range v {
			n += weight(e) + 1
		}
	case map[string]any:
		for name, e := range v {
			n += len(name) + weight(e) + 4
		}
	case json.Number:
		return len(v)
	}
	return n + 2
}

// shrink makes a document smaller as long as it shows what it is to show. The
// effort counts what is tried, by its size.
func shrink(v any, effort *int, shows func(any) bool) any {
	for again := true; again; {
		again = false
		for smaller := range reductions(v) {
			if *effort -= 1 + weight(smaller); *effort < 0 {
				return v
			}
			if shows(smaller) {
				v, again = smaller, true
				break
			}
		}
	}
	return v
}

// reductions gives simpler forms of a value, each smaller in its own way, those
// first that leave out most.
func reductions(v any) iter.Seq[any] {
	return func(yield func(any) bool) {
		switch v := v.(type) {
		case map[string]any:
			names := slices.Sorted(maps.Keys(v))
			for size := (len(names) + 1) / 2; size > 0; size /= 2 {
				for some := range slices.Chunk(names, size) {
					less := maps.Clone(v)
					for _, name := range some {
						delete(less, name)
					}
					if !yield(less) {
						return
					}
				}
			}
			for _, name := range names {
				for e := range reductions(v[name]) {
					simpler := maps.Clone(v)
					simpler[name] = e
					if !yield(simpler) {
						return
					}
				}
			}
		case []any:
			for size := (len(v) + 1) / 2; size > 0; size /= 2 {
				for i := 0; i < len(v); i += size {
					if !yield(slices.Delete(slices.Clone(v), i, min(i+size, len(v)))) {
						return
					}
				}
			}
			for i := range v {
				for e := range reductions(v[i]) {
					simpler := slices.Clone(v)
					simpler[i] = e
					if !yield(simpler) {
						return
					}
				}
			}
		case string:
			for _, s := range []string{"", "a", "abc"} {
				if len(s) < len(v) && !yield(s) {
					return
				}
			}
		case json.Number:
			for _, s := range []json.Number{"0", "1", "-1", "0.5"} {
				if len(s) < len(v) && !yield(s) {
					return
				}
			}
		}
	}
}

func encode(v any) (json.RawMessage, bool) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, false
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), true
}
