// Package jqview makes changelog views of jq programs: what a configuration
// says about a view, in place of Go functions.
//
//	o, err := jqview.Definition{Topic: "process.state", Key: ".processId", Map: "."}.Options("processes")
//	v, err := view.Changelog(ctx, hub, o)
//
// The programs see the payload. They run as those of upcasters do: bounded, and
// without a way to the world. A path such as .processId or .host.name is taken
// from the payload without running anything.
package jqview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
	"promethean/internal/jq"
	"promethean/store"
	"promethean/view"
)

// Definition is what a configuration says about a view.
type Definition struct {
	Topic string `json:"topic"`
	// Key gives the key of the document: a text, or a number or truth value as
	// it is written. Where it gives null, or the event is a tombstone without a
	// payload, the key is that of the event. Default: always that of the event.
	Key string `json:"key,omitempty"`
	// Map gives the document, an object. Default ".": the payload.
	Map string `json:"map,omitempty"`
	// Tombstone gives anything but false and null for events that delete the
	// document, beside those whose payload is null or has _deleted: true.
	Tombstone string `json:"tombstone,omitempty"`
	// Version gives a whole number that has to grow, or null.
	Version string `json:"version,omitempty"`
	// Reduce is replace, the default, or merge.
	Reduce string `json:"reduce,omitempty"`
	// From is where a new view begins: earliest, the default, latest or
	// snapshot.
	From    string        `json:"from,omitempty"`
	Indexes []store.Index `json:"-"`
}

// Fault says which part of a definition is wrong.
type Fault struct {
	// Part is the name that it has in a configuration.
	Part string
	Err  error
}

func (f *Fault) Error() string { return f.Part + ": " + f.Err.Error() }

// Unwrap gives the reason.
func (f *Fault) Unwrap() error { return f.Err }

// Options makes a view of the definition. The error joins a [*Fault] for each
// part that is wrong.
func (d Definition) Options(collection string) (view.ChangelogOptions, error) {
	o := view.ChangelogOptions{Topic: d.Topic, Collection: collection, Indexes: d.Indexes}
	var errs []error
	fault := func(part string, err error) {
		if err != nil {
			errs = append(errs, &Fault{part, err})
		}
	}
	fault("topic", event.CheckTopic(d.Topic))
	compile := func(part, text string) getter {
		if text == "" {
			return nil
		}
		g, err := compile(text)
		fault(part, err)
		return g
	}
	if g := compile("key", d.Key); g != nil {
		o.KeyOf = func(e *event.Event) (string, error) { return keyOf(g, e) }
	}
	if g := compile("map", d.Map); g != nil {
		o.Map = func(e *event.Event) (json.RawMessage, error) {
			v, err := g(e.Payload)
			return json.RawMessage(v), wrap("map", err)
		}
	}
	if g := compile("tombstone", d.Tombstone); g != nil {
		o.Tombstone = func(e *event.Event) (bool, error) {
			v, err := g(e.Payload)
			return err == nil && string(v) != "false" && string(v) != "null", wrap("tombstone", err)
		}
	}
	if g := compile("version", d.Version); g != nil {
		o.VersionOf = func(e *event.Event) (int64, bool, error) { return versionOf(g, e) }
	}
	switch d.Reduce {
	case "", "replace":
	case "merge":
		o.Merge = true
	default:
		fault("reduce", fmt.Errorf("%q is neither replace nor merge", d.Reduce))
	}
	switch d.From {
	case "", "earliest":
	case "latest":
		o.From = view.Latest
	case "snapshot":
		o.From = view.Snapshot
	default:
		fault("from", fmt.Errorf("%q is neither earliest, latest nor snapshot", d.From))
	}
	for _, x := range d.Indexes {
		fault("indexes", CheckIndex(x))
	}
	// From says where the view began, and changing it does not change what is
	// there; so do indexes, which are brought in line by themselves.
	told := d
	told.From = ""
	text, err := json.Marshal(told)
	fault("definition", err)
	o.Definition = string(text)
	return o, errors.Join(errs...)
}

