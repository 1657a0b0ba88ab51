package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// syncData makes the bytes of f durable; its length has not changed.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// dieWithParent has the kernel kill the child when this process is gone,
// however it went.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// residentBytes is what this process holds in memory now.
func residentBytes() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, fmt.Errorf("read /proc/self/statm: %w", err)
	}
	return resident * int64(os.Getpagesize()), nil
}

// processorTime is what this process has used of the processors so far.
func processorTime() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// dropCaches makes the next reads of the files under dir come from the disk
// and says how: the whole page cache where that is permitted, else just those
// files.
func dropCaches(dir string) (string, error) {
	unix.Sync() // dirty pages cannot be dropped
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0o200); err == nil {
		return "page cache dropped", nil
	}
	return "files dropped from the page cache", forgetFiles(dir)
}

func forgetFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		return errors.Join(err, f.Close())
	})
}

// kernel names the operating system in the report.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "Linux"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}
