// Package client talks to a hub from another process, over HTTP and a
// WebSocket.
//
//	c, err := client.New("127.0.0.1:7070", client.Options{})
//	…
//	defer c.Close(ctx)
//	_, err = c.Publish(ctx, "orders.placed", order, client.Key(order.Customer))
//	…
//	sub, err := c.Subscribe(ctx, "orders.placed", "billing",
//		func(ctx context.Context, e event.Event, d *client.Delivery) error {
//			return bill(ctx, e)
//		})
//
// # Guarantees
//
// Durability: a publish returns once the hub has the event on disk, or on the
// majority of its engine. Every event is sent with an id, so that sending it
// again after a lost connection stores it once.
//
// Delivery: at least once, with the rules of the hub. A handler that returns
// nil acks the event, an error gives it back. Leases are renewed while a
// handler runs or waits for its turn, and the handler's context ends when the
// lease is lost. An ack whose answer was lost is sent again before the
// subscription is. Within one client an event is never in two handlers of a
// subscription at a time.
//
// Order: the events of one key come one after the other, the next when the one
// before is settled; the hub sees to that. Events of different keys run at the
// same time.
//
// Connection: all calls to Publish, Subscribe and settling share one WebSocket.
// A lost one is made again, with growing pauses, and subscriptions go on.
// Nothing that was accepted is dropped silently: a call returns nil or the
// reason.
//
// Memory: what the hub sends is bounded by the options of a subscription; a
// slow handler slows the hub down, not the program.
//
// Concurrency: a Client is safe for concurrent use.
package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options change a client. The zero value works.
type Options struct {
	// Token is sent as a bearer token. The default is none.
	Token string
	// TokenSource gives the token instead, each time one is needed: at every
	// connection and every call, and before a JWT ends that a connection goes
	// on with. The default is to send Token.
	TokenSource func(ctx context.Context) (string, error)
	// HTTP makes the calls, and the upgrade of the WebSocket. The default is a
	// client of its own.
	HTTP *http.Client
	// Logger gets what has no caller to be told: lost connections, settlements
	// that failed. The default discards.
	Logger *slog.Logger

	// MinBackoff and MaxBackoff bound the pauses before a lost connection is
	// made again, or a request repeated that the hub could not serve: they
	// double from one to the other, with some chance in them. The defaults are
	// 50 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// DialTimeout is how long one try to connect may take. The default is 10 s.
	DialTimeout time.Duration
	// Ping is after how long without a sign of the hub it is asked for one; if
	// none comes for as long again, the connection counts as lost. The default
	// is 15 s.
	Ping time.Duration
	// MaxPending is how many publishes may be under way; more wait. The default
	// is 4096.
	MaxPending int
	// MaxMessage is the largest message that is read from the hub. It has to
	// hold the largest event. The default is 64 MiB.
	MaxMessage int64
}

// withDefaults fills in what was left out.
func (o Options) withDefaults() Options {
	fill := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	fill(&o.MinBackoff, 50*time.Millisecond)
	fill(&o.MaxBackoff, 5*time.Second)
	fill(&o.DialTimeout, 10*time.Second)
	fill(&o.Ping, 15*time.Second)
	o.MaxBackoff = max(o.MinBackoff, o.MaxBackoff)
	if o.MaxPending <= 0 {
		o.MaxPending = 4096
	}
	if o.MaxMessage <= 0 {
		o.MaxMessage = 64 << 20
	}
	if o.HTTP == nil {
		o.HTTP = &http.Client{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// ErrClosed says that the client was closed.
var ErrClosed = errors.New("the client is closed")

// Client is a hub, seen from afar.
type Client struct {
	base *url.URL
	o    Options
	link *link
	room chan struct{} // one token for each publish under way
}

// New makes a client of the hub at addr, such as "http://127.0.0.1:7070" or
// "127.0.0.1:7070". It does not connect: the first call does.
func New(addr string, o Options) (*Client, error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil {
		return nil, fmt.Errorf("client: address: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("client: address %q: want http or https", addr)
	}
	if u.Host == "" {
		return nil, fmt.Errorf("client: address %q: there is no host", addr)
	}
	if u.User != nil {
		return nil, errors.New("client: address: it has a password; use Options.Token")
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	u.RawQuery, u.Fragment = "", ""
	c := &Client{base: u, o: o.withDefaults()}
	c.room = make(chan struct{}, c.o.MaxPending)
	c.link = newLink(c)
	return c, nil
}

// Close ends the client. New calls are refused, subscriptions are stopped as by
// [Subscription.Stop], and publishes under way may still be answered until ctx
// ends. An error says what was not finished then; the connection is closed in
// any case. It must not be called by a handler, which it would wait for.
func (c *Client) Close(ctx context.Context) error { return c.link.close(ctx) }

// token is what to send now, "" for none.
func (c *Client) token(ctx context.Context) (string, error) {
	if c.o.TokenSource == nil {
		return c.o.Token, nil
	}
	t, err := c.o.TokenSource(ctx)
	if err != nil {
		return "", fmt.Errorf("client: token: %w", err)
	}
	return t, nil
}
