package mongofeed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"promethean/changefeed"
	"promethean/store"
)

// FullDocument says where the document of an update comes from.
type FullDocument string

// Where the document of an update comes from.
const (
	UpdateLookup  FullDocument = "updateLookup"  // it is looked up when the change is read
	WhenAvailable FullDocument = "whenAvailable" // the post image, and without one a look-up
	Required      FullDocument = "required"      // the post image, and without one the feed is refused
)

// Options are those of a source.
type Options struct {
	// URI is the address of the deployment. Either it or Client is given.
	URI string
	// Client is used and not closed.
	Client *mongo.Client
	// Database is the database's name. Default the one that the URI names.
	Database string
	// Collection is what is watched. It need not exist yet.
	Collection string
	// FullDocument is where the documents of updates come from. Default
	// [UpdateLookup].
	FullDocument FullDocument
	// Snapshot begins with the documents that are there.
	Snapshot bool
	// BatchSize and BatchBytes bound what is handed over at a time. Default 1000
	// changes and 4 MiB.
	BatchSize  int
	BatchBytes int
	// MaxAwait is how long the server waits for a change before it answers that
	// there is none. Default 1 s.
	MaxAwait time.Duration
	// TokenEvery is how often the token is moved while nothing changes in the
	// collection. Default 10 s.
	TokenEvery time.Duration
}

func (o *Options) fill() error {
	if o.BatchSize < 0 || o.BatchBytes < 0 || o.MaxAwait < 0 || o.TokenEvery < 0 {
		return fmt.Errorf("%w: BatchSize, BatchBytes, MaxAwait and TokenEvery are not negative", store.ErrInvalid)
	}
	if (o.URI == "") == (o.Client == nil) {
		return fmt.Errorf("%w: it needs the address of a server or a client, and not both", store.ErrInvalid)
	}
	if o.URI != "" {
		parsed, err := connstring.ParseAndValidate(o.URI)
		if err != nil {
			return fmt.Errorf("%w: the address of the server: %w", store.ErrInvalid, err)
		}
		if o.Database == "" {
			o.Database = parsed.Database
		}
	}
	if o.Database == "" || o.Collection == "" {
		return fmt.Errorf("%w: it needs the names of a database and of a collection", store.ErrInvalid)
	}
	if strings.ContainsAny(o.Database, "/\\. \"$\x00") || strings.ContainsAny(o.Collection, "$\x00") || strings.HasPrefix(o.Collection, "system.") {
		return fmt.Errorf("%w: no database or collection is named %s.%s", store.ErrInvalid, o.Database, o.Collection)
	}
	switch o.FullDocument {
	case "":
		o.FullDocument = UpdateLookup
	case UpdateLookup, WhenAvailable, Required:
	default:
		return fmt.Errorf("%w: fullDocument %q: it is %s, %s or %s", store.ErrInvalid, o.FullDocument, UpdateLookup, WhenAvailable, Required)
	}
	if o.BatchSize == 0 {
		o.BatchSize = 1000
	}
	if o.BatchBytes == 0 {
		o.BatchBytes = 4 << 20
	}
	if o.MaxAwait == 0 {
		o.MaxAwait = time.Second
	}
	if o.TokenEvery == 0 {
		o.TokenEvery = 10 * time.Second
	}
	return nil
}

// Source reads one collection. It is made by [New].
type Source struct {
	o      Options
	client *mongo.Client
	coll   *mongo.Collection
}

var _ changefeed.Source = (*Source)(nil)

// heartbeat is how often the driver asks how the server is, unless the address
// says it. Closing waits for an answer under way, which the driver's own 10 s
// would make long.
const heartbeat = 2 * time.Second

// New gives the source of a collection. Nothing is asked of the server before
// Stream.
func New(o Options) (*Source, error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("MongoDB feed: %w", err)
	}
	client := o.Client
	if client == nil {
		var err error
		c := options.Client().ApplyURI(o.URI)
		if c.HeartbeatInterval == nil {
			c.SetHeartbeatInterval(heartbeat)
		}
		if client, err = mongo.Connect(c); err != nil {
			return nil, fmt.Errorf("MongoDB feed of %s.%s: %w: %w", o.Database, o.Collection, store.ErrInvalid, err)
		}
	}
	// What the majority has is never rolled back, and a stream shows nothing else.
	coll := client.Database(o.Database).Collection(o.Collection, options.Collection().SetReadConcern(readconcern.Majority()))
	return &Source{o: o, client: client, coll: coll}, nil
}

// Database is the database of the collection, for [NewTokens].
func (s *Source) Database() *mongo.Database { return s.client.Database(s.o.Database) }

// name is the collection in messages.
func (s *Source) name() string { return s.o.Database + "." + s.o.Collection }

// Stream implements [changefeed.Source].
func (s *Source) Stream(ctx context.Context, token []byte, sink func(context.Context, changefeed.Batch) error) error {
	err := s.stream(ctx, token, sink)
	var own sinkError
	switch {
	case errors.As(err, &own):
		return own.error
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return s.explain(err)
}

// sinkError is one of the sink's.
type sinkError struct{ error }

func (s *Source) stream(ctx context.Context, token []byte, sink func(context.Context, changefeed.Batch) error) error {
	session, err := s.client.StartSession()
	if err != nil {
		return fmt.Errorf("begin a session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	r := &reader{s: s, session: session, sink: sink}
	if token == nil {
		if err := r.begin(ctx); err != nil {
			return err
		}
	} else if r.at, err = parsePlace(token, s.name()); err != nil {
		return err
	}
	if r.at.Snapshot != nil {
		if err := r.snapshot(ctx); err != nil {
			return err
		}
	}
	return r.follow(ctx)
}

// Status implements [changefeed.Source].
func (s *Source) Status(ctx context.Context) (changefeed.SourceStatus, error) {
	var info struct{ Version string }
	if err := s.Database().RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return changefeed.SourceStatus{}, fmt.Errorf("MongoDB feed of %s: ask the server for its version: %w", s.name(), err)
	}
	return changefeed.SourceStatus{LagBytes: -1, Server: "MongoDB " + info.Version}, nil
}

// Forget implements [changefeed.Source]. The server keeps nothing for a feed.
func (s *Source) Forget(context.Context) error { return nil }

// Close implements [changefeed.Source].
func (s *Source) Close() error {
	if s.o.Client != nil {
		return nil
	}
	if err := s.client.Disconnect(context.Background()); err != nil {
		return fmt.Errorf("MongoDB feed of %s: disconnect: %w", s.name(), err)
	}
	return nil
}
