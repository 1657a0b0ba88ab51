package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCheckRules(t *testing.T) {
	texts := func(n int, s string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = s
		}
		return list
	}
	headers := func(n, size int) (h Headers) {
		for i := range n {
			h = append(h, Header{fmt.Sprintf("x-%04d", i), strings.Repeat("v", size)})
		}
		return h
	}
	for _, c := range []struct {
		name   string
		change func(*Event)
		kind   error
		want   string
	}{
		{"no id", func(e *Event) { e.ID = ID{} }, ErrInvalidArgument, `id: must be set`},
		{"ts negative", func(e *Event) { e.TS = -1 }, ErrInvalidArgument, `ts: must be epoch milliseconds from 0 to the end of the year 9999, found -1`},
		{"ts zero", func(e *Event) { e.TS = 0 }, nil, ``},
		{"ts last", func(e *Event) { e.TS = MaxTS }, nil, ``},
		{"ts beyond", func(e *Event) { e.TS = MaxTS + 1 }, ErrInvalidArgument, `ts: must be epoch milliseconds from 0 to the end of the year 9999, found 253402300800000`},
		{"no topic", func(e *Event) { e.Topic = "" }, ErrInvalidTopic, `topic: must be segments of a-z and 0-9 joined by single dots, found ""`},
		{"topic", func(e *Event) { e.Topic = "Process.state" }, ErrInvalidTopic, `topic: must be segments of a-z and 0-9 joined by single dots, found "Process.state"`},
		{"key longest", func(e *Event) { e.Key = strings.Repeat("k", 1024) }, nil, ``},
		{"key", func(e *Event) { e.Key = strings.Repeat("k", 1025) }, ErrInvalidArgument, `key: is too long (limit 1024, got 1025), found "` + strings.Repeat("k", 48) + `"…`},
		{"key counts bytes", func(e *Event) { e.Key = strings.Repeat("é", 513) }, ErrInvalidArgument, `key: is too long (limit 1024, got 1026), found "` + strings.Repeat(`\u00e9`, 24) + `"…`},
		{"key cut between characters", func(e *Event) { e.Key = "k" + strings.Repeat("é", 512) }, ErrInvalidArgument, `key: is too long (limit 1024, got 1025), found "k` + strings.Repeat(`\u00e9`, 23) + `"…`},
		{"key UTF-8", func(e *Event) { e.Key = "a\xff" }, ErrInvalidArgument, `key: must be valid UTF-8, found "a\xff"`},
		{"partition first", func(e *Event) { e.Partition = PartitionOf(0) }, nil, ``},
		{"partition last", func(e *Event) { e.Partition = PartitionOf(65535) }, nil, ``},
		{"partition negative", func(e *Event) { e.Partition = PartitionOf(-1) }, ErrInvalidArgument, `partition: must be from 0 to 65535`},
		{"partition beyond", func(e *Event) { e.Partition = PartitionOf(65536) }, ErrInvalidArgument, `partition: must be from 0 to 65535`},
		{"partition by hand", func(e *Event) { e.Partition = 65537 }, ErrInvalidArgument, `partition: must be from 0 to 65535`},
		{"sid longest", func(e *Event) { e.SID = strings.Repeat("s", 256) }, nil, ``},
		{"sid", func(e *Event) { e.SID = strings.Repeat("s", 257) }, ErrInvalidArgument, `sid: is too long (limit 256, got 257), found "` + strings.Repeat("s", 48) + `"…`},
		{"sid UTF-8", func(e *Event) { e.SID = "\xc0\x80" }, ErrInvalidArgument, `sid: must be valid UTF-8, found "\xc0\x80"`},
		{"headers most", func(e *Event) { e.Headers = headers(64, 1) }, nil, ``},
		{"headers", func(e *Event) { e.Headers = headers(65, 1) }, ErrInvalidHeader, `headers: are too many (limit 64, got 65)`},
		{"header bytes most", func(e *Event) { e.Headers = headers(64, 250) }, nil, ``},
		{"header bytes", func(e *Event) { e.Headers = append(headers(63, 250), Header{"x-z123", strings.Repeat("v", 251)}) }, ErrInvalidHeader, `headers: are too large together (limit 16384, got 16385)`},
		{"header name", func(e *Event) { e.Headers = Headers{{"X-A", "1"}} }, ErrInvalidHeader, `headers: a name must be x- followed by a-z, 0-9 and -, or content-type, traceparent, tracestate, found "X-A"`},
		{"header value", func(e *Event) { e.Headers = Headers{{"x-a", "\xff"}} }, ErrInvalidHeader, `headers.x-a: must be valid UTF-8, found "\xff"`},
		{"header twice", func(e *Event) { e.Headers = Headers{{"x-a", "1"}, {"x-a", "2"}} }, ErrInvalidHeader, `headers: a name must stand once, found "x-a"`},
		{"header twice apart", func(e *Event) { e.Headers = Headers{{"x-a", "1"}, {"x-b", "1"}, {"x-a", "1"}} }, ErrInvalidHeader, `headers: a name must stand once, found "x-a"`},
		{"headers unsorted", func(e *Event) { e.Headers = Headers{{"x-b", "1"}, {"x-a", "2"}} }, nil, ``},
		{"no payload", func(e *Event) { e.Payload = nil }, ErrBadJSON, `payload: a value must start here, found the end of the text at byte 0`},
		{"payload null", func(e *Event) { e.Payload = json.RawMessage("null") }, nil, ``},
		{"payload", func(e *Event) { e.Payload = json.RawMessage(`{"a":}`) }, ErrBadJSON, `payload: a value must start here, found "}" at byte 5`},
		{"payload largest", func(e *Event) { e.Payload = json.RawMessage(`"` + strings.Repeat("p", 1<<20-2) + `"`) }, nil, ``},
		{"payload size", func(e *Event) { e.Payload = json.RawMessage(`"` + strings.Repeat("p", 1<<20-1) + `"`) }, ErrPayloadTooLarge, `payload: is too large (limit 1048576, got 1048577)`},
		{"caused_by most", func(e *Event) { e.CausedBy = texts(64, strings.Repeat("c", 256)) }, nil, ``},
		{"caused_by", func(e *Event) { e.CausedBy = texts(65, "c") }, ErrInvalidArgument, `caused_by: has too many entries (limit 64, got 65)`},
		{"caused_by entry", func(e *Event) { e.CausedBy = []string{"a", strings.Repeat("c", 257)} }, ErrInvalidArgument, `caused_by[1]: is too long (limit 256, got 257), found "` + strings.Repeat("c", 48) + `"…`},
		{"tags most", func(e *Event) { e.Tags = texts(64, strings.Repeat("c", 256)) }, nil, ``},
		{"tags", func(e *Event) { e.Tags = texts(65, "") }, ErrInvalidArgument, `tags: has too many entries (limit 64, got 65)`},
		{"tag", func(e *Event) { e.Tags = []string{"a", "b", "\x80"} }, ErrInvalidArgument, `tags[2]: must be valid UTF-8, found "\x80"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := fullEvent()
			c.change(&e)
			err := e.Check(Limits{})
			if c.kind == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var rule *RuleError
			if !errors.As(err, &rule) || !errors.Is(err, c.kind) || err.Error() != c.want {
				t.Fatalf("\n got %v\nwant %s (%v)", err, c.want, c.kind)
			}
			for _, other := range []error{ErrInvalidTopic, ErrInvalidHeader, ErrInvalidArgument, ErrPayloadTooLarge, ErrBadJSON} {
				if !errors.Is(other, c.kind) && errors.Is(err, other) {
					t.Errorf("it is %v too", other)
				}
			}
		})
	}
}

func TestLimits(t *testing.T) {
	e := fullEvent()
	e.Payload = json.RawMessage(`"` + strings.Repeat("p", 98) + `"`)
	if err := e.Check(Limits{Payload: 100}); err != nil {
		t.Error(err)
	}
	if err := e.Check(Limits{Payload: 99}); !errors.Is(err, ErrPayloadTooLarge) {
		t.Errorf("100 bytes pass a limit of 99: %v", err)
	}
	if got, want := (Limits{}).Internal().Payload, 2<<20+64<<10; got != want {
		t.Errorf("a hub's own records may have %d bytes, want %d", got, want)
	}
	if got, want := (Limits{Payload: 100}).Internal().Payload, 200+64<<10; got != want {
		t.Errorf("a hub's own records may have %d bytes, want %d", got, want)
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop at random")
	}
	e := fullEvent()
	e.Headers = Headers{{"x-b", "1"}, {"x-a", "2"}}
	e.Payload = json.RawMessage(benchPayload)
	if n := testing.AllocsPerRun(1000, func() {
		if err := e.Check(Limits{}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCheckTopicIsTheContract(t *testing.T) {
	grammar := regexp.MustCompile(`^[a-z0-9]+(\.[a-z0-9]+)*$`)
	check := func(s string) {
		t.Helper()
		most := 200
		if strings.HasPrefix(s, "dlq.") {
			most = 204
		}
		// In Go's syntax $ does not match before a newline at the end.
		want := len(s) <= most && grammar.MatchString(s)
		if err := CheckTopic(s); (err == nil) != want || err != nil && !errors.Is(err, ErrInvalidTopic) {
			t.Errorf("CheckTopic(%q) = %v, want ok %v", s, err, want)
		}
	}
	for _, s := range []string{
		"", ".", "a", "0", "a.b", "a..b", ".a", "a.", "a.b.", "A", "a-b", "a_b", "a b", "a\n", "a.b\x00", "é", "a.*", "**", "process.state.v2", "dlq", "dlq.", "dlq.a", "system.schemas", "a/b", "a\x80",
		strings.Repeat("a", 200), strings.Repeat("a", 201), strings.Repeat("a.", 100) + "a", strings.Repeat("a.", 99) + "aa",
		"dlq." + strings.Repeat("a", 200), "dlq." + strings.Repeat("a", 201), "system." + strings.Repeat("a", 194), "dlq.dlq." + strings.Repeat("a", 197),
	} {
		check(s)
	}
	for c := range 256 {
		check("a" + string([]byte{byte(c)}) + "b")
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.RuneFrom([]rune("ab09...-_Z\né"))).Draw(t, "topic")
		check(s)
	})
	err := CheckTopic(strings.Repeat("a", 201))
	if want := `topic: is too long (limit 200, got 201), found "` + strings.Repeat("a", 48) + `"…`; err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestReservedTopic(t *testing.T) {
	for s, want := range map[string]bool{
		"dlq.process.state": true, "system.schemas": true, "dlq.": true,
		"dlq": false, "system": false, "dlqx.a": false, "systems.a": false, "a.dlq.b": false, "process.state": false, "": false,
	} {
		if got := ReservedTopic(s); got != want {
			t.Errorf("ReservedTopic(%q) = %v", s, got)
		}
	}
}

func TestTopicVersion(t *testing.T) {
	for _, c := range []struct {
		topic, base string
		v           int
	}{
		{"process.state.v2", "process.state", 2}, {"a.v1", "a", 1}, {"a.v999999999", "a", 999999999}, {"a.v1.v12", "a.v1", 12},
		{"a.v0", "", 0}, {"a.v01", "", 0}, {"a.v", "", 0}, {"a.v1x", "", 0}, {"a.v1.b", "", 0}, {"v1", "", 0}, {".v1", "", 0}, {"a.V1", "", 0}, {"a.v1000000000", "", 0}, {"a.xv1", "", 0}, {"", "", 0},
	} {
		base, v, ok := TopicVersion(c.topic)
		if c.v == 0 {
			if ok || v != 0 || base != c.topic {
				t.Errorf("TopicVersion(%q) = %q, %d, %v", c.topic, base, v, ok)
			}
		} else if !ok || v != c.v || base != c.base {
			t.Errorf("TopicVersion(%q) = %q, %d, %v", c.topic, base, v, ok)
		}
	}
}

func TestErrorsStayShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "text")
		for _, s := range []string{quote(string(b)), shorten(string(b)), plainName(string(b))} {
			if len(s) > 48*10 {
				t.Fatalf("%d bytes: %s", len(s), s)
			}
		}
		valid := strings.ToValidUTF8(string(b), "é")
		if s := shorten(valid); !utf8.ValidString(s) {
			t.Fatalf("%q was cut within a character: %q", valid, s)
		}
	})
}
