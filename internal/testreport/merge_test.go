package main

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"
)

// recorded is a run that printed stream and whose go command ended well.
func recorded(t *testing.T, stream string) results {
	t.Helper()
	rec := newRecorder("go", io.Discard)
	if err := rec.readAll(bufio.NewReader(strings.NewReader(stream))); err != nil {
		t.Fatal(err)
	}
	return rec.finish(nil)
}

func TestRunsAreMergedCaseByCase(t *testing.T) {
	without := results{Suite: "go", Complete: true, Cases: []caseResult{
		{Package: "m", Name: "TestPure", State: passed},
		{Package: "m", Name: "TestServer", State: skipped, Reason: "needs mongodb: not set"},
		{Package: "m", Name: "TestOther", State: skipped, Reason: "needs nats: not set"},
		{Package: "m", Name: "TestFlaky", State: failed},
	}}
	with := results{Suite: "mongodb", Complete: true, Cases: []caseResult{
		{Package: "m", Name: "TestPure", State: passed},
		{Package: "m", Name: "TestServer", State: passed},
		{Package: "m", Name: "TestServer/append", State: passed},
		{Package: "m", Name: "TestServer/read", State: passed},
		{Package: "m", Name: "TestOther", State: skipped, Reason: "needs nats: not set"},
		{Package: "m", Name: "TestFlaky", State: passed},
	}}
	for _, order := range [][]results{{without, with}, {with, without}} {
		got := tallyOf(order...)
		if want := []string{"m.TestPure", "m.TestServer/append", "m.TestServer/read"}; !slices.Equal(got.passed, want) {
			t.Errorf("passed %q, want %q", got.passed, want)
		}
		if want := []string{"m.TestFlaky"}; !slices.Equal(got.failed, want) {
			t.Errorf("failed %q, want %q", got.failed, want)
		}
		if len(got.skipped) != 1 || got.skipped[0].Name != "TestOther" {
			t.Errorf("skipped %v, want TestOther alone", got.skipped)
		}
	}
}

func TestRunThatWasKilledFailsTheTotal(t *testing.T) {
	dir := t.TempDir()
	done := results{Suite: "go", Complete: true, Cases: []caseResult{{Package: "m", Name: "TestA", State: passed}}}
	for _, r := range []results{done, {Suite: "mongodb"}} {
		if err := save(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	output, status := report(t, "-total", dir)
	if got := lastLine(output); status != 1 || got != "1 passed, 1 failed" {
		t.Errorf("status %d, last line %q", status, got)
	}
	if got, want := section(output, "failed:"), []string{"suite mongodb (did not finish)"}; !slices.Equal(got, want) {
		t.Errorf("failed %q, want %q", got, want)
	}
}

func TestNoRunAtAllFailsTheTotal(t *testing.T) {
	for _, flag := range []string{"-total", "-line"} {
		output, status := report(t, flag, t.TempDir())
		if got := lastLine(output); status != 1 || got != "0 passed, 1 failed" {
			t.Errorf("%s: status %d, last line %q", flag, status, got)
		}
	}
}

func TestDeepSubtestsCountAtTheLeaf(t *testing.T) {
	got := tallyOf(results{Complete: true, Cases: []caseResult{
		{Package: "m", Name: "TestA", State: failed},
		{Package: "m", Name: "TestA/b", State: failed},
		{Package: "m", Name: "TestA/b/c", State: failed},
		{Package: "m", Name: "TestA/b/d", State: passed},
		{Package: "m", Name: "TestA/e", State: skipped},
	}})
	if want := []string{"m.TestA/b/c"}; !slices.Equal(got.failed, want) {
		t.Errorf("failed %q, want %q", got.failed, want)
	}
	if want := []string{"m.TestA/b/d"}; !slices.Equal(got.passed, want) {
		t.Errorf("passed %q, want %q", got.passed, want)
	}
}
