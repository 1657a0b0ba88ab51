package run

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"promethean/store"
)

var testSpec = Spec{Width: 12, Prefix: 4}

func entryOf(prefix uint32, n uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, prefix), n)
}

func build(t testing.TB, fs vfs.FS, path string, entries [][]byte) *Run {
	t.Helper()
	slices.SortFunc(entries, bytes.Compare)
	w, err := NewWriter(fs, path, testSpec, len(entries))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		w.Add(e)
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	r, err := Open(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func release(t testing.TB, rs ...*Run) {
	for _, r := range rs {
		if err := r.Release(); err != nil {
			t.Error(err)
		}
	}
}

// many gives n entries over so few prefixes that a prefix spans blocks.
func many(n, prefixes int, seed uint64) (list [][]byte) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		list = append(list, entryOf(rng.Uint32N(uint32(prefixes)), uint64(i)))
	}
	return list
}

func find(t testing.TB, r *Run, prefix uint32, reverse bool) (got []uint64) {
	p := binary.BigEndian.AppendUint32(nil, prefix)
	err := r.Find(p, reverse, func(e []byte) bool {
		if !bytes.HasPrefix(e, p) {
			t.Fatalf("found %x for %x", e, p)
		}
		got = append(got, binary.BigEndian.Uint64(e[4:]))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestFind(t *testing.T) {
	for _, c := range []struct{ n, prefixes int }{{0, 1}, {1, 1}, {1364, 3}, {1365, 3}, {1366, 3}, {20_000, 7}, {20_000, 50_000}} {
		fs := vfs.NewMem()
		list := many(c.n, c.prefixes, 5)
		want := make(map[uint32][]uint64)
		r := build(t, fs, "r", list)
		for _, e := range list {
			p := binary.BigEndian.Uint32(e)
			want[p] = append(want[p], binary.BigEndian.Uint64(e[4:]))
		}
		for p := range uint32(c.prefixes + 2) {
			got := find(t, r, p, false)
			if !slices.Equal(got, want[p]) {
				t.Fatalf("%v: prefix %d: got %d entries, want %d", c, p, len(got), len(want[p]))
			}
			if len(got) > 0 && !r.MayContain(binary.BigEndian.AppendUint32(nil, p)) {
				t.Fatalf("%v: prefix %d is there and the filter denies it", c, p)
			}
			back := find(t, r, p, true)
			slices.Reverse(back)
			if !slices.Equal(got, back) {
				t.Fatalf("%v: prefix %d: backwards differs", c, p)
			}
		}
		release(t, r)
	}
}

func TestFilterRejectsMost(t *testing.T) {
	r := build(t, vfs.NewMem(), "r", many(50_000, 1<<31, 9))
	defer release(t, r)
	yes := 0
	for p := range uint32(20_000) {
		if r.MayContain(binary.BigEndian.AppendUint32(nil, p<<16|1)) {
			yes++
		}
	}
	if yes > 1000 { // about 1 % by design
		t.Fatalf("%d of 20000 absent prefixes pass the filter", yes)
	}
}

func TestMerge(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := vfs.NewMem()
		var runs []*Run
		var all [][]byte
		for i := range rapid.IntRange(1, 9).Draw(rt, "runs") {
			list := many(rapid.IntRange(0, 4000).Draw(rt, "n"), 40, uint64(i))
			all = append(all, list...)
			runs = append(runs, build(t, fs, string(rune('a'+i)), list))
		}
		keep := func(e []byte) bool { return e[3]%3 != 0 }
		w, err := NewWriter(fs, "merged", testSpec, len(all))
		if err == nil {
			err = Merge(w, runs, keep)
		}
		if err == nil {
			err = w.Finish()
		}
		if err != nil {
			rt.Fatal(err)
		}
		m, err := Open(fs, "merged")
		if err != nil {
			rt.Fatal(err)
		}
		all = slices.DeleteFunc(all, func(e []byte) bool { return !keep(e) })
		slices.SortFunc(all, bytes.Compare)
		i := 0
		err = m.All(func(e []byte) bool {
			if i >= len(all) || !bytes.Equal(e, all[i]) {
				rt.Fatalf("entry %d differs", i)
			}
			i++
			return true
		})
		if err != nil || i != len(all) {
			rt.Fatalf("%d of %d entries: %v", i, len(all), err)
		}
		release(t, append(runs, m)...)
	})
}

func TestOutOfOrderIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	w, err := NewWriter(fs, "r", testSpec, 2)
	if err != nil {
		t.Fatal(err)
	}
	w.Add(entryOf(2, 1))
	w.Add(entryOf(1, 1))
	if err := w.Finish(); err == nil {
		t.Fatal("no error")
	}
	if _, err := fs.Stat("r"); err == nil {
		t.Fatal("the file is still there")
	}
}

// Each damaged byte is found, on opening or on reading everything.
func TestDamage(t *testing.T) {
	clean := vfs.NewMem()
	release(t, build(t, clean, "r", many(3000, 100, 3)))
	data := readAll(t, clean, "r")
	for off := 0; off < len(data); off += 1 + off%29 {
		fs := vfs.NewMem()
		bad := bytes.Clone(data)
		bad[off] ^= 0x40
		f, err := fs.Create("r", vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write(bad)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		r, err := Open(fs, "r")
		if err == nil {
			err = r.All(func([]byte) bool { return true })
			release(t, r)
		}
		var c *store.CorruptError
		if !errors.As(err, &c) || c.File != "r" {
			t.Fatalf("byte %d of %d: got %v", off, len(data), err)
		}
	}
}

func readAll(t *testing.T, fs vfs.FS, path string) []byte {
	st, err := fs.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDoomedRunIsRemovedByTheLastHolder(t *testing.T) {
	fs := vfs.NewMem()
	r := build(t, fs, "r", many(10, 3, 1))
	r.Acquire()
	r.Doom()
	release(t, r)
	if len(find(t, r, 0, false)) == 0 {
		t.Fatal("a holder cannot read")
	}
	release(t, r)
	if _, err := fs.Stat("r"); err == nil {
		t.Fatal("the file is still there")
	}
}
