package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// history makes a topic with so many events of version 1 and a schema of
// version 2. The number of an event is its pid.
func history(p *hub, topic string, n int) {
	p.Helper()
	p.get(nil, 201, "POST", "/schemas/"+topic, `{"schema":`+heartbeatV1+`}`)
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"key":"k%d","payload":{"pid":%d,"name":"stt","host":"dev","cpu_pct":1.5,"mem_mb":200}}`+"\n", i%100, i)
	}
	file := filepath.Join(p.TempDir(), "history")
	write(p.T, file, b.String())
	if _, stderr, code := ended(p.T, command(p.T, p.url, "import", topic, file)); code != 0 {
		p.Fatal(stderr)
	}
	p.get(nil, 201, "POST", "/schemas/"+topic, register(2, heartbeatV2, "backward", renameMem))
}

// wantCutOver wants each event of a topic once in another one, in order, with
// its id and in version 2.
func wantCutOver(p *hub, from, to string, n int) {
	p.Helper()
	was, is := p.replay(from), p.replay(to)
	if len(was) != n || len(is) != n {
		p.Fatalf("%s has %d events and %s %d, want %d", from, len(was), to, len(is), n)
	}
	for i, e := range is {
		var v struct {
			Pid    int
			MemMib *float64 `json:"mem_mib"`
		}
		if err := json.Unmarshal(e.Payload, &v); err != nil || v.Pid != i || v.MemMib == nil || e.ID != was[i].ID || e.Key != was[i].Key || e.Headers["x-schema-version"] != "2" {
			p.Fatalf("event %d of %s is %+v: %s, %v", i, to, e, e.Payload, err)
		}
	}
}

// A cutover whose hub is killed again and again goes on, and so does one that is
// stopped itself and run again: everything is there once, in order.
func TestCrashCutoverGoesOn(t *testing.T) {
	n, step := 20_000, uint64(6000)
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		n, step = 500_000, 40_000
	}
	p := startHub(t, "--store", "file://"+t.TempDir())

	// The hub is killed, and the command waits for it.
	history(p, "one", n)
	cmd := command(t, p.url, "schema", "cutover", "one", "--to", "one.v2")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	over := background(t, cmd)
	crashes := 0
	for next := step; next < uint64(n) && until(t, over, "the cutover goes on", func() bool { return lastOf(p.url, "one.v2") >= next }); next = lastOf(p.url, "one.v2") + step {
		p.crash()
		crashes++
	}
	<-over
	if code := cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(stdout.String(), fmt.Sprintf(`"seq":%d,`, n)) || !strings.Contains(stdout.String(), fmt.Sprintf(`"verified":%d,"behind":0}`, n)) {
		t.Fatalf("%d crashes, exit code %d, %s%s", crashes, code, &stdout, &stderr)
	}
	if crashes == 0 || !strings.Contains(stderr.String(), "promethean: the hub is away, trying again: ") {
		t.Errorf("%d crashes, and it said %q", crashes, &stderr)
	}
	t.Logf("%d crashes, then %s", crashes, &stdout)
	wantCutOver(p, "one", "one.v2", n)

	// The hub is killed and stays away: the command ends, and is run again. So it
	// is after an interrupt.
	history(p, "two", n)
	args := []string{"schema", "cutover", "two", "--to", "two.v2", "--retry", "1ms"}
	for i, stop := range []func(pid int){
		func(int) { p.kill() },
		func(pid int) { _ = syscall.Kill(pid, syscall.SIGINT) },
		func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) },
	} {
		cmd := command(t, p.url, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		enough := max(lastOf(p.url, "two.v2")+1, uint64(1+i*n/4)) // copied by this run, so that it listens to signals
		over := background(t, cmd)
		until(t, over, "the cutover goes on", func() bool { return lastOf(p.url, "two.v2") >= enough })
		stop(cmd.Process.Pid)
		<-over
		if cmd.ProcessState.Success() {
			t.Fatalf("stop %d came too late", i)
		}
		if i < 2 && (cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "run it again: it goes on where it was, and copies nothing twice\n")) {
			t.Errorf("stop %d: %s, and it said %q", i, cmd.ProcessState, &stderr)
		}
		if p.cmd == nil {
			p.start()
		}
	}
	out, errs, code := ended(t, command(t, p.url, args...))
	if code != 0 || !strings.Contains(out, fmt.Sprintf(`"verified":%d,"behind":0}`, n)) {
		t.Fatalf("exit code %d, %s%s", code, out, errs)
	}
	t.Logf("3 stops, then %s", out)
	wantCutOver(p, "two", "two.v2", n)
}
