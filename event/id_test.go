package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func less(a, b ID) bool { return bytes.Compare(a[:], b[:]) < 0 }

func TestNewIDIsVersion7OfNow(t *testing.T) {
	before := time.Now().Add(-2 * maxAnchorAge)
	id := NewID()
	after := time.Now().Add(2 * maxAnchorAge)
	u, err := uuid.Parse(id.String())
	if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		t.Fatalf("%s: version %d, variant %v, %v", id, u.Version(), u.Variant(), err)
	}
	at, ok := id.Time()
	if !ok || at.Before(before) || at.After(after) {
		t.Errorf("time %v, %v; want between %v and %v", at, ok, before, after)
	}
	if sec, nsec := u.Time().UnixTime(); !time.Unix(sec, nsec).Truncate(time.Millisecond).Equal(at) {
		t.Errorf("time %v, but another reader sees %v", at, time.Unix(sec, nsec))
	}
}

func TestNewIDIncreasesUnderConcurrency(t *testing.T) {
	const workers, each = 8, 20_000
	made := make([][]ID, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			ids := make([]ID, each)
			for i := range ids {
				ids[i] = NewID()
			}
			made[w] = ids
		})
	}
	wg.Wait()
	seen := make(map[ID]bool, workers*each)
	for w, ids := range made {
		for i, id := range ids {
			if i > 0 && !less(ids[i-1], id) {
				t.Fatalf("worker %d: %s follows %s", w, id, ids[i-1])
			}
			if seen[id] {
				t.Fatalf("%s was given out twice", id)
			}
			seen[id] = true
		}
	}
}

func TestTickWhenTheClockStepsBack(t *testing.T) {
	var clock atomic.Uint64
	last := ID{}
	for i, now := range []int64{1_000_000, 1_000_000, 1_000_001, 999_000, 0, -5, 999_001, 1_000_001, 1_000_002} {
		id := makeID(tick(&clock, now), 0)
		if !less(last, id) {
			t.Fatalf("step %d, clock at %d: %s follows %s", i, now, id, last)
		}
		last = id
	}
	if at, ok := last.Time(); !ok || at.UnixMilli() != 1_000_002 {
		t.Errorf("the clock went on, but the id says %d", at.UnixMilli())
	}
}

func TestTickCarriesAFullCounter(t *testing.T) {
	var clock atomic.Uint64
	clock.Store(1000<<counterBits | (1<<counterBits - 1))
	before := makeID(clock.Load(), 1<<64-1)
	after := makeID(tick(&clock, 1000), 0)
	if !less(before, after) {
		t.Errorf("%s follows %s", after, before)
	}
	if at, ok := after.Time(); !ok || at.UnixMilli() != 1001 {
		t.Errorf("time %v", at)
	}
}

func TestMakeIDKeepsOrderAndFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		x, y := makeID(a, rapid.Uint64().Draw(t, "r")), makeID(b, rapid.Uint64().Draw(t, "s"))
		if a < b && !less(x, y) || b < a && !less(y, x) {
			t.Fatalf("ticks %#x and %#x give %s and %s", a, b, x, y)
		}
		if at, ok := x.Time(); !ok || at.UnixMilli() != int64(a>>counterBits) {
			t.Fatalf("tick %#x gives the time %v, %v", a, at, ok)
		}
	})
}

// Under synctest the clock is another one. An anchor from inside must not
// freeze the time outside, nor the other way round.
func TestWallMilliAcrossClocks(t *testing.T) {
	first := NewID()
	synctest.Test(t, func(t *testing.T) {
		for range 3 {
			if got, want := wallMilli(), time.Now().UnixMilli(); got != want {
				t.Errorf("inside: %d, want %d", got, want)
			}
			time.Sleep(maxAnchorAge / 2)
		}
		if id := NewID(); !less(first, id) {
			t.Errorf("inside: %s follows %s", id, first)
		}
	})
	before := time.Now().Add(-2 * maxAnchorAge).UnixMilli()
	if got := wallMilli(); got < before {
		t.Errorf("outside: %d, but it is after %d", got, before)
	}
}

