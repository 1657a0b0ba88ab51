package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestMain lets the test program be the nodes and workers of its own run.
func TestMain(m *testing.M) {
	if as := os.Getenv(role); as != "" {
		os.Exit(act(as))
	}
	os.Exit(m.Run())
}

// first gives the first faults of a plan.
func first(seed uint64, n int) (list []fault) {
	for f := range plan(seed) {
		if len(list) == n {
			return list
		}
		list = append(list, f)
	}
	return nil
}

func TestPlanFollowsFromItsSeed(t *testing.T) {
	a, b := first(7, 100), first(7, 100)
	if !slices.Equal(a, b) {
		t.Error("two plans of one seed differ")
	}
	if slices.Equal(a, first(8, 100)) {
		t.Error("plans of two seeds are equal")
	}
	for deck := range slices.Chunk(a, len(kinds)) {
		seen := make(map[kind]bool)
		for _, f := range deck {
			seen[f.Kind] = true
			if l := lengths[f.Kind]; f.For < l[0] || f.For >= l[1] {
				t.Errorf("%v", f)
			}
		}
		if len(seen) != len(kinds) {
			t.Errorf("kinds are missing: %v", deck)
		}
	}
}

// TestShort is a run of some seconds, as "make chaos" does it for minutes.
func TestShort(t *testing.T) {
	if testing.Short() {
		t.Skip("runs eight processes for half a minute")
	}
	length := 10 * time.Second
	if s := os.Getenv("CHAOS_FOR"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatalf("CHAOS_FOR: %v", err)
		}
	}
	wholeRun(t, length+8*time.Minute, options{length: length})
}

// TestChurn has the members of two partitioned groups, each a process, join,
// leave, die and stall at random; CHAOS_STEPS=10000 is the long form.
func TestChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a dozen processes for half a minute")
	}
	steps := 500
	if s := os.Getenv("CHAOS_STEPS"); s != "" {
		var err error
		if steps, err = strconv.Atoi(s); err != nil || steps <= 0 {
			t.Fatalf("CHAOS_STEPS: %q is not a number of steps", s)
		}
	}
	wholeRun(t, time.Duration(steps)*100*time.Millisecond+8*time.Minute, options{steps: steps})
}

// wholeRun does a run with a seed by chance.
func wholeRun(t *testing.T, patience time.Duration, o options) {
	t.Helper()
	o.program = filepath.Join(t.TempDir(), "promethean")
	if out, err := exec.Command("go", "build", "-o", o.program, "promethean/cmd/promethean").CombinedOutput(); err != nil {
		t.Fatalf("build the hub: %v\n%s", err, out)
	}
	var err error
	if o.dir, err = os.MkdirTemp("", "chaos"); err != nil { // kept when it fails
		t.Fatal(err)
	}
	o.seed, o.hubs = uint64(rand.Uint32()), 2
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ok, err := chaos(ctx, o, &out)
	t.Logf("%s", out.String())
	if err != nil || !ok {
		t.Errorf("%v; journals and logs are in %s", err, o.dir)
	}
}

// Who asks wrongly is told so.
func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{"-hubs", "0"}, {"-for", "-1s"}, {"-for", "x"}, {"-steps", "-1"}, {"extra"}, {"-no-such-flag"}} {
		if code := start(args); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	if code := start([]string{"-hub", filepath.Join(t.TempDir(), "none")}); code != 1 {
		t.Errorf("without a hub: exit code %d", code)
	}
}
