package pgfeed

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// kinds finds the encoders of types, and remembers those that it had to ask for.
type kinds struct {
	mu    sync.Mutex
	known map[uint32]encoder
}

// of gives the encoder of a type. A type that is no longer there is text.
func (k *kinds) of(ctx context.Context, pool *pgxpool.Pool, oid uint32) (encoder, error) {
	if e := plain[oid]; e != nil {
		return e, nil
	}
	k.mu.Lock()
	e := k.known[oid]
	k.mu.Unlock()
	if e != nil {
		return e, nil
	}
	e, err := k.ask(ctx, pool, oid)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known = make(map[uint32]encoder)
	}
	k.known[oid] = e
	return e, nil
}

func (k *kinds) ask(ctx context.Context, pool *pgxpool.Pool, oid uint32) (encoder, error) {
	var base, element uint32
	var delimiter string
	// An array of the usual kind has the category A and says what it is of.
	err := pool.QueryRow(ctx, `SELECT t.typbasetype, CASE WHEN t.typcategory = 'A' AND t.typtype = 'b' THEN t.typelem ELSE 0 END,
		coalesce(e.typdelim, ',')::text FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = $1`, oid).
		Scan(&base, &element, &delimiter)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return appendText, nil
	case err != nil:
		return nil, err
	case base != 0:
		return k.of(ctx, pool, base)
	case element != 0:
		e, err := k.of(ctx, pool, element)
		if err != nil {
			return nil, err
		}
		return arrayOf(e, delimiter[0]), nil
	}
	return appendText, nil
}