// CheckIndex says what is wrong with an index.
func CheckIndex(x store.Index) error {
	if len(x.Fields) == 0 {
		return errors.New("an index needs a field")
	}
	for i, f := range x.Fields {
		switch {
		case f == "":
			return errors.New("a field needs a name")
		case strings.ContainsAny(f, ".$[]"):
			return fmt.Errorf("%q is no field of the document itself: indexes are on its top level", f)
		case strings.HasPrefix(f, "_"):
			return fmt.Errorf("%q: names that begin with _ are the view's own", f)
		case f == "offset" || f == "limit":
			return fmt.Errorf("%q has a meaning of its own in queries: give the field another name by map", f)
		}
		for _, g := range x.Fields[:i] {
			if f == g {
				return fmt.Errorf("%q comes twice", f)
			}
		}
	}
	return nil
}

func wrap(part string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", part, err)
}

func keyOf(g getter, e *event.Event) (string, error) {
	if string(e.Payload) == "null" {
		return "", nil // a tombstone has nothing to look into
	}
	v, err := g(e.Payload)
	if err != nil {
		return "", wrap("key", err)
	}
	switch v.Kind() {
	case 'n':
		return "", nil
	case '"':
		b, err := jsontext.AppendUnquote(nil, v)
		return string(b), wrap("key", err)
	case '{', '[':
		return "", fmt.Errorf("key: it gave %s, which is no key", clip(v))
	}
	return string(v), nil
}

func versionOf(g getter, e *event.Event) (int64, bool, error) {
	if string(e.Payload) == "null" {
		return 0, false, nil
	}
	v, err := g(e.Payload)
	if err != nil || v.Kind() == 'n' {
		return 0, false, wrap("version", err)
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("version: it gave %s, which is no whole number of 64 bits", clip(v))
	}
	return n, true, nil
}

func clip(v []byte) string {
	if len(v) > 60 {
		return string(v[:60]) + "…"
	}
	return string(v)
}

// getter gives what a program makes of a payload. The answer may be a part of
// it.
type getter func(payload []byte) (jsontext.Value, error)

// paths are programs that only look something up.
var paths = regexp.MustCompile(`^\s*\.([A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*)?\s*$`)

func compile(text string) (getter, error) {
	p, err := jq.Compile(text) // also of a path: what is no jq must not pass
	if err != nil {
		return nil, err
	}
	if paths.MatchString(text) {
		path := strings.FieldsFunc(strings.TrimSpace(text), func(r rune) bool { return r == '.' })
		return func(payload []byte) (jsontext.Value, error) { return lookUp(payload, path) }, nil
	}
	return func(payload []byte) (jsontext.Value, error) {
		// A run is bounded by itself.
		return p.Run(context.Background(), payload)
	}, nil
}

// lookUp gives the value at a path, as jq does: null where there is none, an
// error in what is no object. Of names that come twice the last one counts.
func lookUp(payload []byte, path []string) (jsontext.Value, error) {
	v := jsontext.Value(payload)
	for _, name := range path {
		switch v.Kind() {
		case 'n':
			return v, nil
		case '{':
		default:
			return nil, fmt.Errorf("expected an object with the field %q, but got %s", name, clip(v))
		}
		next, err := field(v, name)
		if err != nil {
			return nil, err
		}
		v = next
	}
	return v, nil
}

// null is what is not there.
var null = jsontext.Value("null")

// scanner is a decoder that is used again.
type scanner struct {
	buf bytes.Buffer
	d   jsontext.Decoder
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

func (s *scanner) open(text []byte) *jsontext.Decoder {
	s.buf = *bytes.NewBuffer(text) // which the decoder reads in place
	s.d.Reset(&s.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return &s.d
}

// field gives the value of a field of an object.
func field(object jsontext.Value, name string) (jsontext.Value, error) {
	s := scanners.Get().(*scanner)
	defer scanners.Put(s)
	d := s.open(object)
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	found := null
	for d.PeekKind() == '"' {
		t, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		if t.String() != name {
			if err := d.SkipValue(); err != nil {
				return nil, err
			}
			continue
		}
		v, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		found = v.Clone()
	}
	if d.PeekKind() != '}' {
		return nil, errors.New("the payload is no whole object")
	}
	return found, nil
}
