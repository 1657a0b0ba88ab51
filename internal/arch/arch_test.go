package arch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestModuleKeepsItsShape(t *testing.T) {
	pkgs, err := load("../..")
	if err != nil {
		t.Fatal(err)
	}
	self := slices.IndexFunc(pkgs, func(p pkg) bool { return p.path == "internal/arch" })
	if self < 0 || len(pkgs[self].files) < 4 || pkgs[self].doc == "" {
		t.Fatal("this package was not found among those of the module: nothing can be judged")
	}
	for _, v := range check(pkgs) {
		t.Error(v)
	}
}

// sound is a module in which every room exists and no rule is broken.
func sound() []pkg {
	return []pkg{
		made("event"),
		made("store", "event"),
		made("store/storetest", "event", "store"),
		made("store/internal/guard"),
		made("store/internal/superseded", "event", "store"),
		made("store/docstore", "event", "store", "store/internal/guard"),
		made("store/logstore", "event", "store", "store/docstore", "store/internal/guard", "store/internal/superseded", "store/logstore/internal/frame"),
		made("store/logstore/internal/frame", "event"),
		made("store/mongostore", "event", "store"),
		made("group", "event", "store", "internal/clock"),
		made(root, "event", "store", "group"),
		made("schema", "event", root, "schema/compat"),
		made("schema/compat"),
		made("deadletter", root, "group"),
		made("outbox", root),
		made("outbox/pgoutbox", "outbox"),
		made("changefeed", root),
		made("changefeed/mongofeed", "changefeed"),
		made("view", root, "store"),
		made("timetravel", "view"),
		made("wire"),
		made("client", "event", "wire"),
		made("web"),
		made("lint", "event"),
		made("gateway", root, "schema", "view", "wire", "web"),
		made("prometheantest", root, "gateway", "store/logstore"),
		made("internal/app", "gateway", "store/logstore", "store/mongostore", "outbox/pgoutbox", "lint"),
		made("internal/clock"),
		made("cmd/promethean", "internal/app"),
		made("bench", root, "store/logstore"),
		made("examples/process", root, "store/logstore"),
	}
}

// made is a package with one file and one test file. The test file imports the
// program and an engine, which no rule forbids it.
func made(path string, imports ...string) pkg {
	f := file{path: path + "/a.go", lines: maxLines}
	for i, target := range imports {
		f.imports = append(f.imports, use{path: target, ours: true, line: i + 3})
	}
	f.imports = append(f.imports, use{path: "fmt", line: len(imports) + 3})
	test := file{path: path + "/a_test.go", lines: maxLines, test: true, imports: []use{
		{path: "internal/app", ours: true, line: 3},
		{path: "store/logstore", ours: true, line: 4},
	}}
	return pkg{path: path, name: filepath.Base(path), doc: "Package is made up.", files: []file{f, test}}
}

func TestSoundModulePasses(t *testing.T) {
	for _, v := range check(sound()) {
		t.Error(v)
	}
}

func TestModuleWithFewRoomsPasses(t *testing.T) {
	for _, v := range check(sound()[:2]) {
		t.Error(v)
	}
}

