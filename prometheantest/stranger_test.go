package prometheantest_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestStranger runs the tests of a module of its own that uses the kit.
func TestStranger(t *testing.T) {
	const dir = "../examples/stranger"
	// What a test has not opened, go test does not take for changed.
	for _, name := range []string{"go.mod", "go.sum", "process_test.go", "../../go.mod", "../../go.sum"} {
		if _, err := os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-v", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go test in examples/stranger: %v\n%s\nif its go.mod lags behind, run there: go mod tidy", err, out)
	}
	if !bytes.Contains(out, []byte("--- PASS: TestSilentProcessBecomesStale")) {
		t.Errorf("the test was not run:\n%s", out)
	}
}
