package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store"
)

const (
	testDir  = "j"
	testSize = 16 << 10
)

// bench is a journal on a file system in memory, and what was replayed.
type bench struct {
	t        *testing.T
	fs       *vfs.MemFS
	j        *Journal
	replayed []string
	segs     []*Segment
	durable  uint64
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, fs: vfs.NewMem()}
	if err := b.fs.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.open(0)
	return b
}

func (b *bench) options(applied uint64) Options {
	return Options{
		FS: b.fs, Dir: testDir, SegmentSize: testSize, Applied: applied,
		Image: func(n int) []byte { return make([]byte, n) },
		Replay: func(s *Segment, _ []byte, frames []Frame) error {
			b.segs = append(b.segs, s)
			for _, f := range frames {
				b.replayed = append(b.replayed, fmt.Sprintf("%d:%s", f.LSN, f.Body))
			}
			return nil
		},
	}
}

func (b *bench) tryOpen(applied uint64) (err error) {
	b.replayed, b.segs = nil, nil
	b.j, err = Open(b.options(applied))
	if err != nil {
		return err
	}
	b.durable = b.j.Next() - 1
	return b.j.Rotate(make([]byte, testSize))
}

func (b *bench) open(applied uint64) {
	b.t.Helper()
	if err := b.tryOpen(applied); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) close() {
	b.t.Helper()
	if err := b.j.Close(); err != nil {
		b.t.Fatal(err)
	}
}

// write appends a frame and syncs it.
func (b *bench) write(body string) (off int) {
	b.t.Helper()
	if !b.j.Room(len(body)) {
		if err := b.j.Rotate(make([]byte, testSize)); err != nil {
			b.t.Fatal(err)
		}
	}
	buf, off := b.j.Begin()
	buf = append(buf, body...)
	p := b.j.End(len(buf))
	if err := errors.Join(p.Write(b.durable, 1), p.Sync()); err != nil {
		b.t.Fatal(err)
	}
	b.durable = p.LSN
	return off
}

// flip damages one byte of a segment file.
func (b *bench) flip(path string, off int) {
	b.t.Helper()
	f, err := b.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		b.t.Fatal(err)
	}
	var c [1]byte
	_, err = f.ReadAt(c[:], int64(off))
	c[0] ^= 0x10
	if err == nil {
		_, err = f.WriteAt(c[:], int64(off))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) want(bodies ...string) {
	b.t.Helper()
	if got, want := strings.Join(b.replayed, " "), strings.Join(bodies, " "); got != want {
		b.t.Fatalf("replayed %s, want %s", got, want)
	}
}

func TestReplay(t *testing.T) {
	b := newBench(t)
	b.want()
	b.write("a")
	b.write("bb")
	b.close()
	b.open(0)
	b.want("1:a", "2:bb")
	b.write("c")
	b.close()
	b.open(0)
	b.want("1:a", "2:bb", "3:c")
	b.close()
	b.open(2) // the first segment is applied
	b.want("3:c")
	b.close()
}

func TestRecycledSegmentShowsNoOldFrames(t *testing.T) {
	b := newBench(t)
	old := strings.Repeat("o", 500)
	for b.j.Room(len(old)) {
		b.write(old)
	}
	applied := b.durable
	full := b.j.Current()
	b.write(old) // rotates
	if err := b.j.Free(full); err != nil {
		t.Fatal(err)
	}
	for b.j.Current() != full { // until it is used again
		for b.j.Room(len(old)) {
			b.write(old)
		}
		b.write("y")
	}
	first := b.j.Current().First()
	b.close()
	b.open(applied)
	if got := len(b.replayed); got != int(b.durable-applied) {
		t.Fatalf("replayed %d frames, %d were written since", got, b.durable-applied)
	}
	if last := b.segs[len(b.segs)-1]; last.First() != first || b.replayed[len(b.replayed)-1] != fmt.Sprintf("%d:y", b.durable) {
		t.Fatalf("the recycled segment does not end with its only new frame: %.40s", b.replayed[len(b.replayed)-1])
	}
	b.close()
}

func TestTornTailIsCut(t *testing.T) {
	b := newBench(t)
	b.write("a")
	path := b.j.Current().Path()
	off := b.write("last")
	b.close()
	b.flip(path, off) // nothing behind it says that it was durable
	b.open(0)
	b.want("1:a")
	b.write("again") // gets the LSN of the frame that was cut
	b.close()
	b.open(0)
	b.want("1:a", "2:again")
	b.close()
}

