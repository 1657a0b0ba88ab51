package pgoutbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
)

const lease = time.Hour

func numbered(topic, key string, n int) outbox.Row {
	return outbox.Row{ID: event.NewID(), Topic: topic, Key: key, Payload: fmt.Append(nil, n)}
}

func (b *bench) add(t testing.TB, rows ...outbox.Row) {
	t.Helper()
	if err := b.Add(t.Context(), b.pool, rows...); err != nil {
		t.Fatal(err)
	}
}

// claim claims rows and gives their keys and payloads.
func (b *bench) claim(t testing.TB, owner string, n int) (names []string) {
	t.Helper()
	rows, err := b.ClaimBatch(t.Context(), owner, n, lease)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		names = append(names, r.Key+string(r.Payload))
	}
	return names
}

func want(t testing.TB, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Fatalf("claimed %q, want %q", got, want)
	}
}

func TestTableNames(t *testing.T) {
	for _, name := range []string{"", "outbox", "shop.outbox", "_a", "Shop.Events_2"} {
		text, err := pgoutbox.Schema(name)
		if err != nil || !strings.Contains(text, "CREATE TABLE") || strings.Contains(text, "{") {
			t.Errorf("%q: %v\n%s", name, err, text)
		}
	}
	for _, name := range []string{"a.b.c", "out box", `a"b`, "a'b", "1a", ".a", "a.", "ö", strings.Repeat("a", 49)} {
		if _, err := pgoutbox.New(nil, pgoutbox.Options{Table: name}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("%q: %v, want an error that names it", name, err)
		}
	}
	if _, err := pgoutbox.Open(t.Context(), "postgres://a b", pgoutbox.Options{}); err == nil {
		t.Error("a bad address was taken")
	}
}

// A service that only adds needs no pool.
func TestWithoutPool(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	s := b.again(t, nil, pgoutbox.Options{})
	if err := s.Add(t.Context(), b.pool, numbered("a", "k", 1)); err != nil {
		t.Fatal(err)
	}
	_, claim := s.ClaimBatch(t.Context(), "me", 1, lease)
	_, stats := s.Stats(t.Context())
	_, list := s.Errors(t.Context(), 1)
	_, wake := s.Wake(t.Context())
	for _, err := range []error{claim, stats, list, wake, s.Setup(t.Context()), s.MarkSent(t.Context(), event.NewID())} {
		if err == nil || !strings.Contains(err.Error(), "without a pool") {
			t.Errorf("%v, want an error about the pool", err)
		}
	}
	want(t, b.claim(t, "me", 1), "k1")
}

