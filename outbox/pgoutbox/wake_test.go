package pgoutbox_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"promethean/outbox"
	"promethean/outbox/pgoutbox"
)

// proxy is the server at another address, which can be away.
type proxy struct {
	t      testing.TB
	server string
	addr   string

	mu    sync.Mutex
	l     net.Listener
	conns map[net.Conn]bool
	// frozen has it swallow what is sent, and say nothing of it.
	frozen atomic.Bool
	pings  atomic.Int64
	all    sync.WaitGroup
}

func newProxy(t testing.TB, server string) *proxy {
	t.Helper()
	p := &proxy{t: t, server: server, addr: "127.0.0.1:0", conns: make(map[net.Conn]bool)}
	p.come()
	t.Cleanup(func() { p.leave(); p.all.Wait() })
	return p
}

// come begins to take connections.
func (p *proxy) come() {
	p.t.Helper()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.l, p.addr = l, l.Addr().String()
	p.mu.Unlock()
	p.all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.server)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.pass(in, out)
		}
	})
}

func (p *proxy) pass(in, out net.Conn) {
	p.mu.Lock()
	p.conns[in], p.conns[out] = true, true
	p.mu.Unlock()
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		p.all.Go(func() {
			_, _ = io.Copy(sieve{p, way[0]}, way[1])
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
}

// leave cuts all connections and takes none.
func (p *proxy) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.l.Close()
	for c := range p.conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// sieve passes nothing on while the proxy is frozen.
type sieve struct {
	p *proxy
	w io.Writer
}

func (s sieve) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("-- ping")) {
		s.p.pings.Add(1)
	}
	if s.p.frozen.Load() {
		return len(b), nil
	}
	return s.w.Write(b)
}

// A commit is heard of at once, a rollback never.
func TestWakes(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	woken, err := b.Wake(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var worst, sum time.Duration
	const times = 50
	for n := range times {
		tx, err := b.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Add(ctx, tx, numbered("a", "k", n)); err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			if err := tx.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
			continue
		}
		select {
		case <-woken:
			t.Fatal("woken before a commit")
		default:
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		<-woken
		took := time.Since(start)
		sum, worst = sum+took, max(worst, took)
	}
	t.Logf("woken %s after a commit, %s at worst", sum/(times/2), worst)
	cancel()
	for range woken {
	}
}

// A listener whose backend is terminated listens again, and wakes for what came
// meanwhile.
func TestListenerIsCutOff(t *testing.T) {
	b := open(t, pgoutbox.Options{Logger: quiet}, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "cut_off"
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	woken, err := b.Wake(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		b.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'
			AND query LIKE '%' || $1::regclass::oid || '%'`, b.table)
		b.add(t, numbered("a", "k", n))
		for len(b.claim(t, "me", 10)) == 0 {
			if _, open := <-woken; !open {
				t.Fatal("the channel was closed")
			}
		}
		for b.listeners(t) == 0 {
			if _, open := <-woken; !open {
				t.Fatal("the channel was closed")
			}
		}
		b.exec(t, `UPDATE `+b.table+` SET state = 'sent'`)
	}
	// It hears again.
	for {
		select {
		case <-woken:
			continue
		default:
		}
		break
	}
	b.add(t, numbered("a", "k", 9))
	<-woken
	cancel()
	for range woken {
	}
}

func (b *bench) listeners(t *testing.T) (n int) {
	t.Helper()
	err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'
		AND query LIKE '%' || $1::regclass::oid || '%'`, b.table).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A server that is gone without a word is noticed by its silence.
func TestListenerHearsNothing(t *testing.T) {
	b := open(t, pgoutbox.Options{})
	x := &tracer{}
	address, err := url.Parse(b.uri)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, address.Host)
	address.Host = p.addr
	ears, err := pgx.ParseConfig(address.String())
	if err != nil {
		t.Fatal(err)
	}
	ears.Tracer = x
	s := b.again(t, b.pool, pgoutbox.Options{Listen: ears, Logger: quiet})
	s.Listen(5*time.Millisecond, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	woken, err := s.Wake(ctx)
	if err != nil {
		t.Fatal(err)
	}
	began := func() (n int) {
		texts, _ := x.list()
		for _, q := range texts {
			if strings.HasPrefix(q, "LISTEN") {
				n++
			}
		}
		return n
	}
	// Silence alone is no harm.
	until(t, func() bool { return p.pings.Load() > 5 })
	b.add(t, numbered("a", "k", 1))
	<-woken
	if n := began(); n != 1 {
		t.Errorf("it began to listen %d times", n)
	}
	p.frozen.Store(true)
	<-woken // since it is lost
	p.frozen.Store(false)
	until(t, func() bool { return began() > 1 })
	cancel()
	for range woken {
	}
}

// An outbox that is quiet tells nobody of anything.
func TestQuiet(t *testing.T) {
	b := open(t, pgoutbox.Options{Quiet: true})
	ctx := t.Context()
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var channel string
	if err := conn.QueryRow(ctx, `SELECT 'promethean_outbox_' || $1::regclass::oid`, b.table).Scan(&channel); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		t.Fatal(err)
	}
	heard := func() string {
		b.exec(t, `SELECT pg_notify($1, 'the end')`, channel)
		n, err := conn.Conn().WaitForNotification(ctx) // they come in the order of commits
		if err != nil {
			t.Fatal(err)
		}
		return n.Payload
	}
	r := numbered("a", "k", 1)
	b.add(t, r, numbered("a", "", 2))
	b.claim(t, "me", 10)
	if err := b.MarkError(ctx, "me", outbox.Refusal{ID: r.ID, Reason: "no", GiveUp: true}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Retry(ctx); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got := heard(); got != "the end" {
		t.Errorf("a quiet outbox says %q", got)
	}
	b.add(t)
	if err := b.again(t, b.pool, pgoutbox.Options{}).Add(ctx, b.pool, numbered("a", "k", 3)); err != nil {
		t.Fatal(err)
	}
	if got := heard(); got != "" {
		t.Errorf("another one says %q first, want its own word", got)
	}
}
