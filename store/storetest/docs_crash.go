package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"promethean/store"
)

// DocsCrashHarness tells the crash suites about documents how to get at an
// engine, which must be one that Transacts.
type DocsCrashHarness[F CrashFS[F]] struct {
	// Name is the engine's, for messages.
	Name string
	// New gives an empty disk.
	New func() F
	// Open opens the store on a disk. It should write out what it keeps in
	// memory so often that some dozens of commits take it through everything.
	Open func(fs F) (DocsEngine, error)
	// Check verifies all files of a store that is not open. Default nil: none.
	Check func(fs F) error
}

// DocsCrash cuts a workload off at its k-th change of the disk, for k from 1 to
// the end, opens the disks that may be left, and checks that
//
//   - place and documents of each reader fit each other: they are those of some
//     moment, which is not before the last Sync, and the indexes, counts and
//     remembered deletions are of that moment too;
//   - Replace was done as a whole or not at all;
//   - the store goes on from there, and survives a second crash.
func DocsCrash[F CrashFS[F]](t *testing.T, h DocsCrashHarness[F], o CrashOptions) {
	o = o.withDefaults()
	run := docsRun[F]{h: h, o: o}
	fs := h.New()
	if err := run.play(fs, true); err != nil {
		t.Fatalf("%s: without a crash: %v", h.Name, err)
	}
	total, failures := fs.Changes(), 0
	points := o.points(total)
	for _, k := range points {
		if err := run.crash(k); err != nil {
			t.Errorf("%s, seed %d, crash at change %d of about %d: %v", h.Name, o.Seed, k, total, err)
			if failures++; failures == mostFailures {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d crashes over %d changes, %d disks each", len(points), total, o.Images)
}

// DocsFaults runs the workload on a disk whose k-th write or sync fails, once or
// from then on, and checks that
//
//   - a call that fails names the cause, is half done by nothing, and what was
//     visible can still be read;
//   - after the cause is gone, and after a crash at that moment, the store opens
//     as after a crash.
func DocsFaults[F CrashFS[F]](t *testing.T, h DocsCrashHarness[F], o CrashOptions) {
	o = o.withDefaults()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			run := docsRun[F]{h: h, o: o}
			fs := h.New()
			if err := run.play(fs, true); err != nil {
				t.Fatalf("%s: without trouble: %v", h.Name, err)
			}
			fired, failures := 0, 0
			for _, k := range o.points(fs.Changes()) {
				hit, err := run.fail(f, k)
				if err != nil {
					t.Errorf("%s, seed %d, at such operation number %d: %v", h.Name, o.Seed, k, err)
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
		})
	}
}

// docsRun is a workload, and a book of the moments that a store has been in.
type docsRun[F CrashFS[F]] struct {
	h DocsCrashHarness[F]
	o CrashOptions

	m       *docsModel
	moments []*DocsReference // before the first step, and after each
	durable int              // the last one that must not be lost
}

func (w *docsRun[F]) reset() {
	w.m = &docsModel{ref: NewDocsReference(), ctx: context.Background()}
	w.moments, w.durable = []*DocsReference{w.m.ref.Clone()}, 0
}

func (w *docsRun[F]) open(fs F) (e DocsEngine, err error) {
	err = inTime("Open", func() (err error) {
		e, err = w.h.Open(fs)
		return err
	})
	return e, err
}

// play works on an empty disk until it is done or there is trouble.
func (w *docsRun[F]) play(fs F, crash bool) error {
	w.reset()
	e, err := w.open(fs)
	if err != nil {
		return err
	}
	e, err = w.work(fs, e, newRand(w.o.Seed, 0), w.o.Steps, crash)
	if e != nil {
		err = errors.Join(err, inTime("Close", e.Close))
	}
	return err
}

// work makes steps. Where crash is set they are over when the power has failed:
// what a store says after that is heard by nobody. The engine it gives back is
// nil if none is open.
func (w *docsRun[F]) work(fs F, e DocsEngine, rng *rand.Rand, steps int, crash bool) (DocsEngine, error) {
	for range steps {
		switch n := rng.IntN(12); {
		case n == 0:
			err := inTime("Sync", func() error { return e.Sync(w.m.ctx) })
			if crash && fs.Fired() {
				return e, nil
			}
			if err != nil {
				return e, err
			}
			w.durable = len(w.moments) - 1
		case n == 1 && rng.IntN(3) == 0:
			if err := inTime("Close", e.Close); err != nil {
				return nil, err
			}
			if crash && fs.Fired() {
				return nil, nil
			}
			// Close need not be a Sync for the crash that comes later.
			var err error
			if e, err = w.open(fs); err != nil {
				return nil, err
			}
		default:
			x := w.m.next(rng)
			_, wantErr := x.do(w.m.ref)
			w.moments = append(w.moments, w.m.ref.Clone()) // it may be found even if nobody hears of it
			var err error
			if hung := inTime(x.what, func() error { _, err = x.do(e); return nil }); hung != nil {
				return e, hung
			}
			if crash && fs.Fired() {
				return e, nil
			}
			if kindOf(err) != kindOf(wantErr) {
				return e, fmt.Errorf("%s: %w; want %w", x.what, orNone(err), orNone(wantErr))
			}
			if err == nil && x.what == "replace r by r~next" {
				w.durable = len(w.moments) - 1
			}
		}
	}
	return e, nil
}

var errNone = errors.New("no error")

func orNone(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// crash runs the workload up to change k and judges what is left.
func (w *docsRun[F]) crash(k int) error {
	fs := w.h.New()
	fs.CrashAt(k, k%2 == 0)
	if err := w.play(fs, true); err != nil {
		return err
	}
	ref, moments, durable, seq := w.m.ref, w.moments, w.durable, w.m.seq
	for i := range w.o.Images {
		w.m.ref, w.moments, w.durable, w.m.seq = ref, slices.Clone(moments), durable, seq
		seed := uint64(i)
		if i > 1 {
			seed += uint64(k) * 100
		}
		if err := w.aftermath(fs.Remains(seed), seed); err != nil {
			return fmt.Errorf("disk with seed %d: %w", seed, err)
		}
	}
	return nil
}

// aftermath opens what a crash has left, judges it, goes on working, and
// crashes again.
func (w *docsRun[F]) aftermath(fs F, seed uint64) error {
	rng := newRand(w.o.Seed, seed)
	e, err := w.open(fs)
	if err != nil {
		return err
	}
	if err := w.settle(e); err != nil {
		return errors.Join(err, inTime("Close", e.Close))
	}
	fs.CrashAt(1+rng.IntN(60), true)
	e, err = w.work(fs, e, rng, 12, true)
	if e != nil {
		err = errors.Join(err, inTime("Close", e.Close))
	}
	if err != nil {
		return fmt.Errorf("after the first crash: %w", err)
	}
	left := fs.Remains(rng.Uint64N(6))
	if e, err = w.open(left); err != nil {
		return fmt.Errorf("after a second crash: %w", err)
	}
	err = errors.Join(w.settle(e), inTime("Close", e.Close))
	if err == nil && w.h.Check != nil {
		err = w.h.Check(left)
	}
	if err != nil {
		return fmt.Errorf("after a second crash: %w", err)
	}
	return nil
}

// settle finds the moment that each reader is in, and goes on from there.
func (w *docsRun[F]) settle(d store.Docs) error {
	now := NewDocsReference()
	for _, name := range modelReaders {
		got := digestReader(w.m.ctx, d, name)
		at := len(w.moments)
		for at--; at >= w.durable; at-- {
			if digestReader(w.m.ctx, w.moments[at], name) == got {
				break
			}
		}
		if at < w.durable {
			return broken("reader %s is in none of its %d last moments:\n%s\nthe last was\n%s\nthe durable one\n%s", name, len(w.moments)-w.durable, got,
				digestReader(w.m.ctx, w.moments[len(w.moments)-1], name), digestReader(w.m.ctx, w.moments[w.durable], name))
		}
		if r := w.moments[at].readers[name]; r != nil {
			now.readers[name] = r.clone()
		}
	}
	w.m.ref = now
	// What an open has found is not lost any more, unless it is changed.
	if err := d.Sync(w.m.ctx); err != nil {
		return err
	}
	w.moments, w.durable = []*DocsReference{now.Clone()}, 0
	for i := range 8 {
		if err := w.m.ask(d, newRand(w.o.Seed, uint64(i))); err != nil {
			return err
		}
	}
	return nil
}

// fail runs the workload into a fault and judges the store afterwards. It says
// whether there was a fault at all.
func (w *docsRun[F]) fail(f fault, k int) (hit bool, err error) {
	fs := w.h.New()
	w.reset()
	arm(fs, f, k)
	e, failed := w.open(fs)
	if failed == nil {
		before := w.m.ref
		e, failed = w.workUntil(fs, e, &before)
		if failed != nil && !errors.Is(failed, f.err) || errors.Is(failed, errBroken) {
			return true, fmt.Errorf("a call failed without naming the cause %q: %w", f.err.Error(), failed)
		}
		if e != nil {
			if failed != nil {
				w.m.ref = before
				if err := w.m.compare(e); err != nil {
					return true, fmt.Errorf("after %q: %w", failed.Error(), err)
				}
			}
			if err := inTime("Close", e.Close); errors.Is(err, errBroken) {
				return true, err
			}
		}
	} else if !errors.Is(failed, f.err) {
		return true, fmt.Errorf("open without naming the cause %q: %w", f.err.Error(), failed)
	}
	hit = fs.Fired()
	left := []F{fs.Remains(0), fs.Remains(1), fs.Remains(uint64(k) + 2)}
	fs.Disarm()
	moments, durable := w.moments, w.durable
	for i, disk := range append(left, fs) {
		w.moments, w.durable = slices.Clone(moments), durable
		e, err := w.open(disk)
		if err == nil {
			err = errors.Join(w.settle(e), inTime("Close", e.Close))
		}
		if err == nil && w.h.Check != nil {
			err = w.h.Check(disk)
		}
		if err != nil {
			return hit, fmt.Errorf("%s: %w", []string{"after a crash, nothing kept", "after a crash, all kept", "after a crash", "opened again"}[i], err)
		}
	}
	return hit, nil
}

// arm lets a fault come.
func arm[F CrashFS[F]](fs F, f fault, k int) {
	if f.name == "full disk" || f.name == "one failing write" {
		fs.FailWrite(k, f.sticky, f.err)
	} else {
		fs.FailSync(k, f.sticky, f.err)
	}
}

// workUntil works until a call fails. before is the reference without that call.
func (w *docsRun[F]) workUntil(fs F, e DocsEngine, before **DocsReference) (DocsEngine, error) {
	rng := newRand(w.o.Seed, 0)
	for range w.o.Steps {
		*before = w.m.ref.Clone()
		var err error
		if e, err = w.work(fs, e, rng, 1, false); err != nil {
			return e, err
		}
	}
	return e, nil
}
