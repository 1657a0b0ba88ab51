package logstore_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store/logstore"
	"promethean/store/storetest"
)

// place remembers where a store of a test lives, to open it again.
type place struct {
	dir string
	o   logstore.Options
}

// harness opens stores with the given options; on disk, or in memory.
func harness(name string, o logstore.Options, disk bool) storetest.Harness {
	places := make(map[storetest.Engine]place)
	open := func(t testing.TB, p place) storetest.Engine {
		s, err := logstore.Open(p.dir, p.o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		places[s] = p
		return s
	}
	return storetest.Harness{
		Name: name,
		Open: func(t testing.TB) storetest.Engine {
			p := place{dir: "data", o: o}
			if disk {
				p.dir = t.TempDir()
			} else {
				p.o.FS = vfs.NewMem()
			}
			return open(t, p)
		},
		Reopen: func(t testing.TB, e storetest.Engine) storetest.Engine {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, places[e])
		},
	}
}

func TestConformance(t *testing.T) {
	t.Run("disk", func(t *testing.T) { storetest.Run(t, harness("disk", logstore.Options{SegmentSize: 8 << 20}, true)) })
	t.Run("memory", func(t *testing.T) { storetest.Run(t, harness("memory", logstore.Options{SegmentSize: 8 << 20}, false)) })
	t.Run("small segments", func(t *testing.T) {
		o := logstore.Options{SegmentSize: 128 << 10}
		o.Limits.Payload = 16 << 10 // a record of the hub itself takes up to 96 KiB
		h := harness("small segments", o, false)
		h.Payload = o.Limits.Payload
		h.MaxBatch = 100
		storetest.Run(t, h)
	})
}

func TestModel(t *testing.T) {
	o := logstore.Options{SegmentSize: 32 << 10}
	o.Limits.Payload = 4 << 10
	h := harness("small segments", o, false)
	h.Payload = o.Limits.Payload
	h.MaxBatch = 50
	storetest.Model(t, h)
}

// TestModelFrugal is TestModel with index entries left that lead nowhere.
func TestModelFrugal(t *testing.T) {
	o := logstore.Options{SegmentSize: 32 << 10}.Frugal()
	o.Limits.Payload = 4 << 10
	h := harness("frugal", o, false)
	h.Payload = o.Limits.Payload
	h.MaxBatch = 50
	storetest.Model(t, h)
}

func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, harness("disk", logstore.Options{}, true))
}
