package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// vet runs go vet with this tool on the fixture and gives what it says.
func vet(t *testing.T, tool string, flags ...string) (said string, err error) {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"vet", "-vettool=" + tool}, flags...), "./use")...)
	cmd.Dir = filepath.Join("..", "..", "lint", "testdata", "vet")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestGoVet(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "promethean-vet")
	if out, err := exec.Command("go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said, err := vet(t, tool)
	if err == nil {
		t.Error("go vet was content")
	}
	for _, want := range []string{
		`use.go:8:17: topic: must be segments of a-z and 0-9 joined by single dots, found "Orders.Placed" [topic-name]; fix: `,
		`use.go:9:17: topic orders.lost has no schema [topic-schema]; fix: `,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("lacks %q:\n%s", want, said)
		}
	}
	if n := strings.Count(said, "; fix: "); n != 2 {
		t.Errorf("%d findings:\n%s", n, said)
	}
	// Flags.
	if said, _ := vet(t, tool, "-promethean.allow=orders.*"); strings.Contains(said, "topic-schema") || !strings.Contains(said, "topic-name") {
		t.Errorf("with orders.* allowed:\n%s", said)
	}
	dir := t.TempDir() // schemas of another topic
	if err := os.MkdirAll(filepath.Join(dir, "orders.lost"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "orders.lost", "v1.json"), []byte("true"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, _ := vet(t, tool, "-promethean.schemas="+dir); strings.Contains(said, "orders.lost") || !strings.Contains(said, "topic orders.placed has no schema") {
		t.Errorf("with other schemas:\n%s", said)
	}
	// The go command keeps what was said until sources or flags change: a stamp is
	// for the schemas, which it does not know of.
	if err := os.Rename(filepath.Join(dir, "orders.lost"), filepath.Join(dir, "orders.placed")); err != nil {
		t.Fatal(err)
	}
	if said, _ := vet(t, tool, "-promethean.schemas="+dir, "-promethean.stamp=2"); !strings.Contains(said, "topic orders.lost has no schema") || strings.Contains(said, "orders.placed has no") {
		t.Errorf("with changed schemas:\n%s", said)
	}
}
