package mongostore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"promethean/store"
)

// Store is the engine over one database.
type Store struct {
	o      Options
	client *mongo.Client
	db     *mongo.Database

	commits, topics, cursors, leases, meta *mongo.Collection

	// life ends when Close has answered what waits.
	life    context.Context
	endLife context.CancelFunc
	lanes   sync.WaitGroup // goroutines that commit or settle
	calls   sync.WaitGroup // calls that talk to the server
	tasks   sync.WaitGroup // background work

	// mu guards the fields below. It is never held while the server is asked.
	mu     sync.Mutex
	closed bool
	lane   map[string]*lane         // by topic
	group  map[groupName]*groupLane // by topic and group

	watch watchers

	asOne     bool // the server has transactions, and reads snapshots
	documents documents
}

var (
	_ store.Log      = (*Store)(nil)
	_ store.Cursors  = (*Store)(nil)
	_ store.Leases   = (*Store)(nil)
	_ store.Holds    = (*Store)(nil)
	_ store.Shared   = (*Store)(nil)
	_ store.Bounded  = (*Store)(nil)
	_ store.Begins   = (*Store)(nil)
	_ store.Compacts = (*Store)(nil)
	_ store.HasDocs  = (*Store)(nil)
)

// Open connects to the server that url names, checks that it and the database
// will do, makes what is missing there, and gives a store. The url is that of
// MongoDB's drivers, such as mongodb://host1,host2/database?replicaSet=rs0.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	o = o.withDefaults()
	parsed, err := connstring.ParseAndValidate(url)
	if err != nil {
		return nil, fmt.Errorf("open mongostore: %w: the address of the server: %w", store.ErrInvalid, err)
	}
	if o.Database == "" {
		o.Database = parsed.Database
	}
	if o.Database == "" {
		o.Database = "promethean"
	}
	journal := true
	majority := writeconcern.Majority()
	majority.Journal = &journal
	// Retries are ours: the driver's own need a server that keeps track of
	// them, and ours also know whether a commit whose answer was lost is there.
	settings := options.Client().ApplyURI(url).
		SetRetryWrites(false).SetRetryReads(false).
		SetReadPreference(readpref.Primary()).SetReadConcern(readconcern.Majority()).SetWriteConcern(majority).
		SetServerSelectionTimeout(min(o.Timeout, o.RetryFor)).SetConnectTimeout(o.Timeout).
		SetAppName("promethean")
	if settings.HeartbeatInterval == nil {
		settings.SetHeartbeatInterval(heartbeat)
	}
	client, err := mongo.Connect(settings)
	if err != nil {
		return nil, fmt.Errorf("open mongostore: %w: %w", store.ErrInvalid, err)
	}
	s := &Store{
		o: o, client: client, db: client.Database(o.Database),
		lane: make(map[string]*lane), group: make(map[groupName]*groupLane),
	}
	s.life, s.endLife = context.WithCancel(context.Background())
	s.commits, s.topics, s.cursors = s.collection("commits"), s.collection("topics"), s.collection("cursors")
	s.leases, s.meta = s.collection("leases"), s.collection("meta")
	s.watch.init()
	if err := s.prepare(ctx); err != nil {
		s.endLife()
		s.disconnect()
		return nil, fmt.Errorf("open mongostore, database %s: %w", o.Database, err)
	}
	s.tasks.Go(s.poll)
	s.tasks.Go(s.sweepLoop)
	s.tasks.Go(s.stream)
	return s, nil
}

// heartbeat is how often the driver asks how the server is, unless the address
// says it. Closing waits for an answer under way, which the driver's own 10 s
// would make long.
const heartbeat = 2 * time.Second

func (s *Store) collection(name string) *mongo.Collection {
	return s.db.Collection(s.o.Prefix + name)
}

func (s *Store) disconnect() {
	ctx, cancel := context.WithTimeout(context.Background(), s.o.Timeout)
	defer cancel()
	if err := s.client.Disconnect(ctx); err != nil {
		s.o.Logger.Warn("mongostore: disconnect", "error", err)
	}
}

// Close implements [store.Log]. Appends that wait are answered first, for as
// long as RetryFor if the server is away.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	drained := make(chan struct{})
	go func() {
		s.lanes.Wait()
		close(drained)
	}()
	timer := time.NewTimer(s.o.RetryFor)
	select {
	case <-drained:
	case <-timer.C:
	}
	timer.Stop()
	note, cancel := context.WithTimeout(s.life, min(s.o.Timeout, s.o.RetryFor))
	if err := s.noteTails(note); err != nil {
		s.o.Logger.Info("mongostore: close", "error", err)
	}
	cancel()
	s.endLife()
	<-drained
	s.calls.Wait()
	s.tasks.Wait()
	s.disconnect()
	return nil
}

// enter begins a call: its context ends with the caller's or with the store.
// leave must be called when the server is no longer needed.
func (s *Store) enter(ctx context.Context) (inner context.Context, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, store.ErrClosed
	}
	s.calls.Add(1)
	inner, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.life, cancel)
	return inner, func() {
		stop()
		cancel()
		s.calls.Done()
	}, nil
}

// call runs f as one call of the store. If the store closes meanwhile, the
// error is store.ErrClosed.
func (s *Store) call(ctx context.Context, f func(ctx context.Context) error) error {
	inner, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return s.outcome(ctx, f(inner))
}

// outcome is the error that a caller sees.
func (s *Store) outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case s.life.Err() != nil && (errors.Is(err, context.Canceled) || transient(err)):
		return store.ErrClosed
	}
	return err
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// shorten makes a name that somebody chose fit for a message.
func shorten(name string) string {
	if len(name) > 60 {
		return fmt.Sprintf("%.60q…", name)
	}
	return name
}
