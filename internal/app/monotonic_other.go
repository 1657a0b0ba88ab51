//go:build !linux

package app

// monotonic is the time that systemd compares with its own; it runs on Linux
// only.
func monotonic() int64 { return 0 }
