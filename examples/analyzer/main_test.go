package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"promethean"
	"promethean/examples/process"
	"promethean/internal/natstest"
	"promethean/store"
)

// TestMain runs the program itself where a test starts this binary as a worker.
func TestMain(m *testing.M) {
	if os.Getenv("PROMETHEAN_ANALYZER_WORKER") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a worker in a process of its own.
type child struct {
	*exec.Cmd
	name  string
	ended chan struct{} // closed when it has said all

	mu    sync.Mutex
	parts string // which partitions it has, as it said last
	said  strings.Builder
}

// Write collects what it logs.
func (c *child) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said.Write(b)
}

func (c *child) partitions() (list []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = json.Unmarshal([]byte(strings.ReplaceAll(c.parts, " ", ",")), &list)
	return list
}

func start(t *testing.T, url, name string, args ...string) *child {
	t.Helper()
	c := &child{name: name, ended: make(chan struct{})}
	c.Cmd = exec.Command(os.Args[0], append([]string{"-store", url, "-name", name, "-own-for", "2s"}, args...)...)
	c.Env = append(os.Environ(), "PROMETHEAN_ANALYZER_WORKER=1")
	c.Stderr = c
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if list, ok := strings.CutPrefix(lines.Text(), "partitions "); ok {
				c.mu.Lock()
				c.parts = list
				c.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.wait()
		if t.Failed() {
			said := c.said.String()
			t.Logf("%s said:\n%s", name, said[max(0, len(said)-20_000):])
		}
	})
	return c
}

// wait waits until it has ended.
func (c *child) wait() error {
	<-c.ended
	return c.Wait()
}

// until asks again and again: there is nothing to wait for but what other
// processes do.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(90 * time.Second); !so(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatalf("%s: it does not come about", what)
		}
	}
}

// shared says whether workers have all partitions between them, each at one.
func shared(workers ...*child) bool {
	var all []int
	for _, c := range workers {
		list := c.partitions()
		if len(list) == 0 {
			return false
		}
		all = append(all, list...)
	}
	slices.Sort(all)
	return slices.Equal(all, []int{0, 1, 2, 3, 4, 5, 6, 7})
}

// Three workers, one of them killed: its partitions go to the others, and in the
// end every process is analysed as if one worker had seen all of its states, each
// once and in order.
func TestCrashThreeWorkers(t *testing.T) {
	url := natstest.Start(t, nil).URL()
	engine, err := open(t.Context(), url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	hub, err := promethean.New(engine, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	// progress waits until so many more states were analysed.
	progress := func(n uint64) {
		t.Helper()
		count := func() uint64 {
			b, err := hub.Log().Bounds(t.Context(), "analysis.changelog")
			if err != nil {
				t.Fatal(err)
			}
			return b.Last
		}
		began := count()
		until(t, fmt.Sprint(n, " more analyses"), func() bool { return count() >= began+n })
	}
	one, two, three := start(t, url, "one", "-every", "20ms"), start(t, url, "two", "-every", "20ms"), start(t, url, "three", "-every", "20ms")
	until(t, "three workers share the work", func() bool { return shared(one, two, three) })
	progress(100)
	if err := two.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	_ = two.wait()
	until(t, "the two that are left share the work", func() bool { return shared(one, three) })
	t.Logf("the others have all partitions %v after one was killed", time.Since(killed).Round(time.Millisecond))
	progress(100)
	four := start(t, url, "four", "-every", "20ms")
	until(t, "a new one gets its share", func() bool { return shared(one, three, four) })
	progress(100)
	for _, c := range []*child{one, three, four} {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*child{one, three, four} {
		if err := c.wait(); err != nil {
			t.Errorf("worker %s, asked to end: %v", c.name, err)
		}
	}
	last := start(t, url, "last", "-every", "0")
	timer := time.AfterFunc(2*time.Minute, func() { _ = last.Process.Kill() })
	defer timer.Stop()
	if err := last.wait(); err != nil {
		t.Fatalf("what was left could not be analysed: %v", err)
	}
	judge(t, hub)
}

// judge compares the table with a fold over all states.
func judge(t *testing.T, hub *promethean.Hub) {
	t.Helper()
	ctx := context.Background()
	want, n := make(map[string]Analysis), 0
	for e, err := range hub.Read(ctx, store.Query{Topic: process.StateTopic}) {
		s, bad := promethean.Payload[process.State](&e)
		if err != nil || bad != nil {
			t.Fatal(err, bad)
		}
		want[e.Key] = want[e.Key].with(&s, expensive(&e))
		n++
	}
	table, err := newTable(hub, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]Analysis)
	for n := range partitions {
		if err := table.Assigned(ctx, n); err != nil {
			t.Fatal(err)
		}
		for x, err := range table.Range(n) {
			if err != nil {
				t.Fatal(err)
			}
			got[x.Key] = x.Value
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	t.Logf("%d states of %d processes", n, len(want))
}
