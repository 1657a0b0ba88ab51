package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"promethean/cluster"
	"promethean/group"
	"promethean/store"
	"promethean/wire"
)

// Several hubs share an engine, and one of them owns a group at a time. What
// only the owner can do is done there, whichever hub was asked: calls are
// forwarded (forward.go), and subscriptions are relayed (relay.go). A call that
// another hub has forwarded is never forwarded again.

// forwardHeader marks a request from one hub to another. Its value proves that
// a hub has sent it: then it was checked there for what a browser may do, and
// counted for rates and audit. Whatever its value, the request goes no further.
const forwardHeader = "X-Promethean-Forwarded"

const (
	// peerDial is how long another hub may take to answer that it is there.
	peerDial = 3 * time.Second
	// complainAfter is for how long a hub does not answer before that is said:
	// one that shuts down is no longer on the list by then. complainEvery is how
	// often it is said.
	complainAfter = time.Second
	complainEvery = 10 * time.Second
	// peerIdle is how long a connection to another hub is kept without use.
	peerIdle = time.Minute
)

// errTransit says that a group has no owner at the moment, or is about to
// change it.
var errTransit = &wire.Error{Code: wire.Unavailable, Msg: "no hub owns the group at the moment"}

// peers are the other hubs.
type peers struct {
	cluster *cluster.Cluster // nil: there are none
	engine  *group.Engine
	log     *slog.Logger
	http    *http.Client
	stop    func()

	mu       sync.Mutex
	lives    map[string]life    // by the id of a hub
	failures map[string]failure // by the same
}

// life is for as long as a hub is on the list.
type life struct {
	ctx context.Context
	end context.CancelFunc
}

// failure is since when a hub does not answer, when that was seen last, and when
// it was said.
type failure struct{ since, last, said time.Time }

func newPeers(c *cluster.Cluster, engine *group.Engine, secure *tls.Config, log *slog.Logger) *peers {
	p := &peers{engine: engine, log: log, stop: func() {}}
	if c == nil || !c.Shared() {
		return p
	}
	p.cluster, p.lives, p.failures = c, make(map[string]life), make(map[string]failure)
	if secure == nil {
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	p.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: peerDial}).DialContext,
			TLSClientConfig:     secure.Clone(),
			TLSHandshakeTimeout: peerDial,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     peerIdle,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	p.stop = c.OnGone(p.gone)
	return p
}

// several says whether there can be other hubs.
func (p *peers) several() bool { return p.cluster != nil }

// close ends what was kept for later.
func (p *peers) close() {
	p.stop()
	if p.http != nil {
		p.http.CloseIdleConnections()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lives {
		l.end()
	}
	clear(p.lives)
}

// gone ends what is under way at a hub whose lease is over: it may be cut off,
// and never say so.
func (p *peers) gone(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failures, id)
	if l, ok := p.lives[id]; ok {
		delete(p.lives, id)
		l.end()
	}
}

// bound gives a context that ends when a hub is gone, too.
func (p *peers) bound(ctx context.Context, hub cluster.Hub) (context.Context, context.CancelFunc) {
	p.mu.Lock()
	l, ok := p.lives[hub.ID]
	if !ok {
		l.ctx, l.end = context.WithCancel(context.Background())
		p.lives[hub.ID] = l
	}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	undo := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { undo(); cancel() }
}

// marks says whether a request comes from another hub, and whether that is
// proved.
func (p *peers) marks(r *http.Request) (forwarded, proved bool) {
	mark := r.Header.Get(forwardHeader)
	if mark == "" {
		return false, false
	}
	return true, p.cluster != nil && p.cluster.Proves(mark, r.Method+" "+r.URL.RequestURI())
}

// owner finds the hub that owns a group. It is errTransit if none does, or if it
// is this one. A hub that gave no address is one without a gateway.
func (p *peers) owner(ctx context.Context, topic, name string) (cluster.Hub, error) {
	id, err := p.engine.OwnerOf(ctx, topic, name)
	if errors.Is(err, store.ErrNotFound) || err == nil && id == p.engine.Owner() {
		return cluster.Hub{}, errTransit
	}
	if err != nil {
		return cluster.Hub{}, err
	}
	return p.address(ctx, id, "owns topic "+topic+", group "+clip(name))
}

// address finds another hub, of which is known what it has.
func (p *peers) address(ctx context.Context, id, has string) (cluster.Hub, error) {
	hub, err := p.cluster.Find(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && hub.URL == "" {
		return cluster.Hub{}, &noAddress{wire.Errorf(wire.Unavailable, "hub %s %s, and cannot be reached: it has given no address", id, has)}
	}
	return hub, err
}

// holder gives what finds the hub that has something else than a group, by what
// says whose it is. That it is ours, or nobody's, is for a moment.
func (p *peers) holder(has string, whose func(context.Context) (string, error)) finder {
	return func(ctx context.Context) (cluster.Hub, error) {
		id, err := whose(ctx)
		if err != nil {
			return cluster.Hub{}, err
		}
		if id == p.engine.Owner() {
			return cluster.Hub{}, wire.Errorf(wire.Unavailable, "this hub %s only just now", has)
		}
		return p.address(ctx, id, has)
	}
}

// noAddress says that an owner is out of reach for good.
type noAddress struct{ err error }

func (e *noAddress) Error() string { return e.err.Error() }

func (e *noAddress) Unwrap() error { return e.err }

// request makes a request to another hub, in the name of whom the token belongs
// to.
func (p *peers) request(ctx context.Context, hub cluster.Hub, method, uri, token string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, hub.URL+uri, body)
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Header.Set(forwardHeader, p.cluster.Prove(method+" "+r.URL.RequestURI()))
	return r, nil
}

// unreachable says that a hub did not answer, to the log from time to time.
func (p *peers) unreachable(hub cluster.Hub, err error) error {
	now := time.Now()
	p.mu.Lock()
	f := p.failures[hub.ID]
	if now.Sub(f.last) > complainEvery {
		f.since = now
	}
	f.last = now
	say := now.Sub(f.since) > complainAfter && now.Sub(f.said) > complainEvery
	if say {
		f.said = now
	}
	p.failures[hub.ID] = f
	p.mu.Unlock()
	if say {
		p.log.Warn("another hub cannot be reached by the address that it gave: see cluster.advertise there", "id", hub.ID, "url", hub.URL, "err", err)
	}
	return wire.Errorf(wire.Unavailable, "hub %s at %s has it and cannot be reached", hub.ID, hub.URL)
}

// unsent says whether an error came before anything was sent.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// pause waits, and says whether to go on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
