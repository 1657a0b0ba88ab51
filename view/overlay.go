package view

import (
	"context"
	"errors"

	"promethean/store"
)

// overlay shows the documents as they will be once everything that was made is
// committed. Nobody else writes the collections meanwhile, so it keeps what it
// knows, within bounds.
type overlay struct {
	l     *line
	docs  map[docName]known
	bytes int
}

type docName struct{ collection, key string }

// known is what is known about a document.
type known struct {
	body []byte // nil if there is none
	seq  uint64 // of the event that made it so; 0 if it was found so
	// version is that of the document, and of its deletion within this session.
	version *int64
	// unsure: a deletion with a version may be remembered under this key, and
	// then the document is not as it seems until that was judged.
	unsure bool
}

// Bounds of what an overlay keeps of documents that are committed.
const (
	overlayDocs  = 50_000
	overlayBytes = 32 << 20
)

func newOverlay(l *line) *overlay { return &overlay{l: l, docs: make(map[docName]known)} }

// get gives a document.
func (o *overlay) get(ctx context.Context, n docName) (known, error) {
	if k, ok := o.docs[n]; ok {
		return k, nil
	}
	d, err := o.l.v.docs.Doc(ctx, n.collection+o.l.suffix, n.key)
	var k known
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return k, err
	default:
		k.body, k.version = d.Body, d.Version
	}
	o.put(n, k)
	return k, nil
}

// put says how a document will be.
func (o *overlay) put(n docName, k known) {
	o.forget(n)
	o.docs[n] = k
	o.bytes += len(n.key) + len(k.body)
}

// forget has it looked up again.
func (o *overlay) forget(n docName) {
	if was, ok := o.docs[n]; ok {
		o.bytes -= len(n.key) + len(was.body)
		delete(o.docs, n)
	}
}

// tidy lets go of what is committed if it has become too much.
func (o *overlay) tidy() {
	if len(o.docs) <= overlayDocs && o.bytes <= overlayBytes {
		return
	}
	place := o.l.place.Load()
	for n, k := range o.docs {
		if k.seq <= place {
			o.forget(n)
		}
	}
}