func TestParseID(t *testing.T) {
	const text = "0192f7c1-89ab-7cde-8f01-23456789abcd"
	id, err := ParseID(text)
	if err != nil || id.String() != text {
		t.Fatalf("%s, %v", id, err)
	}
	if upper, err := ParseID(strings.ToUpper(text)); err != nil || upper != id {
		t.Errorf("upper case: %s, %v", upper, err)
	}
	for _, c := range []struct{ text, want string }{
		{"", `id: must be a UUID of 36 characters (limit 36, got 0), found ""`},
		{"0192f7c189ab7cde8f0123456789abcd", `id: must be a UUID of 36 characters (limit 36, got 32), found "0192f7c189ab7cde8f0123456789abcd"`},
		{"{" + text + "}", `id: must be a UUID of 36 characters (limit 36, got 38), found "{0192f7c1-89ab-7cde-8f01-23456789abcd}"`},
		{"0192f7c1-89ab-7cde-8f01-23456789abcg", `id: must be a UUID like 0192f7c1-0000-7000-8000-000000000000, found "0192f7c1-89ab-7cde-8f01-23456789abcg"`},
		{"0192f7c1089ab-7cde-8f01-23456789abcd", `id: must be a UUID like 0192f7c1-0000-7000-8000-000000000000, found "0192f7c1089ab-7cde-8f01-23456789abcd"`},
	} {
		id, err := ParseID(c.text)
		if err == nil || err.Error() != c.want || !errors.Is(err, ErrInvalidArgument) || !id.IsZero() {
			t.Errorf("ParseID(%q) = %s\n got %v\nwant %s", c.text, id, err, c.want)
		}
	}
	// Each place holds a digit or a dash, nothing else.
	for i := range text {
		for c := range 256 {
			b := []byte(text)
			b[i] = byte(c)
			_, err := ParseID(string(b))
			_, want := uuid.Parse(string(b))
			if (err == nil) != (want == nil) {
				t.Fatalf("ParseID(%q) = %v, want %v", b, err, want)
			}
		}
	}
}

func TestIDText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var id ID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		if want := uuid.UUID(id).String(); id.String() != want {
			t.Fatalf("String() = %s, want %s", id, want)
		}
		text, err := id.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back ID
		if err := back.UnmarshalText(text); err != nil || back != id {
			t.Fatalf("%s came back as %s, %v", id, back, err)
		}
		if more, _ := id.AppendText([]byte("x")); string(more) != "x"+id.String() {
			t.Fatalf("AppendText gave %q", more)
		}
	})
	id := NewID()
	if err := id.UnmarshalText([]byte("x")); err == nil || id.IsZero() {
		t.Errorf("UnmarshalText of a bad text: %v, id now %s", err, id)
	}
	b, err := json.Marshal(map[ID]ID{id: id})
	if want := `{"` + id.String() + `":"` + id.String() + `"}`; err != nil || string(b) != want {
		t.Errorf("as JSON: %s, %v", b, err)
	}
}

func TestNameID(t *testing.T) {
	// The example of RFC 9562, appendix A.4.
	dns, err := ParseID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	if err != nil {
		t.Fatal(err)
	}
	if got := NameID(dns, "www.example.com").String(); got != "2ed6657d-e927-568b-95e1-2665a8aea6a2" {
		t.Errorf("got %s", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		space, name := NewID(), rapid.String().Draw(t, "name")
		if got, want := NameID(space, name), ID(uuid.NewSHA1(uuid.UUID(space), []byte(name))); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func TestIDTimeOfOtherVersions(t *testing.T) {
	for _, text := range []string{"00000000-0000-0000-0000-000000000000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "0192f7c1-89ab-7cde-cf01-23456789abcd", "0192f7c1-89ab-4cde-8f01-23456789abcd"} {
		id, err := ParseID(text)
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := id.Time(); ok {
			t.Errorf("%s has the time %v", id, at)
		}
	}
}
