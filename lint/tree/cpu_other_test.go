//go:build !unix

package tree_test

import (
	"testing"
	"time"
)

var start = time.Now()

// spent is the time that has passed: here is no way to ask for less.
func spent(testing.TB) time.Duration { return time.Since(start) }
