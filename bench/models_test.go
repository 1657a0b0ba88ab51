package main

import (
	"context"
	"io"
	"testing"
	"time"
)

// The figures about read models measure what they say, however small.
func TestModelFigures(t *testing.T) {
	b := &bench{rounds: 1, out: io.Discard, log: io.Discard}
	p := modelPlan{events: 2000, keys: 100, documents: 1000, history: 2000, each: 20, asks: 5, serve: 20 * time.Millisecond, squeeze: 2000, left: 50}
	r := &modelResult{}
	for _, run := range []func(context.Context, modelPlan, *modelResult, string) error{
		b.measureProjection, b.measureSnap, b.measureAt, b.measureCompaction,
	} {
		if err := run(t.Context(), p, r, t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	for name, v := range map[string][]float64{
		"changelog": r.Changelog, "transactional": r.Transactional, "constant": r.Constant, "snap": r.Snap, "304": r.NotModified,
		"list": r.List, "list of two": r.ListTwo, "replace": r.Replace, "merge": r.Merge, "alone": r.Alone, "beside": r.Beside,
	} {
		if len(v) == 0 || v[0] <= 0 {
			t.Errorf("%s: %v", name, v)
		}
	}
	if r.Kept != 50 {
		t.Errorf("%d events are left, want one of each key", r.Kept)
	}
	if s := modelSection(p, r); len(s.rows) != 13 {
		t.Errorf("%d rows: %v", len(s.rows), s.rows)
	}
}
