package auth_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"promethean/event"
	"promethean/gateway/auth"
)

func scope(t testing.TB, s string) auth.Scope {
	t.Helper()
	got, err := auth.ParseScope(s)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestParseScope(t *testing.T) {
	for _, s := range []string{"admin", "publish:a", "subscribe:process.**", "read:*.b.*", "read:**", "publish:heartbeat.*"} {
		if got := scope(t, s); got.String() != s {
			t.Errorf("%s became %s", s, got)
		}
	}
	for s, want := range map[string]string{
		"":                                 "none of",
		"openid":                           "none of",
		"Publish:a":                        "none of",
		"publish":                          "needs a pattern",
		"publish:":                         "needs a pattern",
		"admin:":                           "no pattern",
		"admin:a":                          "no pattern",
		"read:a..b":                        `segment ""`,
		"read:a.":                          `segment ""`,
		"read:a*":                          `segment "a*"`,
		"read:***":                         `segment "***"`,
		"read:A":                           `segment "A"`,
		"read:a b":                         `segment "a b"`,
		"read:" + strings.Repeat("a", 201): "201 bytes",
	} {
		if _, err := auth.ParseScope(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", s, err, want)
		}
	}
	if _, err := auth.ParseScopes([]string{"read:a", "wrong"}); err == nil || !strings.Contains(err.Error(), `"wrong"`) {
		t.Error(err)
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		scope string
		yes   string
		no    string
	}{
		{"read:a", "a", "b a.b * ** a.* a.**"},
		{"read:a.*", "a.b a.* a.dlq", "a a.b.c a.** ** *.* *"},
		{"read:a.**", "a a.b a.b.c a.* a.** a.**.b a.*.**", "b ** *.a * ab.c"},
		{"read:*", "a * dlq system", "a.b ** *.*"},
		{"read:**", "a a.b * ** *.b **.b dlq", "dlq.a system.audit dlq.** system.* system.** dlq.*.a"},
		{"read:*.**", "** a * a.b **.*", "dlq.a"},
		{"read:**.*", "** a * a.b *.**", "dlq.a"},
		{"read:*.audit", "a.audit *.audit", "system.audit audit **.audit"},
		{"read:system.audit", "system.audit", "system.a system.* system.**"},
		{"read:system.**", "system system.audit system.* system.** system.marks.ms5", "** dlq.a"},
		{"read:dlq.*", "dlq.a dlq.*", "dlq dlq.** dlq.a.b"},
		{"read:**.b", "b a.b **.b *.b a.**.b", "a ** **.b.*"},
		{"read:*.**.dlq.x", "a.dlq.x **.dlq.x", "dlq.x **.x"},
	} {
		s := scope(t, c.scope)
		for _, topic := range strings.Fields(c.yes) {
			if !s.Covers(auth.Read, topic) {
				t.Errorf("%s does not cover %s", c.scope, topic)
			}
		}
		for _, topic := range strings.Fields(c.no) {
			if s.Covers(auth.Read, topic) {
				t.Errorf("%s covers %s", c.scope, topic)
			}
		}
		for _, a := range []auth.Action{auth.Publish, auth.Subscribe, auth.Admin, auth.Open} {
			if s.Covers(a, "a") {
				t.Errorf("%s covers %q", c.scope, a)
			}
		}
	}
	admin := scope(t, "admin")
	if !admin.Covers(auth.Admin, "") || admin.Covers(auth.Read, "a") || admin.Covers(auth.Publish, "**") || admin.Covers(auth.Open, "") {
		t.Error("admin is admin and nothing else")
	}
	if (auth.Scope{}).Covers(auth.Open, "a") || (auth.Scope{}).Covers(auth.Read, "a") {
		t.Error("the zero scope covers something")
	}
}

func TestCan(t *testing.T) {
	who := &auth.Principal{Scopes: []auth.Scope{scope(t, "publish:a.*"), scope(t, "read:**")}}
	if !who.Can(auth.Publish, "a.b") || !who.Can(auth.Read, "c") || who.Can(auth.Publish, "c") || who.Can(auth.Admin, "") || who.Can(auth.Subscribe, "a.b") {
		t.Error("scopes allow what they name, and nothing else")
	}
	if (&auth.Principal{}).Can(auth.Read, "a") {
		t.Error("without a scope nothing is allowed")
	}
}

// topics lists all of at most so many segments of an alphabet.
func topics(alphabet []string, most int) []string {
	level := alphabet
	all := append([]string(nil), level...)
	for range most - 1 {
		var next []string
		for _, t := range level {
			for _, s := range alphabet {
				next = append(next, t+"."+s)
			}
		}
		all = append(all, next...)
		level = next
	}
	return all
}

// Covers is by definition: every topic that fits the pattern fits the scope. A
// name that is in neither stands for all others.
func TestCoversIsInclusion(t *testing.T) {
	all := topics([]string{"a", "b", "dlq", "z"}, 6)
	gen := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "dlq", "*", "*", "**", "**"}), 1, 4).Draw(t, "segments"), ".")
	})
	seen := [2]int{}
	rapid.Check(t, func(rt *rapid.T) {
		own, asked := gen.Draw(rt, "scope"), gen.Draw(rt, "asked")
		want, witness := true, ""
		for _, topic := range all {
			if event.MatchPattern(asked, topic) && !event.MatchPattern(own, topic) {
				want, witness = false, topic
				break
			}
		}
		s, err := auth.ParseScope("read:" + own)
		if err != nil {
			rt.Fatal(err)
		}
		if got := s.Covers(auth.Read, asked); got != want {
			rt.Fatalf("%s covers %s: %v, want %v %s", own, asked, got, want, witness)
		}
		if want {
			seen[1]++
		} else {
			seen[0]++
		}
	})
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("one-sided: %v", seen)
	}
}

