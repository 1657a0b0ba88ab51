package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// lanes watches that keys are in order: nobody is given a row while somebody has
// an earlier one of its key that is not sent.
type lanes struct {
	mu   sync.Mutex
	next map[string]int // the payload that is to be sent next
	held map[string]int // how many rows of a key are out
}

func (l *lanes) take(rows []outbox.Row) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := make(map[string]int)
	for _, r := range rows {
		n, err := strconv.Atoi(string(r.Payload))
		if err != nil {
			return err
		}
		if own[r.Key] == 0 && l.held[r.Key] > 0 {
			return fmt.Errorf("%s%d is given out while others of its key are", r.Key, n)
		}
		if want := l.next[r.Key] + own[r.Key]; n != want {
			return fmt.Errorf("%s%d is given out, want %d", r.Key, n, want)
		}
		own[r.Key]++
	}
	for key, n := range own {
		l.held[key] += n
	}
	return nil
}

func (l *lanes) give(rows []outbox.Row, sent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		l.held[r.Key]--
		if sent {
			l.next[r.Key]++
		}
	}
}

// Claimers race while somebody locks rows for no reason and backends are
// terminated: keys stay in order, no claim waits for a lock, all rows are sent.
func TestClaimersRace(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	const keys, each, claimers = 20, 60, 4
	for n := range each {
		var rows []outbox.Row
		for k := range keys {
			rows = append(rows, numbered("a", fmt.Sprintf("k%d.", k), n))
		}
		b.add(t, rows...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := &lanes{next: make(map[string]int), held: make(map[string]int)}
	var left atomic.Int64
	left.Store(keys * each)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { b.lockRows(ctx, t, &left) })
	}
	for i := range claimers {
		// One whose connection was cut may have claimed rows all the same. They
		// are nobody's, so this test cuts none of the claimers' own.
		s := b.again(t, b.connect(t), pgoutbox.Options{})
		all.Go(func() {
			owner := fmt.Sprint("claimer ", i)
			for left.Load() > 0 {
				rows, err := s.ClaimBatch(ctx, owner, 1+rand.IntN(40), lease)
				if err = errors.Join(err, watch.take(rows)); err != nil {
					t.Error(err)
					left.Store(0)
					return
				}
				ids := idsOf(rows)
				if rand.IntN(3) == 0 {
					watch.give(rows, false) // before others can have them
					err = s.Release(ctx, owner, ids...)
				} else {
					watch.give(rows, true)
					err = s.MarkSent(ctx, ids...)
					left.Add(-int64(len(rows)))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if st, err := b.Stats(t.Context()); err != nil || st != (outbox.Stats{}) {
		t.Errorf("left in the outbox: %+v, %v", st, err)
	}
}

// Claims wait for each other, by the outbox.
func TestOneClaimAtATime(t *testing.T) {
	b, other := open(t, pgoutbox.Options{}), open(t, pgoutbox.Options{})
	b.add(t, numbered("a", "k", 1))
	other.add(t, numbered("a", "k", 1))
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock((x'706F6202'::bigint << 32) | $1::regclass::oid::bigint)`, b.table); err != nil {
		t.Fatal(err)
	}
	want(t, other.claim(t, "me", 1), "k1")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if rows, err := b.ClaimBatch(short, "me", 1, lease); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("claimed %v, %v", rows, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, b.claim(t, "me", 1), "k1")
}

// lockRows locks some rows for a moment, again and again.
func (b *bench) lockRows(ctx context.Context, t *testing.T, left *atomic.Int64) {
	for left.Load() > 0 && ctx.Err() == nil {
		err := pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT FROM `+b.table+` WHERE state = 'pending' ORDER BY random() LIMIT 5 FOR UPDATE SKIP LOCKED`)
			return errors.Join(err, func() error { _, err := tx.Exec(ctx, `SELECT pg_sleep(0.003)`); return err }())
		})
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// Transactions that add rows of many keys at a time do not lock each other up,
// and the order of a key is the order of commits.
func TestAddersRace(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	b.exec(t, `CREATE TABLE `+b.table+`_count (key text PRIMARY KEY, n int NOT NULL)`)
	const keys, adders, each = 30, 6, 25
	var all sync.WaitGroup
	for range adders {
		all.Go(func() {
			for range each {
				err := pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error { return b.addCounted(t.Context(), tx, keys) })
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	next := make(map[string]int)
	rows, err := b.ClaimBatch(t.Context(), "me", 100_000, lease)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		next[r.Key]++
		if string(r.Payload) != strconv.Itoa(next[r.Key]) {
			t.Fatalf("key %s: %s came as number %d", r.Key, r.Payload, next[r.Key])
		}
	}
	if len(rows) != adders*each*5 {
		t.Errorf("%d rows, want %d", len(rows), adders*each*5)
	}
}

// addCounted adds a row to each of five keys, in any order, and then counts in a
// business table: the lock of Add alone keeps the two in step.
func (b *bench) addCounted(ctx context.Context, tx pgx.Tx, keys int) error {
	picked := rand.Perm(keys)[:5]
	var rows []outbox.Row
	for _, k := range picked {
		rows = append(rows, numbered("a", fmt.Sprint("k", k), 0))
	}
	if err := b.Add(ctx, tx, rows...); err != nil {
		return err
	}
	for i := range rows {
		var n int
		err := tx.QueryRow(ctx, `INSERT INTO `+b.table+`_count AS c VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = c.n + 1 RETURNING n`, rows[i].Key).Scan(&n)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE `+b.table+` SET payload = $1 WHERE id = $2`, strconv.Itoa(n), rows[i].ID.String()); err != nil {
			return err
		}
	}
	return nil
}

// Without locks nobody waits in Add.
func TestUnlocked(t *testing.T) {
	b := open(t, pgoutbox.Options{Unlocked: true, Quiet: true})
	ctx := t.Context()
	tx, err := b.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(ctx, tx, numbered("a", "k", 1)); err != nil {
		t.Fatal(err)
	}
	b.add(t, numbered("a", "k", 2))
	want(t, b.claim(t, "me", 10), "k2")
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	want(t, b.claim(t, "me", 10), "k1")
}

// A transaction may add more rows than there are locks.
func TestManyKeys(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	var rows []outbox.Row
	for n := range 10_000 {
		rows = append(rows, numbered("a", fmt.Sprint("k", n), n))
	}
	b.add(t, rows...)
	if names := b.claim(t, "me", 20_000); len(names) != len(rows) || names[9_999] != "k99999999" {
		t.Errorf("%d rows came", len(names))
	}
}

func idsOf(rows []outbox.Row) (ids []event.ID) {
	for i := range rows {
		ids = append(ids, rows[i].ID)
	}
	return ids
}
