package logstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
	"promethean/store/logstore/internal/chunk"
	"promethean/store/logstore/internal/run"
)

// rewriteRun writes a run anew with other entries.
func rewriteRun(t testing.TB, fs vfs.FS, kind indexKind, change func([][]byte) [][]byte) string {
	t.Helper()
	var file uint64
	tamper(t, fs, func(b *pebble.Batch) {
		r, err := decodeRun(row(t, b, "r"+string(rune(kind))))
		if err != nil {
			t.Fatal(err)
		}
		file = r.file
	})
	path := fmt.Sprintf("data/%08d.run", file)
	r, err := run.Open(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	var entries [][]byte
	if err := r.All(func(e []byte) bool { entries = append(entries, slices.Clone(e)); return true }); err != nil {
		t.Fatal(err)
	}
	if err := r.Release(); err != nil {
		t.Fatal(err)
	}
	entries = change(entries)
	w, err := run.NewWriter(fs, path, kind.spec(), len(entries))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(entries, bytes.Compare)
	for _, e := range entries {
		w.Add(e)
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	return path
}

// rewriteChunk writes the chunk of the first section anew; add gets each
// event.
func rewriteChunk(t testing.TB, fs vfs.FS, add func(w *chunk.Writer, at int64, r event.Record)) string {
	t.Helper()
	path := pick(t, fs, "*.chunk")
	c, err := chunk.Open(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	sections, err := c.Sections()
	if err != nil {
		t.Fatal(err)
	}
	w, err := chunk.NewWriter(fs, path+".new")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range sections {
		w.Begin(x.Topic, x.Name)
		blocks, err := c.Read(x.Blocks)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			for at, r := range chunk.Records(b) {
				add(w, at, slices.Clone(r))
			}
		}
	}
	_, err = w.Finish()
	if err := errors.Join(err, c.Release(), fs.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckHoldsPartsAgainstEachOther(t *testing.T) {
	whole := vfs.NewMem()
	rich(t, whole, "data")
	state := "data/state"
	// change sets a row that is made of the one found.
	change := func(prefix string, fn func(v []byte) []byte) func(testing.TB, vfs.FS) string {
		return func(t testing.TB, fs vfs.FS) string {
			tamper(t, fs, func(b *pebble.Batch) {
				k, v := row(t, b, prefix)
				if v = fn(v); v == nil {
					_ = b.Delete(k, nil)
				} else {
					_ = b.Set(k, v, nil)
				}
			})
			return state
		}
	}
	gone := func([]byte) []byte { return nil }
	junk := func([]byte) []byte { return []byte{0xff} }
	cases := []struct {
		name string
		do   func(t testing.TB, fs vfs.FS) string
		want []string
	}{
		{"no directory row", change("d", gone), []string{"are missing", "the directory has no row for them"}},
		{"false directory row", func(t testing.TB, fs vfs.FS) string {
			tamper(t, fs, func(b *pebble.Batch) {
				x, err := decodeSection(row(t, b, "d"))
				if err != nil {
					t.Fatal(err)
				}
				x.maxTS++
				_ = b.Set(sectionKey(x.topic, x.first), x.value(), nil)
			})
			return "data/"
		}, []string{"the directory has the section as"}},
		{"overlapping directory rows", func(t testing.TB, fs vfs.FS) string {
			tamper(t, fs, func(b *pebble.Batch) {
				x, err := decodeSection(row(t, b, "d"))
				if err != nil {
					t.Fatal(err)
				}
				x.first++
				_ = b.Set(sectionKey(x.topic, x.first), x.value(), nil)
			})
			return state
		}, []string{"overlap", "lacks 1 of the"}},
		{"unreadable directory row", change("d", junk), []string{"directory row"}},
		{"no chunk row", change("c", gone), []string{"has no row"}},
		{"unreadable chunk row", change("c", junk), []string{"chunk row"}},
		{"false chunk row", func(t testing.TB, fs vfs.FS) string {
			change("c", func(v []byte) []byte { v[15]++; return v })(t, fs)
			return "data/"
		}, []string{"its row says"}},
		{"no topic row", change("t", gone), []string{"unknown topic number"}},
		{"false topic row", func(t testing.TB, fs vfs.FS) string {
			tamper(t, fs, func(b *pebble.Batch) {
				k, v := row(t, b, "t")
				d := decoder{b: v}
				var e encoder
				e.text(d.text())
				e.num(d.num() + 3) // sealed
				_ = b.Set(k, append(e, d.b...), nil)
			})
			return state
		}, []string{"are missing"}},
		{"no run row", func(t testing.TB, fs vfs.FS) string {
			change("ri", gone)(t, fs)
			return "data/"
		}, []string{"not in the id index"}},
		{"unreadable run row", change("rk", junk), []string{"run"}},
		{"unreadable group", change("g", junk), []string{"does not decode"}},
		{"group ahead of its topic", func(t testing.TB, fs vfs.FS) string {
			tamper(t, fs, func(b *pebble.Batch) {
				_ = b.Set(groupKey(cursorKey{1, "ahead"}), encodeCursor(&store.Cursor{Group: "ahead", Floor: 1 << 40}), nil)
			})
			return state
		}, []string{"settled up to seq"}},
		{"file numbers begin again", func(t testing.TB, fs vfs.FS) string {
			tamper(t, fs, func(b *pebble.Batch) { putNum(b, keyFile, 1) })
			return state
		}, []string{"is in use, but the next file"}},
		{"no id entry", func(t testing.TB, fs vfs.FS) string {
			rewriteRun(t, fs, idIndex, func(all [][]byte) [][]byte { return nil })
			return "data/"
		}, []string{"not in the id index"}},
		{"no key entry", func(t testing.TB, fs vfs.FS) string {
			rewriteRun(t, fs, keyIndex, func(all [][]byte) [][]byte { return nil })
			return "data/"
		}, []string{"not in the key index"}},
		{"stray id entry", func(t testing.TB, fs vfs.FS) string {
			return rewriteRun(t, fs, idIndex, func(all [][]byte) [][]byte {
				e := lastOf(t, fs, all)
				e[3]++
				return append(all, e)
			})
		}, []string{"entry of the id index leads to"}},
		{"stray key entry", func(t testing.TB, fs vfs.FS) string {
			return rewriteRun(t, fs, keyIndex, func(all [][]byte) [][]byte {
				e := lastOf(t, fs, all)
				e[7]++
				return append(all, e)
			})
		}, []string{"entry of the key index leads to"}},
		{"id twice", func(t testing.TB, fs vfs.FS) string {
			return rewriteRun(t, fs, idIndex, func(all [][]byte) [][]byte {
				e := lastOf(t, fs, all)
				binary.BigEndian.PutUint64(e[20:], entrySeq(e)+1)
				return append(all, e)
			})
		}, []string{"is that of seqs"}},
		{"entry of an unknown topic", func(t testing.TB, fs vfs.FS) string {
			return rewriteRun(t, fs, keyIndex, func(all [][]byte) [][]byte {
				return append(all, bytes.Repeat([]byte{0x77}, 20))
			})
		}, []string{"topic number 2004318071, which is unknown"}},
		{"run of the other kind", func(t testing.TB, fs vfs.FS) string {
			path := ""
			tamper(t, fs, func(b *pebble.Batch) {
				r, err := decodeRun(row(t, b, "ri"))
				if err != nil {
					t.Fatal(err)
				}
				k, _ := row(t, b, "rk")
				var v encoder
				v.num(r.file)
				v.num(0)
				_ = b.Set(k, v, nil)
				path = fmt.Sprintf("data/%08d.run", r.file)
			})
			return path
		}, []string{"are not those of this index"}},
		{"gap within a section", func(t testing.TB, fs vfs.FS) string {
			n := 0
			return rewriteChunk(t, fs, func(w *chunk.Writer, at int64, r event.Record) {
				if n++; n != 2 {
					w.Add(r.Seq(), at, r.TS(), r)
				}
			})
		}, []string{"follows seq"}},
		{"record that does not decode", func(t testing.TB, fs vfs.FS) string {
			return rewriteChunk(t, fs, func(w *chunk.Writer, at int64, r event.Record) {
				r[1] |= 0x80
				w.Add(r.Seq(), at, r.TS(), r)
			})
		}, []string{"unknown flags"}},
		{"false block", func(t testing.TB, fs vfs.FS) string {
			return rewriteChunk(t, fs, func(w *chunk.Writer, at int64, r event.Record) { w.Add(r.Seq(), at, r.TS()+1, r) })
		}, []string{"the index has it as"}},
		{"commit times run backwards", func(t testing.TB, fs vfs.FS) string {
			return rewriteChunk(t, fs, func(w *chunk.Writer, at int64, r event.Record) { w.Add(r.Seq(), -int64(r.Seq()), r.TS(), r) })
		}, []string{"commit time"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fs := copyFS(t, whole, "data")
			expect(t, fs, c.do(t, fs), c.want)
		})
	}
}

// lastOf gives a copy of an entry that leads to a retained event.
func lastOf(t testing.TB, fs vfs.FS, entries [][]byte) []byte {
	t.Helper()
	r, err := openReader(context.Background(), "data", tiny(fs), func(p Problem) { t.Error(p) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := r.walk(false, nil); err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(entries) {
		kind := keyIndex
		if len(e) == idSpec.Width {
			kind = idIndex
		}
		if num := entryTopicOf(kind, e); entrySeq(e) >= r.byNum[num-1].first {
			return slices.Clone(e)
		}
	}
	t.Fatal("all entries are dead")
	return nil
}

func TestCheckFindsAllDamage(t *testing.T) {
	fs := vfs.NewMem()
	rich(t, fs, "data")
	seg := liveSegmentOf(t, fs)
	flip(t, fs, seg, segmentStart+40)
	var want []string
	names, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".chunk") || strings.HasSuffix(name, ".run") {
			flip(t, fs, "data/"+name, 20)
			want = append(want, "data/"+name)
		}
	}
	if len(want) < 4 {
		t.Fatalf("too few files: %v", names)
	}
	_, problems, _ := checked(t, fs, "data")
	for _, f := range append(want, seg) {
		if !slices.ContainsFunc(problems, func(p Problem) bool { return p.File == f && p.Offset >= 0 }) {
			t.Errorf("nothing about %s in %v", f, problems)
		}
	}
}

func TestCheckGoesOnBehindDamagedFrames(t *testing.T) {
	fs := vfs.NewMem()
	o := tiny(fs)
	o.SegmentSize = 1 << 20 // all of it in one segment
	s, err := Open("data", o)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := s.Append(context.Background(), store.Batch{Events: []event.Event{event.New("a", []byte(`"payload"`))}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	seg := liveSegmentOf(t, fs)
	b, err := readAll(fs, seg)
	if err != nil {
		t.Fatal(err)
	}
	first, inc, _ := segmentHead(b)
	var at []int64 // where the frames begin
	for off := segmentStart; ; {
		f, ok := parseFrame(b, off, inc)
		if !ok {
			break
		}
		at = append(at, int64(off))
		off = frameEnd(f)
	}
	for _, i := range []int{3, 10, 11} {
		flip(t, fs, seg, at[i]+40)
	}
	sum, problems, _ := checked(t, fs, "data")
	for _, want := range []string{
		fmt.Sprintf("%s, offset %d: frame with LSN %d is damaged", seg, at[3], first+3),
		fmt.Sprintf("%s, offset %d: frames with LSN %d to %d are damaged", seg, at[10], first+10, first+11),
	} {
		if !slices.ContainsFunc(problems, func(p Problem) bool { return strings.HasPrefix(p.String(), want) }) {
			t.Errorf("nobody says %q: %v", want, problems)
		}
	}
	if len(problems) != 2 || sum.Frames != len(at)-3 {
		t.Errorf("%d of %d frames, %v", sum.Frames, len(at), problems)
	}
}

func TestCheckNotes(t *testing.T) {
	fs := vfs.NewMem()
	rich(t, fs, "data")
	for _, name := range []string{"data/99999999.chunk", "data/99999999.run", "data/readme"} {
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	seg := liveSegmentOf(t, fs)
	flip(t, fs, seg, 520) // one copy of the header
	b, err := readAll(fs, seg)
	if err != nil {
		t.Fatal(err)
	}
	_, inc, _ := segmentHead(b)
	last := int64(0)
	for off := segmentStart; ; {
		f, ok := parseFrame(b, off, inc)
		if !ok {
			break
		}
		last, off = int64(off), frameEnd(f)
	}
	flip(t, fs, seg, last+25) // nothing says that the last frame was durable
	_, problems, notes := checked(t, fs, "data")
	if len(problems) > 0 || len(notes) != 5 {
		t.Errorf("problems %v, notes %v", problems, notes)
	}
	for _, want := range []string{"99999999.chunk", "99999999.run", "readme", fmt.Sprintf("%s, offset %d: frame with LSN", seg, last), seg + ", offset 512"} {
		if !slices.ContainsFunc(notes, func(p Problem) bool { return strings.Contains(p.String(), want) }) {
			t.Errorf("nothing about %s in %v", want, notes)
		}
	}
}

// TestCheckFindsRot damages single bytes anywhere: what Check does not find
// must not change what can be read.
func TestCheckFindsRot(t *testing.T) {
	whole := vfs.NewMem()
	rich(t, whole, "data")
	want, err := dumped(whole)
	if err != nil {
		t.Fatal(err)
	}
	names, err := crashfs.Files(whole, "data")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	n := 150
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		n = 10000
	}
	found := 0
	for range n {
		name := names[rng.IntN(len(names))]
		st, err := whole.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if st.Size() == 0 {
			continue
		}
		off := rng.Int64N(st.Size())
		fs := copyFS(t, whole, "data")
		flip(t, fs, name, off)
		if _, problems, _ := checked(t, fs, "data"); len(problems) > 0 {
			found++
			continue
		}
		got, err := dumped(fs)
		if err != nil || got != want {
			t.Errorf("byte %d of %s: check finds nothing, but what can be read differs: %v", off, name, err)
		}
		s, err := Open("data", tiny(fs))
		if err != nil {
			t.Errorf("byte %d of %s: check finds nothing, but opening does: %v", off, name, err)
		} else if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if found < n/4 {
		t.Errorf("of %d damaged bytes %d were found: too few to be true", n, found)
	}
}

func dumped(fs vfs.FS) (string, error) {
	var b bytes.Buffer
	err := Dump(context.Background(), "data", tiny(fs), DumpOptions{}, &b)
	return b.String(), err
}
