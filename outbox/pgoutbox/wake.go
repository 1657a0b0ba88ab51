package pgoutbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// Figures of listening.
const (
	firstPause, longestPause        = 100 * time.Millisecond, 10 * time.Second
	defaultSilence, defaultPatience = time.Minute, 10 * time.Second
)

// Wake implements [outbox.Waker]. It has a connection of its own, and gets a new
// one when that is lost, until the context ends. While there is none it wakes at
// every try to connect, so that the drainer looks by itself.
func (s *Outbox) Wake(ctx context.Context) (<-chan struct{}, error) {
	conn, err := s.listen(ctx)
	if err != nil {
		return nil, err
	}
	woken := make(chan struct{}, 1)
	go func() {
		defer close(woken)
		s.hear(ctx, conn, woken)
	}()
	return woken, nil
}

// listen connects and begins to listen.
func (s *Outbox) listen(ctx context.Context) (*pgx.Conn, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen for rows of outbox %s: %w", s.table, err)
	}
	return conn, nil
}

func (s *Outbox) connect(ctx context.Context) (*pgx.Conn, error) {
	config := s.o.Listen
	if config == nil {
		if s.pool == nil {
			return nil, errNoPool
		}
		config = s.pool.Config().ConnConfig
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return nil, err
	}
	var channel string
	if err = conn.QueryRow(ctx, s.sql.channel).Scan(&channel); err == nil {
		_, err = conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize())
	}
	if err != nil {
		hangUp(conn)
		return nil, err
	}
	return conn, nil
}

// hangUp closes a connection whose context may have ended.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost with it
}

// hear passes on what is notified until the context ends.
func (s *Outbox) hear(ctx context.Context, conn *pgx.Conn, woken chan<- struct{}) {
	pause := firstPause
	for {
		err := s.hearOne(ctx, conn, woken, func() { pause = firstPause })
		hangUp(conn)
		if ctx.Err() != nil {
			return
		}
		s.o.Logger.Warn("outbox no longer hears of rows", "table", s.table.String(), "error", err)
		for conn = nil; conn == nil; {
			// Rows may have come that nobody told us of.
			poke(woken)
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause/2 + rand.N(pause)):
			}
			if conn, err = s.listen(ctx); err != nil {
				s.o.Logger.Debug("outbox cannot listen", "error", err)
			}
			pause = min(2*pause, longestPause)
		}
		poke(woken)
	}
}

// hearOne passes on what is notified until the connection is lost.
func (s *Outbox) hearOne(ctx context.Context, conn *pgx.Conn, woken chan<- struct{}, fine func()) error {
	for {
		quiet, cancel := context.WithTimeout(ctx, s.silence)
		_, err := conn.WaitForNotification(quiet)
		timeout := errors.Is(quiet.Err(), context.DeadlineExceeded) && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			fine()
			poke(woken)
		case !timeout || conn.IsClosed():
			return err
		default:
			if err := s.ping(ctx, conn); err != nil {
				return err
			}
			fine()
		}
	}
}

func (s *Outbox) ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	return conn.Ping(ctx)
}

func poke(woken chan<- struct{}) {
	select {
	case woken <- struct{}{}:
	default:
	}
}