func TestEveryBreachIsFound(t *testing.T) {
	long := made("event")
	long.files[0].lines = maxLines + 1
	longTest := made("event")
	longTest.files[1].lines = maxLines + 1
	silent := made("event")
	silent.doc = " \n"
	cgo := made("event")
	cgo.files[0].imports = append(cgo.files[0].imports, use{path: "C", line: 9})
	cgoTest := made("event")
	cgoTest.files[1].imports = append(cgoTest.files[1].imports, use{path: "C", line: 9})
	renamed := made("schema/version")
	renamed.name = "types"

	cases := []struct {
		pkg   pkg
		rules []string
		where string
	}{
		{made("event", "internal/clock"), []string{"event is a leaf"}, "event/a.go:3"},
		{made("event", "store"), []string{"event is a leaf"}, "event/a.go:3"},
		{made("store", "event", "group"), []string{"store holds ports only"}, "store/a.go:4"},
		{made("store", "store/storetest"), []string{"store holds ports only"}, "store/a.go:3"},
		{made("store", "store/logstore"), []string{"drivers are chosen by programs", "store holds ports only"}, "store/a.go:3"},
		{made("store/storetest", "group"), []string{"storetest knows the ports only"}, "store/storetest/a.go:3"},
		{made("store/internal/guard", "group"), []string{"what engines share knows the ports only"}, "store/internal/guard/a.go:3"},
		{
			made("store/internal/superseded", "store/logstore"),
			[]string{"drivers are chosen by programs", "what engines share knows the ports only"}, "store/internal/superseded/a.go:3",
		},
		{made("store/docstore", "store/logstore"), []string{"an engine knows the ports only", "drivers are chosen by programs"}, "store/docstore/a.go:3"},
		{made("store/logstore", root), []string{"the embedded engine keeps documents too"}, "store/logstore/a.go:3"},
		{made("store/logstore", "internal/clock"), []string{"the embedded engine keeps documents too"}, "store/logstore/a.go:3"},
		{
			made("store/natsstore", "store/logstore/internal/frame"),
			[]string{"an engine knows the ports only", "drivers are chosen by programs"}, "store/natsstore/a.go:3",
		},
		{made("store/logstore/internal/frame", "store/storetest"), []string{"the embedded engine keeps documents too"}, "store/logstore/internal/frame/a.go:3"},
		{made("group", root), []string{"group stands on the ports"}, "group/a.go:3"},
		{made(root, "schema"), []string{"the hub stands on delivery"}, root + "/a.go:3"},
		{made(root, "store/mongostore"), []string{"the hub stands on delivery"}, root + "/a.go:3"},
		{made("metrics", "gateway"), []string{"metrics are told by the hub"}, "metrics/a.go:3"},
		{made("view", "gateway"), []string{"a capability stands on the hub"}, "view/a.go:3"},
		{made("outbox", "outbox/pgoutbox"), []string{"drivers are chosen by programs"}, "outbox/a.go:3"},
		{made("wire", "event"), []string{"wire is a leaf"}, "wire/a.go:3"},
		{made("client", "gateway"), []string{"the client knows the wire, not the server"}, "client/a.go:3"},
		{made("client", root), []string{"the client knows the wire, not the server"}, "client/a.go:3"},
		{made("client", "internal/app"), []string{"only commands start the application", "the client knows the wire, not the server"}, "client/a.go:3"},
		{made("clients/ts", "client"), []string{"a client in another language is tested from outside"}, "clients/ts/a.go:3"},
		{made("web", "gateway"), []string{"the console is a leaf"}, "web/a.go:3"},
		{made("lint", "gateway"), []string{"lint knows the rules it checks"}, "lint/a.go:3"},
		{made("gateway", "client"), []string{"the gateway stands on capabilities"}, "gateway/a.go:3"},
		{made("gateway", "changefeed/mongofeed"), []string{"drivers are chosen by programs"}, "gateway/a.go:3"},
		{made("prometheantest", "lint"), []string{"the harness is made of public rooms"}, "prometheantest/a.go:3"},
		{made("prometheantest", "internal/app"), []string{"only commands start the application"}, "prometheantest/a.go:3"},
		{made("internal/clock", root), []string{"shared internals are leaves"}, "internal/clock/a.go:3"},
		{made("cmd/promethean", "gateway"), []string{"a command is a shell around the application"}, "cmd/promethean/a.go:3"},
		{made("cmd/promethean-vet", "internal/app"), []string{"the vet tool is a shell around the analyzer"}, "cmd/promethean-vet/a.go:3"},
		{made("bench", "internal/app"), []string{"only commands start the application"}, "bench/a.go:3"},
		{made("attic"), []string{rulePlace}, "package attic"},
		{made("schema/util"), []string{ruleName}, "package schema/util"},
		{renamed, []string{ruleName}, "package schema/version"},
		{silent, []string{ruleDoc}, "package event"},
		{long, []string{ruleLength}, "event/a.go"},
		{longTest, []string{ruleLength}, "event/a_test.go"},
		{cgo, []string{ruleCgo}, "event/a.go:9"},
		{cgoTest, []string{ruleCgo}, "event/a_test.go:9"},
	}
	broken := map[string]bool{}
	for _, c := range cases {
		var rules []string
		for _, v := range check([]pkg{c.pkg}) {
			rules = append(rules, v.rule)
			broken[v.rule] = true
			if v.where != c.where {
				t.Errorf("%s: found at %s, want %s", c.pkg.path, v.where, c.where)
			}
			if v.what == "" || v.remedy == "" || v.reason == "" {
				t.Errorf("%s: says too little: %+v", c.pkg.path, v)
			}
		}
		slices.Sort(rules)
		slices.Sort(c.rules)
		if !slices.Equal(rules, c.rules) {
			t.Errorf("%s importing %v: broke %q, want %q", c.pkg.path, c.pkg.files[0].imports, rules, c.rules)
		}
	}

	// Whoever adds a rule shows here that it can be broken; rooms that may
	// import anything cannot.
	for _, p := range placements {
		if !slices.Contains(p.mayUse, anything) && !broken[p.rule] {
			t.Errorf("no case breaks the rule %q", p.rule)
		}
	}
	for _, r := range restrictions {
		if !broken[r.rule] {
			t.Errorf("no case breaks the rule %q", r.rule)
		}
	}
}

