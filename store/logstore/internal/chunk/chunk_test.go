package chunk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/store"
)

func record(seq uint64, ts int64) event.Record {
	e := event.New("a.b", json.RawMessage(fmt.Sprintf(`{"n":%d,"fill":%q}`, seq, strings.Repeat("x", int(seq)%700))))
	e.Seq, e.TS = seq, ts
	return event.AppendBinary(nil, &e, false)
}

// sample writes a chunk with two topics, one of them in several blocks.
func sample(t *testing.T, fs vfs.FS) []Section {
	t.Helper()
	w, err := NewWriter(fs, "c")
	if err != nil {
		t.Fatal(err)
	}
	w.Begin(1, "a.empty")
	w.Begin(2, "a.many")
	for seq := uint64(10); seq < 1000; seq++ {
		w.Add(seq, int64(1000+seq), int64(seq%50), record(seq, int64(seq%50)))
	}
	w.Begin(7, "a.one")
	w.Add(5, 1, 9, record(5, 9))
	w.Begin(8, "b.empty")
	sections, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return sections
}

func open(t *testing.T, fs vfs.FS) *Chunk {
	t.Helper()
	c, err := Open(fs, "c")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRoundTrip(t *testing.T) {
	fs := vfs.NewMem()
	written := sample(t, fs)
	c := open(t, fs)
	all, err := c.Sections()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || len(written) != 2 || all[0].Name != "a.many" || all[1].Name != "a.one" {
		t.Fatalf("sections %v", all)
	}
	for i := range all {
		one, err := c.Section(written[i].Entry)
		if err != nil || fmt.Sprint(*one) != fmt.Sprint(all[i]) || fmt.Sprint(all[i]) != fmt.Sprint(written[i]) {
			t.Fatalf("section %d read alone: %v, %v", i, one, err)
		}
	}
	s := &all[0]
	if s.First() != 10 || s.Last() != 999 || s.MaxTS() != 49 || s.LastAt() != 1999 || len(s.Blocks) < 3 {
		t.Fatalf("section %d to %d, %d blocks", s.First(), s.Last(), len(s.Blocks))
	}
	blocks, err := c.Read(s.Blocks)
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(10)
	for _, b := range blocks {
		for at, r := range Records(b) {
			if r.Seq() != seq || at != int64(1000+seq) || !bytes.Equal(r.Payload(), record(seq, 0).Payload()) {
				t.Fatalf("seq %d at %d, want %d", r.Seq(), at, seq)
			}
			seq++
		}
	}
	if seq != 1000 {
		t.Fatalf("read up to %d", seq)
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
}

func TestCopyKeepsBlocks(t *testing.T) {
	fs := vfs.NewMem()
	sample(t, fs)
	c := open(t, fs)
	all, err := c.Sections()
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(fs, "d")
	if err != nil {
		t.Fatal(err)
	}
	w.Begin(2, "a.many")
	for _, b := range all[0].Blocks {
		data, err := c.Read([]Block{b})
		if err != nil {
			t.Fatal(err)
		}
		w.Copy(b, data[0])
	}
	got, err := w.Finish()
	if err != nil || len(got) != 1 || len(got[0].Blocks) != len(all[0].Blocks) {
		t.Fatalf("%v, %v", got, err)
	}
	for i, b := range got[0].Blocks {
		was := all[0].Blocks[i]
		if b.CRC != was.CRC || b.First != was.First || b.Last != was.Last || b.Count != was.Count || b.MaxTS != was.MaxTS {
			t.Fatalf("block %d is %v, was %v", i, b, was)
		}
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
}

// Each damaged byte is found, on opening, by the index or by its block.
func TestDamage(t *testing.T) {
	clean := vfs.NewMem()
	sample(t, clean)
	st, err := clean.Stat("c")
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, st.Size())
	f, err := clean.Open("c")
	if err == nil {
		_, err = f.ReadAt(data, 0)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(data); off++ {
		if off > headerSize+2*RecordHead && off < len(data)-1000 && off%997 != 0 {
			continue // all of header, index and footer, and a spread of the blocks
		}
		fs := vfs.NewMem()
		bad := bytes.Clone(data)
		bad[off] ^= 2
		f, err := fs.Create("c", vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write(bad)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		err = readEverything(fs)
		var c *store.CorruptError
		if !errors.As(err, &c) || c.File != "c" {
			t.Fatalf("byte %d of %d: got %v", off, len(data), err)
		}
	}
}

func readEverything(fs vfs.FS) (err error) {
	c, err := Open(fs, "c")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Release()) }()
	all, err := c.Sections()
	for i := range all {
		if err == nil {
			_, err = c.Read(all[i].Blocks)
		}
	}
	return err
}
