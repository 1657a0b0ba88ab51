package prometheantest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// fakeT is a test that notes what is said of it, so that the kit can be tested,
// and shown in examples, where it fails. Methods that the kit does not use are
// missing.
type fakeT struct {
	testing.TB
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	failures []string
	logs     []string
	cleanups []func()
}

// try runs f as a test, and its cleanups after it.
func try(f func(t testing.TB)) *fakeT {
	t := new(fakeT)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.run(func() { f(t) })
	t.cancel() // as testing does
	for len(t.cleanups) > 0 {
		last := t.cleanups[len(t.cleanups)-1]
		t.cleanups = t.cleanups[:len(t.cleanups)-1]
		t.run(last)
	}
	return t
}

// run calls f on a goroutine that Fatalf may end.
func (t *fakeT) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// said is all failures.
func (t *fakeT) said() string { return strings.Join(t.failures, "\n") }

func (t *fakeT) Helper()                  {}
func (t *fakeT) Context() context.Context { return t.ctx }

func (t *fakeT) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *fakeT) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failures) > 0
}

func (t *fakeT) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.logs = append(t.logs, fmt.Sprintf(format, args...))
}

func (t *fakeT) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, fmt.Sprintf(format, args...))
}

func (t *fakeT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}
