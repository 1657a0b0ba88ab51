package mongostore_test

import (
	"context"
	"sync"
	"testing"

	"promethean/internal/rapidtest"
	"promethean/store"
	"promethean/store/mongostore"
	"promethean/store/storetest"
)

// keptDocs are documents that are closed with their store.
type keptDocs struct {
	store.Docs
	s *mongostore.Store
}

func (d keptDocs) Close() error { return d.s.Close() }

// transactDocs are those of a server that has transactions.
type transactDocs struct{ keptDocs }

func (transactDocs) CommitsAsOne() {}

// openDocs opens the documents of a database.
func openDocs(t testing.TB, uri string, o mongostore.Options) storetest.DocsEngine {
	t.Helper()
	s := open(t, uri, o)
	d, err := s.Docs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := d.(store.Transacts); ok {
		return &transactDocs{keptDocs{d, s}}
	}
	return &keptDocs{d, s}
}

func docsHarness(uri string) storetest.DocsHarness {
	var mu sync.Mutex
	names := make(map[storetest.DocsEngine]string)
	opened := func(t testing.TB, name string) storetest.DocsEngine {
		d := openDocs(t, uri, mongostore.Options{Database: name})
		mu.Lock()
		defer mu.Unlock()
		names[d] = name
		return d
	}
	return storetest.DocsHarness{
		Name: "mongostore",
		Open: func(t testing.TB) storetest.DocsEngine { return opened(t, newDatabase(t, uri)) },
		Reopen: func(t testing.TB, d storetest.DocsEngine) storetest.DocsEngine {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			name := names[d]
			mu.Unlock()
			return opened(t, name)
		},
	}
}

func TestDocs(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) { storetest.RunDocs(t, docsHarness(uri)) })
}

// TestDocsModel holds also where there are no transactions: while one process
// writes, a batch that is refused has written nothing.
func TestDocsModel(t *testing.T) {
	rapidtest.Checks(t, 12)
	onEach(t, func(t *testing.T, uri string) { storetest.DocsModel(t, docsHarness(uri)) })
}
