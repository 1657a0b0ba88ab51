package storetest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// recorder is a testing.TB that takes failures down instead of failing, to
// see whether a suite notices something.
type recorder struct {
	testing.TB // for what is not recorded, such as TempDir

	mu       sync.Mutex
	failures []string
	skipped  bool
	cleanups []func()
}

// record runs f on a recorder and gives the failures.
func record(t testing.TB, f func(t testing.TB)) *recorder {
	r := &recorder{TB: t}
	var done sync.WaitGroup
	done.Go(func() {
		defer func() {
			for i := len(r.cleanups) - 1; i >= 0; i-- {
				r.cleanups[i]()
			}
		}()
		f(r)
	})
	done.Wait()
	return r
}

func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

func (r *recorder) Helper()                   {}
func (r *recorder) Log(...any)                {}
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(args ...any)         { r.note(fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any)         { r.note(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fail()                     { r.note("Fail") }
func (r *recorder) FailNow()                  { r.note("FailNow"); runtime.Goexit() }
func (r *recorder) Skip(...any)               { r.skipped = true; runtime.Goexit() }
func (r *recorder) Skipf(string, ...any)      { r.skipped = true; runtime.Goexit() }
func (r *recorder) SkipNow()                  { r.skipped = true; runtime.Goexit() }
func (r *recorder) Errorf(f string, a ...any) { r.note(fmt.Sprintf(f, a...)) }
func (r *recorder) Fatalf(f string, a ...any) { r.note(fmt.Sprintf(f, a...)); runtime.Goexit() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}
