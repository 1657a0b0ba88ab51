package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean"
	"promethean/schema"
	"promethean/schema/compat"
	"promethean/store"
)

func TestRegister(t *testing.T) {
	w := start(t)
	v := w.register(schema.Definition{Topic: topic, Schema: v1})
	if v.Version != 1 || v.Compat != compat.Backward || v.Seq != 1 || time.Since(v.At) > time.Minute {
		t.Errorf("%+v", v)
	}
	spaced := json.RawMessage(" " + strings.ReplaceAll(string(v1), ",", ",\n "))
	if again, fresh, err := w.reg.Register(w.ctx, schema.Definition{Topic: topic, Schema: spaced}); err != nil || fresh || again.Version != 1 {
		t.Errorf("%v %v %v", again, fresh, err)
	}
	var conflict *schema.ConflictError
	for name, d := range map[string]schema.Definition{
		"does not fit":             {Topic: topic, Schema: v2},
		"goes back":                {Topic: topic, Schema: v2, Version: 1, Compat: compat.None},
		"gives what is not valid":  {Topic: topic, Schema: v2, Upcast: "."},
		"full needs the way back":  {Topic: topic, Schema: v2, Upcast: to2, Compat: compat.Full},
		"nothing to be tried with": {Topic: topic, Schema: v2, Upcast: `if .sid == "" then {} else ` + to2 + ` end`},
	} {
		if _, _, err := w.reg.Register(w.ctx, d); !errors.As(err, &conflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, d := range map[string]schema.Definition{
		"no mode":         {Topic: topic, Schema: v2, Compat: "sideways"},
		"no topic":        {Topic: "A", Schema: v2},
		"no schema":       {Topic: topic},
		"no program":      {Topic: topic, Schema: v2, Upcast: "." + "|"},
		"too high":        {Topic: topic, Schema: v2, Version: schema.MaxVersion + 1},
		"nothing before":  {Topic: "new.topic", Schema: v1, Upcast: "."},
		"not a number":    {Topic: topic, Schema: v2, Version: -4},
		"too large":       {Topic: topic, Schema: json.RawMessage(`{"title":"` + strings.Repeat("x", schema.MaxSchema) + `"}`)},
		"a remote schema": {Topic: topic, Schema: json.RawMessage(`{"$ref":"http://127.0.0.1:1/x"}`)},
	} {
		if _, _, err := w.reg.Register(w.ctx, d); err == nil || errors.As(err, &conflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list := w.events(schema.Topic); len(list) != 1 {
		t.Errorf("%d registrations", len(list))
	}
	// A version may leave numbers out.
	if v := w.register(schema.Definition{Topic: topic, Schema: v2, Upcast: to2, Version: 5}); v.Version != 5 {
		t.Errorf("%+v", v)
	}
	if _, _, err := w.reg.Register(w.ctx, schema.Definition{Topic: topic, Schema: v3, Version: 3, Compat: compat.None}); !errors.As(err, &conflict) {
		t.Errorf("%v", err)
	}
	w.register(schema.Definition{Topic: topic, Schema: v3, Upcast: to3})
	if got := w.reg.Versions(topic); len(got) != 3 || got[2].Version != 6 || w.reg.Latest(topic) != got[2] || w.reg.Version(topic, 5) != got[1] || w.reg.Version(topic, 2) != nil {
		t.Errorf("%v", got)
	}
	if got := w.reg.Topics(); len(got) != 1 || got[0] != topic {
		t.Errorf("%v", got)
	}
}

// A promise about all versions needs a way from each of them.
func TestTransitiveNeedsEveryHop(t *testing.T) {
	w := start(t)
	w.register(schema.Definition{Topic: topic, Schema: v1})
	w.register(schema.Definition{Topic: topic, Schema: v2, Compat: compat.None})
	d := schema.Definition{Topic: topic, Schema: v3, Upcast: to3, Compat: compat.BackwardTransitive}
	problems, err := w.reg.Check(w.ctx, d)
	if err != nil || len(problems) != 1 || problems[0].Rule != "upcast_missing" || !strings.Contains(problems[0].Detail, "from version 1 to 2") {
		t.Errorf("%+v %v", problems, err)
	}
	d.Compat = compat.Backward
	if problems, err := w.reg.Check(w.ctx, d); err != nil || len(problems) != 0 {
		t.Errorf("%+v %v", problems, err)
	}
}

// Stored events that an upcaster would break keep it out.
func TestTriedOnWhatIsStored(t *testing.T) {
	w := start(t)
	// Of the schema's documents hardly one is made in which n is 123456789.
	old := json.RawMessage(`{"type":"object","required":["n"],"additionalProperties":false,"properties":{"n":{"type":"integer"}}}`)
	program := `if .n == 123456789 then error("no") else .m = .n | del(.n) end`
	next := json.RawMessage(`{"type":"object","required":["m"],"additionalProperties":false,"properties":{"m":{"type":"integer"}}}`)
	w.register(schema.Definition{Topic: topic, Schema: old})
	if _, err := schema.Validate(w.hub, w.reg).Publish(w.ctx, stamped("", `{"n":123456789}`)); err != nil {
		t.Fatal(err)
	}
	problems, err := w.reg.Check(w.ctx, schema.Definition{Topic: topic, Schema: next, Upcast: program})
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Detail, "seq 1") {
		t.Errorf("%+v %v", problems, err)
	}
}

// What was registered is there after a restart.
func TestRegistryOpensAgain(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		hub, err := promethean.Open(dir, promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		reg, err := schema.Open(t.Context(), hub, schema.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(reg.Versions(topic)); got != round {
			t.Errorf("%d versions in round %d", got, round)
		}
		d := []schema.Definition{{Topic: topic, Schema: v1}, {Topic: topic, Schema: v2, Upcast: to2}, {Topic: topic, Schema: v3, Upcast: to3}}[round]
		if v, _, err := reg.Register(t.Context(), d); err != nil || v.Version != round+1 {
			t.Errorf("%+v %v", v, err)
		}
		if round == 2 {
			e, err := reg.Normalise(t.Context(), stamped("1", `{"pid":1,"mem_mb":2}`))
			if err != nil || string(e.Payload) != `{"mem":{"mib":2},"pid":1}` {
				t.Errorf("%s %v", e.Payload, err)
			}
		}
		if err := errors.Join(reg.Close(), hub.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// Many at once get a version each.
func TestRegisterAtOnce(t *testing.T) {
	w := start(t)
	other, err := schema.Open(w.ctx, w.hub, schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	var wg sync.WaitGroup
	seen := make(chan int, 40)
	for i := range cap(seen) {
		wg.Go(func() {
			reg := []*schema.Registry{w.reg, other}[i%2]
			text, _ := json.Marshal(map[string]any{"title": fmt.Sprint(i)})
			v, fresh, err := reg.Register(w.ctx, schema.Definition{Topic: topic, Schema: text})
			if err != nil || !fresh {
				t.Errorf("%v", err)
				return
			}
			seen <- v.Version
		})
	}
	wg.Wait()
	close(seen)
	got := make(map[int]bool)
	for v := range seen {
		got[v] = true
	}
	if len(got) != cap(seen) {
		t.Errorf("%d different versions", len(got))
	}
}

func TestLoad(t *testing.T) {
	w := start(t)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.reg.Load(w.ctx, topic, filepath.Join(dir, "none")); !errors.Is(err, schema.ErrInvalidSchema) {
		t.Errorf("%v", err)
	}
	if _, err := w.reg.Load(w.ctx, topic, dir); !errors.Is(err, schema.ErrInvalidSchema) {
		t.Errorf("%v", err)
	}
	write("v1.json", string(v1))
	write("v2.json", string(v2))
	write("readme.md", "not looked at")
	var conflict *schema.ConflictError
	if _, err := w.reg.Load(w.ctx, topic, dir); !errors.As(err, &conflict) || conflict.Version != 2 {
		t.Errorf("%v", err)
	}
	if w.reg.Latest(topic) != nil {
		t.Error("half of a directory was registered")
	}
	write("v2.upcast.jq", to2)
	for _, want := range []bool{true, false} {
		if fresh, err := w.reg.Load(w.ctx, topic, dir); err != nil || fresh != want {
			t.Errorf("%v %v", fresh, err)
		}
	}
	write("v3.json", strings.Replace(string(v3), "{", `{"x-compat":"none",`, 1))
	if fresh, err := w.reg.Load(w.ctx, topic, dir); err != nil || !fresh || w.reg.Latest(topic).Compat != compat.None {
		t.Errorf("%v %v", fresh, err)
	}
	write("v4.upcast.jq", ".")
	if _, err := w.reg.Load(w.ctx, topic, dir); !errors.Is(err, schema.ErrInvalidSchema) || !strings.Contains(err.Error(), "v4.json") {
		t.Errorf("%v", err)
	}
}

// Settings are kept with the topic, beside what others keep there.
func TestSettings(t *testing.T) {
	s := store.Settings{Meta: []byte(`{"other":{"a":1}}`)}
	end := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	want := schema.Settings{Dir: "d", Strict: true, LegacyVersion: 2, DualWrite: schema.Window{On: true, Until: end}}
	if err := want.Put(&s); err != nil {
		t.Fatal(err)
	}
	if got, err := schema.SettingsOf(s); err != nil || got != want {
		t.Errorf("%+v %v", got, err)
	}
	if !want.DualWrite.Open(end.Add(-1)) || want.DualWrite.Open(end) {
		t.Error("the window does not end when it ends")
	}
	if err := (schema.Settings{}).Put(&s); err != nil || string(s.Meta) != `{"other":{"a":1}}` {
		t.Errorf("%s %v", s.Meta, err)
	}
	s.Meta = nil
	if err := (schema.Settings{}).Put(&s); err != nil || s.Meta != nil {
		t.Errorf("%q %v", s.Meta, err)
	}
	if _, err := schema.SettingsOf(store.Settings{Meta: []byte(`{"dual_write":"soon"}`)}); err == nil {
		t.Error("no error")
	}
}
