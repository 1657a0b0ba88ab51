package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// CrashFS is a disk that crashes and fails on command. The disk of package
// internal/crashfs is one; F is its own type.
type CrashFS[F any] interface {
	// Changes counts the operations so far that change something.
	Changes() int
	// CrashAt lets the power fail at the k-th change from now: it and all
	// later ones are not on the disks that Remains gives. Nobody is told, the
	// calls succeed, so that an engine is judged by what it did before and
	// not by how it takes errors. Where partly is set and the change is a
	// write, some of its sectors are written.
	CrashAt(k int, partly bool)
	// FailWrite and FailSync let the k-th write or sync from now fail with
	// err, and all later ones too where sticky is set.
	FailWrite(k int, sticky bool, err error)
	FailSync(k int, sticky bool, err error)
	// Disarm ends the trouble, unless it was a crash.
	Disarm()
	// Fired says whether the k-th operation has come.
	Fired() bool
	// Remains gives a disk as it may be found after a crash at this moment.
	// Seed 0 keeps nothing that was not synced, seed 1 keeps all of it.
	Remains(seed uint64) F
	// Paths lists all files, Size gives the length of one, and Flip changes
	// the bits in mask of one byte.
	Paths() []string
	Size(path string) int64
	Flip(path string, offset int64, mask byte) error
}

// CrashHarness tells the crash suites how to get at an engine.
type CrashHarness[F CrashFS[F]] struct {
	// Name is the engine's, for messages.
	Name string
	// New gives an empty disk.
	New func() F
	// Open opens the store on a disk. Its files should be so small that some
	// dozens of batches of a few kilobytes take it through everything it does
	// with them.
	Open func(fs F) (Engine, error)
	// Foreign says that a file is not in a format of the engine's own: damage
	// to it may show as any error. Default: none is.
	Foreign func(path string) bool
	// Settled waits until everything that was acknowledged is also known to
	// be durable by the files themselves, so that damage to it can be told
	// from a torn tail. Default nil: Rot tries damage only after a clean
	// Close.
	Settled func(e Engine)
}

// CrashOptions say how thorough the crash suites are. The zero value is meant
// for every run of the tests; with PROMETHEAN_CRASH=long in the environment the
// defaults become exhaustive.
type CrashOptions struct {
	// Points is how many places of each workload are tried, spread over it.
	// Default 75; long: all.
	Points int
	// Images is how many disks are tried for each place. Default 3; long: 8.
	Images int
	// Steps is the length of the workloads. Default 120.
	Steps int
	// Seed chooses the workloads. Default 1.
	Seed uint64
	// At tries one place only, such as one that a failure has named. Default
	// 0: all.
	At int
}

// all is more points than any workload has changes.
const all = 1 << 30

func (o CrashOptions) withDefaults() CrashOptions {
	long := os.Getenv("PROMETHEAN_CRASH") == "long"
	if o.Points == 0 {
		o.Points = 75
		if long {
			o.Points = all
		}
	}
	if o.Images == 0 {
		o.Images = 3
		if long {
			o.Images = 8
		}
	}
	o.Steps = cmp.Or(o.Steps, 120)
	o.Seed = cmp.Or(o.Seed, 1)
	return o
}

// points gives the places from 1 to total that are tried.
func (o CrashOptions) points(total int) (list []int) {
	if o.At != 0 {
		return []int{o.At}
	}
	n := min(o.Points, total)
	for i := range n {
		list = append(list, 1+i*total/n)
	}
	return list
}

// disk is a CrashFS together with the way to open a store on it, without the
// type parameter.
type disk interface {
	Changes() int
	CrashAt(k int, partly bool)
	FailWrite(k int, sticky bool, err error)
	FailSync(k int, sticky bool, err error)
	Disarm()
	Fired() bool
	Paths() []string
	Size(path string) int64
	Flip(path string, offset int64, mask byte) error

	remains(seed uint64) disk
	open() (Engine, error)
}

type typedDisk[F CrashFS[F]] struct {
	CrashFS[F]
	h  *CrashHarness[F]
	fs F
}

func (h *CrashHarness[F]) disk(fs F) disk { return typedDisk[F]{CrashFS: fs, h: h, fs: fs} }

func (d typedDisk[F]) remains(seed uint64) disk { return d.h.disk(d.fs.Remains(seed)) }

