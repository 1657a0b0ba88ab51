package pgfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"promethean/changefeed"
	"promethean/event"
)

const (
	// tickEvery is how often the pump looks whether to tell the server how far
	// the feed is, and tellEvery how often it does so without news, and asks how
	// far the server is, which does not say so by itself to who tells so often.
	tickEvery = 500 * time.Millisecond
	tellEvery = 5 * time.Second
	// silentFor is when a server that does not answer is given up.
	silentFor = time.Minute
)

// errReached ends a pump that was to read up to a place only.
var errReached = errors.New("the place is reached")

// pump reads one slot into a queue. It alone uses the connection.
type pump struct {
	s     *Source
	t     table
	space event.ID
	slot  string
	q     *queue
	conn  *pgconn.HijackedConn
	until atomic.Uint64 // where to end, with errReached; 0 is never

	mu      sync.Mutex // over the deadline of the connection
	stopped bool

	layout   *layout
	in       bool // a transaction is open
	tx       begin
	nth      int // how many of its changes there were
	headers  map[changefeed.Op]event.Headers
	skipOf   lsn // of this transaction
	skip     int // so many are stored
	change   change
	buffer   []byte
	heard    time.Time
	asked    time.Time
	toldLSN  lsn
	received lsn
}

// newPump begins to read a slot from a place on.
func (s *Source) newPump(ctx context.Context, t table, from place) (*pump, error) {
	conn, err := s.replication(ctx)
	if err != nil {
		return nil, err
	}
	command := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s (proto_version '1', publication_names %s)",
		pgx.Identifier{from.Slot}.Sanitize(), from.LSN, quote(pgx.Identifier{s.o.Publication}.Sanitize()))
	err = whileBusy(ctx, func() error { return startCopy(ctx, conn, command) })
	if err != nil {
		shut(conn)
		if code(err) == codeInUse {
			return nil, fmt.Errorf("read slot %s: it is in use: does another feed have the same name? %w", from.Slot, err)
		}
		return nil, s.lost(ctx, from.Slot, err)
	}
	raw, err := conn.Hijack()
	if err != nil {
		shut(conn)
		return nil, fmt.Errorf("read slot %s: %w", from.Slot, err)
	}
	return &pump{
		s: s, t: t, slot: from.Slot, space: space(from.System, t), q: newQueue(from, &s.o), conn: raw, headers: map[changefeed.Op]event.Headers{},
		skipOf: from.Commit, skip: from.Done, heard: time.Now(), toldLSN: from.LSN,
	}, nil
}

// quote spells a text of SQL.
func quote(s string) string {
	q := []byte{'\''}
	for i := range len(s) {
		if s[i] == '\'' {
			q = append(q, '\'')
		}
		q = append(q, s[i])
	}
	return string(append(q, '\''))
}

// startCopy sends a command that is answered by a stream in both directions.
func startCopy(ctx context.Context, conn *pgconn.PgConn, command string) error {
	conn.Frontend().SendQuery(&pgproto3.Query{String: command})
	if err := conn.Frontend().Flush(); err != nil {
		return err
	}
	var failed error
	for {
		msg, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyBothResponse:
			return nil
		case *pgproto3.ErrorResponse:
			failed = pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.ReadyForQuery:
			return failed
		}
	}
}

// run reads until something ends it, and tells the queue what.
func (p *pump) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = true
		_ = p.conn.Conn.SetReadDeadline(time.Unix(1, 0))
	})
	err := p.read(ctx)
	stop()
	p.leave()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	p.q.close(err)
}

// leave tells the server what is saved and goes.
func (p *pump) leave() {
	_ = p.conn.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = p.tell(false)
	p.conn.Frontend.Send(&pgproto3.Terminate{})
	_ = p.conn.Frontend.Flush()
	_ = p.conn.Conn.Close()
}

// arm has the next read end in time for the next tick.
func (p *pump) arm(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		_ = p.conn.Conn.SetReadDeadline(t)
	}
}

