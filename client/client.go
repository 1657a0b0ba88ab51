// Package client talks to a hub from another process, over HTTP and a
// WebSocket.
//
// # Guarantees
//
// Durability: a publish returns once the hub has the event on disk, or on the
// majority of its engine. Every event is sent with an id, so that sending it
// again after a lost connection stores it once.
//
// Delivery: at least once, with the rules of the hub. A handler that returns
// nil acks the event, an error gives it back. Leases are renewed while a
// handler runs.
//
// Connection: a lost one is made again, with growing pauses, and subscriptions
// go on. Nothing that was accepted is dropped silently: a call returns nil or
// the reason.
//
// Concurrency: a Client is safe for concurrent use.
package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Options change a client. The zero value works.
type Options struct {
	// Token is sent as a bearer token. The default is none.
	Token string
	// TokenSource gives the token instead, each time one is needed: at every
	// connection and every call. The default is to send Token.
	TokenSource func(ctx context.Context) (string, error)
	// HTTP makes the calls, and the upgrade of the WebSocket. The default is a
	// client of its own.
	HTTP *http.Client
}

// Client is a hub, seen from afar.
type Client struct {
	base *url.URL
	o    Options
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
	if o.HTTP == nil {
		o.HTTP = &http.Client{}
	}
	return &Client{base: u, o: o}, nil
}

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
