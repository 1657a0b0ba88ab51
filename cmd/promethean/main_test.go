package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rogpeppe/go-internal/testscript"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
	"promethean/store/logstore"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"promethean": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			// Under the race detector each process would end a second late.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit":   exitCommand,
			"store":  storeCommand,
			"copy":   copyCommand,
			"hold":   holdCommand,
			"damage": damageCommand,
			"hub":    hubCommand,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// small makes a store seal, fold and merge within a few hundred events.
var small = logstore.Options{SegmentSize: 16 << 10}

// makeStore fills a directory with a store: topics orders and users, with keys and
// without, trimmed in part, a group, merged runs, and a journal of several
// frames.
func makeStore(dir string) error {
	ctx := context.Background()
	n := 0
	for range 3 {
		s, err := logstore.Open(dir, small)
		if err != nil {
			return err
		}
		for range 150 {
			var b store.Batch
			for range 4 {
				n++
				topic := []string{"orders", "users"}[n%2]
				e := event.New(topic, json.RawMessage(fmt.Sprintf(`{"n":%d,"fill":%q}`, n, strings.Repeat("x", 80))))
				if n%3 > 0 {
					e.Key = fmt.Sprintf("key %d", n%7)
				}
				b.Events = append(b.Events, e)
			}
			if _, err := s.Append(ctx, b); err != nil {
				return errors.Join(err, s.Close())
			}
		}
		if err := errors.Join(s.Trim(ctx, "orders", 300), s.Close()); err != nil {
			return err
		}
	}
	s, err := logstore.Open(dir, small)
	if err != nil {
		return err
	}
	_, err = s.PutCursor(ctx, store.Cursor{Topic: "users", Group: "mailer", Floor: 5})
	return errors.Join(err, s.Close())
}

// exitCommand is "exit CODE PROGRAM ARGS…": it runs a program that must end
// with the given code.
func exitCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE PROGRAM ARGS…")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// storeCommand is "store DIR": it makes a store.
func storeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: store DIR")
	}
	ts.Check(makeStore(ts.MkAbs(args[0])))
}

// copyCommand is "copy FROM TO": it copies a directory as it is.
func copyCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: copy FROM TO")
	}
	ts.Check(os.CopyFS(ts.MkAbs(args[1]), os.DirFS(ts.MkAbs(args[0]))))
}

// holdCommand is "hold DIR": it has the store open until the script ends.
func holdCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: hold DIR")
	}
	s, err := logstore.Open(ts.MkAbs(args[0]), small)
	ts.Check(err)
	ts.Defer(func() { ts.Check(s.Close()) })
}

// damageCommand is "damage KIND DIR": it damages a store, and sets FILE to the
// name of the file and OFFSET to the place that a check must name.
func damageCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: damage chunk|cut-chunk|run|no-run|frame DIR")
	}
	dir := ts.MkAbs(args[1])
	file, offset := "", int64(0)
	switch args[0] {
	case "chunk":
		file, offset = largest(ts, dir, "*.chunk"), 16 // where the first block begins
		ts.Check(crashfs.Flip(vfs.Default, file, 100, 1))
	case "cut-chunk":
		file = largest(ts, dir, "*.chunk")
		st, err := os.Stat(file)
		ts.Check(err)
		offset = st.Size()/2 - 32 // where a footer would be
		ts.Check(os.Truncate(file, st.Size()/2))
	case "run":
		file = largest(ts, dir, "*.run")
		ts.Check(crashfs.Flip(vfs.Default, file, 10, 1))
	case "no-run":
		file = largest(ts, dir, "*.run")
		ts.Check(os.Remove(file))
	case "frame":
		file, offset = firstFrame(ts, dir)
		ts.Check(crashfs.Flip(vfs.Default, file, offset+40, 1))
	default:
		ts.Fatalf("no such damage: %s", args[0])
	}
	ts.Setenv("FILE", filepath.Base(file))
	ts.Setenv("OFFSET", fmt.Sprint(offset))
}

// largest gives the largest file that matches.
func largest(ts *testscript.TestScript, dir, pattern string) (file string) {
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	ts.Check(err)
	size := int64(-1)
	for _, name := range names {
		st, err := os.Stat(name)
		ts.Check(err)
		if st.Size() > size {
			file, size = name, st.Size()
		}
	}
	if file == "" {
		ts.Fatalf("%s has no %s", dir, pattern)
	}
	return file
}

// firstFrame gives the place of the journal's first frame that is not sealed.
// Frames behind it say that it was durable.
func firstFrame(ts *testscript.TestScript, dir string) (file string, offset int64) {
	var b bytes.Buffer
	ts.Check(logstore.Dump(context.Background(), dir, small, logstore.DumpOptions{Journal: true}, &b))
	text, _, _ := strings.Cut(b.String(), "\n")
	var line struct {
		File   string
		Offset int64
	}
	ts.Check(json.Unmarshal([]byte(text), &line))
	return line.File, line.Offset
}

// TestInterrupt sends a signal half way through a restore.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := makeStore(from); err != nil {
		t.Fatal(err)
	}
	// A file with a large hole takes long to copy and no space where it is.
	hole, err := os.Create(filepath.Join(from, "0-hole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(hole.Truncate(8<<30), hole.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("promethean", "restore", from, to)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for copied := int64(0); copied < 4<<20; {
		if time.Now().After(deadline) {
			t.Fatal("nothing is copied")
		}
		if st, err := os.Stat(filepath.Join(to, "0-hole")); err == nil {
			copied = st.Size()
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.HasPrefix(said, "promethean: restore ") || !strings.Contains(said, "interrupted") {
		t.Errorf("said %q, %v", said, err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("part of the copy is left: %v", err)
	}
}
