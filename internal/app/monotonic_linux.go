package app

import "golang.org/x/sys/unix"

// monotonic is the time that the supervisor compares with its own, in
// microseconds.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return t.Nano() / 1000
}
