// Package gateway serves a hub to everybody who is not a Go embedder: HTTP,
// WebSockets and Server-Sent Events on one listener.
//
//	g := gateway.New(hub, gateway.Options{})
//	server := &http.Server{Handler: g, …}
//
// All routes are rows of one table (routes.go): who may call them, what they
// take and give, and what serves them. The OpenAPI document is made from it,
// and one function decides who may do what (access.go). Errors become
// problem+json by the table of package wire.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"promethean"
	"promethean/changefeed"
	"promethean/cluster"
	"promethean/compact"
	"promethean/gateway/auth"
	"promethean/gateway/internal/ws"
	"promethean/internal/pool"
	"promethean/outbox"
	"promethean/partition"
	"promethean/schema"
	"promethean/store"
	"promethean/view"
)

// Options configure a gateway. The zero value serves everybody on loopback.
type Options struct {
	// Verifier knows tokens. Nil: nobody needs one.
	Verifier auth.Verifier
	// Hosts are names under which browsers may reach us, on any port, beside
	// localhost, loopback addresses, the address that a connection came in on,
	// and those of Origins. Default: none.
	Hosts []string
	// Origins are those of pages, beside our own, that may call us from a
	// browser, such as "https://ops.example.org"; [CheckOrigin] says what is
	// one. They are also names of ours: a hub that is reached by
	// https://hub.example.org lists that. Default: none.
	Origins []string
	// ConnectionRate is how many requests or frames a second one connection
	// may send, see [Gateway.ConnContext]; TopicRate how many events a second a
	// topic takes. Both let one second's worth come at once. Default 0 and
	// none: as many as come.
	ConnectionRate float64
	TopicRate      map[string]float64
	// NoAutoCreate refuses to publish to topics that nobody has made.
	NoAutoCreate bool
	// Schemas are those of the topics: what is published is validated against
	// them, and stamped. Default nil: there are none, and what is about them is
	// unsupported. Close it after the gateway.
	Schemas *schema.Registry
	// Compactor judges the settings of topics that are about compaction, and
	// holds their publishers to them. Default nil: such settings are
	// unsupported. Close it after the gateway.
	Compactor *compact.Compactor
	// Views are the read models that are served. Default nil: views are
	// unsupported. Close it after the gateway.
	Views *view.Set
	// Changefeeds and Outboxes are what this hub takes from databases. Default nil:
	// there are none. Close them before the gateway: they publish by its
	// [Gateway.Bus].
	Changefeeds *changefeed.Set
	Outboxes    *outbox.Set
	// Reduce says how the events of a topic become a state where the caller does
	// not: replace or merge; "" is replace. Default nil: replace.
	Reduce func(topic string) string
	// Cluster is the list of hubs that share the engine: what only the owner of a
	// group can do is done there, whichever hub was asked. Default nil: members
	// of groups that another process owns wait until they are free. Close it
	// after the gateway.
	Cluster *cluster.Cluster
	// PeerTLS is for connections to other hubs whose address is https. Default
	// nil: their certificates are held to the authorities of the system.
	PeerTLS *tls.Config
	// Partitions decides who has which partition of a partitioned group. Default
	// nil: such groups are unsupported. Close it after the gateway.
	Partitions *partition.Coordinator
	// Metrics serves /metrics. Default nil: it is not_found.
	Metrics http.Handler
	// Connections is told how many WebSockets are open. May be nil.
	Connections func(delta int)
	// Version is the hub's, for people. Default "dev".
	Version string
	// Logger hears of what goes wrong inside. Default: nobody does.
	Logger *slog.Logger

	// Queue bounds what waits for one client that does not read, in bytes; one
	// message more than that may be there. Default 4 MiB.
	Queue int
	// AuthWait is how long a WebSocket may stay without a token. Default 5 s.
	AuthWait time.Duration
	// Ping is how often a WebSocket that is silent is asked whether it lives;
	// one that stays silent for two of them is closed. Default 30 s.
	Ping time.Duration
	// MemberPing is how often a silent WebSocket is asked that has a
	// subscription to a partitioned group: well below the TTL of its members.
	// No connection is asked more often than every sixteenth of Ping. Default 5 s.
	MemberPing time.Duration
	// Stall is how long a WebSocket may read nothing though something waits,
	// before it is closed as a slow consumer. Default 30 s.
	Stall time.Duration
	// BodyWait is how long a client may take to send a body, or a frame that
	// it has begun. Default 30 s.
	BodyWait time.Duration
	// WriteWait is how long a client may take to read one block of a long
	// answer. Default 30 s.
	WriteWait time.Duration
}

