package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"promethean"
	"promethean/changefeed"
	"promethean/changefeed/mongofeed"
	"promethean/changefeed/pgfeed"
	"promethean/internal/app/config"
	"promethean/internal/jq"
	"promethean/outbox"
	"promethean/outbox/mongooutbox"
	"promethean/outbox/pgoutbox"
	"promethean/outbox/sqliteoutbox"
	"promethean/store"
)

// inflow is what the hub takes from databases.
type inflow struct {
	feeds *changefeed.Set
	boxes *outbox.Set
}

// newInflow makes the sets, with nothing in them.
func newInflow(hub *promethean.Hub, log *slog.Logger) inflow {
	o := changefeed.SetOptions{Owner: hub.Engine().Owner(), Logger: log}
	if _, shared := store.As[store.Shared](hub.Log()); shared {
		o.Leases, _ = store.As[store.Leases](hub.Log())
	}
	return inflow{feeds: changefeed.NewSet(o), boxes: outbox.NewSet()}
}

// start begins to read and to drain what the configuration names. A database
// that is away is waited for; what is wrong by itself is an error.
func (in *inflow) start(c *config.Config, bus promethean.Bus, log *slog.Logger) error {
	for i := range c.Changefeeds {
		f := &c.Changefeeds[i]
		if err := in.feed(f, bus, c.Limits.Payload, log); err != nil {
			return fmt.Errorf("%s: change feed %s: %w", f.Place, f.Name, err)
		}
	}
	for i := range c.Outboxes {
		o := &c.Outboxes[i]
		if err := in.outbox(o, bus, log); err != nil {
			return fmt.Errorf("%s: outbox %s: %w", o.Place, o.Name, err)
		}
	}
	return nil
}

// close ends all of it.
func (in *inflow) close() []error {
	if in.feeds == nil {
		return nil
	}
	return []error{in.feeds.Close(), in.boxes.Close()}
}

func (in *inflow) feed(f *config.Changefeed, bus promethean.Bus, payload int, log *slog.Logger) error {
	uri, err := f.Address()
	if err != nil {
		return err
	}
	o := changefeed.Options{
		Name: f.Name, Topic: f.Topic, Key: f.Key, MaxPayload: payload, Resnapshot: f.Resnapshot, SkipRefused: f.Refused == "skip", Logger: log,
	}
	if o.Filter, err = filterOf(f.Filter); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	if o.Map, err = mapOf(f.Map); err != nil {
		return fmt.Errorf("map: %w", err)
	}
	open, err := opener(f, uri, log.With("feed", f.Name))
	if err != nil {
		return err
	}
	// What no server has to be asked about is wrong now or never.
	src, tokens, err := open()
	if err != nil {
		return err
	}
	if err := errors.Join(src.Close(), closed(tokens)); err != nil {
		return err
	}
	return in.feeds.Add(bus, open, o)
}

// closed closes what can be closed.
func closed(x any) error {
	if c, ok := x.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// filterOf is a jq program that sees the document, and gives false or null for
// one that is left out.
func filterOf(program string) (func(*changefeed.Change) (bool, error), error) {
	if program == "" {
		return nil, nil
	}
	p, err := jq.Compile(program)
	if err != nil {
		return nil, err
	}
	return func(c *changefeed.Change) (bool, error) {
		out, err := p.Run(context.Background(), c.Doc) // a run is bounded by itself
		return err == nil && string(out) != "false" && string(out) != "null", err
	}, nil
}

// mapOf is a jq program that sees the document, and gives the payload.
func mapOf(program string) (func(*changefeed.Change) (json.RawMessage, error), error) {
	if program == "" {
		return nil, nil
	}
	p, err := jq.Compile(program)
	if err != nil {
		return nil, err
	}
	return func(c *changefeed.Change) (json.RawMessage, error) {
		out, err := p.Run(context.Background(), c.Doc)
		return out, err
	}, nil
}

// errMixed says that an address is of another kind of database than the names
// that go with it.
func errMixed(uri, named string) error {
	return fmt.Errorf("%s goes with another kind of database than %s", named, config.Redact(uri))
}

// opener gives what connects to the source of a feed.
func opener(f *config.Changefeed, uri string, log *slog.Logger) (changefeed.Open, error) {
	if strings.HasPrefix(uri, "mongodb") {
		if f.Collection == "" {
			return nil, errMixed(uri, "table")
		}
		o := mongofeed.Options{
			URI: uri, Database: f.DatabaseName, Collection: f.Collection, FullDocument: mongofeed.FullDocument(f.FullDocument), Snapshot: f.Snapshot,
		}
		return func() (changefeed.Source, changefeed.Tokens, error) {
			s, err := mongofeed.New(o)
			if err != nil {
				return nil, nil, err
			}
			return s, mongofeed.NewTokens(s.Database()), nil
		}, nil
	}
	if f.Table == "" || strings.HasPrefix(uri, "sqlite") {
		return nil, errMixed(uri, "collection")
	}
	o := pgfeed.Options{
		Name: f.Name, Slot: f.Slot, Publication: f.Publication, Snapshot: f.Snapshot,
		MaxSlotBytes: int64(f.MaxSlotBytes), DropSlotOver: int64(f.DropSlotOver), Logger: log,
	}
	return func() (changefeed.Source, changefeed.Tokens, error) {
		s, err := pgfeed.New(uri, f.Table, o)
		if err != nil {
			return nil, nil, err
		}
		tokens, err := pgfeed.NewTokens(uri)
		if err != nil {
			return nil, nil, errors.Join(err, s.Close())
		}
		return s, tokens, nil
	}, nil
}

func (in *inflow) outbox(b *config.Outbox, bus promethean.Bus, log *slog.Logger) error {
	uri, err := b.Address()
	if err != nil {
		return err
	}
	open, err := outboxOpener(b, uri, log.With("outbox", b.Name))
	if err != nil {
		return err
	}
	if strings.HasPrefix(uri, "postgres") { // that is opened without a look at the server
		box, err := open(context.Background())
		if err == nil {
			err = closed(box)
		}
		if err != nil {
			return err
		}
	}
	keep := b.Keep
	if keep == 0 {
		keep = -1 // for ever
	}
	return in.boxes.Add(outbox.Box{Open: open, Setup: b.Setup}, outbox.ToBus(bus.Publish), outbox.Options{
		Name: b.Name, Batch: b.Batch, Every: b.Every, Lease: b.Lease, MaxAttempts: b.MaxAttempts, Keep: keep, Logger: log,
	})
}

// outboxOpener gives what opens an outbox.
func outboxOpener(b *config.Outbox, uri string, log *slog.Logger) (func(context.Context) (outbox.Store, error), error) {
	scheme, rest, _ := strings.Cut(uri, "://")
	switch {
	case strings.HasPrefix(scheme, "mongodb"):
		if b.Table != "" {
			return nil, errMixed(uri, "table")
		}
		return func(ctx context.Context) (outbox.Store, error) {
			return mongooutbox.Open(ctx, uri, mongooutbox.Options{Database: b.DatabaseName, Collection: b.Collection, Logger: log})
		}, nil
	case b.Collection != "" || b.DatabaseName != "":
		return nil, errMixed(uri, "collection")
	case scheme == "sqlite":
		return func(ctx context.Context) (outbox.Store, error) {
			return sqliteoutbox.Open(ctx, rest, sqliteoutbox.Options{Table: b.Table, Logger: log})
		}, nil
	}
	return func(ctx context.Context) (outbox.Store, error) {
		return pgoutbox.Open(ctx, uri, pgoutbox.Options{Table: b.Table, Logger: log})
	}, nil
}
