package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	program := filepath.Join(t.TempDir(), "promethean")
	if out, err := exec.Command("go", "build", "-o", program, "promethean/cmd/promethean").CombinedOutput(); err != nil {
		t.Fatalf("build the hub: %v\n%s", err, out)
	}
	dir, err := os.MkdirTemp("", "chaos") // kept when it fails
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), length+8*time.Minute)
	defer cancel()
	ok, err := chaos(ctx, options{program: program, seed: uint64(rand.Uint32()), length: length, hubs: 2, dir: dir}, &out)
	t.Logf("%s", out.String())
	if err != nil || !ok {
		t.Errorf("%v; journals and logs are in %s", err, dir)
	}
}

// Who asks wrongly is told so.
func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{"-hubs", "0"}, {"-for", "-1s"}, {"-for", "x"}, {"extra"}, {"-no-such-flag"}} {
		if code := start(args); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	if code := start([]string{"-hub", filepath.Join(t.TempDir(), "none")}); code != 1 {
		t.Errorf("without a hub: exit code %d", code)
	}
}
