package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is a small module in which every way to fail occurs once. It is run by
// the real go command, so the test also notices when that command changes what
// it prints.
var module = map[string]string{
	"go.mod": "module m\n\ngo 1.26\n",

	"good/good_test.go": `package good

import "testing"

func TestLeaf(t *testing.T) {}

func TestParent(t *testing.T) {
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) {})
}

func TestIdle(t *testing.T) { t.Skip("needs mongodb: PROMETHEAN_TEST_MONGODB is not set") }

func TestLater(t *testing.T) { t.Log("first words"); t.Skip("slow") }
`,

	"served/served_test.go": `package served

import (
	"os"
	"testing"
)

func TestLeaf(t *testing.T) {}

func TestEngines(t *testing.T) {
	t.Run("memory", func(t *testing.T) {})
	t.Run("a server (or two)", func(t *testing.T) {
		if os.Getenv("SERVER") == "" {
			t.Skip("needs nats")
		}
		t.Run("append", func(t *testing.T) {})
		t.Run("read", func(t *testing.T) {})
	})
}
`,

	"bad/bad_test.go": `package bad

import "testing"

func TestLeaf(t *testing.T) { t.Error("leaf is wrong") }

func TestSub(t *testing.T) {
	t.Run("fine", func(t *testing.T) {})
	t.Run("wrong", func(t *testing.T) { t.Error("sub is wrong") })
}

func TestOwn(t *testing.T) {
	t.Run("fine", func(t *testing.T) {})
	t.Error("parent is wrong by itself")
}
`,

	"panics/panics_test.go": `package panics

import "testing"

func TestBefore(t *testing.T) {}

func TestPanic(t *testing.T) { panic("out of cheese") }
`,

	"dies/dies_test.go": `package dies

import (
	"os"
	"testing"
)

func TestBefore(t *testing.T) {}

func TestExit(t *testing.T) { os.Exit(3) }
`,

	"refuses/refuses_test.go": `package refuses

import (
	"os"
	"testing"
)

func TestFine(t *testing.T) {}

func TestMain(m *testing.M) {
	m.Run()
	os.Exit(1)
}
`,

	"broken/broken.go":          "package broken\n\nfunc f() int { return \"no\" }\n",
	"broken/broken_test.go":     "package broken\n\nimport \"testing\"\n\nfunc TestNever(t *testing.T) {}\n",
	"importer/importer.go":      "package importer\n\nimport _ \"m/broken\"\n",
	"importer/importer_test.go": "package importer\n\nimport \"testing\"\n\nfunc TestNever(t *testing.T) {}\n",

	"empty/empty.go": "package empty\n",
}

