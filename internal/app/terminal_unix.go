//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package app

import (
	"os"
	"syscall"
	"unsafe"
)

// terminalWidth says whether w is a terminal, and how many columns it has. A
// file that is none refuses the question.
func terminalWidth(w any) (columns int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile {
		return 0, false
	}
	var size struct{ rows, columns, x, y uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0, false
	}
	if size.columns == 0 {
		return 80, true // a terminal that does not know
	}
	return int(size.columns), true
}
