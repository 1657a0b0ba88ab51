package logstore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
)

// tiny makes a store seal, fold and merge within a test.
func tiny(fs vfs.FS) Options {
	return Options{FS: fs, SegmentSize: minSegment, SweepEvery: time.Millisecond}
}

// player does random things to a store and opens it again from time to time.
type player struct {
	t   testing.TB
	o   Options
	dir string
	rng *rand.Rand
	s   *Store
	ids []event.ID

	compacts bool
}

func newPlayer(t testing.TB, fs vfs.FS, dir string, seed uint64) *player {
	p := &player{t: t, o: tiny(fs), dir: dir, rng: rand.New(rand.NewPCG(seed, 7))}
	p.open()
	return p
}

func (p *player) open() {
	s, err := Open(p.dir, p.o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.s = s
}

func (p *player) close() {
	if err := p.s.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// end closes the store after it has taken retention off, so that whoever opens
// it again finds what it held.
func (p *player) end() {
	for _, topic := range []string{"ab", "quiet"} {
		if err := p.s.SetTopic(context.Background(), topic, store.Settings{}); err != nil {
			p.t.Fatal(err)
		}
	}
	p.close()
}

func (p *player) topic() string {
	return []string{"a", "a.b", "ab", "dlq.a", "quiet"}[p.rng.IntN(5)]
}

// event makes an event, now and then with an id that is known or with every
// field.
func (p *player) event() event.Event {
	e := event.New(p.topic(), json.RawMessage(fmt.Sprintf(`{"n":%d,"fill":%q}`, p.rng.IntN(1000), strings.Repeat("x", p.rng.IntN(300)))))
	if p.rng.IntN(3) > 0 {
		e.Key = fmt.Sprintf("key %d", p.rng.IntN(20))
	}
	switch {
	case p.rng.IntN(20) == 0 && len(p.ids) > 0:
		e.ID = p.ids[p.rng.IntN(len(p.ids))]
	case p.rng.IntN(10) == 0:
		e.TS, e.SID, e.Tags = 5, "session", []string{"#t"}
		e.Headers = e.Headers.Set("x-n", "1")
		e.ID = event.NameID(e.ID, "not ordered by time")
	}
	p.ids = append(p.ids, e.ID)
	return e
}

// play does n random things.
func (p *player) play(n int) {
	ctx := context.Background()
	for range n {
		var err error
		switch k := p.rng.IntN(100); {
		case k < 80:
			var b store.Batch
			for range 1 + p.rng.IntN(5) {
				b.Events = append(b.Events, p.event())
			}
			_, err = p.s.Append(ctx, b)
		case k < 84:
			topic := p.topic()
			b, berr := p.s.Bounds(ctx, topic)
			err = errors.Join(berr, p.s.Trim(ctx, topic, b.First+p.rng.Uint64N(b.Last-b.First+2)))
		case k < 86:
			err = p.s.SetTopic(ctx, "ab", store.Settings{MaxBytes: int64(p.rng.IntN(3)) * 20 << 10, Partitions: 3})
		case k < 89 && p.compacts:
			topic := p.topic()
			b, berr := p.s.Bounds(ctx, topic)
			before := b.First + p.rng.Uint64N(b.Last-b.First+2)
			_, err = p.s.Compact(ctx, topic, store.Compaction{Before: before, Tombstones: before})
			err = errors.Join(err, berr)
		case k < 87:
			err = p.s.SetTopic(ctx, "quiet", store.Settings{Retention: time.Duration(p.rng.IntN(3)) * 20 * time.Millisecond})
		case k < 98:
			err = p.settle(ctx)
		default:
			p.close()
			p.open()
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// settle makes, moves, uses or deletes a group.
func (p *player) settle(ctx context.Context) error {
	topic, group := p.topic(), fmt.Sprintf("group %d", p.rng.IntN(3))
	c, err := p.s.Cursor(ctx, topic, group)
	b, berr := p.s.Bounds(ctx, topic)
	if berr != nil || err != nil && !errors.Is(err, store.ErrNotFound) {
		return errors.Join(err, berr)
	}
	switch {
	case err != nil || p.rng.IntN(10) == 0:
		_, err = p.s.PutCursor(ctx, store.Cursor{Topic: topic, Group: group, Version: c.Version, Epoch: c.Epoch + 1, Floor: p.rng.Uint64N(b.Last + 1)})
	case p.rng.IntN(20) == 0:
		err = p.s.DeleteCursor(ctx, topic, group, c.Version)
	case b.Last > 0:
		seq := 1 + p.rng.Uint64N(b.Last)
		st := store.Settlement{Topic: topic, Group: group, Epoch: c.Epoch, Done: []store.Range{{First: seq, Last: seq}}, Handed: b.Last + 5}
		_, err = p.s.Append(ctx, store.Batch{Settle: []store.Settlement{st}, Events: []event.Event{p.event()}})
	}
	return err
}

// rich is a store that has chunks, folded ones too, runs, merged ones too,
// trimmed and retained topics, groups, and a journal of several frames.
func rich(t testing.TB, fs vfs.FS, dir string) {
	p := newPlayer(t, fs, dir, 1)
	p.play(1200)
	waitFor(t, func() bool {
		merged := false
		for _, r := range p.s.index(idIndex) {
			merged = merged || r.tier > 0
		}
		return merged
	})
	p.play(5)
	p.end()
}

// waitFor waits until ok, which background work brings about, says yes.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("waited in vain")
		}
	}
}

// checked runs Check and sorts what it finds.
func checked(t testing.TB, fs vfs.FS, dir string) (sum Summary, problems, notes []Problem) {
	t.Helper()
	sum, err := Check(context.Background(), dir, tiny(fs), func(p Problem) {
		if p.Note {
			notes = append(notes, p)
		} else {
			problems = append(problems, p)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Problems != len(problems) || sum.Notes != len(notes) {
		t.Errorf("summary counts %d problems and %d notes, reported were %d and %d", sum.Problems, sum.Notes, len(problems), len(notes))
	}
	return sum, problems, notes
}

// files maps each file below dir to a hash of its bytes.
func files(t testing.TB, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := crashfs.Files(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, name := range names {
		b, err := readAll(fs, name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b))
	}
	return all
}

func readAll(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// copyFS copies a directory in memory, so that it can be damaged.
func copyFS(t testing.TB, from vfs.FS, dir string) vfs.FS {
	t.Helper()
	to := vfs.NewMem()
	if ok, err := vfs.Clone(from, to, dir, dir); err != nil || !ok {
		t.Fatal(ok, err)
	}
	return to
}

func TestCheckOfSoundStore(t *testing.T) {
	for seed := range uint64(12) {
		fs := vfs.NewMem()
		p := newPlayer(t, fs, "data", seed)
		if p.compacts = seed%3 > 0; seed%3 == 2 {
			p.close()
			p.o = p.o.Frugal()
			p.open()
		}
		p.play(400)
		p.end()
		before := files(t, fs, "data")
		sum, problems, notes := checked(t, fs, "data")
		for _, f := range append(problems, notes...) {
			t.Errorf("seed %d: %v", seed, f)
		}
		if after := files(t, fs, "data"); !maps.Equal(before, after) {
			t.Errorf("seed %d: check has changed files", seed)
		}
		p.open()
		topics, groups, want := 0, 0, uint64(0)
		for x, err := range p.s.Topics(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			topics++
			for _, err := range p.s.Read(context.Background(), store.Query{Topic: x.Name}) {
				if err != nil {
					t.Fatal(err)
				}
				want++
			}
		}
		for _, err := range p.s.Cursors(context.Background(), "") {
			if err != nil {
				t.Fatal(err)
			}
			groups++
		}
		p.close()
		if sum.Topics != topics || sum.Groups != groups || sum.Events != want || sum.Frames == 0 || sum.Files != len(before) || sum.Bytes == 0 {
			t.Errorf("seed %d: %+v; the store has %d topics, %d groups, %d events", seed, sum, topics, groups, want)
		}
	}
}

func TestCheckOfCrashImages(t *testing.T) {
	fs := vfs.NewCrashableMem()
	p := newPlayer(t, fs, "data", 3)
	p.compacts = true
	for i := range 25 {
		p.play(40)
		left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: i * 4, RNG: p.rng})
		if _, problems, _ := checked(t, left, "data"); len(problems) > 0 {
			t.Errorf("crash %d: %v", i, problems)
		}
		s, err := Open("data", tiny(left))
		if err != nil {
			t.Fatalf("crash %d: %v", i, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, problems, notes := checked(t, left, "data"); len(problems)+len(notes) > 0 {
			t.Errorf("crash %d, after recovery: %v %v", i, problems, notes)
		}
	}
	p.close()
}

func TestCheckRefuses(t *testing.T) {
	quiet := func(Problem) {}
	fs := vfs.NewMem()
	p := newPlayer(t, fs, "data", 1)
	if _, err := Check(context.Background(), "data", tiny(fs), quiet); !errors.Is(err, store.ErrLocked) {
		t.Errorf("of a store in use: %v", err)
	}
	p.close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Check(ctx, "data", tiny(fs), quiet); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	p.open() // the lock must be free again
	p.close()
	if err := fs.MkdirAll("other/state", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"other", "nowhere", "data/LOCK"} {
		before := files(t, fs, "other")
		if _, err := Check(context.Background(), dir, tiny(fs), quiet); !errors.Is(err, ErrNoStore) {
			t.Errorf("of %s: %v", dir, err)
		}
		if _, err := fs.Stat("nowhere"); err == nil || !maps.Equal(before, files(t, fs, "other")) {
			t.Errorf("of %s: something was made", dir)
		}
	}
	tamper(t, fs, func(b *pebble.Batch) { putNum(b, keyFormat, manifestVersion+1) })
	if _, err := Check(context.Background(), "data", tiny(fs), quiet); !errors.Is(err, store.ErrFormat) {
		t.Errorf("of a newer version: %v", err)
	}
}

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(string, ...any) { panic("pebble cannot go on") }

// tamper changes the manifest.
func tamper(t testing.TB, fs vfs.FS, fn func(b *pebble.Batch)) {
	t.Helper()
	db, err := pebble.Open("data/state", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: silent{}})
	if err != nil {
		t.Fatal(err)
	}
	b := db.NewIndexedBatch()
	fn(b)
	if err := errors.Join(b.Commit(pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// row finds the last row of the manifest whose key begins with prefix: the
// youngest of its kind.
func row(t testing.TB, b *pebble.Batch, prefix string) (k, v []byte) {
	t.Helper()
	end := []byte(prefix)
	end[len(end)-1]++
	it, err := b.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix), UpperBound: end})
	if err != nil {
		t.Fatal(err)
	}
	if !it.Last() {
		t.Fatalf("the manifest has no row %q", prefix)
	}
	k, v = slices.Clone(it.Key()), slices.Clone(it.Value())
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	return k, v
}

// pick gives the largest file that matches.
func pick(t testing.TB, fs vfs.FS, pattern string) string {
	t.Helper()
	names, err := crashfs.Files(fs, "data")
	if err != nil {
		t.Fatal(err)
	}
	best, size := "", int64(-1)
	for _, name := range names {
		if ok, _ := path.Match(pattern, path.Base(name)); !ok {
			continue
		}
		if st, err := fs.Stat(name); err != nil {
			t.Fatal(err)
		} else if st.Size() > size {
			best, size = name, st.Size()
		}
	}
	if best == "" {
		t.Fatalf("no file matches %s", pattern)
	}
	return best
}

// flip damages one byte; from the end where off is negative.
func flip(t testing.TB, fs vfs.FS, name string, off int64) {
	t.Helper()
	if off < 0 {
		st, err := fs.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		off += st.Size()
	}
	if err := crashfs.Flip(fs, name, off, 0x10); err != nil {
		t.Fatal(err)
	}
}

// overwrite replaces a file by part of itself.
func overwrite(t testing.TB, fs vfs.FS, name string, change func([]byte) []byte) {
	t.Helper()
	b, err := readAll(fs, name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(change(b))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestCheckNamesDamage(t *testing.T) {
	whole := vfs.NewMem()
	rich(t, whole, "data")
	half := func(b []byte) []byte { return b[:len(b)/2] }
	cases := []struct {
		name string
		// do damages the store and says where.
		do func(t testing.TB, fs vfs.FS) string
		// want are parts of problems, each of which must stand in one.
		want []string
	}{
		{"chunk block", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.chunk")
			flip(t, fs, f, 100)
			return f + ", offset 16"
		}, []string{"fails its checksum"}},
		{"chunk header", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.chunk")
			flip(t, fs, f, 9)
			return f + ", offset 0"
		}, []string{"does not match its footer"}},
		{"chunk index", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.chunk")
			flip(t, fs, f, -40)
			return f + ", offset "
		}, []string{"chunk index fails its checksum"}},
		{"chunk footer", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.chunk")
			flip(t, fs, f, -10)
			return f + ", offset "
		}, []string{"chunk footer fails its checksum"}},
		{"cut chunk", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.chunk")
			overwrite(t, fs, f, half)
			return f + ", offset "
		}, []string{"chunk footer fails its checksum"}},
		{"no chunk", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.chunk")
			if err := fs.Remove(f); err != nil {
				t.Fatal(err)
			}
			return f
		}, []string{"the file is missing"}},
		{"run block", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.run")
			flip(t, fs, f, 30)
			return f + ", offset 0"
		}, []string{"run block 0 fails its checksum"}},
		{"run filter", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.run")
			flip(t, fs, f, -100)
			return f + ", offset "
		}, []string{"run filter fails its checksum"}},
		{"run footer", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.run")
			flip(t, fs, f, -20)
			return f + ", offset "
		}, []string{"run footer fails its checksum"}},
		{"cut run", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.run")
			overwrite(t, fs, f, half)
			return f + ", offset "
		}, []string{"run footer fails its checksum"}},
		{"no run", func(t testing.TB, fs vfs.FS) string {
			f := pick(t, fs, "*.run")
			if err := fs.Remove(f); err != nil {
				t.Fatal(err)
			}
			return f
		}, []string{"the file is missing", "index"}},
		{"journal header", func(t testing.TB, fs vfs.FS) string {
			f := liveSegmentOf(t, fs)
			flip(t, fs, f, 20)
			flip(t, fs, f, 520)
			return f + ", offset 0"
		}, []string{"checksum"}},
		{"journal frame", func(t testing.TB, fs vfs.FS) string {
			f := liveSegmentOf(t, fs)
			flip(t, fs, f, segmentStart+40)
			return f + ", offset 4096"
		}, []string{"is damaged"}},
		{"no journal", func(t testing.TB, fs vfs.FS) string {
			if err := fs.RemoveAll("data/journal"); err != nil {
				t.Fatal(err)
			}
			return "data/journal"
		}, []string{"missing"}},
		{"no manifest", func(t testing.TB, fs vfs.FS) string {
			if err := fs.RemoveAll("data/state"); err != nil {
				t.Fatal(err)
			}
			flip(t, fs, pick(t, fs, "*.chunk"), 100)
			flip(t, fs, pick(t, fs, "*.run"), 100)
			return "data/state"
		}, []string{"manifest", "chunk block", "run block"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fs := copyFS(t, whole, "data")
			expect(t, fs, c.do(t, fs), c.want)
		})
	}
}

// expect runs Check and looks for the wanted parts among the problems; the
// first must stand in one that begins with where.
func expect(t testing.TB, fs vfs.FS, where string, want []string) {
	t.Helper()
	_, problems, _ := checked(t, fs, "data")
	for i, part := range want {
		if !slices.ContainsFunc(problems, func(p Problem) bool {
			return strings.Contains(p.String(), part) && (i > 0 || strings.HasPrefix(p.String(), where))
		}) {
			t.Errorf("no problem at %s says %q; found:\n%v", where, part, problems)
		}
	}
}

// liveSegmentOf gives the journal file that holds frames beyond the manifest.
func liveSegmentOf(t testing.TB, fs vfs.FS) string {
	t.Helper()
	r, err := openReader(context.Background(), "data", tiny(fs), func(p Problem) { t.Error(p) })
	if err != nil {
		t.Fatal(err)
	}
	list := r.segments(Problem{})
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	return list[0].path
}
