package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tally is what one run, or all runs together, come to.
type tally struct {
	passed  []string
	failed  []string
	skipped []caseResult
	slowest []caseResult
}

// tallyOf counts the cases of all runs, each case once.
func tallyOf(runs ...results) tally {
	var t tally
	merged := map[testKey]caseResult{}
	broken := map[string]bool{}
	for _, run := range runs {
		if !run.Complete {
			broken[fmt.Sprintf("suite %s (did not finish)", run.Suite)] = true
		}
		for _, b := range run.Broken {
			broken[b] = true
		}
		for _, c := range run.Cases {
			key := testKey{c.Package, c.Name}
			if old, seen := merged[key]; !seen || rank(c.State) > rank(old.State) {
				merged[key] = c
			}
		}
	}

	// A test with subtests stands for itself only where it failed on its own.
	hasChild := map[testKey]bool{}
	hasFailedChild := map[testKey]bool{}
	for key, c := range merged {
		for name := parent(key.name); name != ""; name = parent(name) {
			hasChild[testKey{key.pkg, name}] = true
			if c.State == failed {
				hasFailedChild[testKey{key.pkg, name}] = true
			}
		}
	}
	for key, c := range merged {
		name := key.pkg + "." + key.name
		switch {
		case c.State == failed && !hasFailedChild[key]:
			t.failed = append(t.failed, name)
		case hasChild[key]:
			continue
		case c.State == passed:
			t.passed = append(t.passed, name)
		case c.State == skipped:
			t.skipped = append(t.skipped, c)
		}
		t.slowest = append(t.slowest, c)
	}
	for b := range broken {
		t.failed = append(t.failed, b)
	}

	slices.Sort(t.passed)
	slices.Sort(t.failed)
	slices.SortFunc(t.skipped, byName)
	slices.SortFunc(t.slowest, func(a, b caseResult) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), byName(a, b))
	})
	t.slowest = t.slowest[:min(5, len(t.slowest))]
	return t
}

// rank orders states by how much they say: a failure is never outvoted.
func rank(state string) int {
	switch state {
	case failed:
		return 2
	case passed:
		return 1
	}
	return 0
}

func byName(a, b caseResult) int {
	return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Name, b.Name))
}

// parent is the name of the test that a subtest belongs to, or empty.
func parent(name string) string {
	if i := strings.LastIndexByte(name, '/'); i > 0 {
		return name[:i]
	}
	return ""
}

// printSuite prints the end of one run, but for the count line.
func printSuite(w io.Writer, t tally) {
	if len(t.slowest) > 0 {
		fmt.Fprintln(w, "\nslowest:")
		for _, c := range t.slowest {
			fmt.Fprintf(w, "  %8.2fs  %s.%s\n", c.Seconds, c.Package, c.Name)
		}
	}
	printSkipped(w, "skipped:", t.skipped)
	printFailed(w, t.failed)
	fmt.Fprintln(w)
}

// printTotal prints the end of all runs, but for the count line.
func printTotal(w io.Writer, t tally) {
	var wanting []caseResult
	for _, c := range t.skipped {
		if strings.HasPrefix(c.Reason, "needs ") {
			wanting = append(wanting, c)
		}
	}
	if len(wanting) == 0 {
		fmt.Fprintln(w, "\nno test was left out for want of a server")
	}
	printSkipped(w, "left out for want of a server:", wanting)
	printFailed(w, t.failed)
	fmt.Fprintln(w)
}

func printSkipped(w io.Writer, heading string, cases []caseResult) {
	if len(cases) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", heading)
	for _, c := range cases {
		fmt.Fprintf(w, "  %s.%s: %s\n", c.Package, c.Name, c.Reason)
	}
}

func printFailed(w io.Writer, names []string) {
	if len(names) == 0 {
		return
	}
	fmt.Fprintln(w, "\nfailed:")
	for _, name := range names {
		fmt.Fprintf(w, "  %s\n", name)
	}
}

// save keeps a run in dir; with no dir it does nothing.
func save(dir string, r results) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, r.Suite+".json"), data, 0o644); err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	return nil
}

// loadTotal reads all runs kept in dir. None at all is an error: something that
// should have run did not.
func loadTotal(dir string) (tally, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return tally{}, fmt.Errorf("read results: %w", err)
	}
	if len(files) == 0 {
		return tally{}, fmt.Errorf("read results: no run is kept in %s", dir)
	}
	var runs []results
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return tally{}, fmt.Errorf("read results: %w", err)
		}
		var r results
		if err := json.Unmarshal(data, &r); err != nil {
			return tally{}, fmt.Errorf("read results %s: %w", file, err)
		}
		runs = append(runs, r)
	}
	return tallyOf(runs...), nil
}
