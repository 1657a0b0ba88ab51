package event

import (
	"errors"
	"regexp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestHeadersSet(t *testing.T) {
	var none Headers
	a := none.Set("x-b", "1")
	b := a.Set("x-a", "2")
	c := b.Set("x-b", "3")
	d := c.Without("x-a")
	for _, x := range []struct {
		got, want Headers
	}{
		{none, nil},
		{a, Headers{{"x-b", "1"}}},
		{b, Headers{{"x-a", "2"}, {"x-b", "1"}}},
		{c, Headers{{"x-a", "2"}, {"x-b", "3"}}},
		{d, Headers{{"x-b", "3"}}},
		{d.Without("x-none"), Headers{{"x-b", "3"}}},
	} {
		if !slices.Equal(x.got, x.want) {
			t.Errorf("got %v, want %v", x.got, x.want)
		}
	}
	if v, ok := c.Get("x-b"); !ok || v != "3" {
		t.Errorf("Get: %q, %v", v, ok)
	}
	if v, ok := none.Get("x-b"); ok || v != "" {
		t.Errorf("Get of none: %q, %v", v, ok)
	}
}

// Two events that came from one share their headers; what Set does to one must
// not be seen in the other, even where the slice has room to grow.
func TestHeadersSetNeverChangesTheReceiver(t *testing.T) {
	names := rapid.SampledFrom([]string{"x-a", "x-b", "x-c", "x-d"})
	rapid.Check(t, func(t *rapid.T) {
		h := make(Headers, 0, 8)
		model := map[string]string{}
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			name, value := names.Draw(t, "name"), rapid.String().Draw(t, "value")
			room := slices.Grow(slices.Clone(h), 4)
			before := slices.Clone(room)
			next := room.Set(name, value)
			room.Set("x-e", "other")
			room.Without(name)
			if !slices.Equal(room, before) {
				t.Fatalf("the receiver changed from %v to %v", before, room)
			}
			h = next
			model[name] = value
		}
		if len(h) != len(model) || !slices.IsSortedFunc(h, func(a, b Header) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) }) {
			t.Fatalf("%v does not hold %v", h, model)
		}
		for name, value := range model {
			if got, ok := h.Get(name); !ok || got != value {
				t.Fatalf("%s is %q, want %q", name, got, value)
			}
		}
	})
}

func TestHeaderNamesAreTheContract(t *testing.T) {
	grammar := regexp.MustCompile(`^(x-[a-z0-9-]+|content-type|traceparent|tracestate)$`)
	check := func(name string) {
		t.Helper()
		err := CheckHeader(name, "v")
		if want := grammar.MatchString(name); (err == nil) != want || err != nil && !errors.Is(err, ErrInvalidHeader) {
			t.Errorf("CheckHeader(%q) = %v, want ok %v", name, err, want)
		}
	}
	for _, name := range []string{"", "x", "x-", "x--", "x-a", "x-A", "X-a", "x-a_b", "x-a.b", "x-a\n", "xx-a", " x-a", "content-type", "Content-Type", "content-types", "traceparent", "tracestate", "authorization", "cookie", "x-é"} {
		check(name)
	}
	for c := range 256 {
		check("x-a" + string([]byte{byte(c)}))
		check("x-" + string([]byte{byte(c)}) + "a")
	}
	rapid.Check(t, func(t *rapid.T) {
		check(rapid.StringOf(rapid.RuneFrom([]rune("x-a9Z_.\n"))).Draw(t, "name"))
	})
}