func TestSetup(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	ctx := t.Context()
	schema, _, _ := strings.Cut(b.table, ".")

	// Many at a time.
	done := make(chan error, 8)
	for range cap(done) {
		s, err := pgoutbox.New(b.pool, pgoutbox.Options{Table: schema + ".twice"})
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- s.Setup(ctx) }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}

	// The migration is what Setup makes.
	text, err := pgoutbox.Schema(schema + ".migrated")
	if err != nil {
		t.Fatal(err)
	}
	b.exec(t, text)
	b.exec(t, text)

	// Another table of that name is told from an outbox.
	b.exec(t, "CREATE TABLE "+schema+".other (n int, id uuid)")
	s, err := pgoutbox.New(b.pool, pgoutbox.Options{Table: schema + ".other"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Setup(ctx); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("a table that is no outbox: %v", err)
	}
	if s, err = pgoutbox.New(b.pool, pgoutbox.Options{Table: "nowhere_at_all.outbox"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Setup(ctx); err == nil || !strings.Contains(err.Error(), "nowhere_at_all") {
		t.Errorf("no schema: %v", err)
	}

	// Who may not make tables can use one that is there.
	role := schema + "_guest"
	b.exec(t, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() {
		_, _ = b.pool.Exec(context.Background(), "DROP OWNED BY "+role)
		_, _ = b.pool.Exec(context.Background(), "DROP ROLE "+role)
	})
	b.exec(t, "GRANT USAGE ON SCHEMA "+schema+" TO "+role)
	b.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+b.table+" TO "+role)
	guest := b.again(t, b.connect(t, func(c *pgxpool.Config) { c.ConnConfig.User = role }), pgoutbox.Options{})
	if err := guest.Setup(ctx); err != nil {
		t.Error(err)
	}
	b.add(t, numbered("a", "k", 1))
	if rows, err := guest.ClaimBatch(ctx, "guest", 1, lease); err != nil || len(rows) != 1 {
		t.Errorf("a guest claims %d rows, %v", len(rows), err)
	}
}

func TestAddRefuses(t *testing.T) {
	b := open(t, pgoutbox.Options{Limits: event.Limits{Payload: 10}})
	ctx := t.Context()
	var at *outbox.RowError

	err := b.Add(ctx, b.pool, numbered("a", "k", 1), numbered("a", "k\x00", 2))
	if !errors.As(err, &at) || at.Index != 1 || !errors.Is(err, event.ErrInvalidArgument) || !strings.Contains(err.Error(), "NUL") {
		t.Errorf("a key with NUL: %v", err)
	}
	err = b.Add(ctx, b.pool, numbered("a", "k", 12345678901))
	if !errors.Is(err, event.ErrPayloadTooLarge) {
		t.Errorf("a payload over the limit: %v", err)
	}
	twin := numbered("a", "k", 3)
	b.add(t, twin)
	err = b.Add(ctx, b.pool, numbered("a", "k", 4), numbered("a", "k", 5), twin)
	var pg *pgconn.PgError
	if !errors.As(err, &at) || at.Index != 2 || !errors.As(err, &pg) || !strings.Contains(err.Error(), twin.ID.String()) {
		t.Errorf("an id that is there: %v", err)
	}
	want(t, b.claim(t, "me", 10), "k3")
}

// Fields that somebody wrote by hand and that cannot be read are the row's damage.
func TestDamage(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	b.exec(t, `INSERT INTO `+b.table+` (id, topic, key, payload, meta) VALUES (gen_random_uuid(), 'a', 'k', '1', '{"tags":7}')`)
	rows, err := b.ClaimBatch(t.Context(), "me", 1, lease)
	if err != nil || len(rows) != 1 || rows[0].Damage == nil || !strings.Contains(rows[0].Damage.Error(), "meta") {
		t.Fatalf("%+v, %v", rows, err)
	}
}

// A row that somebody else has locked is not waited for, and holds up its key.
func TestLockedRow(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	ctx := t.Context()
	for n := range 3 {
		b.add(t, numbered("a", "k", n+1), numbered("a", "l", n+1), numbered("a", "", n+1))
	}
	tx, err := b.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, `SELECT FROM `+b.table+` WHERE key = 'k' AND payload = '2' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	want(t, b.claim(t, "me", 100), "k1", "l1", "1", "l2", "2", "l3", "3")
	want(t, b.claim(t, "me", 100))
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	want(t, b.claim(t, "you", 100)) // k1 is claimed
	b.exec(t, `UPDATE `+b.table+` SET state = 'sent' WHERE key = 'k' AND payload = '1'`)
	want(t, b.claim(t, "you", 100), "k2", "k3")
}

// The rows of a key that is held up may be more than one look takes in.
func TestFarLook(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	ctx := t.Context()
	b.add(t, numbered("a", "stuck", 1))
	rows, err := b.ClaimBatch(ctx, "me", 1, lease)
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	if err := b.MarkError(ctx, "me", outbox.Refusal{ID: rows[0].ID, Reason: "no", GiveUp: true}); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `INSERT INTO `+b.table+` (id, topic, key, payload) SELECT gen_random_uuid(), 'a', 'stuck', g::text FROM generate_series(2, 5000) AS g`)
	b.add(t, numbered("a", "k", 1))
	b.exec(t, `INSERT INTO `+b.table+` (id, topic, key, payload) SELECT gen_random_uuid(), 'a', 'stuck', g::text FROM generate_series(5001, 9000) AS g`)
	b.add(t, numbered("a", "k", 2), numbered("a", "", 3))
	want(t, b.claim(t, "me", 2), "k1", "k2")
	want(t, b.claim(t, "me", 2), "3")
	if n, err := b.Discard(ctx, rows[0].ID); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	want(t, b.claim(t, "me", 2), "stuck2", "stuck3")
	if names := b.claim(t, "me", 10_000); len(names) != 0 {
		t.Fatalf("claimed %d rows behind claimed ones", len(names))
	}
}
