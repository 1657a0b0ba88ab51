package docstore_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store/docstore"
	"promethean/store/storetest"
)

// place remembers where a store of a test lives, to open it again.
type place struct {
	dir string
	o   docstore.Options
}

// harness opens stores with the given options; on disk, or in memory.
func harness(name string, o docstore.Options, disk bool) storetest.DocsHarness {
	places := make(map[storetest.DocsEngine]place)
	open := func(t testing.TB, p place) storetest.DocsEngine {
		s, err := docstore.Open(p.dir, p.o)
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
	return storetest.DocsHarness{
		Name: name,
		Open: func(t testing.TB) storetest.DocsEngine {
			p := place{dir: "views", o: o}
			if disk {
				p.dir = t.TempDir()
			} else {
				p.o.FS = vfs.NewMem()
			}
			return open(t, p)
		},
		Reopen: func(t testing.TB, e storetest.DocsEngine) storetest.DocsEngine {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, places[e])
		},
		Flush: func(t testing.TB, e storetest.DocsEngine) {
			if err := e.(*docstore.Store).Flush(); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// small is a store that writes its rows out all the time.
var small = docstore.Options{Pending: 16 << 10, Log: 8 << 10, Memtable: 256 << 10, Cache: 1 << 20}

func TestConformance(t *testing.T) {
	t.Run("disk", func(t *testing.T) { storetest.RunDocs(t, harness("disk", docstore.Options{}, true)) })
	t.Run("memory", func(t *testing.T) { storetest.RunDocs(t, harness("memory", docstore.Options{}, false)) })
	t.Run("small", func(t *testing.T) { storetest.RunDocs(t, harness("small", small, false)) })
}
