package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"testing"

	"promethean/store"
)

// Rot damages single bytes of the files of a store and checks that this is
// noticed or does not matter: what can be read is exactly what was stored, or
// there is an error, store.ErrCorrupt with file and offset where the file is
// the engine's own. It tries the files after a clean Close and, where the
// harness can settle a store, those that a crash leaves.
//
// CrashOptions.Points is the number of bytes that are damaged; long tries all
// of them, and every seventh of files that are not the engine's own.
func Rot[F CrashFS[F]](t *testing.T, h CrashHarness[F], o CrashOptions) {
	t.Run("after a clean close", func(t *testing.T) { rotAfterClose(t, h, o) })
	t.Run("after a crash", func(t *testing.T) { rotAfterCrash(t, h, o) })
}

// forRot gives the options their defaults for this suite: a smaller store, of
// which more places are tried.
func (o CrashOptions) forRot() CrashOptions {
	if o.Points == 0 && os.Getenv("PROMETHEAN_CRASH") != "long" {
		o.Points = 150
	}
	o.Steps = cmp.Or(o.Steps, 40)
	return o.withDefaults()
}

func rotAfterClose[F CrashFS[F]](t testing.TB, h CrashHarness[F], o CrashOptions) {
	o = o.forRot()
	d := h.disk(h.New())
	if _, err := (workload{"rot", 1, o}).run(d); err != nil {
		t.Fatal(err)
	}
	rot(t, h.Name, d.remains(1), h.Foreign, o)
}

func rotAfterCrash[F CrashFS[F]](t testing.TB, h CrashHarness[F], o CrashOptions) {
	if h.Settled == nil {
		t.Skipf("%s: the harness has no Settled", h.Name)
	}
	o = o.forRot()
	d := h.disk(h.New())
	e, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	a := newActor(&rig{d: d, e: e, book: newLedger()}, "rot", newRand(o.Seed, 0), true)
	if err := a.play(o.Steps); err != nil {
		t.Fatal(err)
	}
	h.Settled(a.r.engine())
	left := d.remains(1)
	if err := shut(a.r.engine()); err != nil {
		t.Fatal(err)
	}
	rot(t, h.Name, left, h.Foreign, o)
}

// spot is one byte of a disk.
type spot struct {
	path   string
	offset int64
}

// spots chooses the bytes that are damaged: of each file some at the start and
// at the end, where headers and trailers are, and others at random.
func spots(d disk, foreign func(string) bool, o CrashOptions) (list []spot) {
	paths := slices.DeleteFunc(d.Paths(), func(p string) bool { return d.Size(p) == 0 })
	rng := newRand(o.Seed, 1)
	for _, p := range paths {
		size := d.Size(p)
		if o.Points == all {
			step := int64(1)
			if foreign(p) {
				step = 7
			}
			for off := int64(0); off < size; off += step {
				list = append(list, spot{p, off})
			}
			continue
		}
		share := max(3, o.Points/len(paths))
		for i := range share {
			off := rng.Int64N(size)
			switch i % 4 {
			case 0:
				off = rng.Int64N(min(size, 64))
			case 1:
				off = size - 1 - rng.Int64N(min(size, 64))
			}
			list = append(list, spot{p, off})
		}
	}
	return list
}

func rot(t testing.TB, name string, d disk, foreign func(string) bool, o CrashOptions) {
	if foreign == nil {
		foreign = func(string) bool { return false }
	}
	want, err := contentsOf(d.remains(1))
	if err != nil {
		t.Fatalf("%s: without damage: %v", name, err)
	}
	noticed, failures := 0, 0
	list := spots(d, foreign, o)
	rng := newRand(o.Seed, 2)
	for _, s := range list {
		mask := byte(1) << rng.IntN(8)
		if rng.IntN(4) == 0 {
			mask = 0xff
		}
		hurt := d.remains(1)
		if err := hurt.Flip(s.path, s.offset, mask); err != nil {
			t.Fatal(err)
		}
		got, err := contentsOf(hurt)
		if err != nil {
			noticed++
			err = complaint(err, s, d.Size(s.path), foreign(s.path))
		} else {
			err = got.equals(want)
		}
		if err != nil {
			t.Errorf("%s, seed %d: file %s of %d bytes, byte %d damaged by %#02x: %v", name, o.Seed, s.path, d.Size(s.path), s.offset, mask, err)
			if failures++; failures == mostFailures {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d of %d damaged bytes were noticed, the others did not matter", noticed, len(list))
}

// contentsOf opens the store on d and reads everything. A promise that is
// broken is not an error that notices damage.
func contentsOf(d disk) (*contents, error) {
	e, err := d.open()
	if err != nil {
		return nil, err
	}
	c, err := readContents(e)
	if err := shut(e); err != nil && errors.Is(err, store.ErrClosed) {
		return nil, broken("close: %v", err)
	}
	return c, err
}

// complaint says what is wrong with the error that a damaged byte has caused.
func complaint(err error, s spot, size int64, foreign bool) error {
	var corrupt *store.CorruptError
	switch {
	case errors.Is(err, errBroken):
		return err
	case foreign:
		return nil
	case !errors.As(err, &corrupt) || !errors.Is(err, store.ErrCorrupt):
		return fmt.Errorf("want %q with file and offset: %w", store.ErrCorrupt.Error(), err)
	case path.Base(corrupt.File) != path.Base(s.path):
		return fmt.Errorf("the error names file %s: %w", corrupt.File, err)
	case corrupt.Offset < 0 || corrupt.Offset > size:
		return fmt.Errorf("the error names offset %d: %w", corrupt.Offset, err)
	}
	return nil
}

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