func TestDamageBelowTheMarkIsNamed(t *testing.T) {
	for _, c := range []struct {
		name  string
		hide  func(b *bench) // puts the frame below a mark
		where string
	}{
		{"a later frame", func(b *bench) { b.write("b") }, "marks it as durable"},
		{"an empty frame", func(b *bench) { b.write("") }, "marks it as durable"},
		{"a later segment", func(b *bench) {
			if err := b.j.Rotate(make([]byte, testSize)); err != nil {
				b.t.Fatal(err)
			}
			b.write("b")
		}, "the next segment begins"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for at := -HeadSize; at < 4; at++ { // every byte of the frame
				b := newBench(t)
				path := b.j.Current().Path()
				off := b.write("body")
				c.hide(b)
				b.close()
				b.flip(path, off+at)
				err := b.tryOpen(0)
				var bad *store.CorruptError
				if !errors.As(err, &bad) || bad.File != path || bad.Offset != int64(off-HeadSize) || !strings.Contains(bad.Detail, c.where) {
					t.Fatalf("byte %d: got %v", at, err)
				}
			}
		})
	}
	t.Run("what the caller knows", func(t *testing.T) {
		b := newBench(t)
		path := b.j.Current().Path()
		off := b.write("body")
		b.close()
		b.flip(path, off)
		o := b.options(0)
		o.Durable = 1
		if _, err := Open(o); !errors.Is(err, store.ErrCorrupt) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestHeader(t *testing.T) {
	t.Run("one copy is enough", func(t *testing.T) {
		for _, off := range []int{30, sector + 30} {
			b := newBench(t)
			b.write("a")
			path := b.j.Current().Path()
			b.close()
			b.flip(path, off)
			b.open(0)
			b.want("1:a")
			b.close()
		}
	})
	t.Run("both damaged", func(t *testing.T) {
		b := newBench(t)
		b.write("a")
		path := b.j.Current().Path()
		b.close()
		b.flip(path, 30)
		b.flip(path, sector+30)
		if err := b.tryOpen(0); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), path) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("newer version", func(t *testing.T) {
		b := newBench(t)
		b.write("a")
		s := b.j.Current()
		h := s.header()
		for _, copy := range [][]byte{h, h[sector:]} {
			binary.LittleEndian.PutUint32(copy[8:], formatVersion+1)
			binary.LittleEndian.PutUint32(copy[40:], crc32.Checksum(copy[:40], castagnoli))
		}
		if _, err := s.file.WriteAt(h, 0); err != nil {
			t.Fatal(err)
		}
		b.close()
		if err := b.tryOpen(0); !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), "version 2") {
			t.Fatalf("got %v", err)
		}
	})
}

func TestMissingSegmentIsNamed(t *testing.T) {
	b := newBench(t)
	path := b.j.Current().Path()
	b.write("a")
	if err := b.j.Rotate(make([]byte, testSize)); err != nil {
		t.Fatal(err)
	}
	b.write("b")
	b.close()
	if err := b.fs.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := b.tryOpen(0); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "where LSN 1 is due") {
		t.Fatalf("got %v", err)
	}
}

func TestHalfMadeSegmentIsRemoved(t *testing.T) {
	b := newBench(t)
	b.write("a")
	b.close()
	path := b.fs.PathJoin(testDir, segmentName(77))
	f, err := b.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(bytes.Repeat([]byte{0}, 5000))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	b.open(0)
	b.want("1:a")
	if _, err := b.fs.Stat(path); err == nil {
		t.Fatal("it is still there")
	}
	b.close()
}

// FuzzParse: whatever bytes a segment holds, parsing neither panics nor reads
// outside of them.
func FuzzParse(f *testing.F) {
	img := make([]byte, 256)
	putHead(img[8:], 20, 7, 3, 2, 1)
	f.Add(img, uint64(7))
	f.Fuzz(func(t *testing.T, img []byte, incarnation uint64) {
		for off := 0; off < len(img); off += Align {
			if fr, ok := parse(img, off, incarnation); ok && fr.Off+len(fr.Body) > len(img) {
				t.Fatal("a body beyond the image")
			}
		}
		markBeyond(img, 0, incarnation, 1)
	})
}
