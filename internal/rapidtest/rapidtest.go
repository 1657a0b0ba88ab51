// Package rapidtest tunes the property tests of rapid.
package rapidtest

import (
	"flag"
	"strconv"
	"testing"
)

// Checks has rapid draw n sequences until the end of the test, for tests whose
// steps ask a server or a disk. The flag -rapid.checks overrules it. The test
// must not run in parallel with others that draw.
func Checks(t *testing.T, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if f == nil {
		t.Fatal("the flag -rapid.checks is not there: does the test use rapid?")
	}
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
}
