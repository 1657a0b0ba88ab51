package store

import (
	"context"
	"encoding/json"
	"iter"
)

// Docs keeps collections of JSON documents: the read models.
type Docs interface {
	// Declare makes a collection with its indexes, or brings the indexes of
	// an existing one in line.
	Declare(ctx context.Context, collection string, indexes []Index) error

	// Doc gives one document, or ErrNotFound.
	Doc(ctx context.Context, collection, key string) (Doc, error)

	// List yields documents newest first: TS descending, then Key ascending.
	// Filters are equalities on declared fields, compared as JSON values.
	List(ctx context.Context, collection string, q DocQuery) iter.Seq2[Doc, error]

	// Drop removes a collection.
	Drop(ctx context.Context, collection string) error
}

// Transacts is the ability to change documents of several collections and
// the cursor of the reader in one atomic step.
type Transacts interface {
	// Transact runs fn and commits what it did together with s. If fn fails,
	// or s is refused (ErrFenced), nothing is changed. fn may be run again
	// after a conflict and must have no effect but through tx. A settlement
	// that is already applied commits nothing and does not run fn, so a
	// redelivered event counts once.
	Transact(ctx context.Context, s Settlement, fn func(tx DocTx) error) error
}

// DocTx is the view inside a transaction: it reads what it wrote.
type DocTx interface {
	Doc(collection, key string) (Doc, error)
	Put(collection string, d Doc) error
	Delete(collection, key string) error
}

// Doc is one document.
type Doc struct {
	Key string
	// TS orders listings; Seq is the event that the document was made from.
	TS   int64
	Seq  uint64
	Body json.RawMessage
}

// Index is a declared index over fields of a document.
type Index struct {
	Fields []string
	Unique bool
}

// DocQuery selects documents of a collection.
type DocQuery struct {
	// Filter maps a declared field to the JSON value it must equal.
	Filter map[string]json.RawMessage
	Offset int
	// Limit 0 means no limit.
	Limit int
}
