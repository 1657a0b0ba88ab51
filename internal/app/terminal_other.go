//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package app

import (
	"os"
)

// terminalWidth says whether w is a terminal, and how many columns it has.
func terminalWidth(w any) (columns int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile {
		return 0, false
	}
	st, err := f.Stat()
	return 80, err == nil && st.Mode()&os.ModeCharDevice != 0
}
