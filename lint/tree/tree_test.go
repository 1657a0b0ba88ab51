package tree_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"promethean/lint"
	"promethean/lint/tree"
)

var update = flag.Bool("update", false, "write the golden files")

// inTree runs with the fixture as the place where the program runs.
func inTree(t *testing.T, o tree.Options) []lint.Finding {
	t.Helper()
	t.Chdir("../testdata/tree")
	list, err := tree.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestFixture(t *testing.T) {
	golden, err := filepath.Abs("../testdata/golden")
	if err != nil {
		t.Fatal(err)
	}
	list := inTree(t, tree.Options{})
	for _, f := range lint.Formats {
		var b bytes.Buffer
		if err := lint.Write(&b, f, list); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(golden, "tree."+string(f))
		if *update {
			if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.String(); got != string(want) {
			t.Errorf("%s: run with -update if this is right; it is now\n%s", name, got)
		}
	}
	for _, r := range lint.Rules {
		if !slices.ContainsFunc(list, func(f lint.Finding) bool { return f.Rule == r.ID }) {
			t.Errorf("the fixture has nothing for rule %s", r.ID)
		}
	}
}

func TestIncompatibleSchemas(t *testing.T) {
	var files []string
	for _, f := range inTree(t, tree.Options{}) {
		if f.Rule == lint.SchemaCompat {
			files = append(files, f.File)
		}
	}
	// An upcaster mends the same change of the topic beside it.
	if got := slices.Compact(files); !slices.Equal(got, []string{"schemas/orders.incompat/v2.json"}) {
		t.Errorf("incompatible are %q", got)
	}
}

func TestOnlyPathsThatWereAskedFor(t *testing.T) {
	list := inTree(t, tree.Options{Paths: []string{"web/app.ts", "shop/bus"}})
	if len(list) == 0 {
		t.Error("nothing was found")
	}
	for _, f := range list {
		if f.File != "web/app.ts" {
			t.Errorf("%v was not asked for", f)
		}
		// The schemas above the paths are known.
		if f.Rule == lint.TopicSchema && strings.Contains(f.Message, "orders.placed ") {
			t.Errorf("%v", f)
		}
	}
}

func TestOneGoFile(t *testing.T) {
	list := inTree(t, tree.Options{Paths: []string{"shop/shop.go"}})
	if !slices.ContainsFunc(list, func(f lint.Finding) bool { return strings.Contains(f.Message, "orders.wrapped") }) {
		t.Errorf("the wrapper in another package was not seen: %v", list)
	}
}

func TestAllowedTopics(t *testing.T) {
	list := inTree(t, tree.Options{Paths: []string{"shop"}, Allow: []string{"orders.*"}})
	for _, f := range list {
		if f.Rule == lint.TopicSchema {
			t.Errorf("%v", f)
		}
	}
	// The comments for them have become needless.
	if !slices.ContainsFunc(list, func(f lint.Finding) bool { return f.Rule == lint.AllowUnused && f.Line == 49 }) {
		t.Errorf("%v", list)
	}
}

// A link is followed if it is named, and where the program runs may be one.
func TestLinks(t *testing.T) {
	direct, err := filepath.Abs("../testdata/tree")
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(direct, link); err != nil {
		t.Skip("there are no links here: ", err)
	}
	there, err := tree.Run(t.Context(), tree.Options{Paths: []string{link}})
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(link)
	here, err := tree.Run(t.Context(), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(direct)
	want, err := tree.Run(t.Context(), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(here, want) || len(there) != len(want) {
		t.Errorf("%d findings where it really is, %d through a link, %d inside of one", len(want), len(there), len(here))
	}
}

func TestWrongOptions(t *testing.T) {
	for _, o := range []tree.Options{
		{Paths: []string{"nowhere"}}, {Config: "nowhere.yaml"}, {Schemas: []string{"nowhere"}}, {Allow: []string{"Orders"}},
	} {
		if list, err := tree.Run(t.Context(), o); err == nil {
			t.Errorf("%+v: %v", o, list)
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tree.Run(ctx, tree.Options{}); err == nil {
		t.Error("it went on")
	}
}

// Nothing is wrong with our own examples.
func TestExamples(t *testing.T) {
	list, err := tree.Run(t.Context(), tree.Options{Paths: []string{"../../examples"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		t.Errorf("%v: %s [%s]", f.Position, f.Message, f.Rule)
	}
}
