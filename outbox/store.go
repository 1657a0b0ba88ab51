package outbox

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"promethean/event"
)

// Store is an outbox in a database, as drainers and people who look after it see
// it. Rows are added by the driver's own Add, which takes the user's transaction.
// Methods may be called by several goroutines and processes at a time.
//
// Time is the database's own where it has a clock. If the clock is set forward,
// claims may be over early, which repeats nothing in the log. If it is set back,
// a claim or a back-off that began in what is now the future is over too, so that
// no row waits for the clock to come there again.
type Store interface {
	// Setup makes what the outbox needs in the database: a table, a collection,
	// indexes. What is there stays as it is.
	Setup(ctx context.Context) error

	// ClaimBatch takes up to n rows for an owner until the lease is over, and
	// gives them in order. It takes pending rows whose back-off is over.
	//
	// A row with a key is taken only if every earlier row of its topic and key is
	// sent or taken by this very call, before it in the list. So nobody else
	// has, or comes to have, an earlier one while the lease lasts; and a row that
	// waits or has failed holds up those behind it. Rows of one key are in the
	// order in which their transactions wrote them.
	//
	// A row that cannot be read is given with [Row.Damage]. If ClaimBatch fails,
	// rows may have been taken all the same; the lease ends that.
	ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]Row, error)

	// MarkSent says that rows are in the log. It takes no owner: it is true
	// whoever says it, also by one whose claim is over. Ids that are not there
	// change nothing, nor does saying it again.
	MarkSent(ctx context.Context, ids ...event.ID) error

	// MarkError says that rows were refused: each has one attempt more, its
	// error kept, and is pending again when its pause is over, or has failed. A
	// row that the owner has no claim to is left as it is.
	MarkError(ctx context.Context, owner string, refusals ...Refusal) error

	// Release gives rows back that were not tried: they are pending as before. A
	// row that the owner has no claim to is left as it is.
	Release(ctx context.Context, owner string, ids ...event.ID) error

	// RequeueExpired makes rows pending whose claim is over, and says how many.
	// Until it is called they stay with their owner.
	RequeueExpired(ctx context.Context) (int, error)

	// Stats counts rows. It need not be one moment's view.
	Stats(ctx context.Context) (Stats, error)

	// Errors lists up to limit rows that are not sent and have an error, those
	// that failed first, then in order.
	Errors(ctx context.Context, limit int) ([]Refused, error)

	// Retry makes rows due at once that failed or wait after an error, and has
	// their attempts begin again; their errors stay visible. Without ids it does
	// so for all of them. It says how many they were. Other rows stay as they
	// are, claimed ones too.
	Retry(ctx context.Context, ids ...event.ID) (int, error)

	// Discard removes rows that failed or wait after an error: their events will
	// never be published, and those behind them go on. It says how many they
	// were. Other rows stay as they are.
	Discard(ctx context.Context, ids ...event.ID) (int, error)

	// Prune removes up to limit rows that were marked as sent at least that long
	// ago, and says how many they were.
	Prune(ctx context.Context, olderThan time.Duration, limit int) (int, error)
}

// Waker is a [Store] that can tell when rows have come.
type Waker interface {
	// Wake gives a channel that receives a value soon after rows were committed;
	// what comes together may be told once, and it may be told in vain. When the
	// context ends, or the store can no longer tell, it is closed, and nothing of
	// it is left. The error says that it cannot begin.
	//
	// What was committed before Wake returned need not be told.
	Wake(ctx context.Context) (<-chan struct{}, error)
}

// Refusal is why a row could not be published.
type Refusal struct {
	ID event.ID
	// Reason is kept with the row; see [TrimReason].
	Reason string
	// After is the pause before the row is due again.
	After time.Duration
	// GiveUp says that the row has failed, and is not tried again by itself.
	GiveUp bool
}

// Stats are the figures of an outbox.
type Stats struct {
	// Pending rows wait to be claimed, those in back-off and behind others too.
	Pending int64
	// Claimed rows are being published.
	Claimed int64
	// Failed rows wait for a person.
	Failed int64
	// Refused is how many of the pending ones have an error.
	Refused int64
	// Oldest is the age of the oldest row that is not sent; 0 if there is none.
	Oldest time.Duration
}

// State is where a row is in its life.
type State string

// The states.
const (
	Pending State = "pending"
	Claimed State = "claimed"
	Failed  State = "failed"
	Sent    State = "sent"
)

// Refused is a row that has an error.
type Refused struct {
	ID    event.ID `json:"id"`
	Topic string   `json:"topic"`
	Key   string   `json:"key,omitempty"`
	// State is Failed, or Pending or Claimed if it is tried again.
	State    State  `json:"state"`
	Attempts int    `json:"attempts"` // since the last Retry
	Error    string `json:"error"`    // of the last attempt
	// At is when that was.
	At time.Time `json:"at"`
}

// maxReason bounds how much of an error is kept with a row.
const maxReason = 1000

// TrimReason makes an error's text fit to be kept with a row: drivers put
// every reason through it. It is valid UTF-8 without NUL, and never empty.
func TrimReason(reason string) string {
	out := make([]byte, 0, min(len(reason), maxReason))
	for _, r := range reason {
		if r == 0 {
			r = utf8.RuneError
		}
		if len(out)+utf8.RuneLen(r) > maxReason {
			out = append(out, "…"...)
			break
		}
		out = utf8.AppendRune(out, r)
	}
	if len(out) == 0 {
		return "refused without a reason"
	}
	return string(out)
}

// CheckClaim tells whether the arguments of a ClaimBatch make sense.
func CheckClaim(owner string, n int, lease time.Duration) error {
	switch {
	case owner == "" || !utf8.ValidString(owner):
		return fmt.Errorf("claim rows: owner %q must be a text", owner)
	case n < 1:
		return fmt.Errorf("claim rows: %d of them, must be at least 1", n)
	case lease < time.Millisecond:
		return fmt.Errorf("claim rows: lease of %s, must be at least 1ms", lease)
	}
	return nil
}

// CheckPrune tells whether the arguments of a Prune make sense.
func CheckPrune(olderThan time.Duration, limit int) error {
	switch {
	case olderThan < 0:
		return fmt.Errorf("prune rows: age %s is negative", olderThan)
	case limit < 1:
		return fmt.Errorf("prune rows: limit %d, must be at least 1", limit)
	}
	return nil
}
