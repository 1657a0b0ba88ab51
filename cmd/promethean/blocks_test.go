package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// block is a fenced block of commands in a page. What follows "sh" says how it
// is run:
//
//	sh         to its end, which must be well
//	sh serve   beside the others, once it says that it is ready, until the next
//	           such block or the end of the page
//	sh beside  likewise, once it says that Ctrl-C ends it, until the end of the
//	           page; what was served before it is stopped
//	sh dry     by make -n: it would run this test
//	sh later   not here, since it is for the reader's own files
type block struct {
	kind, text string
	line       int
}

func blocksOf(t *testing.T, page string) (out []block) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var in *block
	for i, line := range strings.Split(string(text), "\n") {
		switch kind, begins := strings.CutPrefix(line, "```sh"); {
		case in != nil && line == "```":
			out = append(out, *in)
			in = nil
		case in != nil:
			in.text += line + "\n"
		case begins:
			in = &block{kind: strings.TrimSpace(kind), line: i + 1}
		}
	}
	return out
}

// checkout copies the tree, so that what the commands leave behind is not left
// in it. It is in the same place every time, one test after the other, since the
// go command compiles everything again that is somewhere else.
func checkout(t *testing.T) string {
	to := filepath.Join(os.TempDir(), fmt.Sprintf("promethean-pages-%d", os.Getpid()))
	t.Cleanup(func() {
		if err := os.RemoveAll(to); err != nil {
			t.Error(err)
		}
	})
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (rel == "bin" || rel == "data" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && rel != "."):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, info.Mode())
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// reader is somebody who follows a page, line by line.
type reader struct {
	*testing.T
	dir, addr string
	serving   *exec.Cmd
	beside    []*exec.Cmd
	said      *transcript
}

// command makes a shell that runs a block. Ports are ours instead of the usual
// one, which may be taken.
func (r *reader) command(b block) *exec.Cmd {
	text := strings.ReplaceAll(b.text, "127.0.0.1:7070", r.addr)
	if b.kind == "dry" {
		text = strings.ReplaceAll(text, "make ", "make -n ")
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", text)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PROMETHEAN_LISTEN="+r.addr, "PROMETHEAN_ADDR=http://"+r.addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // whatever it starts ends with it
	return cmd
}

func (r *reader) run(b block) {
	cmd := r.command(b)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	late := time.AfterFunc(3*time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err := cmd.Wait()
	late.Stop()
	if err != nil {
		r.Fatalf("line %d: %v\n%s\nsays\n%s", b.line, err, b.text, &out)
	}
	r.Logf("line %d\n%s\nsays\n%s", b.line, b.text, &out)
}

// serve starts a block that goes on, and waits until it is ready.
func (r *reader) serve(b block) {
	r.serving = r.start(b, func(line string) bool { return strings.HasPrefix(line, "promethean ready on http://"+r.addr) })
}

// start stops what is served, starts a block that goes on, and waits for a line
// of it.
func (r *reader) start(b block, is func(line string) bool) *exec.Cmd {
	r.stop()
	cmd := r.command(b)
	r.said = new(transcript)
	cmd.Stderr = r.said
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.serving = cmd // what fails now is stopped too
	ready, said := make(chan bool, 1), r.said
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			_, _ = fmt.Fprintln(said, s.Text())
			if is(s.Text()) {
				ready <- true
			}
		}
		close(ready)
	}()
	select {
	case ok := <-ready:
		if !ok {
			r.Fatalf("line %d: it ends:\n%s", b.line, r.said)
		}
	case <-time.After(3 * time.Minute):
		r.Fatalf("line %d: it is not ready:\n%s", b.line, r.said)
	}
	return cmd
}

// stop does what Ctrl-C does.
func (r *reader) stop() {
	if r.serving != nil {
		r.interrupt(r.serving)
		r.serving = nil
	}
}

// stopAll stops everything, the last first.
func (r *reader) stopAll() {
	r.stop()
	for _, cmd := range slices.Backward(r.beside) {
		r.interrupt(cmd)
	}
}

func (r *reader) interrupt(cmd *exec.Cmd) {
	group := -cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGINT)
	late := time.AfterFunc(time.Minute, func() { _ = syscall.Kill(group, syscall.SIGKILL) })
	_ = cmd.Wait() // the page may have killed it
	if !late.Stop() {
		r.Errorf("it did not end:\n%s", r.said)
	}
	// make is gone before what it has started is.
	for end := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(group, 0), syscall.ESRCH); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatal("something goes on")
		}
	}
}

// free is an address that nobody uses.
func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Every block of commands in the pages that people start with works, from a
// clean checkout and in the order of the page.
func TestCommandBlocks(t *testing.T) {
	for _, tool := range []string{"bash", "make", "curl", "pkill"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	for page, least := range map[string]int{"README.md": 7, filepath.Join("docs", "getting-started.md"): 10, filepath.Join("docs", "evolution.md"): 15, filepath.Join("docs", "views.md"): 6, filepath.Join("docs", "scaling.md"): 6} {
		t.Run(filepath.Base(page), func(t *testing.T) {
			r := &reader{T: t, dir: checkout(t), addr: free(t)}
			defer r.stopAll()
			blocks := blocksOf(t, filepath.Join(r.dir, page))
			if len(blocks) < least {
				t.Fatalf("only %d blocks were found", len(blocks))
			}
			for _, b := range blocks {
				switch b.kind {
				case "", "dry":
					r.run(b)
				case "serve":
					r.serve(b)
				case "beside":
					cmd := r.start(b, func(line string) bool { return strings.Contains(line, "Ctrl-C ends all") })
					r.serving, r.beside = nil, append(r.beside, cmd)
				case "later":
				default:
					t.Errorf("line %d: nobody knows what %q means", b.line, b.kind)
				}
			}
		})
	}
}

// The program in the README is one that runs, and the second run shows what the
// page says.
func TestReadmeProgram(t *testing.T) {
	dir := checkout(t)
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```go\n(// Command first.*?)```").FindSubmatch(text)
	if m == nil {
		t.Fatal("the program is not there")
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "examples", "first"), 0o755), os.WriteFile(filepath.Join(dir, "examples", "first", "main.go"), m[1], 0o644)); err != nil {
		t.Fatal(err)
	}
	for run := 1; run <= 2; run++ {
		cmd := exec.Command("go", "run", "./examples/first")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if want := fmt.Sprintf("%d dev:stt:1 {\"pid\":7,\"status\":\"up\"} attempt 1\n", run); err != nil || string(out) != want {
			t.Errorf("run %d: %v\n%swant\n%s", run, err, out, want)
		}
	}
}
