package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore"
)

// made makes a store with one event and gives its directory.
func made(t *testing.T, key string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	s, err := logstore.Open(dir, logstore.Options{SegmentSize: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	e := event.New("orders", json.RawMessage(`{"a":"<&>"}`))
	e.Key = key
	_, err = s.Append(context.Background(), store.Batch{Events: []event.Event{e}})
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs a command and gives what it wrote.
func run(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run(ctx, "v0", args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestInterruptedCommandsLeaveNothing(t *testing.T) {
	dir := made(t, "")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	to := filepath.Join(t.TempDir(), "to")
	for _, args := range [][]string{{"check", dir}, {"log", "dump", dir}, {"backup", dir, to}, {"restore", dir, to}} {
		code, stdout, stderr := run(ctx, args...)
		if code != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "promethean: ") || !strings.Contains(stderr, "interrupted") {
			t.Errorf("%v: exit code %d, %q, %q", args, code, stdout, stderr)
		}
		if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v has left %s", args, to)
		}
	}
}

// failing is a writer that fails.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	dir := made(t, "")
	for _, args := range [][]string{{"check", dir}, {"log", "dump", dir}, {"log", "dump", "-o", "table", dir}, {"backup", dir, dir + "2"}} {
		var stderr bytes.Buffer
		code := Run(context.Background(), "v0", args, failing{}, &stderr)
		if code != exitFailed || !strings.Contains(stderr.String(), "no space left") || !strings.Contains(stderr.String(), "make room") {
			t.Errorf("%v: exit code %d, %q", args, code, stderr.String())
		}
	}
}

func TestDumpIsExactAndTableIsHarmless(t *testing.T) {
	dir := made(t, "\x1b[31mred\u009b2J")
	code, stdout, stderr := run(context.Background(), "log", "dump", dir)
	if code != exitDone || stderr != "" || !strings.Contains(stdout, `"payload":{"a":"<&>"}`) {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr = run(context.Background(), "log", "dump", "-o", "table", dir)
	if code != exitDone || stderr != "" || strings.ContainsAny(stdout, "\x1b\u009b") || !strings.Contains(stdout, "[31mred") {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestVersion(t *testing.T) {
	if code, stdout, stderr := run(context.Background(), "--version"); code != exitDone || stdout != "promethean v0\n" || stderr != "" {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestEveryConditionHasAdvice(t *testing.T) {
	for _, err := range []error{store.ErrLocked, logstore.ErrNoStore, store.ErrFormat, store.ErrCorrupt, fs.ErrPermission, syscall.ENOSPC, advised{errors.New("x"), "y"}} {
		if advice(fmt.Errorf("wrapped: %w", err)) == "" {
			t.Errorf("%v: nothing to do", err)
		}
	}
	if got := advice(errors.New("unheard of")); got != "" {
		t.Errorf("advice about nothing: %s", got)
	}
}

func TestWrapped(t *testing.T) {
	text := "chunk block with seqs 505 to 538 fails its checksum ääääääääääääääääääääääääääääää"
	for _, width := range []int{10, 20, 40, 200} {
		got := wrapped(text, "  ", width)
		for line := range strings.Lines(got) {
			line = strings.TrimSuffix(line, "\n")
			if !strings.HasPrefix(line, "  ") || utf8.RuneCountInString(line) > width && strings.Contains(line[2:], " ") {
				t.Errorf("width %d: %q", width, line)
			}
		}
		if strings.Join(strings.Fields(got), " ") != text {
			t.Errorf("width %d: %q", width, got)
		}
	}
	if got := clipped("äöüabc", 4); got != "äöü…" {
		t.Errorf("clipped: %q", got)
	}
}

func TestRowsTakesLinesInPieces(t *testing.T) {
	var out bytes.Buffer
	r := &rows{out: &out, width: 20, head: "HEAD", row: func(line []byte) (string, error) {
		if len(line) == 0 {
			return "", errors.New("empty")
		}
		return string(line), nil
	}}
	for _, piece := range []string{"a", "b\nc", "", "\nlong and longer and longest\n"} {
		if n, err := r.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "HEAD\nab\nc\nlong and longer and…\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if _, err := r.Write([]byte("\n")); err == nil {
		t.Error("an error is lost")
	}
}

func TestProgressFitsFortyColumns(t *testing.T) {
	var out bytes.Buffer
	p := &progress{out: &out, label: "backing up"}
	for _, done := range []int64{0, 1, 1 << 40, 3 << 40} {
		p.next = time.Time{}
		p.show(done, 3<<40)
	}
	p.show(1, 2) // too soon
	p.clear()
	p.clear()
	lines := strings.Split(out.String(), "\r")
	if len(lines) != 7 {
		t.Fatalf("%d parts: %q", len(lines), lines)
	}
	for _, l := range lines {
		if utf8.RuneCountInString(l) > 39 {
			t.Errorf("%q is too long", l)
		}
	}
	if !strings.Contains(lines[4], "[####################] 100%") || !strings.Contains(lines[3], "[######..............]  33%") {
		t.Errorf("%q", lines)
	}
	if strings.TrimSpace(lines[5]) != "" || lines[6] != "" {
		t.Errorf("the bar stays: %q", lines)
	}
	quiet := (&app{stdout: &out, stderr: &out}).progress("checking")
	before := out.Len()
	quiet.show(1, 2)
	quiet.clear()
	if out.Len() != before {
		t.Error("a bar where there is no terminal")
	}
}
