// Testreport runs the tests of this module through "go test -json" and reports
// them so that nothing that went wrong can be overlooked.
//
// While the tests run it prints, package by package, the output of what failed
// and one summary line. At the end it prints the five slowest cases, the
// skipped ones with their reasons, the failed ones by name, and as its very
// last line
//
//	N passed, N failed
//
// # What is counted
//
// A case is a leaf: a test or subtest that has no subtests of its own. On top
// of the leaves these count as one failure each: a test that failed although
// none of its subtests did, a test that never finished, a package that did not
// build or that failed outside any test, and a "go test" that ended badly
// without naming a culprit. A skipped case counts neither way. The exit status
// is 0 only when nothing failed.
//
// # Several runs
//
// With -results a run is kept as a file in that directory, and -total reports
// all runs kept there as one. A case that took part in several runs is counted
// once: failed if it failed in any, passed if it passed in any, else skipped.
// That is how a test that needs a server is skipped by the first run and
// credited by the one that had the server.
//
// A test that cannot run without a server skips with a reason that starts with
// "needs", a blank and the name of the server, as in
// t.Skip("needs mongodb: PROMETHEAN_TEST_MONGODB is not set"). With -needs a run
// is made of just those cases that the kept runs have left out for want of that
// server; nobody lists them anywhere. Those that no run could serve are listed
// by -total by name.
//
// Example:
//
//	testreport -results bin/test-results -suite go -- -race ./...
//	testreport -results bin/test-results -suite with-mongodb -needs mongodb
//	testreport -total bin/test-results
package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with its surroundings passed in; it returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(stderr)
	suite := flags.String("suite", "go", "`name` under which the run is kept")
	dir := flags.String("results", "", "`directory` to keep the run in; empty keeps nothing")
	needs := flags.String("needs", "", "run what the kept runs left out for want of the `server`")
	total := flags.String("total", "", "report the runs kept in `directory` as one, and run nothing")
	bare := flags.String("line", "", "like -total, but print the count line alone")
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: testreport [-results dir] [-suite name] [--] [go test arguments]\n"+
			"       testreport -results dir -suite name -needs server [--] [go test arguments but packages]\n"+
			"       testreport -total dir | -line dir\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 2
	}

	var (
		result tally
		err    error
	)
	switch {
	case *total != "":
		if result, err = loadTotal(*total); err == nil {
			printTotal(stdout, result)
		}
	case *bare != "":
		result, err = loadTotal(*bare)
	default:
		var kept results
		args := flags.Args()
		if *needs != "" {
			var wanted []string
			if wanted, err = wanting(*dir, *needs); err != nil {
				break
			}
			if wanted == nil {
				fmt.Fprintf(stdout, "no test was left out for want of %s\n", *needs)
				break
			}
			args = append(args, wanted...)
		}
		if kept, err = runSuite(*suite, *dir, args, stdout, stderr); err == nil {
			result = tallyOf(kept)
			printSuite(stdout, result)
		}
	}
	if err != nil {
		// The count line stays the last one whatever happens: a caller that
		// reads only it must not take a run that broke for one that passed.
		fmt.Fprintf(stdout, "testreport: %v\n", err)
		result.failed = append(result.failed, "testreport")
	}
	fmt.Fprintf(stdout, "%d passed, %d failed\n", len(result.passed), len(result.failed))
	if len(result.failed) > 0 {
		return 1
	}
	return 0
}

// runSuite runs "go test -json" with args and returns what it saw.
func runSuite(suite, dir string, args []string, stdout, stderr io.Writer) (results, error) {
	// An unfinished record is written first, so that a run that is killed on
	// the way counts as failed in the total instead of going missing.
	if err := save(dir, results{Suite: suite}); err != nil {
		return results{}, err
	}
	// The Makefile exports GO, so that one go command builds and tests.
	cmd := exec.Command(cmp.Or(os.Getenv("GO"), "go"), append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return results{}, fmt.Errorf("run go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return results{}, fmt.Errorf("run go test: %w", err)
	}
	rec := newRecorder(suite, stdout)
	readErr := rec.readAll(bufio.NewReader(pipe))
	if readErr != nil {
		// Nobody reads on: without this the child would block on a full pipe.
		_ = cmd.Process.Kill()
	}
	waitErr := cmd.Wait()
	if readErr != nil {
		return results{}, fmt.Errorf("read go test: %w", readErr)
	}
	kept := rec.finish(waitErr)
	return kept, save(dir, kept)
}
