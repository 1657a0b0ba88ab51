package arch

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// light names packages that other people link into their programs, and the
// modules beside the standard library and this one that they may bring along.
var light = map[string][]string{
	"client": {
		"github.com/cespare/xxhash/v2", // the partition of a key
		"github.com/coder/websocket",
		"github.com/go-json-experiment/json", // events of a long answer are read one by one, with all their digits
	},
}

func TestLightPackages(t *testing.T) {
	for name, may := range light {
		modules, err := modulesOf("../..", "./"+name)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(may)
		if !slices.Equal(modules, may) {
			t.Errorf("package %s is made of the modules %q, want %q\n\twhy:  whoever imports it gets all of them\n\tfix:  import less, or add the module here with a reason", name, modules, may)
		}
	}
	// The check sees what is heavy.
	modules, err := modulesOf("../..", "./group")
	if err != nil || !slices.Contains(modules, "cel.dev/cel-go") {
		t.Errorf("package group is made of %q, %v: its filter language was not found", modules, err)
	}
}

// apart are modules that only the linter is made of. An embedder, and who puts
// together a server, gets none of them.
var apart = []string{"github.com/evanw/esbuild", "github.com/dop251/goja", "github.com/golangci/plugin-module-register", "golang.org/x/tools"}

func TestLinterStaysApart(t *testing.T) {
	for _, name := range []string{".", "./schema/...", "./gateway/...", "./prometheantest"} {
		modules, err := modulesOf("../..", name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range apart {
			if slices.Contains(modules, m) {
				t.Errorf("%s is made of %s\n\twhy:  parsers and compilers of other languages are for the linter alone\n\tfix:  import less", name, m)
			}
		}
	}
	modules, err := modulesOf("../..", "./lint/...")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range apart {
		if !slices.Contains(modules, m) {
			t.Errorf("the linter is not made of %s, so the check sees nothing", m)
		}
	}
}

// modulesOf gives the modules that a package and all below it come from, beside
// the standard library and our own.
func modulesOf(dir, name string) ([]string, error) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", name)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	return slices.Compact(modules), nil
}
