package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// line is one line of "go test -json", described by "go doc test2json" and,
// for the build actions, by "go help buildjson".
type line struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	FailedBuild string
	Elapsed     float64
}

// The actions that end a test or a package are also the states they end in.
const (
	unfinished = ""
	passed     = "pass"
	failed     = "fail"
	skipped    = "skip"
)

// caseResult is the outcome of one test or subtest.
type caseResult struct {
	Package string  `json:"package"`
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	Reason  string  `json:"reason,omitempty"`
}

// results is one run as it is kept on disk.
type results struct {
	Suite    string       `json:"suite"`
	Complete bool         `json:"complete"`
	Cases    []caseResult `json:"cases"`
	// Broken names the failures that belong to no test.
	Broken []string `json:"broken,omitempty"`
}

// testKey tells tests of the same name in different packages apart.
type testKey struct{ pkg, name string }

type liveCase struct {
	caseResult
	output strings.Builder
}

// recorder turns the stream of lines into results, and prints each package as
// it ends. It is used by one goroutine.
type recorder struct {
	out     io.Writer
	kept    results
	live    map[testKey]*liveCase
	order   map[string][]*liveCase      // cases of a package in the order they began
	pkgText map[string]*strings.Builder // what a package printed outside its tests
	builds  map[string]*strings.Builder // compiler output not printed yet
	failed  bool                        // some package has failed
}

func newRecorder(suite string, out io.Writer) *recorder {
	return &recorder{
		out:     out,
		kept:    results{Suite: suite},
		live:    map[testKey]*liveCase{},
		order:   map[string][]*liveCase{},
		pkgText: map[string]*strings.Builder{},
		builds:  map[string]*strings.Builder{},
	}
}

// readAll consumes the stream. A line that is no JSON is shown as it is: the go
// command prints such lines when it fails before it can run anything.
func (r *recorder) readAll(in *bufio.Reader) error {
	for {
		text, err := in.ReadBytes('\n')
		if len(text) > 0 {
			var l line
			if json.Unmarshal(text, &l) != nil || l.Action == "" {
				fmt.Fprintf(r.out, "%s\n", strings.TrimRight(string(text), "\n"))
			} else {
				r.add(l)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *recorder) add(l line) {
	switch l.Action {
	case "build-output":
		builder(r.builds, l.ImportPath).WriteString(l.Output)
	case "start":
		builder(r.pkgText, l.Package)
	case "run":
		r.test(l)
	case "output":
		if l.Test == "" {
			builder(r.pkgText, l.Package).WriteString(l.Output)
		} else {
			r.test(l).output.WriteString(l.Output)
		}
	case passed, failed, skipped:
		if l.Test == "" {
			r.endPackage(l)
			return
		}
		c := r.test(l)
		c.State, c.Seconds = l.Action, l.Elapsed
		switch l.Action {
		case passed:
			c.output.Reset()
		case skipped:
			c.Reason = skipReason(c.output.String())
			c.output.Reset()
		}
	}
}

func (r *recorder) test(l line) *liveCase {
	key := testKey{l.Package, l.Test}
	c := r.live[key]
	if c == nil {
		c = &liveCase{caseResult: caseResult{Package: l.Package, Name: l.Test}}
		r.live[key] = c
		r.order[l.Package] = append(r.order[l.Package], c)
	}
	return c
}

// endPackage prints a package and moves its cases into the results.
func (r *recorder) endPackage(l line) {
	cases := r.order[l.Package]
	text := builder(r.pkgText, l.Package).String()
	anyFailed := false
	for _, c := range cases {
		if c.State == unfinished {
			c.State = failed
			c.Reason = "did not finish"
		}
		if c.State == failed {
			anyFailed = true
			fmt.Fprintf(r.out, "--- %s.%s failed\n%s", l.Package, c.Name, c.output.String())
			if c.Reason != "" {
				fmt.Fprintf(r.out, "    %s\n", c.Reason)
			}
		}
		r.kept.Cases = append(r.kept.Cases, c.caseResult)
		delete(r.live, testKey{l.Package, c.Name})
	}
	delete(r.order, l.Package)
	delete(r.pkgText, l.Package)

	verdict := "ok"
	switch {
	case l.Action == failed:
		verdict = "FAIL"
		r.failed = true
		if b := r.builds[l.FailedBuild]; b != nil {
			// Every package that imports a broken one fails with it; the
			// compiler's words are printed for the first alone.
			fmt.Fprint(r.out, b.String())
			b.Reset()
		}
		fmt.Fprint(r.out, text)
		if !anyFailed {
			why := "failed outside any test"
			if l.FailedBuild != "" {
				// The go command adds in brackets for which test it built.
				culprit, _, _ := strings.Cut(l.FailedBuild, " ")
				why = "did not build: " + culprit
			}
			r.kept.Broken = append(r.kept.Broken, fmt.Sprintf("%s (%s)", l.Package, why))
		}
	case anyFailed:
		verdict = "FAIL"
		r.failed = true
	case len(cases) == 0:
		verdict = "none"
	}
	fmt.Fprintf(r.out, "%-4s  %-48s %8.2fs %6d tests\n", verdict, l.Package, l.Elapsed, len(cases))
}

// finish closes the record. waitErr is how the go command itself ended.
func (r *recorder) finish(waitErr error) results {
	// Packages without a closing line: the go command died before them.
	for _, pkg := range slices.Sorted(maps.Keys(r.pkgText)) {
		r.endPackage(line{Action: failed, Package: pkg})
	}
	if waitErr != nil && !r.failed {
		r.kept.Broken = append(r.kept.Broken, fmt.Sprintf("go test (%v)", waitErr))
	}
	r.kept.Complete = true
	return r.kept
}

// logLine is a line of t.Log or t.Skip, with its file and line number in front.
var logLine = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)

// skipReason finds what a skipped test gave as its reason: the last thing it logged.
func skipReason(output string) string {
	reason := "no reason given"
	for l := range strings.Lines(output) {
		if m := logLine.FindStringSubmatch(strings.TrimRight(l, "\n")); m != nil {
			reason = m[1]
		}
	}
	return reason
}

func builder(m map[string]*strings.Builder, key string) *strings.Builder {
	if m[key] == nil {
		m[key] = &strings.Builder{}
	}
	return m[key]
}
