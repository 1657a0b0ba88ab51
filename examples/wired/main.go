// Command wired puts together what a service needs whose schema changes and whose
// documents others follow: heartbeats in two versions with an upcaster and dual
// write, a group that is handed the latest version only and whose failures become
// dead letters, and a change feed that mirrors the MongoDB collection processes,
// which the group writes, to the topic processes.changed. It says what it does,
// and fails if anything is not as promised.
//
//	go run ./examples/wired -mongodb mongodb://127.0.0.1:27017/prom
//	go run ./examples/wired -store data/wired -follow
//
// The address may be in MONGO_URL instead. The server must be of a replica set,
// since others have no change streams. The example writes documents of its own to
// the collection and leaves them there; the place of the feed is kept beside it,
// in changefeed_tokens under cf:processes. With a directory another run goes on
// where this one ended; without, the hub is in memory, and the feed begins with
// all documents that are there. With -follow it goes on mirroring until it is
// interrupted.
//
// How a schema changes step by step, with a cutover of the history, is what
// examples/evolve shows.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean"
	"promethean/changefeed"
	"promethean/changefeed/mongofeed"
	"promethean/schema"
)

const (
	consumers   = "hb-consumers"
	maxAttempts = 3

	collection = "processes"
	mirror     = "processes.changed"
	placeKey   = "cf:processes"
)

func main() {
	var set settings
	flag.StringVar(&set.mongodb, "mongodb", cmp.Or(os.Getenv("MONGO_URL"), "mongodb://127.0.0.1:27017/prom"), "where MongoDB is, with the name of a database; default MONGO_URL")
	flag.StringVar(&set.dir, "store", "", "the directory of the hub; without it everything is in memory")
	flag.BoolVar(&set.follow, "follow", false, "go on mirroring until it is interrupted")
	flag.Parse()
	set.logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, set)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// settings are those of a run.
type settings struct {
	mongodb string
	dir     string // "": in memory
	follow  bool
	logger  *slog.Logger
}

// run wires everything together, plays all of it once and, if asked for, stays.
func run(ctx context.Context, out io.Writer, set settings) (err error) {
	x := &example{settings: set, out: out, board: newBoard()}
	if set.dir == "" {
		x.hub, err = promethean.OpenMemory(promethean.Options{Logger: set.logger})
	} else {
		x.hub, err = promethean.Open(set.dir, promethean.Options{Logger: set.logger})
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	for _, step := range []func(context.Context) error{
		x.schemas, x.dualWrite, x.feed, x.watch, x.consume, x.beat, x.mend, x.remove, x.judge, x.stay,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// example is the service at work.
type example struct {
	settings
	out io.Writer
	hub *promethean.Hub
	reg *schema.Registry
	bus promethean.Bus // validates, stamps, and writes twice

	processes *mongo.Collection
	changes   *changefeed.Feed
	board     *board
	// closers end what was started, the last first.
	closers []func(context.Context) error
}

func (x *example) say(format string, args ...any) {
	_, _ = fmt.Fprintf(x.out, format+"\n", args...) // nobody listens: the result counts
}

// closing has something ended when the example does.
func (x *example) closing(f func(context.Context) error) { x.closers = append(x.closers, f) }

func (x *example) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for i := len(x.closers) - 1; i >= 0; i-- {
		errs = append(errs, x.closers[i](ctx))
	}
	return errors.Join(append(errs, x.hub.Close())...)
}

// answerWithin is how long MongoDB may take to say that it is there.
const answerWithin = 10 * time.Second

// feed begins to mirror the collection.
func (x *example) feed(ctx context.Context) (err error) {
	src, err := mongofeed.New(mongofeed.Options{URI: x.mongodb, Collection: collection, FullDocument: mongofeed.UpdateLookup, Snapshot: true})
	if err != nil {
		return err
	}
	defer func() {
		if x.changes == nil { // which closes it otherwise
			err = errors.Join(err, src.Close())
		}
	}()
	asking, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := src.Database().Client().Ping(asking, nil); err != nil {
		return fmt.Errorf("ask MongoDB whether it is there: %w", err)
	}
	tokens := mongofeed.NewTokens(src.Database())
	bounds, err := x.hub.Log().Bounds(ctx, mirror)
	if err != nil {
		return err
	}
	if bounds.Last == 0 {
		// The place belongs to another log: this one has nothing of what came
		// before it.
		if err := tokens.Delete(ctx, placeKey); err != nil {
			return err
		}
	}
	x.processes = src.Database().Collection(collection)
	if err := x.early(ctx); err != nil {
		return err
	}
	x.changes, err = changefeed.Start(x.bus, src, changefeed.Options{
		Name: collection, Topic: mirror, Tokens: tokens, Key: placeKey, Map: withID, Logger: x.logger,
	})
	if err != nil {
		return err
	}
	x.closing(func(context.Context) error { return x.changes.Close() })
	x.say("2. the collection %s is mirrored to %s", collection, mirror)
	return nil
}

// stay goes on until ctx ends, if asked for.
func (x *example) stay(ctx context.Context) error {
	if !x.follow {
		return nil
	}
	x.say("8. it goes on until it is interrupted")
	x.board.tell(func(c change) { x.say("   %s: %s", c.key, c.payload) })
	<-ctx.Done()
	x.board.tell(nil)
	return nil
}
