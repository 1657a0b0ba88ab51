package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The tests of this file run commands against a hub in a process of its own.
// What needs no timing stands in testdata/script.

// hubCommand is "hub ARGS…": it starts a hub that runs until the script ends,
// and sets PROMETHEAN_ADDR to its address.
func hubCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("usage: hub ARGS…")
	}
	var said transcript
	cmd := exec.Command("promethean", append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Stderr = &said
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	for _, name := range []string{"OPS_TOKEN", "WATCH_TOKEN"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		ts.Fatalf("the hub is not ready: %v\n%s", err, said.String())
	}
	ts.Setenv("PROMETHEAN_ADDR", address.FindString(line))
}

// command is one that speaks to a hub.
func command(t *testing.T, url string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("promethean", args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "PROMETHEAN_ADDR="+url)
	return cmd
}

// ended runs a command to its end.
func ended(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// ndjson makes so many events of about 300 bytes, each with an id of its own.
func ndjson(t *testing.T, file string, n int) {
	t.Helper()
	var b bytes.Buffer
	fill := strings.Repeat("x", 200)
	for i := range n {
		fmt.Fprintf(&b, `{"id":"0192f7c1-0000-7000-8000-%012d","topic":"from","key":"k%d","payload":{"n":%d,"fill":%q}}`+"\n", i+1, i%100, i, fill)
	}
	write(t, file, b.String())
}

// wantOnce wants each of n numbers once in a topic, in order.
func wantOnce(p *hub, topic string, n int) {
	p.Helper()
	all := p.replay(topic)
	if len(all) != n {
		p.Fatalf("%s has %d events, want %d", topic, len(all), n)
	}
	for i, e := range all {
		var v struct{ N int }
		if err := json.Unmarshal(e.Payload, &v); err != nil || v.N != i {
			p.Fatalf("event %d of %s is %s, %v", i, topic, e.Payload, err)
		}
	}
}

// background starts a command and gives a channel that is closed at its end.
func background(t *testing.T, cmd *exec.Cmd) <-chan struct{} {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait() // the exit code says it
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-over })
	return over
}

// until waits for a condition that nothing tells of, or for the end of a
// command. It says which of the two came.
func until(t *testing.T, over <-chan struct{}, what string, done func() bool) bool {
	t.Helper()
	for end := time.Now().Add(2 * patience); !done(); {
		select {
		case <-over:
			return false
		case <-time.After(time.Millisecond): // polling, up to a deadline
		}
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
	return true
}

// noPool asks a hub that comes and goes.
var noPool = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

// lastOf is the last seq of a topic, 0 while the hub is away.
func lastOf(url, topic string) uint64 {
	got, err := noPool.Get(url + "/replay?topic=" + topic + "&from=latest&limit=0")
	if err != nil {
		return 0
	}
	defer func() { _ = got.Body.Close() }()
	var page struct{ Next uint64 }
	if err := json.NewDecoder(got.Body).Decode(&page); err != nil {
		return 0
	}
	return page.Next
}

func TestCrashImportGoesOn(t *testing.T) {
	n, step := 25_000, uint64(8000)
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		n, step = 1_000_000, 50_000
	}
	p := startHub(t, "--store", "file://"+t.TempDir())
	file := filepath.Join(t.TempDir(), "events.ndjson")
	ndjson(t, file, n)
	cmd := command(t, p.url, "import", "into", file)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	over := background(t, cmd)
	crashes := 0
	for next := step; until(t, over, "the import goes on", func() bool { return lastOf(p.url, "into") >= next }); next = lastOf(p.url, "into") + step {
		p.crash()
		crashes++
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 || !strings.HasPrefix(stdout.String(), fmt.Sprintf(`{"topic":"into","events":%d,`, n)) {
		t.Fatalf("exit code %d, %s%s", code, &stdout, &stderr)
	}
	if crashes == 0 || !strings.Contains(stderr.String(), "promethean: the hub is away, trying again: ") {
		t.Errorf("%d crashes, and it said %q", crashes, &stderr)
	}
	t.Logf("%d crashes", crashes)
	wantOnce(p, "into", n)

	// Out again, while the hub crashes in the middle: all of it, in order. The
	// export cannot be ahead of us by more than buffers hold.
	cmd = command(t, p.url, "export", "into")
	stderr.Reset()
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for i := range n {
		if i == n/4 || i == n/2 {
			p.crash()
		}
		var e record
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &e) != nil || e.Seq != uint64(i+1) {
			t.Fatalf("line %d: %q", i, lines.Text())
		}
	}
	if lines.Scan() {
		t.Errorf("more than all: %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v, and it said %q", err, &stderr)
	}
}

