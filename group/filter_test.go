package group_test

import (
	"errors"
	"strings"
	"testing"

	"promethean/event"
	"promethean/group"
)

func TestFilter(t *testing.T) {
	e := event.New("process.state", []byte(`{"pid":12,"status":"up","cpu":0.5,"big":12345678901234567890,"tags":["a"],"host":{"name":"dev"}}`))
	e.Key, e.Tags = "dev:12", []string{"#stt"}
	e.Headers = e.Headers.Set("x-schema-version", "2")
	for expr, want := range map[string]bool{
		`payload.status == "up"`:                           true,
		`payload.pid == 12 && payload.cpu < 1.0`:           true,
		`payload.pid > 12`:                                 false,
		`payload.host.name.startsWith("d")`:                true,
		`payload.nothing == 1`:                             false,
		`has(payload.nothing)`:                             false,
		`!has(payload.nothing)`:                            true,
		`"#stt" in tags && key == "dev:12"`:                true,
		`headers["x-schema-version"] == "2"`:               true,
		`topic.matches("^process[.]")`:                     true,
		`payload.tags.exists(t, t == "a")`:                 true,
		`event.key == "dev:12" && event.payload.pid == 12`: true,
		`event["topic"] == "process.state"`:                true,
		`event.nothing == 1`:                               false,
		`payload`:                                          false,
		`payload.big > 0`:                                  true,
		`seq == 0 && ts > 0 && partition == 0`:             true,
	} {
		f, err := group.CompileFilter(expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		if got := f(&e); got != want {
			t.Errorf("%s: %v, want %v", expr, got, want)
		}
	}
	for _, bad := range []string{`payload.`, `nothing == 1`, `1 + 1`, `"x"`, `key == 1`, strings.Repeat("!", 5000) + "true"} {
		if _, err := group.CompileFilter(bad); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("%.40s: %v", bad, err)
		}
	}
	if f, err := group.CompileFilter(""); f != nil || err != nil {
		t.Error("an empty filter is one")
	}
}

// A filter that would take for ever is given up.
func TestFilterCost(t *testing.T) {
	e := event.New("t.a", []byte(`[`+strings.TrimSuffix(strings.Repeat(`1,`, 1000), ",")+`]`))
	f, err := group.CompileFilter(`payload.all(a, payload.all(b, payload.all(c, a + b + c > 0)))`)
	if err != nil {
		t.Fatal(err)
	}
	if f(&e) {
		t.Error("a filter beyond its cost has passed")
	}
}
