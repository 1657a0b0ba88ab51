package partition

import (
	"context"
	"errors"
	"sync"

	"promethean/store"
)

// table keeps the rosters of groups. A roster is replaced as a whole by whoever
// has read it last.
type table interface {
	// load gives a roster as it is written down, and its version; nothing and 0
	// if there is none.
	load(ctx context.Context, topic, group string) (doc []byte, version uint64, err error)
	// store replaces the roster with that version, or fails with errStale.
	store(ctx context.Context, topic, group string, doc []byte, version uint64) error
}

// errStale says that somebody else was first.
var errStale = errors.New("the list of members has changed")

// memoryTable is for an engine that no other process has open.
type memoryTable struct {
	mu   sync.Mutex
	docs map[groupName]memoryDoc
}

type groupName struct{ topic, group string }

type memoryDoc struct {
	doc     []byte
	version uint64
}

func (t *memoryTable) load(_ context.Context, topic, group string) ([]byte, uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.docs[groupName{topic, group}]
	return d.doc, d.version, nil
}

func (t *memoryTable) store(_ context.Context, topic, group string, doc []byte, version uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := groupName{topic, group}
	if t.docs[n].version != version {
		return errStale
	}
	if t.docs == nil {
		t.docs = make(map[groupName]memoryDoc)
	}
	t.docs[n] = memoryDoc{doc, version + 1}
	return nil
}

// cursorTable is for an engine that several hubs share. A roster is the Meta of
// a cursor beside the group's own.
type cursorTable struct{ cursors store.Cursors }

// rosterPrefix stands before the group's name, which is short enough for it.
const rosterPrefix = "system.members:"

func (t cursorTable) load(ctx context.Context, topic, group string) ([]byte, uint64, error) {
	c, err := t.cursors.Cursor(ctx, topic, rosterPrefix+group)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, nil
	}
	return c.Meta, c.Version, err
}

func (t cursorTable) store(ctx context.Context, topic, group string, doc []byte, version uint64) error {
	_, err := t.cursors.PutCursor(ctx, store.Cursor{Topic: topic, Group: rosterPrefix + group, Version: version, Meta: doc})
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrFenced) {
		return errStale
	}
	return err
}
