package prometheantest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"promethean/event"
)

// Event is what [Hub.ExpectEvents] expects of an event. Fields that are left out
// are not looked at.
type Event struct {
	ID  event.ID
	Key string
	SID string
	// Headers must be there, others may be.
	Headers map[string]string
	// Tags and CausedBy must be these.
	Tags     []string
	CausedBy []event.ID
	// Payload is compared as ExpectEvents does with a value that is not an
	// Event; [Exactly] works here too. To expect null, give
	// json.RawMessage("null").
	Payload any
}

// Exactly expects a payload that is equal to v as JSON, without other members.
func Exactly(v any) any { return exact{v} }

type exact struct{ v any }

// difference is one place where an event is not as expected.
type difference struct {
	where     string
	want, got string
}

func listed(list []difference) string {
	const most = 12
	var b strings.Builder
	for i, d := range list {
		if i == most {
			fmt.Fprintf(&b, "    … and %d more differences\n", len(list)-i)
			break
		}
		fmt.Fprintf(&b, "    %s\n      - want %s\n      + got  %s\n", d.where, d.want, d.got)
	}
	return b.String()
}

// matcher judges events. Its String is for messages.
type matcher interface {
	fmt.Stringer
	faults(e *event.Event) []difference
}

func newMatcher(want any) (matcher, error) {
	switch w := want.(type) {
	case Event:
		return newEventMatcher(w)
	case *Event:
		return newEventMatcher(*w)
	case func(event.Event) error:
		return funcMatcher(w), nil
	}
	return newPayloadMatcher(want)
}

// funcMatcher is a function of the test's.
type funcMatcher func(event.Event) error

func (f funcMatcher) String() string { return "what the function of the test says" }

func (f funcMatcher) faults(e *event.Event) []difference {
	if err := f(*e); err != nil {
		return []difference{{where: "the event", want: "no error of the function", got: err.Error()}}
	}
	return nil
}

// payloadMatcher compares JSON.
type payloadMatcher struct {
	want  any
	text  json.RawMessage
	exact bool
}

func newPayloadMatcher(want any) (*payloadMatcher, error) {
	m := &payloadMatcher{}
	if x, ok := want.(exact); ok {
		m.exact, want = true, x.v
	}
	var err error
	if m.text, err = encode(want); err != nil {
		return nil, fmt.Errorf("it has no JSON form: %w", err)
	}
	if m.want, err = decode(m.text); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w: %s", err, short(m.text))
	}
	return m, nil
}

func (m *payloadMatcher) String() string {
	if m.exact {
		return "exactly " + short(m.text)
	}
	return short(m.text)
}

func (m *payloadMatcher) faults(e *event.Event) []difference {
	got, err := decode(e.Payload)
	if err != nil {
		return []difference{{where: "payload", want: short(m.text), got: err.Error()}}
	}
	return m.compare(nil, "payload", m.want, got)
}

// compare appends the differences below a place.
func (m *payloadMatcher) compare(list []difference, at string, want, got any) []difference {
	differ := func() []difference {
		return append(list, difference{where: at, want: text(want), got: text(got)})
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return differ()
		}
		for _, name := range slices.Sorted(maps.Keys(w)) {
			v, there := g[name]
			if !there {
				list = append(list, difference{where: below(at, name), want: text(w[name]), got: "nothing"})
				continue
			}
			list = m.compare(list, below(at, name), w[name], v)
		}
		if m.exact {
			for _, name := range slices.Sorted(maps.Keys(g)) {
				if _, named := w[name]; !named {
					list = append(list, difference{where: below(at, name), want: "nothing", got: text(g[name])})
				}
			}
		}
		return list
	case []any:
		g, ok := got.([]any)
		if !ok {
			return differ()
		}
		if len(w) != len(g) {
			return append(list, difference{where: at, want: count(w), got: count(g)})
		}
		for i := range w {
			list = m.compare(list, fmt.Sprintf("%s[%d]", at, i), w[i], g[i])
		}
		return list
	case json.Number:
		if g, ok := got.(json.Number); !ok || !sameNumber(string(w), string(g)) {
			return differ()
		}
		return list
	}
	if want != got { // text, true, false, null
		return differ()
	}
	return list
}

func below(at, name string) string {
	if name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == "" {
		return at + "." + name
	}
	return at + "[" + strconv.Quote(name) + "]"
}

func count(list []any) string { return fmt.Sprintf("%d elements: %s", len(list), text(list)) }

// sameNumber compares what numbers mean: 1, 1.0 and 1e0 are the same. Whole
// numbers are compared digit by digit, however long they are.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	if !strings.ContainsAny(a+b, ".eE") {
		return false
	}
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && x == y
}

// text is a decoded value as JSON, cut to a line.
func text(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v) // it was decoded from JSON, so that it does encode
	}
	return short(bytes.TrimSpace(b.Bytes()))
}

func decode(raw []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err = d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the value")
	}
	return v, nil
}

// eventMatcher compares fields.
type eventMatcher struct {
	want    Event
	payload *payloadMatcher // nil: any will do
}

func newEventMatcher(w Event) (*eventMatcher, error) {
	m := &eventMatcher{want: w}
	if w.Payload == nil {
		return m, nil
	}
	var err error
	m.payload, err = newPayloadMatcher(w.Payload)
	return m, err
}

func (m *eventMatcher) String() string {
	var parts []string
	for _, f := range m.fields(nil) {
		parts = append(parts, f.where+" "+f.want)
	}
	if m.payload != nil {
		parts = append(parts, "payload "+m.payload.String())
	}
	if len(parts) == 0 {
		return "any event"
	}
	return strings.Join(parts, ", ")
}

func (m *eventMatcher) faults(e *event.Event) []difference {
	var out []difference
	for _, f := range m.fields(e) {
		if f.want != f.got {
			out = append(out, f)
		}
	}
	if m.payload != nil {
		out = append(out, m.payload.faults(e)...)
	}
	return out
}

// fields gives what is expected beside the payload, with what e has, which may
// be nil.
func (m *eventMatcher) fields(e *event.Event) (out []difference) {
	if e == nil {
		e = new(event.Event)
	}
	add := func(where string, want, got any) {
		out = append(out, difference{where: where, want: text(want), got: text(got)})
	}
	w := &m.want
	if !w.ID.IsZero() {
		add("id", w.ID.String(), e.ID.String())
	}
	if w.Key != "" {
		add("key", w.Key, e.Key)
	}
	if w.SID != "" {
		add("sid", w.SID, e.SID)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		got, there := e.Headers.Get(name)
		add("header "+name, w.Headers[name], got)
		if !there {
			out[len(out)-1].got = "nothing"
		}
	}
	if len(w.Tags) > 0 {
		add("tags", w.Tags, e.Tags)
	}
	if len(w.CausedBy) > 0 {
		ids := make([]string, len(w.CausedBy))
		for i, id := range w.CausedBy {
			ids[i] = id.String()
		}
		add("caused_by", ids, e.CausedBy)
	}
	return out
}