// enter writes the module and makes it the working directory.
func enter(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range module {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	// The module has no dependencies: nothing may be asked from elsewhere.
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOWORK", "off")
}

func report(t *testing.T, args ...string) (output string, status int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = run(args, &stdout, &stderr)
	t.Logf("testreport %s\n%s%s", strings.Join(args, " "), stdout.String(), stderr.String())
	return stdout.String(), status
}

func lastLine(output string) string {
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	return lines[len(lines)-1]
}

// section returns the indented lines below a heading.
func section(output, heading string) []string {
	_, rest, found := strings.Cut(output, "\n"+heading+"\n")
	if !found {
		return nil
	}
	var lines []string
	for l := range strings.Lines(rest) {
		if !strings.HasPrefix(l, "  ") {
			break
		}
		lines = append(lines, strings.TrimSpace(l))
	}
	return lines
}

func TestEveryWayToFailIsCounted(t *testing.T) {
	enter(t)
	output, status := report(t, "-results", "kept", "./...")

	if status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	// good: leaf, one, two; served: leaf, memory; bad: two fine subtests; one
	// test each that ended before the panic, the exit and the refusal.
	if got, want := lastLine(output), "10 passed, 8 failed"; got != want {
		t.Errorf("last line %q, want %q", got, want)
	}
	wantFailed := []string{
		"m/bad.TestLeaf",
		"m/bad.TestOwn",
		"m/bad.TestSub/wrong",
		"m/broken (did not build: m/broken)",
		"m/dies.TestExit",
		"m/importer (did not build: m/broken)",
		"m/panics.TestPanic",
		"m/refuses (failed outside any test)",
	}
	if got := section(output, "failed:"); !slices.Equal(got, wantFailed) {
		t.Errorf("failed:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(wantFailed, "\n"))
	}
	wantSkipped := []string{
		"m/good.TestIdle: needs mongodb: PROMETHEAN_TEST_MONGODB is not set",
		"m/good.TestLater: slow",
		"m/served.TestEngines/a_server_(or_two): needs nats",
	}
	if got := section(output, "skipped:"); !slices.Equal(got, wantSkipped) {
		t.Errorf("skipped:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(wantSkipped, "\n"))
	}
	if got := section(output, "slowest:"); len(got) != 5 {
		t.Errorf("%d slowest cases, want 5", len(got))
	}
	for _, words := range []string{"leaf is wrong", "sub is wrong", "parent is wrong by itself", "out of cheese", "broken.go:3"} {
		if !strings.Contains(output, words) {
			t.Errorf("the output of the failure is missing: %q", words)
		}
	}
	if strings.Contains(output, "first words") {
		t.Error("the output of a test that did not fail is shown")
	}

	// What was kept adds up to the same.
	total, status := report(t, "-total", "kept")
	if got := lastLine(total); status != 1 || got != "10 passed, 8 failed" {
		t.Errorf("total: status %d, last line %q", status, got)
	}
	wantLeft := []string{wantSkipped[0], wantSkipped[2]}
	if got := section(total, "left out for want of a server:"); !slices.Equal(got, wantLeft) {
		t.Errorf("left out: %q, want %q", got, wantLeft)
	}
	if count, _ := report(t, "-line", "kept"); count != "10 passed, 8 failed\n" {
		t.Errorf("line: %q", count)
	}
}

// What was left out for want of a server is run, and nothing else.
func TestWhatNeedsAServer(t *testing.T) {
	enter(t)
	if output, status := report(t, "-results", "kept", "./good", "./served"); status != 0 || lastLine(output) != "5 passed, 0 failed" {
		t.Fatalf("status %d, last line %q", status, lastLine(output))
	}
	t.Setenv("SERVER", "there")
	for server, want := range map[string]string{"nats": "2 passed, 0 failed", "mongodb": "0 passed, 0 failed", "mongo": "0 passed, 0 failed"} {
		output, status := report(t, "-results", "kept", "-suite", "with-"+server, "-needs", server, "--", "-count=1")
		if got := lastLine(output); status != 0 || got != want {
			t.Errorf("%s: status %d, last line %q, want %q", server, status, got, want)
		}
	}
	total, _ := report(t, "-total", "kept")
	if got := lastLine(total); got != "7 passed, 0 failed" {
		t.Errorf("total: %q", got)
	}
	if got := section(total, "left out for want of a server:"); len(got) != 1 || !strings.HasPrefix(got[0], "m/good.TestIdle:") {
		t.Errorf("left out: %q", got)
	}
	if output, status := report(t, "-results", t.TempDir(), "-needs", "nats"); status != 1 || lastLine(output) != "0 passed, 1 failed" {
		t.Errorf("with no run before it: status %d, last line %q", status, lastLine(output))
	}
}

func TestPassingRunIsPassed(t *testing.T) {
	enter(t)
	output, status := report(t, "./good/...", "./empty/...")
	if got := lastLine(output); status != 0 || got != "3 passed, 0 failed" {
		t.Errorf("status %d, last line %q", status, got)
	}
}

func TestGoCommandThatFailsIsCounted(t *testing.T) {
	enter(t)
	for _, args := range [][]string{
		{"./nowhere/..."},           // no such folder
		{"--", "-no-such", "./..."}, // no such flag
	} {
		output, status := report(t, args...)
		if got := lastLine(output); status != 1 || !strings.HasPrefix(got, "0 passed, ") || got == "0 passed, 0 failed" {
			t.Errorf("%q: status %d, last line %q", args, status, got)
		}
	}
}

func TestStreamThatBreaksOffFails(t *testing.T) {
	stream := `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"run","Package":"m/a","Test":"TestB"}
{"Action":"start","Package":"m/b"}
`
	got := tallyOf(recorded(t, stream))
	if want := []string{"m/a.TestB", "m/b (failed outside any test)"}; !slices.Equal(got.failed, want) {
		t.Errorf("failed %q, want %q", got.failed, want)
	}
	if want := []string{"m/a.TestA"}; !slices.Equal(got.passed, want) {
		t.Errorf("passed %q, want %q", got.passed, want)
	}
}
