package logstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
	"promethean/store/logstore"
)

// small makes a store seal, fold and merge within one test.
func small(fs vfs.FS) logstore.Options {
	return logstore.Options{FS: fs, SegmentSize: 64 << 10, Limits: event.Limits{Payload: 8 << 10}}
}

func open(t testing.TB, o logstore.Options) *logstore.Store {
	t.Helper()
	s, err := logstore.Open("data", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// fill appends n events of about size bytes to each topic, in turns.
func fill(t testing.TB, s store.Log, n, size int, topics ...string) {
	t.Helper()
	payload := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
	for i := range n {
		var b store.Batch
		for _, topic := range topics {
			e := event.New(topic, payload)
			e.Key = fmt.Sprint("k", i%10)
			b.Events = append(b.Events, e)
		}
		if _, err := s.Append(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func bounds(t testing.TB, s store.Log, topic string) store.Bounds {
	t.Helper()
	b, err := s.Bounds(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// usage is what the store's own files take, the manifest left out.
func usage(t testing.TB, fs vfs.FS) (n int64) {
	t.Helper()
	files, err := crashfs.Files(fs, "data")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.Contains(f, "state") {
			continue
		}
		st, err := fs.Stat(f)
		if err != nil {
			continue // removed meanwhile
		}
		n += st.Size()
	}
	return n
}

func TestOneProcessAtATime(t *testing.T) {
	dir := t.TempDir()
	s, err := logstore.Open(dir, logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := logstore.Open(dir, logstore.Options{}); !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a second open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = logstore.Open(dir, logstore.Options{}); err != nil {
		t.Fatalf("after closing: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	s, err := logstore.Open("data", small(fs))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open("data/state", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: silent{}})
	if err == nil {
		err = db.Set([]byte("mformat"), []byte{0, 0, 0, 0, 0, 0, 0, 9}, pebble.Sync)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := logstore.Open("data", small(fs)); !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "version 9") {
		t.Fatalf("got %v", err)
	}
}

// silent keeps Pebble's own reports out of the tests' output.
type silent struct{}

func (silent) Infof(string, ...any)              {}
func (silent) Errorf(string, ...any)             {}
func (silent) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Retention goes by the time of commit, whatever the events say.
func TestRetentionByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := small(vfs.NewMem())
		s, err := logstore.Open("data", o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetTopic(t.Context(), "a.short", store.Settings{Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 300, 300, "a.short", "a.eternal")
		time.Sleep(50 * time.Minute)
		fill(t, s, 300, 300, "a.short", "a.eternal")
		time.Sleep(20 * time.Minute) // the first half is 70 minutes old
		synctest.Wait()
		b := bounds(t, s, "a.short")
		if b.Last != 600 || b.First != 301 {
			t.Errorf("after 70 minutes: %+v", b)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if b := bounds(t, s, "a.short"); !b.Empty() || b.Last != 600 {
			t.Errorf("after all have expired: %+v", b)
		}
		if b := bounds(t, s, "a.eternal"); b.First != 1 || b.Last != 600 {
			t.Errorf("the topic without retention: %+v", b)
		}
		fill(t, s, 1, 10, "a.short")
		if b := bounds(t, s, "a.short"); b.First != 601 || b.Last != 601 {
			t.Errorf("a new event: %+v", b)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestRetentionBySize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := logstore.Open("data", small(vfs.NewMem()))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetTopic(t.Context(), "a.b", store.Settings{MaxBytes: 200 << 10}); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 2000, 400, "a.b")
		time.Sleep(time.Minute)
		synctest.Wait()
		b := bounds(t, s, "a.b")
		if b.Last != 2000 || b.Bytes > 200<<10 || b.Bytes < 60<<10 {
			t.Errorf("got %+v", b)
		}
		n := uint64(0)
		for e, err := range s.Read(t.Context(), store.Query{Topic: "a.b"}) {
			if err != nil || e.Seq != b.First+n {
				t.Fatalf("seq %d: %v", e.Seq, err)
			}
			n++
		}
		if n != b.Last-b.First+1 {
			t.Errorf("%d events between %d and %d", n, b.First, b.Last)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// One topic that is kept for ever must not keep the space of the others.
func TestSpaceComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		o := small(fs)
		s, err := logstore.Open("data", o)
		if err != nil {
			t.Fatal(err)
		}
		short := []string{"s.a", "s.b", "s.c", "s.d", "s.e", "s.f", "s.g", "s.h", "s.i"}
		fill(t, s, 1500, 400, append(short, "eternal")...)
		synctest.Wait()
		before := usage(t, fs)
		for _, topic := range short {
			if err := s.Trim(t.Context(), topic, 1_000_000); err != nil {
				t.Fatal(err)
			}
		}
		fill(t, s, 200, 400, "eternal") // what is in the journal gets sealed
		time.Sleep(time.Minute)
		synctest.Wait()
		after := usage(t, fs)
		live := bounds(t, s, "eternal").Bytes
		// The journal's segments, the indexes and a half-dead chunk or two.
		if most := 3*live + 16*o.SegmentSize; after > most || before < 3*after {
			t.Errorf("the files took %d bytes and take %d; %d are live", before, after, live)
		}
		n := 0
		for e, err := range s.Read(t.Context(), store.Query{Topic: "eternal"}) {
			n++
			if err != nil || e.Seq != uint64(n) {
				t.Fatalf("seq %d after %d: %v", e.Seq, n-1, err)
			}
		}
		if n != 1700 {
			t.Errorf("%d events of the eternal topic are left", n)
		}
		n = 0
		for _, err := range s.Read(t.Context(), store.Query{Topic: "eternal", Key: "k3"}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 170 {
			t.Errorf("%d events of key k3 are left", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Many restarts leave many small chunks; they are folded together.
func TestSmallChunksAreFolded(t *testing.T) {
	fs := vfs.NewMem()
	for range 40 {
		s, err := logstore.Open("data", small(fs))
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s, 3, 100, "a.b")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, small(fs))
	s.WaitTidy()
	names, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	chunks, runs := 0, 0
	for _, n := range names {
		if strings.HasSuffix(n, ".chunk") {
			chunks++
		}
		if strings.HasSuffix(n, ".run") {
			runs++
		}
	}
	if chunks > 10 || runs > 40 {
		t.Errorf("%d chunks, %d runs", chunks, runs)
	}
	seq := uint64(0)
	for e, err := range s.Read(t.Context(), store.Query{Topic: "a.b"}) {
		if seq++; err != nil || e.Seq != seq {
			t.Fatalf("seq %d: %v", e.Seq, err)
		}
	}
	if seq != 120 {
		t.Errorf("%d events", seq)
	}
}

func TestBatchBeyondTheSegment(t *testing.T) {
	s := open(t, small(vfs.NewMem()))
	var b store.Batch
	for range 20 {
		b.Events = append(b.Events, event.New("a.b", json.RawMessage(`"`+strings.Repeat("x", 4000)+`"`)))
	}
	if _, err := s.Append(t.Context(), b); !errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), "goes beyond 61400 bytes") {
		t.Fatalf("got %v", err)
	}
	if b := bounds(t, s, "a.b"); b.Last != 0 {
		t.Fatalf("something was stored: %+v", b)
	}
}

func TestAllocations(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("counting allocations makes no sense with coverage")
	}
	s := open(t, logstore.Options{FS: vfs.NewMem()})
	e := event.New("a.b", json.RawMessage(`{"pid":12345,"name":"stt","host":"dev","cpu_pct":12.3}`))
	e.Key = "dev:stt:1"
	e.Headers = event.Headers{{Name: "x-schema-version", Value: "1"}}
	one := []event.Event{e}
	n := testing.AllocsPerRun(5000, func() {
		one[0].ID = event.NewID()
		if _, err := s.Append(context.Background(), store.Batch{Events: one}); err != nil {
			t.Fatal(err)
		}
	})
	if n > 3 {
		t.Errorf("%v allocations for one append", n)
	}
}

// A backup holds what is not sealed yet, also of a store that has been idle.
func TestBackupOfAnIdleStore(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, small(fs))
	fill(t, s, 5, 100, "a.b")
	s.WaitMarked()
	if err := s.Backup(t.Context(), "copy"); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 5, 100, "a.b")
	c, err := logstore.Open("copy", small(fs))
	if err != nil {
		t.Fatal(err)
	}
	if b := bounds(t, c, "a.b"); b.First != 1 || b.Last != 5 {
		t.Errorf("the copy holds %+v", b)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// Publishers look the last event of a key up by themselves, and the judge what
// came since. Segments are sealed all the while, so that each finds some of it
// in files, in frozen mems and in the active one.
func TestKeyRaceAcrossSegments(t *testing.T) {
	const publishers, wins, keys = 6, 150, 4
	s := open(t, small(vfs.NewMem()))
	filler := strings.Repeat("x", 800)
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for won := 0; won < wins; {
				key := fmt.Sprint("k", (p+won)%keys)
				last := uint64(0)
				for e, err := range s.Read(t.Context(), store.Query{Topic: "race", Key: key, Reverse: true, Limit: 1}) {
					if err != nil {
						t.Error(err)
						return
					}
					last = e.Seq
				}
				e := event.New("race", fmt.Appendf(nil, `{"after":%d,"x":%q}`, last, filler))
				e.Key = key
				_, err := s.Append(t.Context(), store.Batch{Events: []event.Event{e}, Expect: []store.Expect{{Topic: "race", Key: key, Seq: last}}})
				var conflict *store.SeqConflictError
				switch {
				case err == nil:
					won++
				case !errors.As(err, &conflict):
					t.Error(err)
					return
				case conflict.Actual <= last:
					t.Errorf("key %s: expected %d, and the last was %d", key, last, conflict.Actual)
					return
				}
			}
		})
	}
	wg.Wait()
	before := make(map[string]uint64)
	n := 0
	for e, err := range s.Read(t.Context(), store.Query{Topic: "race"}) {
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ After uint64 }
		if err := json.Unmarshal(e.Payload, &got); err != nil || got.After != before[e.Key] {
			t.Fatalf("seq %d of key %s was granted after %d, and %d came before it: %v", e.Seq, e.Key, got.After, before[e.Key], err)
		}
		before[e.Key] = e.Seq
		n++
	}
	if n != publishers*wins {
		t.Errorf("%d events, %d were granted", n, publishers*wins)
	}
}
