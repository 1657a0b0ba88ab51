package docstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"promethean/store"
)

// Documents that are read again and again while they change are never older than
// what was committed before the read.
func TestReadsAreNeverOld(t *testing.T) {
	s, err := OpenMemory(Options{Reads: 2 << 10, Pending: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	if err := s.Declare(ctx, store.Reader{Name: "r", Collections: []store.Collection{{Name: "c"}}}); err != nil {
		t.Fatal(err)
	}
	const keys = 8
	var committed [keys]atomic.Uint64
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for i := 0; !done.Load(); i++ {
				k := i % keys
				least := committed[k].Load()
				d, err := s.Doc(ctx, "c", fmt.Sprint(k))
				if least > 0 && (err != nil || d.Seq < least) {
					t.Errorf("key %d: seq %d (%v), %d was committed before", k, d.Seq, err, least)
					return
				}
			}
		})
	}
	place := uint64(0)
	for i := range 2_000 {
		seq := uint64(i + 1)
		k := i * 7 % keys
		op := store.DocOp{Collection: "c", Doc: store.Doc{Key: fmt.Sprint(k), Seq: seq, Body: []byte(fmt.Sprintf(`{"n":%d}`, i))}}
		if _, err := s.Commit(ctx, store.DocBatch{Reader: "r", From: place, To: seq, Ops: []store.DocOp{op}}); err != nil {
			t.Fatal(err)
		}
		place = seq
		committed[k].Store(seq)
	}
	done.Store(true)
	readers.Wait()
	// What is gone is not kept.
	for k := range keys {
		if _, err := s.Doc(ctx, "c", fmt.Sprint(k)); err != nil {
			t.Error(err)
		}
	}
	if err := s.Drop(ctx, "r"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Doc(ctx, "c", "1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a document of a collection that is gone: %v", err)
	}
	if n := s.cached.Load(); n != 0 {
		t.Errorf("%d bytes are still kept", n)
	}
}

// What is kept is bounded.
func TestReadsAreBounded(t *testing.T) {
	s, err := Open(t.TempDir(), Options{Reads: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	if err := s.Declare(ctx, store.Reader{Name: "r", Collections: []store.Collection{{Name: "c"}}}); err != nil {
		t.Fatal(err)
	}
	var ops []store.DocOp
	for i := range 2_000 {
		ops = append(ops, store.DocOp{Collection: "c", Doc: store.Doc{Key: fmt.Sprint(i), Seq: 1, Body: []byte(`{"a":1}`)}})
	}
	if _, err := s.Commit(ctx, store.DocBatch{Reader: "r", To: 1, Ops: ops}); err != nil {
		t.Fatal(err)
	}
	// Declaring an index writes what is in memory and makes the reader anew.
	if err := s.Declare(ctx, store.Reader{Name: "r", Collections: []store.Collection{{Name: "c", Indexes: []store.Index{{Fields: []string{"a"}}}}}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i := range 2_000 {
			if _, err := s.Doc(ctx, "c", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			if n := s.cached.Load(); n > 80<<10 {
				t.Fatalf("%d bytes are kept", n)
			}
		}
	}
	if s.cached.Load() == 0 {
		t.Error("nothing is kept: the documents were in memory all the time, and this tests nothing")
	}
}
