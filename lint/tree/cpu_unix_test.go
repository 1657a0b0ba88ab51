//go:build unix

package tree_test

import (
	"syscall"
	"testing"
	"time"
)

// spent is the processor time that this process and its children have taken. A
// machine with other things to do takes longer by the clock, not by this.
func spent(tb testing.TB) (d time.Duration) {
	tb.Helper()
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err != nil {
			tb.Fatal(err)
		}
		d += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return d
}
