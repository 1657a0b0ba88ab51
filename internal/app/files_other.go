//go:build !unix

package app

import "math"

// maxFiles is how many files the process may have open.
func maxFiles() uint64 { return math.MaxInt64 }
