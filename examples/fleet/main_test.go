package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"promethean/internal/mongotest"
	"promethean/internal/natstest"
)

// TestMain runs the program itself where a test starts this binary as a worker.
func TestMain(m *testing.M) {
	if os.Getenv("PROMETHEAN_FLEET_WORKER") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// ownFor is how long a worker owns the group without renewing.
const ownFor = 2 * time.Second

// fleet is some workers on one engine.
type fleet struct {
	t       *testing.T
	url     string
	journal string
	mu      sync.Mutex
	stderr  strings.Builder
	count   int
	workers []*exec.Cmd
}

func newFleet(t *testing.T, url string, n int) *fleet {
	f := &fleet{t: t, url: url, journal: filepath.Join(t.TempDir(), "journal")}
	t.Cleanup(func() {
		for _, w := range f.workers {
			_ = w.Process.Kill()
			_ = w.Wait()
		}
		if t.Failed() {
			t.Logf("the workers said:\n%s", tail(f.stderr.String(), 200_000))
		}
	})
	for range n {
		f.workers = append(f.workers, f.start("-every", "10ms"))
	}
	return f
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// Write collects what workers say.
func (f *fleet) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stderr.Write(b)
}

func (f *fleet) start(args ...string) *exec.Cmd {
	f.t.Helper()
	f.count++
	args = append([]string{"-store", f.url, "-journal", f.journal, "-name", fmt.Sprint("w", f.count), "-own-for", ownFor.String()}, args...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "PROMETHEAN_FLEET_WORKER=1")
	cmd.Stderr = f
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	return cmd
}

// replace kills a worker and starts another in its place.
func (f *fleet) replace(i int) {
	_ = f.workers[i].Process.Kill()
	_ = f.workers[i].Wait()
	f.workers[i] = f.start("-every", "10ms")
}

// progress waits until so many more events were acked, by somebody who is not
// in the way.
func (f *fleet) progress(n int, but string) {
	f.t.Helper()
	deadline := time.Now().Add(time.Minute)
	begin := -1
	for {
		acked := 0
		if _, err := os.Stat(f.journal); err == nil {
			for _, l := range readJournal(f.t, f.journal) {
				if l.what == "acked" && l.by != but {
					acked++
				}
			}
		}
		if begin < 0 {
			begin = acked
		}
		if acked >= begin+n {
			return
		}
		if time.Now().After(deadline) {
			for _, w := range f.workers { // they say what they are at
				_ = w.Process.Signal(syscall.SIGQUIT)
				_ = w.Wait()
			}
			count := map[string]int{}
			for _, l := range readJournal(f.t, f.journal) {
				count[l.what+" by "+l.by]++
			}
			f.t.Fatalf("%d of %d events were acked in a minute; all in all %v", acked-begin, n, count)
		}
		time.Sleep(50 * time.Millisecond) // other processes: there is nothing to wait for but the file
	}
}

// underWay waits until each worker has published. One that is not as far may not
// listen to signals yet.
func (f *fleet) underWay() {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		published := make(map[string]bool)
		for _, l := range readJournal(f.t, f.journal) {
			if l.what == "published" {
				published[l.by] = true
			}
		}
		idle := slices.IndexFunc(f.workers, func(w *exec.Cmd) bool { return !published[nameOf(w)] })
		if idle < 0 {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("worker %s published nothing in a minute", nameOf(f.workers[idle]))
		}
	}
}

func nameOf(w *exec.Cmd) string { return w.Args[slices.Index(w.Args, "-name")+1] }

// end stops the workers, has what is left handled, and judges.
func (f *fleet) end() {
	f.t.Helper()
	f.underWay()
	for _, w := range f.workers {
		_ = w.Process.Signal(syscall.SIGTERM)
	}
	for _, w := range f.workers {
		if err := w.Wait(); err != nil {
			f.t.Errorf("a worker that was asked to end: %v", err)
		}
	}
	f.workers = nil
	drain := f.start("-every", "0")
	f.workers = []*exec.Cmd{drain}
	timer := time.AfterFunc(2*time.Minute, func() { _ = drain.Process.Kill() })
	err := drain.Wait()
	timer.Stop()
	f.workers = nil
	if err != nil {
		f.t.Fatalf("what was left could not be handled: %v", err)
	}
	published, handled := judge(f.t, f.journal)
	f.t.Logf("%d workers, %d events published, %d handled", f.count, published, handled)
	if published == 0 {
		f.t.Error("nothing was published")
	}
}

// engines runs a test on each engine that there is a server for.
func engines(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("nats", func(t *testing.T) { test(t, natstest.Start(t, nil).URL()) })
	t.Run("mongodb", func(t *testing.T) { test(t, mongotest.Fresh(t, "fleet")) })
}

// Workers are killed, one every few seconds. With PROMETHEAN_CRASH=long for two
// minutes.
func TestCrashFleet(t *testing.T) {
	kills := 4
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		kills = 40
	}
	engines(t, func(t *testing.T, url string) {
		f := newFleet(t, url, 3)
		for i := range kills {
			f.progress(100, "")
			f.replace(i % 3)
			select {
			case <-time.After(time.Duration(i%3) * time.Second): // at different moments of a takeover
			case <-t.Context().Done():
				return
			}
		}
		f.progress(100, "")
		f.end()
	})
}

// The owner is stopped for longer than its lease, and goes on then: what it
// acks late is refused, and nobody but one acks an event.
func TestCrashStopped(t *testing.T) {
	engines(t, func(t *testing.T, url string) {
		f := newFleet(t, url, 2)
		for range 2 {
			f.progress(50, "")
			lines := readJournal(t, f.journal)
			owner := ""
			for _, l := range lines {
				if l.what == "acked" {
					owner = l.by
				}
			}
			var cmd *exec.Cmd
			for i, w := range f.workers {
				if fmt.Sprint("w", i+1) == owner {
					cmd = w
				}
			}
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			f.progress(50, owner) // the other one has taken over
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			f.progress(50, "")
		}
		f.end()
	})
}

// The server that leads the topic is stopped under load, and started again, in
// a cluster of three. With PROMETHEAN_CRASH=long twenty times.
func TestCrashLeader(t *testing.T) {
	stops := 3
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		stops = 20
	}
	const stream = "promethean-fleet_work"
	c := natstest.StartCluster(t, 3)
	f := newFleet(t, c.URL(), 3)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the servers:\n%s", c.Describe())
		}
	})
	for range stops {
		f.progress(100, "")
		leader := c.Leader("$G", stream)
		for deadline := time.Now().Add(30 * time.Second); leader == nil; leader = c.Leader("$G", stream) {
			if time.Now().After(deadline) {
				t.Fatal("the topic has no leader")
			}
			time.Sleep(10 * time.Millisecond) // it is being chosen, and nothing tells
		}
		leader.Stop()
		f.progress(100, "")
		leader.Start(t)
		c.Await(t, 3)
	}
	f.progress(100, "")
	f.end()
}