func (p *pump) read(ctx context.Context) error {
	var next time.Time
	paused := time.NewTimer(0)
	defer paused.Stop()
	for ctx.Err() == nil {
		if now := time.Now(); !now.Before(next) {
			if err := p.tick(now); err != nil {
				return err
			}
			next = now.Add(tickEvery)
			p.arm(next)
		}
		if !p.q.room() {
			// Nothing is read until the sink has caught up, and so the server
			// waits with sending; it must hear from us nevertheless.
			paused.Reset(time.Until(next))
			select {
			case <-p.q.space:
			case <-paused.C:
			case <-ctx.Done():
			}
			p.heard = time.Now() // it was not listened to
			continue
		}
		msg, err := p.conn.Frontend.Receive()
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the stream: %w", err)
		}
		p.heard = time.Now()
		if err := p.handle(ctx, msg); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// tick tells the server how far the feed is, if it is time to.
func (p *pump) tick(now time.Time) error {
	until := lsn(p.until.Load())
	if until != 0 && !p.in && p.q.reached() >= until {
		return errReached
	}
	silent := now.Sub(p.heard)
	if silent > silentFor {
		return fmt.Errorf("read the stream: the server has said nothing for %v", silent.Round(time.Second))
	}
	poke(p.q.more) // the place may have to move without a change
	ask := until != 0 || now.Sub(p.asked) > tellEvery
	if ask {
		p.asked = now
	}
	// While nothing is read a question of the server is not seen: it hears from
	// us at every tick then, however soon it would give us up.
	if ask || p.q.confirmed() != p.toldLSN || !p.q.room() {
		return p.tell(ask)
	}
	return nil
}

// tell sends what was received and what is saved. With ask the server answers.
func (p *pump) tell(ask bool) error {
	saved := p.q.confirmed()
	b := make([]byte, 0, 34)
	b = append(b, 'r')
	b = binary.BigEndian.AppendUint64(b, uint64(max(p.received, saved)))
	b = binary.BigEndian.AppendUint64(b, uint64(saved))
	b = binary.BigEndian.AppendUint64(b, uint64(saved))
	b = binary.BigEndian.AppendUint64(b, uint64(time.Since(epoch).Microseconds())) //nolint:gosec // after the year 2000
	if b = append(b, 0); ask {
		b[len(b)-1] = 1
	}
	p.conn.Frontend.Send(&pgproto3.CopyData{Data: b})
	if err := p.conn.Frontend.Flush(); err != nil {
		return fmt.Errorf("answer the server: %w", err)
	}
	p.toldLSN = saved
	return nil
}

func (p *pump) handle(ctx context.Context, msg pgproto3.BackendMessage) error {
	switch msg := msg.(type) {
	case *pgproto3.CopyData:
		return p.data(ctx, msg.Data)
	case *pgproto3.ErrorResponse:
		return p.s.lost(ctx, p.slot, pgconn.ErrorResponseToPgError(msg))
	case *pgproto3.CopyDone:
		return errors.New("read the stream: the server has ended it")
	}
	return nil // notices, settings
}

// data is a message of the replication protocol.
func (p *pump) data(ctx context.Context, b []byte) error {
	r := reader{b: b}
	switch kind := r.byte(); kind {
	case 'k':
		end := lsn(r.uint64())
		r.uint64()
		ask := r.byte() == 1
		if r.err != nil {
			return fmt.Errorf("a message of the server: %w", r.err)
		}
		if !p.in {
			p.q.pass(end)
			if until := lsn(p.until.Load()); until != 0 && end >= until {
				return errReached
			}
		}
		if ask {
			return p.tell(false)
		}
	case 'w':
		p.received = max(p.received, lsn(r.uint64()))
		r.uint64()
		r.uint64()
		kind = r.byte()
		err := p.message(ctx, kind, &r)
		if err == nil {
			err = r.err
		}
		if err != nil && !errors.Is(err, errReached) {
			return fmt.Errorf("message %q of the stream: %w", kind, err)
		}
		return err
	}
	return nil
}
