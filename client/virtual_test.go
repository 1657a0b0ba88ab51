package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/gateway"
)

// The tests of this file run in virtual time: an hour takes a moment, and the
// network is pipes in memory.

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	dials atomic.Int32
	wrap  func(net.Conn) net.Conn // the client's end of what is dialled; may be nil
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.ended)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7070} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.dials.Add(1)
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		if p.wrap != nil {
			return p.wrap(here), nil
		}
		return here, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// virtual runs a test with a hub and a client in virtual time.
func virtual(t *testing.T, g gateway.Options, o client.Options, run func(s *served, c *client.Client, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		gate := gateway.New(hub, g)
		overPipes(t, gate, o, func(c *client.Client, p *pipes) { run(&served{T: t, hub: hub}, c, p) })
		for _, err := range []error{gate.Close(t.Context()), hub.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// overPipes connects a client with a server in memory.
func overPipes(t *testing.T, h http.Handler, o client.Options, run func(c *client.Client, p *pipes)) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := server.Serve(p); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	transport := &http.Transport{DialContext: p.dial}
	o.HTTP = &http.Client{Transport: transport}
	c, err := client.New("127.0.0.1:7070", o)
	if err != nil {
		t.Fatal(err)
	}
	run(c, p)
	for _, err := range []error{c.Close(t.Context()), server.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	transport.CloseIdleConnections()
}

// sluice is a connection through which so much comes, and more when it is opened.
type sluice struct {
	net.Conn
	mu   sync.Mutex
	shut bool
	left int
	open chan struct{}
}

// let lets n bytes through, and then nothing until lift.
func (s *sluice) let(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut, s.left, s.open = true, n, make(chan struct{})
}

func (s *sluice) lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = false
	close(s.open)
}

func (s *sluice) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b[:min(len(b), 4<<10)])
	s.mu.Lock()
	shut, open := s.shut && s.left < n, s.open
	s.left -= n
	s.mu.Unlock()
	if shut {
		<-open
	}
	return n, err
}

