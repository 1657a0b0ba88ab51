package event_test

import (
	"strings"
	"testing"
	"time"

	"promethean/event"
)

func TestMatchPattern(t *testing.T) {
	for _, c := range []struct {
		pattern string
		fits    string
		not     string
	}{
		{"a.b", "a.b", "a a.b.c a.c b.a ab"},
		{"*", "a dlq system", "a.b"},
		{"**", "a a.b a.b.c dlq", "dlq.a system.audit"},
		{"*.audit", "a.audit", "system.audit audit"},
		{"a.*", "a.b a.c", "a a.b.c b.b"},
		{"a.**", "a a.b a.b.c", "b b.a ab.c"},
		{"**.a", "a b.a c.b.a a.a", "a.b b dlq.a"},
		{"a.**.b", "a.b a.c.b a.b.b a.c.d.b", "a b a.b.c"},
		{"**.a.**.b.**", "a.b x.a.x.b.x a.a.b", "b.a a b"},
		{"**.*.**", "a a.b", "dlq.b"},
		{"dlq.**", "dlq dlq.a dlq.a.b", "a.dlq"},
		{"system.*", "system.audit", "system system.a.b"},
		{"a.**.**.a", "a.a a.b.a", "a"},
	} {
		for _, topic := range strings.Fields(c.fits) {
			if !event.MatchPattern(c.pattern, topic) {
				t.Errorf("%s does not fit %s", topic, c.pattern)
			}
		}
		for _, topic := range strings.Fields(c.not) {
			if event.MatchPattern(c.pattern, topic) {
				t.Errorf("%s fits %s", topic, c.pattern)
			}
		}
	}
}

// A subscriber may send any pattern: one with many "**" must not cost more than
// its length.
func TestMatchPatternStaysQuick(t *testing.T) {
	pattern := strings.Repeat("**.a.", 2000) + "b"
	topic := strings.Repeat("a.", 4000) + "c"
	began := time.Now()
	if event.MatchPattern(pattern, topic) {
		t.Error("fits")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// slowMatch says the same by definition.
func slowMatch(pattern, topic []string) bool {
	switch {
	case len(pattern) == 0:
		return len(topic) == 0
	case pattern[0] == "**":
		return slowMatch(pattern[1:], topic) || len(topic) > 0 && slowMatch(pattern, topic[1:])
	case len(topic) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == topic[0]) && slowMatch(pattern[1:], topic[1:])
}

func FuzzMatchPattern(f *testing.F) {
	f.Add("a.**.b.*", "a.x.b.c")
	f.Add("**.a.**", "")
	f.Add("..*", "..")
	f.Fuzz(func(t *testing.T, pattern, topic string) {
		if len(pattern) > 24 || len(topic) > 24 || strings.Contains(topic, "*") {
			return
		}
		want := slowMatch(strings.Split(pattern, "."), strings.Split(topic, "."))
		if strings.HasPrefix(pattern, "*") && event.ReservedTopic(topic) {
			want = false
		}
		if got := event.MatchPattern(pattern, topic); got != want {
			t.Errorf("MatchPattern(%q, %q) = %v", pattern, topic, got)
		}
	})
}
