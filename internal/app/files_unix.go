//go:build unix

package app

import (
	"math"
	"syscall"
)

// maxFiles is how many files the process may have open.
func maxFiles() uint64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return math.MaxInt64 // nobody tells: there is no limit that is known
	}
	return uint64(l.Cur) //nolint:unconvert // signed on some systems
}
