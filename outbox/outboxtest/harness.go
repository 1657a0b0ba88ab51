package outboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean/event"
	"promethean/outbox"
)

// Tx is a transaction of the user's.
type Tx interface {
	// Add adds rows by the driver's own Add.
	Add(ctx context.Context, rows ...outbox.Row) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Harness tells the suite how to get at an empty outbox.
type Harness struct {
	// Store is the outbox. The harness has called Setup, and closes what is to
	// be closed by a cleanup.
	Store outbox.Store
	// Again opens the same outbox as another process would. Default: Store.
	Again func(t testing.TB) outbox.Store
	// Begin starts a transaction. Several may be open at a time; Add or Commit
	// may wait for another one to end.
	Begin func(ctx context.Context) (Tx, error)
	// NoTransactions says why a rollback undoes nothing, where the server cannot
	// do it. Cases about that are skipped with this reason. Default "": it can.
	NoTransactions string
	// NoWaking says why a store that is an [outbox.Waker] cannot wake on this
	// server. The case about that is skipped with this reason. Default "": it can.
	NoWaking string
	// Advance has time pass for the outbox, or sets its clock back if d is
	// negative. A driver whose clock cannot be set moves all times that it has
	// stored the other way instead.
	Advance func(t testing.TB, d time.Duration)
	// Raw writes a row past the driver's Add, as somebody might by hand: the
	// payload may be anything. Default nil: the case is skipped.
	Raw func(t testing.TB, id event.ID, topic, key, payload string)
	// Timeout bounds each case. Default 1 minute.
	Timeout time.Duration
}

// Case is one promise and the code that tries it.
type Case struct {
	// Name is theme/promise, such as "claim/nobody else has the rows".
	Name string
	run  func(*trial)
}

// Cases lists all cases. [Run] runs them.
func Cases() []Case { return slices.Concat(addCases, claimCases, markCases, careCases, drainCases) }

// Run runs all cases as subtests of t, each on an outbox of its own.
func Run(t *testing.T, open func(t testing.TB) Harness) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, open) })
	}
}

// Run runs the case.
func (c Case) Run(t testing.TB, open func(t testing.TB) Harness) {
	h := open(t)
	if h.Timeout == 0 {
		h.Timeout = time.Minute
	}
	if h.Again == nil {
		h.Again = func(testing.TB) outbox.Store { return h.Store }
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
	defer cancel()
	c.run(&trial{TB: t, Harness: h, ctx: ctx})
}

// trial is one run of a case.
type trial struct {
	testing.TB
	Harness
	ctx context.Context
}

// lease is longer than any case takes.
const lease = time.Hour

func (x *trial) check(err error) {
	x.Helper()
	if err != nil {
		x.Fatal(err)
	}
}

func (x *trial) transactional() {
	x.Helper()
	if x.NoTransactions != "" {
		x.Skipf("no transactions: %s", x.NoTransactions)
	}
}

func (x *trial) begin() Tx {
	x.Helper()
	tx, err := x.Begin(x.ctx)
	x.check(err)
	return tx
}

// add commits rows in one transaction.
func (x *trial) add(rows ...outbox.Row) {
	x.Helper()
	tx := x.begin()
	x.check(tx.Add(x.ctx, rows...))
	x.check(tx.Commit(x.ctx))
}

// row makes a row whose payload is n.
func row(topic, key string, n int) outbox.Row {
	return outbox.Row{ID: event.NewID(), TS: 1_700_000_000_000 + int64(n), Topic: topic, Key: key, Payload: json.RawMessage(fmt.Sprint(n))}
}

// addKeyed commits rows with the payloads 1, 2, … under each key in turn: the
// first of all keys, then the second of all keys.
func (x *trial) addKeyed(n int, keys ...string) {
	x.Helper()
	for i := range n {
		var rows []outbox.Row
		for _, key := range keys {
			rows = append(rows, row("orders.placed", key, i+1))
		}
		x.add(rows...)
	}
}

func (x *trial) claim(owner string, n int) []outbox.Row {
	x.Helper()
	rows, err := x.Store.ClaimBatch(x.ctx, owner, n, lease)
	x.check(err)
	return rows
}

// wantClaim claims up to 100 rows and expects just these, told by names.
func (x *trial) wantClaim(owner string, want ...string) []outbox.Row {
	x.Helper()
	rows := x.claim(owner, 100)
	wantRows(x, rows, want...)
	return rows
}

// wantRows compares rows by key and payload, such as "a1". Rows of one key must
// be in order, rows of different keys need not be.
func wantRows(x *trial, rows []outbox.Row, want ...string) {
	x.Helper()
	var got []string
	for _, r := range rows {
		got = append(got, r.Key+string(r.Payload))
	}
	byKey := func(a, b string) int { return strings.Compare(keyPart(a), keyPart(b)) }
	slices.SortStableFunc(got, byKey)
	want = slices.Clone(want)
	slices.SortStableFunc(want, byKey)
	if !slices.Equal(got, want) {
		x.Fatalf("claimed %q, want %q", got, want)
	}
}

func keyPart(name string) string { return strings.TrimRight(name, "0123456789") }

func idsOf(rows []outbox.Row) (ids []event.ID) {
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func (x *trial) sent(rows ...outbox.Row) {
	x.Helper()
	x.check(x.Store.MarkSent(x.ctx, idsOf(rows)...))
}

func (x *trial) refuse(owner string, after time.Duration, rows ...outbox.Row) {
	x.Helper()
	for _, r := range rows {
		x.check(x.Store.MarkError(x.ctx, owner, outbox.Refusal{ID: r.ID, Reason: "refused " + r.Key, After: after}))
	}
}

func (x *trial) giveUp(owner string, rows ...outbox.Row) {
	x.Helper()
	for _, r := range rows {
		x.check(x.Store.MarkError(x.ctx, owner, outbox.Refusal{ID: r.ID, Reason: "gave up " + r.Key, GiveUp: true}))
	}
}

func (x *trial) wantStats(want outbox.Stats) {
	x.Helper()
	got, err := x.Store.Stats(x.ctx)
	x.check(err)
	if got.Oldest < 0 || (got.Oldest > 0) != (got.Pending+got.Claimed+got.Failed > 0) {
		x.Errorf("the oldest row is %s old, with %d pending, %d claimed, %d failed", got.Oldest, got.Pending, got.Claimed, got.Failed)
	}
	got.Oldest = 0
	if got != want {
		x.Fatalf("stats %+v, want %+v", got, want)
	}
}

// wantCount is for calls that say how many rows they changed.
func (x *trial) wantCount(what string, want int) func(n int, err error) {
	x.Helper()
	return func(n int, err error) {
		x.Helper()
		if err != nil || n != want {
			x.Fatalf("%s: %d rows, %v; want %d", what, n, err, want)
		}
	}
}
