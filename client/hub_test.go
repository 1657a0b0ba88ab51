package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/gateway"
	"promethean/group"
	"promethean/internal/netfault"
	"promethean/partition"
	"promethean/store"
)

// served is a hub in memory behind a gateway, and perhaps a network that fails
// on command.
type served struct {
	*testing.T
	hub   *promethean.Hub
	addr  string // of the gateway
	proxy *netfault.Proxy
}

func serve(t *testing.T, o gateway.Options) *served {
	t.Helper()
	return serveFor(t, o, 0)
}

// serveFor is serve where a silent member of a partitioned group counts as alive
// for so long.
func serveFor(t *testing.T, o gateway.Options, ttl time.Duration) *served {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if o.Partitions, err = partition.New(hub, partition.Options{TTL: ttl}); err != nil {
		t.Fatal(err)
	}
	o.MemberPing = ttl / 8
	g := gateway.New(hub, o)
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		server.Close()
		if err := o.Partitions.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	return &served{T: t, hub: hub, addr: strings.TrimPrefix(server.URL, "http://")}
}

// faulty is serve with a network between.
func faulty(t *testing.T, o gateway.Options) *served {
	s := serve(t, o)
	s.proxy = netfault.New(t, s.addr)
	return s
}

// connect makes a client that is closed with the test.
func (s *served) connect(o client.Options) *client.Client {
	s.Helper()
	addr := s.addr
	if s.proxy != nil {
		addr = s.proxy.Addr()
	}
	return connect(s.T, addr, o)
}

func connect(t *testing.T, addr string, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// limit is a context for what must not take long.
func limit(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came that %s", what)
		}
	}
}

// stored gives the payloads of a topic.
func (s *served) stored(topic string) []event.Event {
	s.Helper()
	var list []event.Event
	for e, err := range s.hub.Read(context.Background(), store.Query{Topic: topic}) {
		if err != nil {
			s.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// settled waits until a group has settled everything up to a seq.
func (s *served) settled(topic, group string, seq uint64) {
	s.Helper()
	eventually(s.T, fmt.Sprintf("%s has settled %d of %s", group, seq, topic), func() bool {
		p, err := s.hub.Cursor(context.Background(), topic, group)
		return err == nil && p.Seq >= seq
	})
}

// publish publishes n events, with a key each.
func (s *served) publish(topic string, n int) {
	s.Helper()
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.New(topic, fmt.Appendf(nil, "%d", i))
		events[i].Key = fmt.Sprintf("k%d", i)
	}
	if _, err := s.hub.Publish(context.Background(), events...); err != nil {
		s.Fatal(err)
	}
}

// recorder is a handler that notes what it gets.
type recorder struct {
	mu   sync.Mutex
	got  []event.Event
	seen map[event.ID]int
	fail func(e event.Event, d *client.Delivery) error
}

func (r *recorder) handle(_ context.Context, e event.Event, d *client.Delivery) error {
	r.mu.Lock()
	if r.seen == nil {
		r.seen = make(map[event.ID]int)
	}
	r.got = append(r.got, e)
	r.seen[e.ID]++
	r.mu.Unlock()
	if r.fail != nil {
		return r.fail(e, d)
	}
	return nil
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

// wantCode wants a refusal by the hub.
func wantCode(t *testing.T, code string, err error) {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || e.Code != code || !errors.Is(err, &client.Error{Code: code}) {
		t.Errorf("%v, want the code %s", err, code)
	}
}

// counting is an HTTP client that counts the connections it makes.
func counting(n *atomic.Int32) *http.Client {
	dialer := &net.Dialer{}
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.Add(1)
		return dialer.DialContext(ctx, network, addr)
	}}}
}

// startEarliest is the beginning of a topic, for the hub.
var startEarliest = promethean.Place{From: group.Earliest}

// groupSettings are those of a group with a lease of its own.
func groupSettings(lease time.Duration) group.Settings { return group.Settings{AckTimeout: lease} }