func (d typedDisk[F]) open() (Engine, error) {
	opened := make(chan Engine, 1)
	err := inTime("Open", func() error {
		e, err := d.h.Open(d.fs)
		opened <- e
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return <-opened, nil
}

// Crash cuts a workload off at its k-th change of the disk, for k from 1 to
// the end, opens the disks that may be left, and checks that
//
//   - what was acknowledged is there once, at its seq, with its content, and
//     groups are where settlements put them;
//   - whatever was visible to a reader is there too;
//   - of what was under way, each batch is there as a whole, over topics and
//     with its settlement, or not at all, and does not come back later;
//   - seqs have no gaps but where events were superseded and a compaction was
//     to remove them, and none holds another event than before; what a finished
//     compaction removed does not come back;
//   - indexes by id and key agree with the log;
//   - the store takes retries and new events, and survives a second crash, in
//     the middle of recovery and after it.
//
// One workload is a single caller's and also closes and opens the store; the
// other has several callers at once and a reader.
func Crash[F CrashFS[F]](t *testing.T, h CrashHarness[F], o CrashOptions) {
	o = o.withDefaults()
	for _, w := range workloads(o) {
		t.Run(w.name, func(t *testing.T) { crashAll(t, h, w) })
	}
}

func workloads(o CrashOptions) []workload {
	return []workload{{"one caller", 1, o}, {"several callers", 4, o}}
}

// crashAll cuts one workload off everywhere.
func crashAll[F CrashFS[F]](t testing.TB, h CrashHarness[F], w workload) {
	d := h.disk(h.New())
	if _, err := w.run(d); err != nil {
		t.Fatalf("%s: without a crash: %v", h.Name, err)
	}
	total := d.Changes()
	points := w.o.points(total)
	failures := 0
	for _, k := range points {
		if err := w.crash(h.disk(h.New()), k); err != nil {
			t.Errorf("%s, %s, seed %d, crash at change %d of about %d: %v", h.Name, w.name, w.o.Seed, k, total, err)
			if failures++; failures == mostFailures {
				t.Fatal("and so on")
			}
		}
	}
	t.Logf("%d crashes over %d changes, %d disks each", len(points), total, w.o.Images)
}

// mostFailures is how many failures a suite reports before it gives up: they
// tend to have one cause.
const mostFailures = 3

// workload is what a store is doing when the trouble comes.
type workload struct {
	name   string
	actors int
	o      CrashOptions
}

// crash runs the workload up to change k and judges what is left.
func (w workload) crash(d disk, k int) error {
	d.CrashAt(k, k%2 == 0)
	book, err := w.run(d)
	if err != nil {
		return err
	}
	for i := range w.o.Images {
		// The two extremes come first, then seeds that differ with k.
		seed := uint64(i)
		if i > 1 {
			seed += uint64(k) * 100
		}
		if err := w.aftermath(d.remains(seed), book.clone(), seed, i%3 == 2); err != nil {
			return fmt.Errorf("disk with seed %d: %w", seed, err)
		}
	}
	return nil
}

// aftermath opens what a crash has left, judges it, goes on working, and
// crashes again.
func (w workload) aftermath(d disk, book *ledger, seed uint64, early bool) error {
	rng := newRand(w.o.Seed, ^seed) // no actor of the workload has these numbers
	if early {                      // in the middle of recovery
		d.CrashAt(1+rng.IntN(40), true)
		e, err := d.open()
		if err != nil {
			return err
		}
		if err := shut(e); err != nil {
			return err
		}
		d = d.remains(rng.Uint64N(6))
	}
	e, err := d.open()
	if err != nil {
		return err
	}
	if err := book.settleUp(e); err != nil {
		return errors.Join(err, shut(e))
	}
	d.CrashAt(1+rng.IntN(60), true)
	if err := w.goOn(d, e, book, rng); err != nil {
		return fmt.Errorf("after the first crash: %w", err)
	}
	if e, err = d.remains(rng.Uint64N(6)).open(); err != nil {
		return fmt.Errorf("after a second crash: %w", err)
	}
	if err := book.settleUp(e); err != nil {
		return errors.Join(fmt.Errorf("after a second crash: %w", err), shut(e))
	}
	return shut(e)
}

// run works on an empty disk until it is done or the power fails, and gives
// the book of what happened up to then.
func (w workload) run(d disk) (*ledger, error) {
	book := newLedger()
	e, err := d.open()
	if err != nil {
		return nil, err
	}
	r := &rig{d: d, e: e, book: book, crash: true}
	var crew []*actor
	for i := range w.actors {
		crew = append(crew, newActor(r, fmt.Sprintf("crash%d", i), newRand(w.o.Seed, uint64(i)), w.actors == 1))
	}
	return book, r.play(crew, w.o.Steps/w.actors)
}

// goOn has a new caller work on a store that was recovered.
func (w workload) goOn(d disk, e Engine, book *ledger, rng *rand.Rand) error {
	r := &rig{d: d, e: e, book: book, crash: true}
	a := newActor(r, fmt.Sprintf("later%d", rng.IntN(1000)), rng, true)
	return r.play([]*actor{a}, 10)
}

// rig is a store under load.
type rig struct {
	d     disk
	book  *ledger
	crash bool // the trouble, if any, is a crash

	mu sync.Mutex
	e  Engine // changes when the one caller reopens
}

func (r *rig) engine() Engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.e
}

// play lets the actors work until they are done or the power fails, and closes
// the store.
func (r *rig) play(crew []*actor, steps int) error {
	errs := make([]error, len(crew)+1)
	var actors, watcher sync.WaitGroup
	done := make(chan struct{})
	if len(crew) > 1 {
		watch := r.e.Watch()
		watcher.Go(func() {
			defer watch.Stop()
			for {
				select {
				case <-watch.C:
				case <-done:
					return
				}
				if errs[len(crew)] = r.observe(); errs[len(crew)] != nil {
					return
				}
			}
		})
	}
	for i, a := range crew {
		actors.Go(func() { errs[i] = a.play(steps) })
	}
	actors.Wait()
	close(done)
	watcher.Wait()
	errs = append(errs, shut(r.engine()))
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, errOver) })...)
}

// errOver ends a workload when the power has failed.
var errOver = errors.New("the power has failed")

// over is asked after each call and before its answer is noted: what a store
// says after the power has failed is heard by nobody.
func (r *rig) over() error {
	if r.crash && r.d.Fired() {
		return errOver
	}
	return nil
}

// observe looks at the store as a reader does.
func (r *rig) observe() error { return r.book.observe(r.engine(), r.over) }

// shut closes a store.
func shut(e Engine) error { return inTime("Close", e.Close) }

// inTime turns a call that hangs into an error, so that the place where it
// does is named.
func inTime(name string, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%w: %s hangs", errBroken, name)
	}
}
