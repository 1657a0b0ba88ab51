package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
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
			// Of two that say the same, the later one had more to say it with.
			if old, seen := merged[key]; !seen || rank(c.State) >= rank(old.State) {
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

// need is the server for want of which a case was skipped, or empty.
func need(c caseResult) string {
	words := strings.Fields(c.Reason)
	if c.State != skipped || len(words) < 2 || words[0] != "needs" {
		return ""
	}
	return strings.TrimRight(words[1], ":,;.")
}

// wanting gives the arguments of "go test" that run the cases which the runs
// kept in dir left out for want of a server: what to run, and the packages. It
// is nil if there are none. A name that means different cases in two packages
// may bring in more than that, never less.
func wanting(dir, server string) ([]string, error) {
	runs, err := load(dir)
	if err != nil {
		return nil, err
	}
	var names, packages []string
	for _, c := range tallyOf(runs...).skipped {
		if need(c) != server {
			continue
		}
		parts := strings.Split(c.Name, "/")
		for i, part := range parts {
			parts[i] = "^" + regexp.QuoteMeta(part) + "$"
		}
		names = append(names, strings.Join(parts, "/"))
		packages = append(packages, c.Package)
	}
	if names == nil {
		return nil, nil
	}
	slices.Sort(names)
	slices.Sort(packages)
	args := []string{"-run", strings.Join(slices.Compact(names), "|")}
	return append(args, slices.Compact(packages)...), nil
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
	var left []caseResult
	for _, c := range t.skipped {
		if need(c) != "" {
			left = append(left, c)
		}
	}
	if len(left) == 0 {
		fmt.Fprintln(w, "\nno test was left out for want of a server")
	}
	printSkipped(w, "left out for want of a server:", left)
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

// loadTotal counts all runs kept in dir.
func loadTotal(dir string) (tally, error) {
	runs, err := load(dir)
	return tallyOf(runs...), err
}

// load reads all runs kept in dir. None at all is an error: something that
// should have run did not.
func load(dir string) ([]results, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read results: no run is kept in %s", dir)
	}
	var runs []results
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		var r results
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("read results %s: %w", file, err)
		}
		runs = append(runs, r)
	}
	return runs, nil
}
