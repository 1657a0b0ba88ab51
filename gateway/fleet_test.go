package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean"
	"promethean/client"
	"promethean/cluster"
	"promethean/event"
	"promethean/gateway"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/internal/natstest"
	"promethean/internal/netfault"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
)

// How long hubs own a group without renewing. Where one dies it is short, so that
// the others see it soon; elsewhere nobody is to lose a group on a machine that is
// slow.
const (
	ownFor  = 2 * time.Second
	ownLong = 20 * time.Second
)

// fleetHub is one of several hubs that share an engine. Others reach it by a
// proxy, and it reaches the engine by one.
type fleetHub struct {
	*served
	cluster *cluster.Cluster
	server  *httptest.Server
	plain   *httptest.Server // nil without TLS
	engine  *netfault.Proxy  // between the hub and its engine
	front   *netfault.Proxy
	log     *logBuffer
	stopped bool
	hurt    bool // it may not end well
}

// logBuffer is what a hub has said.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// onEngines runs a test over NATS, and over MongoDB where there is a server.
func onEngines(t *testing.T, test func(t *testing.T, open engineOf)) {
	t.Run("nats", func(t *testing.T) {
		url := natstest.Start(t, nil).URL()
		test(t, func(t testing.TB) (promethean.Log, *netfault.Proxy) {
			p := netfault.New(t, strings.TrimPrefix(url, "nats://"))
			log, err := natsstore.Open(context.Background(), "nats://"+p.Addr(), natsstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return log, p
		})
	})
	onMongoDB(t, func(t *testing.T, uri string) {
		database := "gateway_" + strings.ReplaceAll(event.NewID().String(), "-", "")
		test(t, func(t testing.TB) (promethean.Log, *netfault.Proxy) {
			p := netfault.New(t, mongotest.Host(t, uri))
			log, err := mongostore.Open(context.Background(), mongotest.Direct(p.Addr()), mongostore.Options{Database: database})
			if err != nil {
				t.Fatal(err)
			}
			return log, p
		})
	})
}

// onMongoDB runs a test against the fake, and against every MongoDB that there is.
func onMongoDB(t *testing.T, test func(t *testing.T, uri string)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) { test(t, mongofake.Start(t, mongofake.Options{}).URI()) })
	mongotest.Each(t, test)
}

// fleet starts hubs that share an engine. change may alter the options of one.
func fleet(t testing.TB, n int, own time.Duration, open engineOf, change func(i int, o *gateway.Options, c *cluster.Options)) []*fleetHub {
	t.Helper()
	var out []*fleetHub
	for i := range n {
		log, engine := open(t)
		h := &fleetHub{engine: engine, log: &logBuffer{}}
		logger := slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		hub, err := promethean.New(log, promethean.Options{Owner: fmt.Sprint("hub ", i), OwnFor: own, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		h.front = netfault.New(t, l.Addr().String())
		o, c := gateway.Options{Logger: logger}, cluster.Options{URL: "http://" + h.front.Addr(), Logger: logger}
		if change != nil {
			change(i, &o, &c)
		}
		if h.cluster, err = cluster.Join(hub, c); err != nil {
			t.Fatal(err)
		}
		o.Cluster = h.cluster
		g := gateway.New(hub, o)
		h.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: g}}
		if o.PeerTLS != nil {
			h.server.StartTLS()
		} else {
			h.server.Start()
		}
		h.served = &served{TB: t, hub: hub, g: g, url: h.server.URL}
		if o.PeerTLS != nil { // clients of the test come without
			h.plain = httptest.NewServer(g)
			h.url = h.plain.URL
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("hub %d said:\n%s", i, h.log)
			}
			h.stop()
		})
		out = append(out, h)
	}
	return out
}

// stop ends a hub cleanly, as the program does.
func (h *fleetHub) stop() {
	if h.stopped {
		return
	}
	h.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := h.g.Close(ctx)
	h.server.Close()
	if h.plain != nil {
		h.plain.Close()
	}
	if err := errors.Join(err, h.cluster.Close(ctx), h.hub.Close()); err != nil && !h.hurt {
		h.Error(err)
	}
}

// kill has a hub vanish: nobody reaches it, and it does not reach the engine.
// What is left of it is let go at the end.
func (h *fleetHub) kill() {
	h.hurt = true
	h.engine.Down(true)
	h.front.Down(true)
}

// freeze has all connections of a hub stand still, or go on.
func (h *fleetHub) freeze(ice bool) {
	h.hurt = true
	h.front.Freeze(ice)
	h.engine.Freeze(ice)
}

// consumer is a member of a group on one hub.
type consumer struct {
	c   *client.Client
	sub *client.Subscription

	mu   sync.Mutex
	got  []event.Event
	more chan struct{}
}

func (x *consumer) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.got)
}

// consume subscribes to a group on a hub; what handle says decides about events.
func (h *fleetHub) consume(topic, group string, handle func(event.Event) error, opts ...client.SubscribeOption) *consumer {
	h.Helper()
	x := &consumer{more: make(chan struct{}, 1)}
	c, err := client.New("http://"+h.front.Addr(), client.Options{})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // its hub may be gone
	})
	x.c = c
	x.sub, err = c.Subscribe(context.Background(), topic, group, func(_ context.Context, e event.Event, _ *client.Delivery) error {
		if handle != nil {
			if err := handle(e); err != nil {
				return err
			}
		}
		x.mu.Lock()
		x.got = append(x.got, e)
		x.mu.Unlock()
		select {
		case x.more <- struct{}{}:
		default:
		}
		return nil
	}, append([]client.SubscribeOption{client.FromEarliest(), client.BatchSize(1), client.MaxInFlight(1)}, opts...)...)
	if err != nil {
		h.Fatal(err)
	}
	return x
}

// until waits for a condition, which nothing announces.
func until(t testing.TB, what string, is func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) > patience {
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began)
}

// settled waits until all that was published is settled.
func (h *fleetHub) settled(topic, group string) {
	h.Helper()
	until(h, "the cursor", func() bool {
		_, at := h.do("GET", "/lag?topic="+topic+"&group="+group, "")
		return at["lag"] == 0.0
	})
}

func total(list ...*consumer) (n int) {
	for _, x := range list {
		n += x.count()
	}
	return n
}

// owner finds which hub owns a group, -1 if none does.
func owner(list []*fleetHub, topic, group string) int {
	for i, h := range list {
		if !h.stopped && h.hub.Engine().Owns(topic, group) {
			return i
		}
	}
	return -1
}

// handled tells how often each seq was.
func handled(list ...*consumer) map[uint64]int {
	seen := make(map[uint64]int)
	for _, x := range list {
		x.mu.Lock()
		for _, e := range x.got {
			seen[e.Seq]++
		}
		x.mu.Unlock()
	}
	return seen
}

// judge checks that what consumers have got is all of a topic, in order of keys,
// and how often each came.
func judge(t *testing.T, want int, once bool, list ...*consumer) {
	t.Helper()
	seen := handled(list...)
	for seq := uint64(1); seq <= uint64(want); seq++ {
		if n := seen[seq]; n == 0 || once && n > 1 {
			t.Errorf("seq %d was handled %d times", seq, n)
		}
	}
}

// engineOf opens the engine for one hub.
type engineOf = func(t testing.TB) (promethean.Log, *netfault.Proxy)
