package mongostore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"promethean/store"
)

// transientCodes are answers of a server that cannot serve now.
var transientCodes = []int{
	6, 7, 89, 9001, // host unreachable, not found, network timeout, socket
	91, 11600, 11602, // shutting down, interrupted by that
	189, 10107, 13435, 13436, 10058, // the primary has changed
	50, 262, // out of time
	112,      // a write conflict
	133, 134, // no such read preference or read concern now
	246,     // no snapshot of this moment, as collections have just changed
	43, 237, // the cursor is gone, as after a failover; the read begins anew
	16908292, // the compatible server: deadlock detected
	16777245, // the compatible server: it could not serialize
}

// transientWords are in answers of the compatible server that have no code of
// their own. It forgets what $$NOW is when two make a lease at once.
var transientWords = []string{"deadlock detected", "$$NOW operator cannot be used"}

// transient says whether the same call may succeed later.
func transient(err error) bool {
	if err == nil {
		return false
	}
	if mongo.IsNetworkError(err) || mongo.IsTimeout(err) {
		return true
	}
	var pool interface{ Retryable() bool } // the driver has dropped its connections
	if errors.As(err, &pool) && pool.Retryable() {
		return true
	}
	var selection topology.ServerSelectionError
	var connection topology.ConnectionError
	if errors.As(err, &selection) || errors.As(err, &connection) {
		return !refusedLogin(err)
	}
	var labelled mongo.LabeledError
	if errors.As(err, &labelled) {
		for _, label := range []string{"RetryableWriteError", "RetryableReadError", "TransientTransactionError"} {
			if labelled.HasErrorLabel(label) {
				return true
			}
		}
	}
	var write mongo.WriteException
	if errors.As(err, &write) && write.WriteConcernError != nil && len(write.WriteErrors) == 0 {
		return true // written, but not known to be on the majority
	}
	var server mongo.ServerError
	if !errors.As(err, &server) {
		return false
	}
	return slices.ContainsFunc(transientCodes, server.HasErrorCode) ||
		slices.ContainsFunc(transientWords, server.HasErrorMessage)
}

// duplicate says whether a unique index refused a document.
func duplicate(err error) bool { return mongo.IsDuplicateKeyError(err) }

// backOff is the pause between tries.
type backOff struct{ next time.Duration }

const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// wait pauses, with jitter, each time longer. It gives up when ctx ends.
func (b *backOff) wait(ctx context.Context) error {
	b.next = min(max(2*b.next, firstPause), lastPause)
	timer := time.NewTimer(b.next/2 + rand.N(b.next/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unavailable wraps what the last try met.
func unavailable(err error) error { return fmt.Errorf("%w: %w", store.ErrUnavailable, err) }

// try makes one bounded call.
func (s *Store) try(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	err := call(ctx)
	if isFull(err) {
		return unavailable(fmt.Errorf("the disk of the server is full: %w", err))
	}
	return err
}

// isFull says that the server has no room left. Trying again does not help.
func isFull(err error) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && (server.HasErrorCode(14031) || server.HasErrorMessage("No space left on device"))
}

// do makes a call that may be repeated, until it is answered.
func (s *Store) do(ctx context.Context, call func(context.Context) error) error {
	deadline := time.Now().Add(s.o.RetryFor)
	for pause := (backOff{}); ; {
		err := s.try(ctx, call)
		if err == nil || ctx.Err() != nil || !transient(err) {
			if err != nil && ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if time.Now().After(deadline) {
			return unavailable(err)
		}
		if err := pause.wait(ctx); err != nil {
			return err
		}
	}
}

// isNone says that no document matched.
func isNone(err error) bool { return errors.Is(err, mongo.ErrNoDocuments) }