// Gateway is an [http.Handler] over a hub.
type Gateway struct {
	hub    *promethean.Hub
	bus    promethean.Bus // what is published goes through it
	o      Options
	routes []route
	paths  map[string][]*path // by the first segment
	// These can be exchanged; see Adjust.
	guards atomic.Pointer[guard]
	bounds atomic.Pointer[rates]

	keeper  *ws.Keeper
	workers *pool.Pool // deliver events to WebSockets
	across  bool       // the engine takes several topics in one step
	auditor *auditor
	pulls   pullers
	peers   *peers
	started time.Time

	known    sync.Map   // topics that exist, by name
	views    sync.Map   // *view.Server by *view.Collection
	settings sync.Mutex // held while the settings of a topic are changed
	document func() []byte

	draining atomic.Bool
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	entering sync.Mutex     // held while open grows, so that nothing comes after Drain
	open     sync.WaitGroup // connections that outlive a request
}

// enter counts a connection that outlives its request, for which open.Done has
// to be called. It returns false if the hub drains.
func (g *Gateway) enter() bool {
	g.entering.Lock()
	defer g.entering.Unlock()
	if g.draining.Load() {
		return false
	}
	g.open.Add(1)
	return true
}

// New makes a gateway. Close it before the hub.
func New(hub *promethean.Hub, o Options) *Gateway {
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Connections == nil {
		o.Connections = func(int) {}
	}
	if o.Queue <= 0 {
		o.Queue = 4 << 20
	}
	if o.AuthWait <= 0 {
		o.AuthWait = 5 * time.Second
	}
	if o.BodyWait <= 0 {
		o.BodyWait = 30 * time.Second
	}
	if o.MemberPing <= 0 {
		o.MemberPing = partition.DefaultTTL / 3
	}
	if o.WriteWait <= 0 {
		o.WriteWait = 30 * time.Second
	}
	g := &Gateway{hub: hub, bus: hub, o: o}
	if o.Schemas != nil {
		g.bus = schema.Validate(schema.DualWrite(hub, o.Schemas), o.Schemas)
	}
	if o.Compactor != nil {
		g.bus = compact.Guard(g.bus, o.Compactor)
	}
	g.peers, g.started = newPeers(o.Cluster, hub.Engine(), o.PeerTLS, o.Logger), time.Now()
	g.pulls = pullers{engine: hub.Engine(), all: make(map[groupName]*puller)}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.Adjust(o.Hosts, o.Origins, o.ConnectionRate, o.TopicRate)
	g.auditor = newAuditor(hub, o.Logger)
	g.keeper = ws.NewKeeper(o.Ping, o.Stall)
	g.workers = pool.New()
	_, g.across = hub.Log().(store.AtomicTopics)
	g.routes = g.table()
	g.paths = arrange(g.routes)
	g.document = sync.OnceValue(func() []byte { return document(g.routes, o.Version) })
	return g
}

// Adjust exchanges the options of these names while the gateway serves.
// Requests and frames that come later meet them; a connection that is open
// keeps its rate.
func (g *Gateway) Adjust(hosts, origins []string, connectionRate float64, topicRate map[string]float64) {
	g.guards.Store(newGuard(hosts, origins, g.o.Logger))
	g.bounds.Store(newRates(connectionRate, topicRate, g.bounds.Load()))
}

func (g *Gateway) guard() *guard { return g.guards.Load() }

func (g *Gateway) rates() *rates { return g.bounds.Load() }

// ServeHTTP implements [http.Handler].
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.serve(w, r) }

// Bus is what callers publish through: the hub, with what is asked of events
// before it. What comes in by other ways than a connection goes through it too.
func (g *Gateway) Bus() promethean.Bus { return g.bus }

// Drain fails readiness and refuses new work, and ends connections that have
// subscriptions, whose leases return. Requests that are under way go on; the
// server's Shutdown waits for them.
func (g *Gateway) Drain() {
	g.entering.Lock()
	g.draining.Store(true)
	g.entering.Unlock()
	g.cancel()
}

// Close drains, and waits until the last connection is gone and what was to be
// recorded in system.audit is written, or ctx ends. Shut the server down before.
func (g *Gateway) Close(ctx context.Context) error {
	g.Drain()
	done := make(chan struct{})
	go func() {
		g.open.Wait()
		g.workers.Close()
		g.workers.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
		g.pulls.close()
		g.peers.close()
	case <-ctx.Done():
		err = ctx.Err()
	}
	return errors.Join(err, g.auditor.close(ctx))
}
