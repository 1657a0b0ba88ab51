package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"promethean/store"
)

func smallHistory() historyPlan {
	return historyPlan{
		Events: 2_000, TailEvents: 500, TailTime: time.Millisecond, Scans: 2, CrashEvents: 200,
		Load: load{Publishers: 8, Batch: 1, Topics: 4, Keys: 50},
	}
}

func TestHistory(t *testing.T) {
	withPlain(t)
	b, _ := newBench(t)
	h, err := b.measureHistory(t.Context(), smallHistory())
	if err != nil {
		t.Fatal(err)
	}
	if len(h.clean) != 2 || h.clean[0].Scanned < 400 || len(h.fill.Tail) == 0 || h.acked < 200 || h.peakRSS() == 0 {
		t.Errorf("%+v", h)
	}
	var text bytes.Buffer
	historySection(h).text(&text)
	for _, want := range []string{"2.0k events, 4 topics", "last tenth ÷ first", "opening after a kill", "files dropped"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if left, err := os.ReadDir(b.work); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestHistorySeesWhatIsMissing(t *testing.T) {
	for fault, want := range map[string]string{
		faultSkip: "has seq",              // an event inside a topic
		faultLose: "events after opening", // the newest one, after a clean close
	} {
		t.Run(fault, func(t *testing.T) {
			withPlain(t, fault)
			b, _ := newBench(t)
			if _, err := b.measureHistory(t.Context(), smallHistory()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

func TestChildIsKilledWithItsContext(t *testing.T) {
	withPlain(t)
	c, err := startChild("crash", crashOrder{Dir: t.TempDir(), Load: load{Publishers: 1, Batch: 1}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var r crashReport
	for r.Acked == 0 {
		if err := c.hear(ctx, &r); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	for err == nil {
		err = c.hear(ctx, &r) // lines that were under way may still come
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	select {
	case <-c.done:
	default:
		t.Error("the child is still there")
	}
}

func TestChildThatFails(t *testing.T) {
	withPlain(t)
	if _, err := ask[openResult](t.Context(), "open", openOrder{Dir: "/nonexistent/dir"}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
	if _, err := ask[openResult](t.Context(), "nobody", nil); err == nil || !strings.Contains(err.Error(), "no role") {
		t.Errorf("got %v", err)
	}
}

func TestPeakMemory(t *testing.T) {
	debug.FreeOSMemory() // what is allocated below must not be memory that is held already
	before, err := residentBytes()
	if err != nil {
		t.Skip(err)
	}
	peak := watchMemory()
	big := make([]byte, 64<<20)
	for i := 0; i < len(big); i += 4096 {
		big[i] = 1
	}
	got, err := peak()
	if err != nil || got < before+32<<20 {
		t.Errorf("peak %d after %d: %v", got, before, err)
	}
	if big[4096] != 1 { // keeps the memory in use up to here
		t.Error("memory was lost")
	}
}

// wasteful allocates twice for each append.
type wasteful struct{ store.Log }

var sink [2][]byte

func (wasteful) Append(context.Context, store.Batch) ([]store.Appended, error) {
	sink[0], sink[1] = make([]byte, 16), make([]byte, 48)
	return nil, nil
}

func TestAllocations(t *testing.T) {
	got, err := countAllocs(t.Context(), wasteful{}, 10, 2_000)
	if err != nil {
		t.Fatal(err)
	}
	if got.Allocs < 2 || got.Allocs > 2.2 || got.Bytes < 64 || got.Bytes > 90 {
		t.Errorf("%+v, want 2 allocations of 64 bytes together", got)
	}
}
