package logstore

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
)

// gate is a disk on which the syncs of the manifest's journal can be held up,
// and fail.
type gate struct {
	vfs.FS
	mu   sync.Mutex
	held func() error // nil while syncs pass
}

func (g *gate) hold(fn func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = fn
}

func (g *gate) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, c)
	return g.watch(name, f, err)
}

func (g *gate) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.ReuseForWrite(from, to, c)
	return g.watch(to, f, err)
}

func (g *gate) watch(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") || path.Base(path.Dir(name)) != "state" {
		return f, err
	}
	return &gatedFile{f, g}, nil
}

type gatedFile struct {
	vfs.File
	g *gate
}

func (f *gatedFile) Sync() error { return f.pass(f.File.Sync) }

func (f *gatedFile) SyncData() error { return f.pass(f.File.SyncData) }

func (f *gatedFile) pass(sync func() error) error {
	f.g.mu.Lock()
	held := f.g.held
	f.g.mu.Unlock()
	if held != nil {
		if err := held(); err != nil {
			return err
		}
	}
	return sync()
}

// until waits for something that is bound to come.
func until(t *testing.T, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !there(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s for %s", what)
		}
	}
}

// What a compaction removes is there for readers until its removal is durable,
// and stays there if that fails. Pebble shows the batch as soon as it is in
// memory, whatever becomes of its sync.
func TestCompactShowsWhatIsDurable(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails %v", fails), func(t *testing.T) { compactHeld(t, fails) })
	}
}

func compactHeld(t *testing.T, fails bool) {
	disk := crashfs.New()
	g := &gate{FS: disk}
	s, err := Open("data", Options{FS: g, SegmentSize: minSegment})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil && !fails {
			t.Error(err)
		}
	}()
	// The first event stays, so that the others go by a rewrite, none by a trim.
	keyedEvents(t, s, "a.b", 50, "first", "a", "b", "a", "c", "b", "a", "d")
	all, left := []uint64{1, 2, 3, 4, 5, 6, 7, 8}, []uint64{1, 5, 6, 7, 8}
	mustSeal(t, s, "a.b")
	var gone event.Event
	for e, err := range s.Read(context.Background(), store.Query{Topic: "a.b", After: 1, Limit: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		gone = e
	}
	bounds, err := s.Bounds(context.Background(), "a.b")
	if err != nil {
		t.Fatal(err)
	}

	syncing, answer := make(chan struct{}), make(chan error)
	g.hold(func() error {
		g.hold(nil)
		close(syncing)
		return <-answer
	})
	done := make(chan error)
	go func() {
		_, err := s.Compact(context.Background(), "a.b", store.Compaction{Before: 9})
		done <- err
	}()
	<-syncing
	// Now Pebble itself shows the new sections.
	until(t, "the batch to be visible in Pebble", func() bool { return s.liveRow(t, keyFormat) == manifestVersion })
	check := func(when string, want []uint64) {
		t.Helper()
		if got := seqsOf(t, s, store.Query{Topic: "a.b"}); !slices.Equal(got, want) {
			t.Errorf("%s: seqs %v, want %v", when, got, want)
		}
		wantA := slices.DeleteFunc(slices.Clone(want), func(seq uint64) bool { return !slices.Contains([]uint64{2, 4, 7}, seq) })
		if got := seqsOf(t, s, store.Query{Topic: "a.b", Key: "a"}); !slices.Equal(got, wantA) {
			t.Errorf("%s: key a has %v, want %v", when, got, wantA)
		}
		seq, err := s.LocateID(context.Background(), "a.b", gone.ID)
		if there := slices.Contains(want, gone.Seq); there != (err == nil && seq == gone.Seq) {
			t.Errorf("%s: the id of seq %d is at %d, %v", when, gone.Seq, seq, err)
		}
	}
	check("while the batch is synced", all)
	if !fails {
		answer <- nil
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		check("after the compaction", left)
		return
	}
	answer <- crashfs.ErrInjected
	if err := <-done; !errors.Is(err, crashfs.ErrInjected) || !errors.Is(err, store.ErrFailed) {
		t.Errorf("the compaction: %v; want %q with the cause", err, store.ErrFailed)
	}
	check("after the compaction has failed", all)
	if b, err := s.Bounds(context.Background(), "a.b"); err != nil || b != bounds {
		t.Errorf("bounds %+v, %v; before they were %+v", b, err, bounds)
	}
	if _, err := s.Compact(context.Background(), "a.b", store.Compaction{Before: 9}); !errors.Is(err, store.ErrFailed) {
		t.Errorf("another compaction: %v", err)
	}
	check("after another compaction", all)
	again, err := Open("data", Options{FS: disk.Remains(0), SegmentSize: minSegment})
	if err != nil {
		t.Fatal(err)
	}
	if got := seqsOf(t, again, store.Query{Topic: "a.b"}); !slices.Equal(got, all) {
		t.Errorf("after a crash: seqs %v, want %v", got, all)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// mustSeal seals a topic's events, and lets go of the mems that hold them.
func mustSeal(t testing.TB, s *Store, topic string) {
	t.Helper()
	s.mu.RLock()
	tp, last := s.topics[topic], s.topics[topic].last
	s.mu.RUnlock()
	if err := s.sealThrough(context.Background(), tp, last); err != nil {
		t.Fatal(err)
	}
	s.WaitTidy()
}

// liveRow gives a number of the manifest as Pebble shows it, durable or not.
func (s *Store) liveRow(t testing.TB, key []byte) uint64 {
	t.Helper()
	live := Store{db: &rows{DB: s.db.DB}}
	n, err := live.manifestNum(key)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
