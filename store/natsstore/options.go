package natsstore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
)

// Options configure a store. The zero value is ready for use with a server
// whose max_payload is at least 3 MiB.
type Options struct {
	// Prefix begins the names of all streams, subjects and buckets: 1 to 32
	// letters, digits, - or _. Stores with other prefixes do not meet.
	// Default: "promethean".
	Prefix string
	// Limits are what events must keep to. Default: those of package event.
	Limits event.Limits

	// Replicas is on how many servers each stream and bucket is kept.
	// Default: 3 in a cluster of three or more servers, else 1.
	Replicas int
	// Storage is where streams are kept. Default: jetstream.FileStorage.
	Storage jetstream.StorageType
	// Placement says which servers may keep them. Default: any.
	Placement *jetstream.Placement
	// Stream may change Replicas, Storage and Placement of a topic's stream
	// before it is made; other fields are set afterwards. Default: none.
	Stream func(topic string, c *jetstream.StreamConfig)
	// Duplicates is the server's window for known ids. The local index of ids
	// may lag behind by half of it, else appends are store.ErrUnavailable. A
	// topic that keeps its events for less has a shorter one. Default: 2 min.
	Duplicates time.Duration

	// RetryFor is for how long a call tries again while the server is away or
	// has no leader. Default: 10 s.
	RetryFor time.Duration
	// AttemptTimeout is how long one request may take before it is tried
	// again. Default: 2 s.
	AttemptTimeout time.Duration
	// IndexTimeout is for how long a call waits for the index of ids, which is
	// read from the stream when a topic is first used. Default: 2 min.
	IndexTimeout time.Duration

	// CA, Cert and Key are PEM files for TLS: who signs the server's
	// certificate, and our own with its key. Default: the system's, none.
	CA, Cert, Key string
	// Credentials is a file with a user's JWT and seed. Default: none.
	Credentials string
	// NKeySeed is a file with an nkey seed. Default: none.
	NKeySeed string
	// User and Password log in with a password. Default: none.
	User, Password string
	// Token logs in with a token. Default: none.
	Token string
	// Connect holds further options for both connections; they come last.
	// Default: none.
	Connect []nats.Option

	// Logger hears of what goes on in the background. Default: nobody does.
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Prefix == "" {
		o.Prefix = "promethean"
	}
	if o.Duplicates <= 0 {
		o.Duplicates = 2 * time.Minute
	}
	if o.RetryFor <= 0 {
		o.RetryFor = 10 * time.Second
	}
	if o.AttemptTimeout <= 0 {
		o.AttemptTimeout = 2 * time.Second
	}
	if o.IndexTimeout <= 0 {
		o.IndexTimeout = 2 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Limits.Payload <= 0 {
		o.Limits.Payload = event.DefaultPayload
	}
	if o.Duplicates < time.Second {
		return o, fmt.Errorf("duplicates window %v: must be a second or more", o.Duplicates)
	}
	if o.Replicas < 0 || o.Replicas > 5 {
		return o, fmt.Errorf("replicas %d: must be 1 to 5", o.Replicas)
	}
	if (o.Cert == "") != (o.Key == "") {
		return o, errors.New("a client certificate needs both Cert and Key")
	}
	return o, checkPrefix(o.Prefix)
}

// connectOptions are those of a connection.
func (o Options) connectOptions(name string) ([]nats.Option, error) {
	list := []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(o.AttemptTimeout),
		// What is published while the connection is away must fail at once: a
		// message that is sent minutes later could be older than the window in
		// which the server knows ids.
		nats.ReconnectBufSize(-1),
	}
	if o.CA != "" {
		list = append(list, nats.RootCAs(o.CA))
	}
	if o.Cert != "" {
		list = append(list, nats.ClientCert(o.Cert, o.Key))
	}
	if o.Credentials != "" {
		list = append(list, nats.UserCredentials(o.Credentials))
	}
	if o.NKeySeed != "" {
		opt, err := nats.NkeyOptionFromSeed(o.NKeySeed)
		if err != nil {
			return nil, fmt.Errorf("nkey seed %s: %w", o.NKeySeed, err)
		}
		list = append(list, opt)
	}
	if o.User != "" {
		list = append(list, nats.UserInfo(o.User, o.Password))
	}
	if o.Token != "" {
		list = append(list, nats.Token(o.Token))
	}
	return append(list, o.Connect...), nil
}
