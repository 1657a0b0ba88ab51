package pgfeed

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/changefeed"
)

// Tokens keeps the places of feeds in the table changefeed_tokens of a
// database, which is made when it is first needed.
type Tokens struct{ pool *pgxpool.Pool }

var _ changefeed.Tokens = (*Tokens)(nil)

// NewTokens keeps places in a database. Nothing is asked of the server yet.
func NewTokens(uri string) (*Tokens, error) {
	config, err := parseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("tokens in PostgreSQL: %w", err)
	}
	// A place is saved durably, whatever the server does by default.
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "on"
	pool, err := newPool(config, 2)
	if err != nil {
		return nil, fmt.Errorf("tokens in PostgreSQL: %w", err)
	}
	return &Tokens{pool: pool}, nil
}

// Close ends the connections.
func (t *Tokens) Close() error {
	t.pool.Close()
	return nil
}

// Load implements [changefeed.Tokens].
func (t *Tokens) Load(ctx context.Context, key string) (token []byte, err error) {
	err = t.pool.QueryRow(ctx, "SELECT token FROM changefeed_tokens WHERE key = $1", key).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) || code(err) == codeNoTable {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load token %q from PostgreSQL: %w", key, err)
	}
	return token, nil
}

// Save implements [changefeed.Tokens].
func (t *Tokens) Save(ctx context.Context, key string, token []byte) error {
	save := func() error {
		_, err := t.pool.Exec(ctx, `INSERT INTO changefeed_tokens AS t (key, token, saved_at) VALUES ($1, $2, now())
			ON CONFLICT (key) DO UPDATE SET token = excluded.token, saved_at = excluded.saved_at`, key, token)
		return err
	}
	err := save()
	if code(err) == codeNoTable {
		if err = t.make(ctx); err == nil {
			err = save()
		}
	}
	if err != nil {
		return fmt.Errorf("save token %q in PostgreSQL: %w", key, err)
	}
	return nil
}

func (t *Tokens) make(ctx context.Context) error {
	_, err := t.pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS changefeed_tokens (
		key text PRIMARY KEY, token bytea NOT NULL, saved_at timestamptz NOT NULL)`)
	switch code(err) { // somebody else makes it at the same time
	case codeExists, codeUnique, codeDuplicate:
		return nil
	}
	return err
}

// Delete implements [changefeed.Tokens].
func (t *Tokens) Delete(ctx context.Context, key string) error {
	_, err := t.pool.Exec(ctx, "DELETE FROM changefeed_tokens WHERE key = $1", key)
	if err != nil && code(err) != codeNoTable {
		return fmt.Errorf("delete token %q from PostgreSQL: %w", key, err)
	}
	return nil
}