func TestRulesGiveReasons(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range placements {
		if p.rule == "" || p.reason == "" || len(p.packages) == 0 || seen[p.rule] {
			t.Errorf("placement is incomplete or named twice: %+v", p)
		}
		seen[p.rule] = true
	}
	for _, r := range restrictions {
		if r.rule == "" || r.reason == "" || r.remedy == "" || len(r.packages) == 0 || len(r.usedBy) == 0 || seen[r.rule] {
			t.Errorf("restriction is incomplete or named twice: %+v", r)
		}
		seen[r.rule] = true
	}
}

func TestMatch(t *testing.T) {
	cases := []struct {
		pattern, name, room string
		ok                  bool
	}{
		{"event", "event", "event", true},
		{"event", "event/internal/x", "", false},
		{"event", "events", "", false},
		{"event/...", "event", "event", true},
		{"event/...", "event/internal/x", "event", true},
		{"event/...", "eventful/x", "", false},
		{"store/*/...", "store", "", false},
		{"store/*/...", "store/logstore/internal/x", "store/logstore", true},
		{"store/*store/...", "store/logstore", "store/logstore", true},
		{"store/*store/...", "store/storetest", "", false},
		{"...", root, "", true},
	}
	for _, c := range cases {
		room, ok := match(c.pattern, c.name)
		if ok != c.ok || ok && room != c.room {
			t.Errorf("match(%q, %q) = %q, %v; want %q, %v", c.pattern, c.name, room, ok, c.room, c.ok)
		}
	}
}

// TestLoadReadsWhatIsThere has a small module on disk, so that the facts the
// rules are fed with are themselves tested.
func TestLoadReadsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                    "module m\n\ngo 1.26\n",
		"m.go":                      "// Package m is the root.\npackage m\n\nimport _ \"m/event\"\n",
		"event/event.go":            "package event\n\nimport _ \"fmt\"",
		"event/event_test.go":       "package event_test\n\nimport _ \"m\"\n",
		"event/event_plan9.go":      "package event\n\nimport \"C\"\n",
		"event/testdata/x/x.go":     "package x\n\nimport _ \"C\"\n",
		"ts/node_modules/dep/go.go": "package dep\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", "off")

	pkgs, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) != 2 || pkgs[0].path != root || pkgs[1].path != "event" {
		t.Fatalf("packages %+v, want the root and event", pkgs)
	}
	if !strings.Contains(pkgs[0].doc, "is the root") || pkgs[1].doc != "" {
		t.Errorf("package comments %q and %q", pkgs[0].doc, pkgs[1].doc)
	}
	want := []file{
		{path: "event/event.go", lines: 3, imports: []use{{path: "fmt", line: 3}}},
		{path: "event/event_plan9.go", lines: 3, imports: []use{{path: "C", line: 3}}},
		{path: "event/event_test.go", lines: 3, test: true, imports: []use{{path: root, ours: true, line: 3}}},
	}
	same := func(a, b file) bool {
		return a.path == b.path && a.lines == b.lines && a.test == b.test && slices.Equal(a.imports, b.imports)
	}
	if !slices.EqualFunc(pkgs[1].files, want, same) {
		t.Errorf("files %+v, want %+v", pkgs[1].files, want)
	}
	if got := pkgs[0].files[0].imports; !slices.Equal(got, []use{{path: "event", ours: true, line: 4}}) {
		t.Errorf("imports of the root %+v", got)
	}
}
