package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
)

// ErrUnique says that another document has the same values in a unique index;
// see [DocError].
var ErrUnique = errors.New("another document has these values")

// HasDocs is an engine that keeps documents beside its log.
type HasDocs interface {
	// Docs gives the documents, and makes room for them when it is called for
	// the first time. They are closed with the engine.
	Docs(ctx context.Context) (Docs, error)
}

// Docs keeps collections of JSON documents: the read models.
//
// They are derived. Whoever writes collections reads a topic: a [Reader], whose
// place in that topic is stored in the same step as the documents. So after a
// crash documents and place fit each other, though both may be those of a
// moment ago: what was committed last is there for certain only after Sync. The
// reader then reads on from its place and comes to the same documents again.
//
// A collection is written by one reader. Its name has 1 to 128 bytes of
// a–z, A–Z, 0–9 and ".", "_", "-", "~", ":"; so has a reader's.
type Docs interface {
	// Declare makes a reader with its collections, at place 0, or brings one
	// that exists in line: collections that are new are made and indexes are
	// built or dropped before it returns; its place stays, Meta is replaced. A
	// collection that it had and that r does not name is dropped. One that
	// belongs to another reader is ErrConflict.
	Declare(ctx context.Context, r Reader) error

	// Reader gives a reader, or ErrNotFound.
	Reader(ctx context.Context, name string) (Reader, error)

	// Readers yields all of them by name.
	Readers(ctx context.Context) iter.Seq2[Reader, error]

	// Commit applies the operations in order and moves the reader from b.From
	// to b.To, in one step where the engine [Transacts]. If the reader's place
	// is not b.From nothing is changed and the error is ErrConflict; an unknown
	// reader or collection is ErrNotFound. An operation that is refused is a
	// [*DocError], and nothing is changed by any of them.
	//
	// An operation is stale, and changes nothing, where the stored document, or
	// the remembered deletion, has a Seq that is not below its own, or both have
	// a version and the stored one is not below. stale says how many were.
	//
	// Once Commit returns, every read sees it.
	Commit(ctx context.Context, b DocBatch) (stale int, err error)

	// Sync returns once everything that was committed before is durable.
	Sync(ctx context.Context) error

	// Doc gives one document, or ErrNotFound. The body is the caller's.
	Doc(ctx context.Context, collection, key string) (Doc, error)

	// List yields documents newest first: TS descending, then Key ascending,
	// as of one moment. A filter on a field that no index of the collection
	// names is ErrInvalid.
	List(ctx context.Context, collection string, q DocQuery) iter.Seq2[Doc, error]

	// Changes yields, in the order of Seq, what changed after a Seq and is
	// still so: documents, and remembered deletions, whose Body is nil. If
	// deletions after that Seq were forgotten, it is ErrGone.
	Changes(ctx context.Context, collection string, after uint64) iter.Seq2[Doc, error]

	// Forget forgets the deletions with a Seq at or below one.
	Forget(ctx context.Context, collection string, upTo uint64) error

	// Count says how many documents a collection has.
	Count(ctx context.Context, collection string) (int64, error)

	// Replace puts the collections of the reader by in the place of those of
	// the reader name, first for first, and its place and Meta too, as one step
	// and durably; what was there is dropped, and by is gone. Readers of
	// documents see the old ones or the new ones.
	Replace(ctx context.Context, name, by string) error

	// Drop removes a reader and its collections; one that does not exist is
	// left alone.
	Drop(ctx context.Context, reader string) error
}

// ErrGone says that what was asked for is not remembered any more.
var ErrGone = errors.New("not remembered any more")

// Transacts is the ability of [Docs] to commit several documents and the place
// of the reader in one step. Without it every operation is a step of its own,
// in order, and the place is moved last: whoever runs a commit again, because it
// does not know how far it came, changes nothing by those that were applied.
type Transacts interface{ CommitsAsOne() }

// Reader is who writes collections, and how far it has read.
type Reader struct {
	Name string
	// Seq is its place: what is committed comes from events up to it.
	Seq         uint64
	Collections []Collection
	// Meta belongs to the layers above; engines keep it as it is.
	Meta []byte
}

// Collection is what is declared of one.
type Collection struct {
	Name    string
	Indexes []Index
}

// Index is over fields of the documents' top level. Documents that lack one of
// them are not in it, nor are those in which one is an object or an array.
type Index struct {
	Fields []string
	// Unique refuses a document whose values another one has.
	Unique bool
}

// Doc is one document.
type Doc struct {
	Key string
	// TS orders listings; Seq is the event that the document was made from.
	TS  int64
	Seq uint64
	// Version guards beside Seq where it is not nil.
	Version *int64
	// Body is a JSON object. Nil means that the document is deleted.
	Body json.RawMessage
}

// DocBatch is what one Commit does.
type DocBatch struct {
	Reader   string
	From, To uint64
	Ops      []DocOp
}

// DocOp puts a document in place of what is there under its key or, if its Body
// is nil, deletes what is there and remembers that. A deletion without a version
// remembers that of the document.
type DocOp struct {
	Collection string
	Doc
}

// DocError says which operation of a batch was refused, and why: [ErrUnique],
// or [ErrInvalid] for a body that is no object and a key that is empty or
// larger than event.MaxKey.
type DocError struct {
	Op  int
	Err error
}

func (e *DocError) Error() string { return fmt.Sprintf("operation %d: %v", e.Op, e.Err) }

// Unwrap gives the rule that was broken.
func (e *DocError) Unwrap() error { return e.Err }

// DocQuery selects documents of a collection.
type DocQuery struct {
	// Filter maps a declared field to the JSON values of which it must equal
	// one: numbers by value (1 and 1.0 are equal, digits are never rounded),
	// strings by their text, true, false and null.
	Filter map[string][]json.RawMessage
	Offset int
	// Limit 0 means no limit.
	Limit int
}
