package goscan

import (
	"fmt"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"promethean/lint"
)

func shown(s *lint.Shape, depth int) string {
	if s == nil || depth > 4 {
		return "_"
	}
	switch s.Type {
	case "array":
		return "[" + shown(s.Items, depth+1) + "]"
	case "object":
		var list []string
		for _, f := range s.Fields {
			text := f.Name + ":" + shown(f.Shape, depth+1)
			if f.Name == "-" {
				text = "-:_" // it contains itself
			}
			if f.Optional != "" {
				text += "?"
			}
			list = append(list, text)
		}
		if s.Open {
			list = append(list, "…")
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	return s.Type
}

// Every line of the fixture says what is found on it.
func TestCalls(t *testing.T) {
	l := Load(t.Context(), "../testdata/calls", ".")
	if len(l.Findings) > 0 {
		t.Fatal(l.Findings)
	}
	got := make(map[int][]string)
	note := func(at lint.Position, text string) {
		got[at.Line] = append(got[at.Line], strings.TrimSpace(text))
	}
	for _, u := range l.Uses {
		text := string(u.Kind) + " " + u.Topic
		if u.Version != 0 {
			text += fmt.Sprintf("@%d", u.Version)
		}
		if u.Payload != nil {
			text += " " + shown(u.Payload, 0)
		}
		note(u.At, text)
	}
	for _, h := range l.Headers {
		note(h.At, "header "+h.Name)
	}
	name := filepath.Join("..", "testdata", "calls", "calls.go")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, line := range strings.Split(string(text), "\n") {
		_, comment, _ := strings.Cut(line, "// ")
		if strings.HasPrefix(strings.TrimSpace(line), "//") {
			comment = ""
		}
		slices.Sort(got[i+1])
		if have, want := strings.Join(got[i+1], ", "), strings.TrimSpace(comment); have != want {
			t.Errorf("line %d: got %q, want %q", i+1, have, want)
		}
		n += len(got[i+1])
	}
	if n < 40 {
		t.Errorf("only %d places were found", n)
	}
}

// The tables name what is there, and all of it.
func TestTables(t *testing.T) {
	paths := []string{"promethean", "promethean/event", "promethean/store", "promethean/client", "promethean/deadletter", "promethean/schema", "promethean/prometheantest", "promethean/view", "promethean/compact", "promethean/timetravel"}
	pkgs, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports}, paths...)
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]*types.Func)
	structs := make(map[string]*types.Struct)
	for _, p := range pkgs {
		for _, name := range p.Types.Scope().Names() {
			switch o := p.Types.Scope().Lookup(name).(type) {
			case *types.Func:
				have[o.FullName()] = o
			case *types.TypeName:
				if s, ok := o.Type().Underlying().(*types.Struct); ok {
					structs[p.PkgPath+"."+name] = s
				}
				for _, set := range []types.Type{o.Type(), types.NewPointer(o.Type())} {
					methods := types.NewMethodSet(set)
					for i := range methods.Len() {
						if f, ok := methods.At(i).Obj().(*types.Func); ok {
							have[f.FullName()] = f
						}
					}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		f := have[name]
		if f == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		params := f.Signature().Params()
		for _, r := range functions[name] {
			text := params.At(r.Param).Type()
			if s, ok := text.(*types.Slice); ok {
				text = s.Elem()
			}
			if !isString(text) {
				t.Errorf("%s: parameter %d is a %v", name, r.Param, text)
			}
			if r.Handler >= 0 && !strings.HasSuffix(params.At(r.Handler).Type().String(), ".Handler") {
				t.Errorf("%s: parameter %d is no handler", name, r.Handler)
			}
		}
	}
	for name, members := range fields {
		s := structs[name]
		if s == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		for member := range members {
			found := false
			for f := range s.Fields() {
				found = found || f.Name() == member
			}
			if !found {
				t.Errorf("%s has no %s", name, member)
			}
		}
	}
	// What takes a topic is in the table. These give or take one that no program
	// writes down.
	not := []string{
		"promethean.MatchTopic", "(*promethean/prometheantest.Hub).ExpireLeases", "(*promethean/prometheantest.Hub).FailNextAppend",
		"(*promethean/client.Client).Groups",
	}
	for name, f := range have {
		if !f.Exported() || functions[name] != nil || slices.Contains(not, name) {
			continue
		}
		switch f.Pkg().Path() {
		case "promethean", "promethean/client", "promethean/deadletter", "promethean/prometheantest", "promethean/schema", "promethean/compact":
		default:
			continue
		}
		if recv := f.Signature().Recv(); recv != nil && !strings.Contains(name, "Hub)") && !strings.Contains(name, "Client)") && !strings.Contains(name, "Bus)") && !strings.Contains(name, "Registry)") {
			continue
		}
		for p := range f.Signature().Params().Variables() {
			if (p.Name() == "topic" || p.Name() == "topics") && strings.Contains(p.Type().String(), "string") {
				t.Errorf("%s takes a topic and is not in the table", name)
			}
		}
	}
}

// newModule writes a module into a directory of its own.
func newModule(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What cannot be looked at is said, with its place.
func TestBroken(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "-mod=readonly")
	for _, c := range []struct {
		name, dir string
		want      string // the place and the beginning of the message
	}{
		{"no module", newModule(t, map[string]string{"a.go": "package a\n"}), ": "},
		{"a module that cannot be read", newModule(t, map[string]string{"go.mod": "module m\n\nbad\n", "a.go": "package a\n"}), "go.mod:1:1: the Go packages cannot be loaded: go list: "},
		{"nothing to do with a hub", newModule(t, map[string]string{"go.mod": "module m\n", "a.go": "package a\n\nvar x int = \"no\"\n"}), ""},
		{"syntax", "../testdata/broken/syntax", "a.go:5:20: cannot be parsed: "},
		{"syntax of imports", "../testdata/broken/clause", "a.go:3:18: missing import path"},
		{"an import that is not there", "../testdata/broken/missing", "a.go:5:2: "},
		{"types", "../testdata/tree/broken", "broken.go:6:21: does not type-check: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := filepath.Abs(c.dir)
			if err != nil {
				t.Fatal(err)
			}
			got := Load(t.Context(), dir, "./...").Findings
			if c.want == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 || got[0].Rule != lint.SourceInvalid {
				t.Fatalf("got %v", got)
			}
			if text := strings.TrimPrefix(strings.TrimPrefix(got[0].Position.String(), dir), "/") + ": " + got[0].Message; c.want == "" || !strings.HasPrefix(text, c.want) {
				t.Errorf("got %q, want %q", text, c.want)
			}
		})
	}
}

func TestWithoutGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	got := Load(t.Context(), newModule(t, map[string]string{"go.mod": "module m\n", "a.go": "package a\n"}), "./...").Findings
	if len(got) != 1 || !strings.Contains(got[0].Fix, "install Go") {
		t.Errorf("got %+v", got)
	}
}