// A replay that is killed and run again copies everything once, with the state
// in a file and without.
func TestCrashReplayIsRunAgain(t *testing.T) {
	n := 30_000
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		n = 500_000
	}
	p := startHub(t, "--store", "file://"+t.TempDir())
	dir := t.TempDir()
	file := filepath.Join(dir, "events.ndjson")
	ndjson(t, file, n)
	if _, stderr, code := ended(t, command(t, p.url, "import", "source", file)); code != 0 {
		t.Fatal(stderr)
	}
	for _, more := range [][]string{nil, {"--resume", filepath.Join(dir, "state")}} {
		to := fmt.Sprintf("copy.a%d", len(more))
		args := append([]string{"replay", "source", "--to", to, "--map", "{n: .payload.n}"}, more...)
		kills := 0
		for at := uint64(1); at < uint64(n); at += uint64(n / 4) {
			cmd := command(t, p.url, args...)
			over := background(t, cmd)
			until(t, over, "the replay goes on", func() bool { return lastOf(p.url, to) >= at })
			_ = cmd.Process.Kill()
			if <-over; !cmd.ProcessState.Success() {
				kills++
			}
		}
		stdout, stderr, code := ended(t, command(t, p.url, args...))
		if code != 0 || kills == 0 {
			t.Fatalf("%d kills, exit code %d, %s%s", kills, code, stdout, stderr)
		}
		t.Logf("%d kills, then %s", kills, stdout)
		wantOnce(p, to, n)
	}
	// With the state, a run that has nothing to do reads nothing.
	stdout, stderr, code := ended(t, command(t, p.url, "replay", "source", "--to", "copy.a2", "--map", "{n: .payload.n}", "--resume", filepath.Join(dir, "state")))
	if code != 0 || !strings.Contains(stdout, `"read":0,"copied":0,`) {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	// The state is that of one replay.
	_, stderr, code = ended(t, command(t, p.url, "replay", "source", "--to", "copy.a2", "--map", ".payload", "--resume", filepath.Join(dir, "state")))
	if code != 1 || !strings.Contains(stderr, "belongs to another replay") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// Whoever reads our output may go.
func TestBrokenPipeEndsQuietly(t *testing.T) {
	p := startHub(t, "--store", "memory://")
	file := filepath.Join(t.TempDir(), "events.ndjson")
	ndjson(t, file, 5000)
	if _, stderr, code := ended(t, command(t, p.url, "import", "a", file)); code != 0 {
		t.Fatal(stderr)
	}
	for _, args := range [][]string{
		{"export", "a"},
		{"replay", "a"},
		{"tail", "a", "--from", "earliest"},
		{"sub", "a", "--group", "g", "--from", "earliest"},
		{"replay", "a", "-o", "table"},
		{"sub", "a", "--group", "h", "--from", "earliest", "--batch", "3"},
	} {
		cmd := command(t, p.url, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		_ = out.Close()
		_ = cmd.Wait() // the exit code says it
		if code := cmd.ProcessState.ExitCode(); stderr.Len() > 0 || code != 1 {
			t.Errorf("%v: exit code %d, and it said %q", args, code, stderr.String())
		}
	}
	// What could not be written was not acked, and nobody has to wait for it.
	stdout, stderr, code := ended(t, command(t, p.url, "lag", "a", "h"))
	var lag struct{ Lag int }
	if err := json.Unmarshal([]byte(stdout), &lag); err != nil || code != 0 || lag.Lag == 0 {
		t.Fatalf("%s%s, %v", stdout, stderr, err)
	}
	begun := time.Now()
	if _, stderr, code := ended(t, command(t, p.url, "sub", "a", "--group", "h", "--count", fmt.Sprint(lag.Lag), "-o", "json")); code != 0 || time.Since(begun) > 20*time.Second {
		t.Errorf("the rest came after %s with exit code %d: %s", time.Since(begun), code, stderr)
	}
}

// An interrupt ends every command: those that go on for ever well, the others
// as a failure, and what they have written are whole lines.
func TestInterruptOfEveryCommand(t *testing.T) {
	p := startHub(t, "--store", "memory://")
	p.publish("a", "", `{"n":1}`)
	for _, c := range []struct {
		args  []string
		stdin bool // it reads a pipe that nothing comes from
		first bool // it writes a line first
		code  int
		said  string
	}{
		{args: []string{"tail", "a", "--from", "earliest"}, first: true, code: 0},
		{args: []string{"tail", "a", "--from", "earliest", "--count", "2"}, first: true, code: 1, said: "promethean: after 1 of 2 events: interrupted\n"},
		{args: []string{"sub", "a", "--group", "g", "--from", "earliest"}, first: true, code: 0},
		{args: []string{"sub", "a", "--group", "c", "--from", "earliest", "--count", "2"}, first: true, code: 1, said: "promethean: after 1 of 2 events: interrupted\n"},
		{args: []string{"sub", "a", "--group", "x", "--from", "earliest", "--exec", "cat; sleep 0.1"}, first: true, code: 0},
		{args: []string{"pub", "b", "-"}, stdin: true, first: true, code: 1, said: "promethean: interrupted\n"},
		{args: []string{"import", "b", "-", "-o", "json"}, stdin: true, code: 1, said: "promethean: interrupted\n"},
		{args: []string{"bench", "--duration", "1h"}, code: 1, said: "promethean: interrupted\n"},
	} {
		cmd := command(t, p.url, c.args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if c.stdin {
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = in.Close() }()
			if _, err := io.WriteString(in, `{"payload":1}`+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		before := lastOf(p.url, "b") + lastOf(p.url, "bench.load")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(out)
		if c.first {
			if line, err := r.ReadString('\n'); err != nil || !json.Valid([]byte(line)) {
				t.Errorf("%v: %q, %v", c.args, line, err)
			}
		} else {
			until(t, nil, "the command is at work", func() bool { return lastOf(p.url, "b")+lastOf(p.url, "bench.load") > before })
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(r)
		if err != nil || len(rest) > 0 && !bytes.HasSuffix(rest, []byte("\n")) {
			t.Errorf("%v: %q, %v", c.args, rest, err)
		}
		_ = cmd.Wait() // the exit code says it
		said, _, _ := strings.Cut(stderr.String(), "  ")
		if code := cmd.ProcessState.ExitCode(); code != c.code || said != c.said {
			t.Errorf("%v: exit code %d, said %q, want %d and %q", c.args, code, stderr.String(), c.code, c.said)
		}
	}
}

// What goes wrong between a command and a hub says what to do next.
func TestAdviceAboutTheAddress(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, 1)
	secure := serveProcess(t, nil, "--store", "memory://", "--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem"))
	plain := startHub(t, "--store", "memory://")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	// A name that points at us, but that the hub does not know.
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := http.NewRequest(r.Method, plain.url+r.URL.String(), http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		to.Host = "evil.example"
		got, err := http.DefaultClient.Do(to)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = got.Body.Close() }()
		w.Header().Set("Content-Type", got.Header.Get("Content-Type"))
		w.WriteHeader(got.StatusCode)
		_, _ = io.Copy(w, got.Body)
	}))
	defer foreign.Close()
	swap := func(url string) string {
		if rest, ok := strings.CutPrefix(url, "https"); ok {
			return "http" + rest
		}
		return "https" + strings.TrimPrefix(url, "http")
	}
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"an unknown authority", []string{"--addr", secure.url}, []string{"certificate", "\n  name the file with the authority of the hub's certificate with --ca\n"}},
		{"no TLS to a hub that has it", []string{"--addr", swap(secure.url)}, []string{"\n  the hub there speaks TLS: use https:// in --addr\n"}},
		{"TLS to a hub that has none", []string{"--addr", swap(plain.url)}, []string{"\n  the hub there speaks without TLS: use http:// in --addr\n"}},
		{"no hub", []string{"--addr", other.URL}, []string{"404 page not found", "\n  that is no hub: name one with --addr or $PROMETHEAN_ADDR\n"}},
		{"a foreign name", []string{"--addr", foreign.URL}, []string{`promethean: forbidden: the hub is not known as "evil.example"`, "\n  reach the hub by an address that it knows"}},
		{"no such host", []string{"--addr", "http://no-such-host.invalid:7070"}, []string{"no-such-host.invalid", "\n  "}},
	} {
		for _, command := range []string{"topics", "tail a", "export a"} {
			stdout, stderr, code := ended(t, flagged(t, append(strings.Fields(command), c.args...)...))
			if code != 1 || stdout != "" {
				t.Errorf("%s: %s: exit code %d, %q", c.name, command, code, stdout)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%s: %s: no %q in\n%s", c.name, command, want, stderr)
				}
			}
		}
	}
	stdout, stderr, code := ended(t, flagged(t, "topics", "--all", "--addr", secure.url, "--ca", filepath.Join(dir, "cert.pem")))
	if code != 0 {
		t.Errorf("with the authority: exit code %d, %s%s", code, stdout, stderr)
	}
}

// flagged is a command that is told by flags where the hub is.
func flagged(t *testing.T, args ...string) *exec.Cmd {
	return command(t, "http://127.0.0.1:1", args...)
}
