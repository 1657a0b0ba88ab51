package storetest

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"promethean/event"
	"promethean/store"
)

// fault is one way in which a disk fails.
type fault struct {
	name   string
	arm    func(d disk, k int, sticky bool, err error)
	err    error
	sticky bool
}

var faults = []fault{
	{"full disk", disk.FailWrite, syscall.ENOSPC, true},
	{"one failing write", disk.FailWrite, syscall.EIO, false},
	{"failing syncs", disk.FailSync, syscall.EIO, true},
	{"one failing sync", disk.FailSync, syscall.EIO, false},
}

// Faults runs the workload of one caller on a disk whose k-th write or sync
// fails, for k from 1 to the end: once, or from then on. It checks that
//
//   - a call that fails names the cause, and after an Append has failed so,
//     all later ones fail with store.ErrFailed and the cause;
//   - whatever was visible can still be read from the store that failed, and
//     all its reads agree with each other;
//   - after the cause is gone, the store opens on the same disk with all that
//     was acknowledged, and so it does after a crash at that moment. A sync
//     that failed has saved nothing, even if a later one succeeds.
func Faults[F CrashFS[F]](t *testing.T, h CrashHarness[F], o CrashOptions) {
	o = o.withDefaults()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) { failAll(t, h, f, o) })
	}
}

// failAll lets one kind of fault happen everywhere.
func failAll[F CrashFS[F]](t testing.TB, h CrashHarness[F], f fault, o CrashOptions) {
	d := h.disk(h.New())
	w := workload{f.name, 1, o}
	if _, err := w.run(d); err != nil {
		t.Fatalf("%s: without trouble: %v", h.Name, err)
	}
	fired, failures := 0, 0
	// How many operations of this kind there are is not known; the number of
	// all changes is more, and beyond the last one nothing fires.
	for _, k := range o.points(d.Changes()) {
		d := h.disk(h.New())
		hit, err := w.fail(d, f, k)
		if err != nil {
			t.Errorf("%s, %s, seed %d, at such operation number %d: %v", h.Name, f.name, o.Seed, k, err)
			if failures++; failures == mostFailures {
				t.Fatal("and so on")
			}
		}
		if !hit {
			break
		}
		fired++
	}
	t.Logf("%d places", fired)
}

// fail runs the workload into a fault and judges the store afterwards. It says
// whether there was a fault at all.
func (w workload) fail(d disk, f fault, k int) (hit bool, err error) {
	f.arm(d, k, f.sticky, f.err)
	book := newLedger()
	e, err := d.open()
	if err == nil {
		r := &rig{d: d, e: e, book: book}
		a := newActor(r, "fault", newRand(w.o.Seed, 0), true)
		failed := a.play(w.o.Steps)
		if errors.Is(failed, errBroken) {
			return true, failed
		}
		// The actor may have closed the store, or be left with none open.
		if failed != nil && !errors.Is(failed, f.err) {
			return true, fmt.Errorf("a call failed without naming the cause %q: %w", f.err.Error(), failed)
		}
		if failed != nil && !errors.Is(failed, store.ErrClosed) {
			if err := w.stillReads(r, failed, f.err); err != nil {
				return true, errors.Join(err, shut(r.engine()))
			}
		}
		_ = shut(r.engine()) // it may fail with the cause
	} else if !errors.Is(err, f.err) {
		return true, fmt.Errorf("without naming the cause %q: %w", f.err.Error(), err)
	}
	crashed := []disk{d.remains(0), d.remains(1), d.remains(uint64(k) + 2)}
	hit = d.Fired()
	d.Disarm()
	for i, left := range append(crashed, d) {
		e, err := left.open()
		if err == nil {
			err = book.clone().settleUp(e)
			err = errors.Join(err, shut(e))
		}
		if err != nil {
			return hit, fmt.Errorf("%s: %w", []string{"after a crash, nothing kept", "after a crash, all kept", "after a crash", "opened again"}[i], err)
		}
	}
	return hit, nil
}

// stillReads tries a store that has failed: it shows what it showed, and takes
// nothing more where it is an Append that failed.
func (w workload) stillReads(r *rig, failed, cause error) error {
	e := r.engine()
	_, err := e.Bounds(context.Background(), shared)
	if errors.Is(err, store.ErrClosed) {
		return nil // it failed while it was being closed or opened
	}
	if err := r.observe(); err != nil {
		return fmt.Errorf("a read after %q: %w", failed.Error(), err)
	}
	c, err := readContents(e)
	if err != nil {
		return fmt.Errorf("reads after %q: %w", failed.Error(), err)
	}
	for name, n := range r.book.topics {
		there := make(map[uint64]bool)
		for _, ev := range c.logs[name] {
			there[ev.Seq] = true
		}
		for seq := range n.seen {
			if _, may := n.compacted[seq]; !may && seq >= n.mayTrim && !there[seq] {
				return broken("topic %s: seq %d was visible, and cannot be read after %q", name, seq, failed)
			}
		}
	}
	if !errors.Is(failed, errAppend) {
		return nil
	}
	for range 3 {
		_, err := e.Append(context.Background(), store.Batch{Events: []event.Event{note(shared, 0)}})
		if !errors.Is(err, store.ErrFailed) || !errors.Is(err, cause) {
			return broken("append after %q: %v; want %q with the cause", failed, err, store.ErrFailed)
		}
	}
	return nil
}