// Handlers that are slower than the hub hold it back: little is kept, and the
// connection stays.
func TestSlowHandlers(t *testing.T) {
	const (
		n, size = 100, 64 << 10
		topics  = 4
		queue   = 64 << 10
		frame   = size + 1<<10 // at most
		most    = 4            // events that are not yet beyond MaxBytes
	)
	o := gateway.Options{Stall: 200 * time.Millisecond, Queue: queue}
	virtual(t, o, client.Options{}, func(s *served, c *client.Client, p *pipes) {
		t := s.T
		conn := new(sluice)
		p.wrap = func(nc net.Conn) net.Conn {
			conn.Conn = nc
			return conn
		}
		open := make(chan struct{})
		r := &recorder{fail: func(event.Event, *client.Delivery) error {
			<-open
			return nil
		}}
		if _, err := c.Subscribe(t.Context(), "a.*", "g", r.handle, client.FromEarliest(), client.Workers(1), client.MaxInFlight(1000), client.MaxBytes(most*size)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// The network lets the client have one event more than it needs to say
		// PAUSE, and part of the next, until the hub has heard that.
		conn.let((most + 1) * frame)
		text := strings.Repeat("x", size)
		events := make([]event.Event, 0, n)
		for i := range n {
			events = append(events, event.New(fmt.Sprintf("a.t%d", i%topics), fmt.Appendf(nil, `{"n":%d,"text":%q}`, i, text)))
		}
		for batch := range slices.Chunk(events, 20) {
			if _, err := s.hub.Publish(t.Context(), batch...); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		conn.lift()
		// Meanwhile the client can publish: its connection is read.
		for i := range 20 {
			if _, err := c.Publish(t.Context(), "b", i); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // longer than the hub bears a client that does not read
		held := 0
		for i := range topics {
			info, err := s.hub.Engine().Info(t.Context(), fmt.Sprintf("a.t%d", i), "g")
			if err != nil {
				t.Fatal(err)
			}
			held += info.Pending
		}
		// What the network let through, and what the hub has taken beyond that: it
		// takes events for a client while less than half of the queue waits, and
		// of such large ones one at a time. The part that came is of that one.
		if held < most || held > most+1+1 {
			t.Errorf("%d of %d events were handed out", held, n)
		}
		close(open)
		for i := range topics {
			s.settled(fmt.Sprintf("a.t%d", i), "g", n/topics)
		}
		if p.dials.Load() != 1 || r.count() != n {
			t.Errorf("%d connections, %d deliveries of %d events", p.dials.Load(), r.count(), n)
		}
	})
}

// Handlers that never end while the hub sends and sends: the connection is
// given up, they are told, and the memory of what waited is free.
func TestHandlersThatNeverEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		overPipes(t, flood(t, &sent), client.Options{}, func(c *client.Client, p *pipes) {
			causes := make(chan error, 100)
			began := time.Now()
			sub, err := c.Subscribe(t.Context(), "a", "g", func(ctx context.Context, _ event.Event, _ *client.Delivery) error {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return ctx.Err()
			}, client.MaxBytes(1<<20), client.Workers(1))
			if err != nil {
				t.Fatal(err)
			}
			if err := <-causes; !errors.Is(err, client.ErrLeaseLost) {
				t.Error(err)
			}
			if took := time.Since(began); took < 10*time.Second || took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			<-causes // of the next connection
			if p.dials.Load() < 2 {
				t.Errorf("%d connections", p.dials.Load())
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := sub.Stop(ended); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	})
}

// Leases last as long as handlers do, and as long as events wait for one,
// whoever has made the group with whatever lease.
func TestLeasesAreRenewed(t *testing.T) {
	for name, x := range map[string]struct {
		lease, asked time.Duration
	}{
		"the default":        {},
		"as asked for":       {asked: 3 * time.Second},
		"as the group has":   {lease: 2 * time.Second},
		"long, as it has it": {lease: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, gateway.Options{}, client.Options{}, func(s *served, c *client.Client, p *pipes) {
				t := s.T
				s.publish("a", 6)
				if x.lease > 0 {
					if err := s.hub.Engine().Make(t.Context(), "a", "g", groupSettings(x.lease), startEarliest); err != nil {
						t.Fatal(err)
					}
				}
				done := make(chan int, 10)
				if _, err := c.Subscribe(t.Context(), "a", "g", func(ctx context.Context, _ event.Event, d *client.Delivery) error {
					time.Sleep(10 * time.Minute)
					done <- d.Attempt
					return ctx.Err()
				}, client.FromEarliest(), client.Workers(2), client.AckTimeout(x.asked)); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for range 6 {
					if n := <-done; n != 1 {
						t.Errorf("attempt %d", n)
					}
				}
				if took := time.Since(began); took != 30*time.Minute {
					t.Errorf("it took %v, want half an hour", took)
				}
				synctest.Wait()
				if n := p.dials.Load(); n != 1 {
					t.Errorf("%d connections", n)
				}
			})
		})
	}
}

// Acks that come while another one is written go in one frame.
func TestAcksAreGathered(t *testing.T) {
	const events = 200
	acks := make(chan int, events)
	hub := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.CloseNow() }()
		send := func(text string) {
			if err := conn.Write(r.Context(), websocket.MessageText, []byte(text)); err != nil {
				t.Error(err)
			}
		}
		for {
			_, data, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			var f struct {
				Op   string
				Corr int
				IDs  []string
			}
			if err := json.Unmarshal(data, &f); err != nil {
				t.Error(err)
			}
			results := make([]string, len(f.IDs))
			for i, id := range f.IDs {
				results[i] = fmt.Sprintf(`{"id":%q,"ok":true}`, id)
			}
			send(fmt.Sprintf(`{"op":"OK","corr":%d,"results":[%s]}`, f.Corr, strings.Join(results, ",")))
			switch f.Op {
			case "SUBSCRIBE":
				list := make([]string, events)
				for i := range list {
					list[i] = fmt.Sprintf(`{"event":{"id":%q,"seq":%d,"ts":1,"topic":"a","payload":1},"ctx":{"attempt":1,"lease":"%d","ack_deadline_ms":%d}}`,
						event.NewID(), i+1, i+1, time.Now().Add(time.Minute).UnixMilli())
				}
				send(`{"op":"EVENTS","topic":"a","group":"g","events":[` + strings.Join(list, ",") + `]}`)
				time.Sleep(time.Second) // it reads nothing meanwhile: a pipe has no buffer
			case "ACK":
				acks <- len(f.IDs)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		overPipes(t, hub, client.Options{}, func(c *client.Client, _ *pipes) {
			sub, err := c.Subscribe(t.Context(), "a", "g", func(context.Context, event.Event, *client.Delivery) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := sub.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
		close(acks)
		frames, ids := 0, 0
		for n := range acks {
			frames++
			ids += n
		}
		if ids != events || frames > 3 {
			t.Errorf("%d acks in %d frames", ids, frames)
		}
	})
}

// A handler whose lease was ended by somebody else learns it by the next
// renewal.
func TestLeaseIsLost(t *testing.T) {
	virtual(t, gateway.Options{}, client.Options{}, func(s *served, c *client.Client, _ *pipes) {
		t := s.T
		s.publish("a", 1)
		causes := make(chan error, 2)
		if _, err := c.Subscribe(t.Context(), "a", "g", func(ctx context.Context, _ event.Event, d *client.Delivery) error {
			if len(causes) > 0 || d.Cursor > 0 {
				return nil
			}
			// Moving the cursor ends leases.
			if err := s.hub.SetCursor(context.WithoutCancel(ctx), "a", "g", startEarliest); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}, client.FromEarliest()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := <-causes
		if took := time.Since(began); !errors.Is(err, client.ErrLeaseLost) || took > 15*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		causes <- nil // from now on it succeeds
		for {
			synctest.Wait()
			if p, err := s.hub.Cursor(t.Context(), "a", "g"); err == nil && p.Seq == 1 {
				break
			}
			time.Sleep(time.Second)
		}
	})
}

// A manual delivery that nobody settles comes again, and the client keeps no
// trace of the old one.
func TestManualIsForgotten(t *testing.T) {
	virtual(t, gateway.Options{}, client.Options{}, func(s *served, c *client.Client, _ *pipes) {
		t := s.T
		s.publish("a", 1)
		got := make(chan *client.Delivery, 10)
		if _, err := c.Subscribe(t.Context(), "a", "g", func(_ context.Context, _ event.Event, d *client.Delivery) error {
			got <- d
			return nil
		}, client.FromEarliest(), client.ManualAck()); err != nil {
			t.Fatal(err)
		}
		first := <-got
		second := <-got // after its lease
		if first.Attempt != 1 || second.Attempt != 2 {
			t.Errorf("attempts %d and %d", first.Attempt, second.Attempt)
		}
		if err := first.Ack(t.Context()); !errors.Is(err, client.ErrLeaseLost) {
			t.Errorf("ack of the old delivery: %v", err)
		}
		if err := second.Extend(t.Context(), 10*time.Minute); err != nil {
			t.Error(err)
		}
		time.Sleep(9 * time.Minute)
		if err := second.Ack(t.Context()); err != nil {
			t.Error(err)
		}
		if len(got) > 0 {
			t.Errorf("%d more deliveries", len(got))
		}
	})
}

// A quiet connection is kept for as long as the hub is there.
func TestQuietConnection(t *testing.T) {
	virtual(t, gateway.Options{}, client.Options{}, func(s *served, c *client.Client, p *pipes) {
		t := s.T
		for i := range 3 {
			if _, err := c.Publish(t.Context(), "a", i); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Hour)
		}
		if n := p.dials.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// A connection goes on with a new token before the old one ends.
func TestTokenIsRenewed(t *testing.T) {
	var tokens atomic.Int32
	o := client.Options{TokenSource: func(context.Context) (string, error) {
		tokens.Add(1)
		return token(5 * time.Minute), nil
	}}
	virtual(t, gateway.Options{Verifier: new(verifier)}, o, func(s *served, c *client.Client, p *pipes) {
		t := s.T
		r := new(recorder)
		if _, err := c.Subscribe(t.Context(), "a", "g", r.handle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		s.publish("a", 1)
		synctest.Wait()
		if n := p.dials.Load(); n != 1 || r.count() != 1 || tokens.Load() < 12 {
			t.Errorf("%d connections, %d events, %d tokens", n, r.count(), tokens.Load())
		}
	})
}

// A token that ends with its connection is replaced with the next one.
func TestTokenEnds(t *testing.T) {
	o := client.Options{TokenSource: func(context.Context) (string, error) {
		return fmt.Sprintf("until-%d.", time.Now().Add(time.Minute).UnixMilli()), nil // only the hub knows when
	}}
	virtual(t, gateway.Options{Verifier: new(verifier)}, o, func(s *served, c *client.Client, p *pipes) {
		t := s.T
		r := new(recorder)
		if _, err := c.Subscribe(t.Context(), "a", "g", r.handle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Second)
		s.publish("a", 1)
		synctest.Wait()
		if n := p.dials.Load(); n != 3 || r.count() != 1 {
			t.Errorf("%d connections, %d events", n, r.count())
		}
	})
}