// Who may send any pattern, and brings any scope, must not buy much time by it.
func TestCoversStaysQuick(t *testing.T) {
	began := time.Now()
	for _, c := range [][2]string{
		{strings.Repeat("**.", 66) + "a", strings.Repeat("**.", 66) + "b"},
		{strings.Repeat("**.a.", 39) + "b", strings.Repeat("a.", 98) + "*"},
		{strings.Repeat("**.a.*.", 28) + "b", strings.Repeat("a.*.", 49) + "c"},
		{strings.Repeat("*.**.", 39) + "a", strings.Repeat("**.*.", 39) + "b"},
	} {
		s := scope(t, "read:"+c[0])
		for range 100 {
			if s.Covers(auth.Read, c[1]) || s.Covers(auth.Read, strings.ReplaceAll(c[1], "*", "x")) {
				t.Errorf("%s covers %s", c[0], c[1])
			}
		}
	}
	if s := scope(t, "read:**"); s.Covers(auth.Read, strings.Repeat("*.", 1<<20)+"a") {
		t.Error("a pattern longer than a topic is covered")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func FuzzScope(f *testing.F) {
	f.Add("read:a.**", "a.b", "a.b")
	f.Add("read:**.a", "**.*", "dlq.a")
	f.Add("read:*.**.dlq.x", "**.dlq.x", "dlq.x")
	f.Fuzz(func(t *testing.T, own, asked, topic string) {
		s, err := auth.ParseScope(own)
		if err != nil {
			return
		}
		if again, err := auth.ParseScope(s.String()); err != nil || again.String() != own {
			t.Errorf("%q: %v %v", own, again, err)
		}
		for _, a := range []auth.Action{auth.Publish, auth.Subscribe, auth.Read} {
			if s.Covers(a, asked) && event.CheckTopic(topic) == nil && event.MatchPattern(asked, topic) && !s.Covers(a, topic) {
				t.Errorf("%s covers %s but not %s", own, asked, topic)
			}
		}
	})
}

// Dead letters and the audit are the admin's, and nobody else's by a wildcard.
func TestAdminReadsWhatTheHubWrites(t *testing.T) {
	scopes, err := auth.ParseScopes([]string{"admin", "publish:**"})
	if err != nil {
		t.Fatal(err)
	}
	admin := &auth.Principal{Scopes: scopes}
	for _, c := range []struct {
		a     auth.Action
		topic string
		want  bool
	}{
		{auth.Read, "system.audit", true}, {auth.Subscribe, "dlq.orders", true}, {auth.Read, "dlq.**", true},
		{auth.Read, "orders", false}, {auth.Read, "**", false}, {auth.Publish, "system.audit", false}, {auth.Read, "dlq", false},
	} {
		if got := admin.Can(c.a, c.topic); got != c.want {
			t.Errorf("%s:%s: %v", c.a, c.topic, got)
		}
	}
}
