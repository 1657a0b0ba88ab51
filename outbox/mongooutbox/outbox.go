package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"promethean/event"
	"promethean/outbox"
)

// DefaultCollection is the name of the collection where Options names none.
const DefaultCollection = "promethean_outbox"

// Options of an outbox. The zero value works.
type Options struct {
	// Database is the name of the database, for [Open]. Default: the one that
	// the URL names, or "promethean".
	Database string
	// Collection is the name of the collection. Default [DefaultCollection].
	Collection string
	// WithoutTransactions lets rows be added outside of a transaction, and on
	// servers whose transactions do nothing. What is promised about commit and
	// rollback does not hold then. Default false: Add refuses.
	WithoutTransactions bool
	// Limits are those of the hub, for rows that are added. Default: the hub's
	// own defaults, payloads of 1 MiB.
	Limits event.Limits
	// Logger hears of rows that cannot be read. Default: nobody does.
	Logger *slog.Logger
}

// Outbox is an outbox in a collection. It is an [outbox.Store] and an
// [outbox.Waker].
type Outbox struct {
	o      Options
	client *mongo.Client // ours to close; nil if it was given
	db     *mongo.Database
	rows   *mongo.Collection
	places *mongo.Collection // the counters of keys
	clock  clock
}

var (
	_ outbox.Store = (*Outbox)(nil)
	_ outbox.Waker = (*Outbox)(nil)
)

// New makes an outbox in a database of the caller's. Make its collections with
// [Outbox.Setup].
func New(db *mongo.Database, o Options) (*Outbox, error) {
	if db == nil {
		return nil, errors.New("outbox: no database is given")
	}
	if o.Collection == "" {
		o.Collection = DefaultCollection
	}
	if strings.ContainsAny(o.Collection, "$\x00") || strings.HasPrefix(o.Collection, "system.") || len(o.Collection) > 100 {
		return nil, fmt.Errorf("outbox: no collection is named %.100q", o.Collection)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	// A secondary may not know yet what is claimed. And a row counts once the
	// majority has it: then no failover undoes it after it was published.
	journal := true
	sure := options.Collection().SetReadPreference(readpref.Primary()).SetReadConcern(readconcern.Majority()).
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal})
	return &Outbox{
		o: o, db: db,
		rows: db.Collection(o.Collection, sure), places: db.Collection(o.Collection+"_places", sure),
	}, nil
}

// Transact runs a transaction, again if it met another one, and commits it on the
// majority. What the function does with the context that it gets is part of it.
func Transact(ctx context.Context, client *mongo.Client, do func(ctx context.Context) error) error {
	return client.UseSession(ctx, func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			return nil, do(ctx)
		}, options.Transaction().SetWriteConcern(writeconcern.Majority()).SetReadConcern(readconcern.Snapshot()).SetReadPreference(readpref.Primary()))
		return err
	})
}

// heartbeat is how often the driver asks how the server is, unless the address
// says it. Closing waits for an answer under way, which the driver's own 10 s
// would make long.
const heartbeat = 2 * time.Second

// Open connects to a server to drain an outbox. It asks the server whether it is
// there; it makes nothing.
func Open(ctx context.Context, uri string, o Options) (*Outbox, error) {
	parsed, err := connstring.ParseAndValidate(uri)
	if err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	if o.Database == "" {
		o.Database = parsed.Database
	}
	if o.Database == "" {
		o.Database = "promethean"
	}
	c := options.Client().ApplyURI(uri)
	if c.HeartbeatInterval == nil {
		c.SetHeartbeatInterval(heartbeat)
	}
	client, err := mongo.Connect(c)
	if err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	b, err := New(client.Database(o.Database), o)
	if err == nil {
		b.client = client
		_, err = b.now(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open outbox in database %s: %w", o.Database, err), client.Disconnect(context.WithoutCancel(ctx)))
	}
	return b, nil
}

// Close ends the connections that [Open] made. It leaves a database that was
// given to [New] as it is.
func (b *Outbox) Close() error {
	if b.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := b.client.Disconnect(ctx); err != nil && !errors.Is(err, mongo.ErrClientDisconnected) {
		return fmt.Errorf("close outbox: %w", err)
	}
	return nil
}

// Setup implements [outbox.Store].
func (b *Outbox) Setup(ctx context.Context) error {
	up := func(names ...string) (keys bson.D) {
		for _, n := range names {
			keys = append(keys, bson.E{Key: n, Value: 1})
		}
		return keys
	}
	for _, x := range []struct {
		on   *mongo.Collection
		name string
		keys bson.D
	}{
		{b.rows, "state", up("state", "added", "place", "until", "since")},
		{b.rows, "lane", up("lane", "place")},
		{b.rows, "since", up("state", "since")},
		{b.places, "at", up("at")},
	} {
		err := again(ctx, func() error {
			_, err := x.on.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: x.keys, Options: options.Index().SetName(x.name)})
			return err
		})
		if err != nil {
			return fmt.Errorf("set up outbox %s: index %s of collection %s: %w", b.o.Collection, x.name, x.on.Name(), err)
		}
	}
	return nil
}
