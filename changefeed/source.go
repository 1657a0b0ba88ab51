package changefeed

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"promethean/event"
)

// Source is a database that tells the changes of one collection or table. It is
// used by one feed at a time.
type Source interface {
	// Stream hands over what is at hand from a token on, then what comes, batch
	// after batch, until the context ends, the sink fails, or the source does.
	// An error of the sink is returned as it is.
	//
	// Without a token it begins: with all that is there now, if a snapshot was
	// asked for, and then with the changes since, without a gap. A token of the
	// midst of a snapshot goes on with it, or begins it again.
	//
	// The sink returns once the batch is stored and its token saved. Only then
	// may the source tell its server that the changes are no longer needed.
	//
	// Errors that mean something: [ErrHistoryLost], [ErrGone], [ErrRefused].
	// After any other the feed comes back with the last saved token.
	Stream(ctx context.Context, token []byte, sink func(context.Context, Batch) error) error
	// Status tells what the server says about the feed, such as how far it is
	// behind. It may be called at any time, also while Stream runs.
	Status(ctx context.Context) (SourceStatus, error)
	// Forget removes what the source keeps at its server for the feed, such as a
	// replication slot, so that the next Stream without a token begins anew.
	Forget(ctx context.Context) error
	// Close ends what the source has open. Stream has returned by then.
	Close() error
}

var (
	// ErrHistoryLost says that the source no longer has the changes since a
	// token: some are missed for good. Only a new snapshot helps.
	ErrHistoryLost = errors.New("the history since the last saved place is lost")
	// ErrGone says that the collection or table was dropped or renamed, so that
	// the stream is over.
	ErrGone = errors.New("what is watched is gone")
	// ErrRefused says that trying again is of no use until somebody changes
	// something: a server that cannot do this, a permission that is missing, a
	// token of another kind.
	ErrRefused = errors.New("the source refuses")
)

// Batch is what a source hands over at a time. A token stands between two
// changes, so that whatever a batch holds was there as a whole: of a
// transaction, the changes of one table come in one batch if they fit.
type Batch struct {
	Changes []Change
	// Token is where to go on after the changes. A batch without changes moves
	// the token forward only.
	Token []byte
	// Snapshot says that the changes are what was there at the beginning.
	Snapshot bool
	// Position is the place as a person reads it.
	Position string
}

// Op is what became of a document or row.
type Op string

// The operations.
const (
	OpInsert   Op = "insert"
	OpUpdate   Op = "update"
	OpReplace  Op = "replace"
	OpDelete   Op = "delete"
	OpSnapshot Op = "snapshot" // it was there at the beginning
	OpTruncate Op = "truncate" // all rows of a table were removed; it has no key
)

// Change is one change of a source.
type Change struct {
	// ID follows from the change's place in the source: whoever reads the change
	// again gives it the same.
	ID event.ID
	// Key is the document's, as text.
	Key string
	Op  Op
	// Doc is the document as it is after the change, as JSON; nil if there is
	// none: it was deleted.
	Doc json.RawMessage
	// At is when the source made it durable; zero if it does not tell.
	At time.Time
	// Headers are put on the event as they are.
	Headers event.Headers
}

// SourceStatus is what a server says about a feed.
type SourceStatus struct {
	// LagBytes is how much of its log the server keeps for the feed; -1 if it
	// does not tell.
	LagBytes int64
	// Server names the server and its version.
	Server string
	// Warning is what somebody should look after; empty if all is well.
	Warning string
}

// Tokens keeps the places of feeds.
type Tokens interface {
	// Load gives the token of a feed, and nil if there is none.
	Load(ctx context.Context, key string) ([]byte, error)
	// Save replaces it, durably when it returns.
	Save(ctx context.Context, key string, token []byte) error
	// Delete removes it; one that is not there is none to remove.
	Delete(ctx context.Context, key string) error
}
