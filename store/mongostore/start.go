package mongostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/store"
)

const (
	// format is the version of the stored layout.
	format = 1
	// oldestWire is the wire version of MongoDB 4.4. The driver asks for it
	// too; updates by pipeline with $$NOW need 4.2.
	oldestWire = 9
	marker     = "promethean"
)

// prepare checks the server and the database and makes what is missing.
func (s *Store) prepare(ctx context.Context) error {
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	if err := s.checkMarker(ctx); err != nil {
		return err
	}
	if err := s.makeIndexes(ctx); err != nil {
		return s.explain(err, "make indexes")
	}
	s.makeView(ctx)
	return nil
}

// checkServer asks who answers. A server that is away is not waited for
// longer than one try: at start somebody is looking.
func (s *Store) checkServer(ctx context.Context) error {
	var hello struct {
		Writable bool   `bson:"isWritablePrimary"`
		Wire     int    `bson:"maxWireVersion"`
		Set      string `bson:"setName"`
		Msg      string `bson:"msg"`
	}
	err := s.try(ctx, func(ctx context.Context) error {
		return s.db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	})
	if err != nil {
		return s.explain(err, "reach the server")
	}
	if hello.Wire < oldestWire {
		return fmt.Errorf("the server speaks wire version %d, and %d is needed: use MongoDB 4.4 or later", hello.Wire, oldestWire)
	}
	if !hello.Writable && hello.Msg != "isdbgrid" {
		return errors.New("the server takes no writes: it is not the primary; name all members of the replica set in the address, and no directConnection")
	}
	s.asOne = hello.Set != "" && hello.Wire >= snapshotWire
	if hello.Set == "" && hello.Msg != "isdbgrid" {
		s.o.Logger.Info("mongostore: the server is no replica set: what is written is on one machine only", "database", s.o.Database)
	}
	return nil
}

// explain says what an error at start means and what to do.
func (s *Store) explain(err error, doing string) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", doing, context.Canceled)
	}
	var server mongo.ServerError
	switch {
	case refusedLogin(err):
		return fmt.Errorf("%s: the server refuses the login: check user, password and authSource of the address: %w", doing, err)
	case errors.As(err, &server) && (server.HasErrorCode(13) || server.HasErrorCode(8000)):
		return fmt.Errorf("%s: the user may not do this: give it the role readWrite on database %s: %w", doing, s.o.Database, err)
	case strings.Contains(err.Error(), "reports wire version"):
		return fmt.Errorf("%s: the server is too old: use MongoDB 4.4 or later: %w", doing, err)
	case transient(err):
		return fmt.Errorf("%s: %w: is it running, and is the address right? %w", doing, store.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// refusedLogin says whether the server knows no such user and password.
func refusedLogin(err error) bool {
	var server mongo.ServerError
	if errors.As(err, &server) && server.HasErrorCode(18) {
		return true
	}
	return strings.Contains(err.Error(), "AuthenticationFailed") || strings.Contains(err.Error(), "auth error:")
}

// checkMarker sees to it that the collections are ours: the collection meta
// says so, in one document with the format's version. Writing to it shows also
// that the user may write.
func (s *Store) checkMarker(ctx context.Context) error {
	found, err := s.readMarker(ctx)
	if err != nil {
		return err
	}
	if !found {
		names, err := s.db.ListCollectionNames(ctx, bson.D{})
		if err != nil {
			return s.explain(err, "list collections")
		}
		// Another process may have made everything since we looked.
		if found, err = s.readMarker(ctx); err != nil {
			return err
		}
		for _, c := range []*mongo.Collection{s.commits, s.topics, s.cursors, s.leases, s.meta} {
			if !found && slices.Contains(names, c.Name()) {
				return fmt.Errorf("there is a collection %s that is not ours (%s has no document %q): choose another database or prefix",
					c.Name(), s.meta.Name(), marker)
			}
		}
	}
	update := bson.D{
		{Key: "$setOnInsert", Value: bson.D{{Key: "format", Value: int32(format)}, {Key: "made", Value: time.Now()}}},
		{Key: "$set", Value: bson.D{{Key: "opened", Value: time.Now()}}},
	}
	err = s.do(ctx, func(ctx context.Context) error {
		_, err := s.meta.UpdateOne(ctx, bson.D{{Key: "_id", Value: marker}}, update, options.UpdateOne().SetUpsert(true))
		if duplicate(err) { // somebody else has made it
			return nil
		}
		return err
	})
	if err != nil {
		return s.explain(err, "write to collection "+s.meta.Name())
	}
	if !found {
		s.o.Logger.Info("mongostore: made a new store", "database", s.o.Database, "prefix", s.o.Prefix)
	}
	return nil
}

func (s *Store) readMarker(ctx context.Context) (found bool, err error) {
	var doc bson.Raw
	err = s.do(ctx, func(ctx context.Context) error {
		doc, err = s.meta.FindOne(ctx, bson.D{{Key: "_id", Value: marker}}).Raw()
		return err
	})
	if errors.Is(err, mongo.ErrNoDocuments) {
		return false, nil
	}
	if err != nil {
		return false, s.explain(err, "read collection "+s.meta.Name())
	}
	version, ok := doc.Lookup("format").AsInt64OK()
	switch {
	case !ok || version < 1:
		return false, fmt.Errorf("the document %q of collection %s is not ours: choose another database or prefix", marker, s.meta.Name())
	case version > format:
		return false, fmt.Errorf("%w %d of the stored data: this program knows up to %d; use a newer one", store.ErrFormat, version, format)
	}
	return true, nil
}

// makeIndexes makes the indexes that are missing.
func (s *Store) makeIndexes(ctx context.Context) error {
	type index struct {
		on     *mongo.Collection
		name   string
		unique bool
		keys   bson.D
	}
	up := func(names ...string) (keys bson.D) {
		for _, n := range names {
			keys = append(keys, bson.E{Key: n, Value: 1})
		}
		return keys
	}
	for _, x := range []index{
		{on: s.commits, name: "order", keys: up("t", "last")},
		{on: s.commits, name: "ids", keys: up("t", "events.id"), unique: true},
		{on: s.commits, name: "keys", keys: up("t", "events.key", "last")},
		{on: s.cursors, name: "topic", keys: up("t")},
	} {
		if s.hasIndex(ctx, x.on, x.name) {
			continue
		}
		began := time.Now()
		err := s.do(ctx, func(ctx context.Context) error {
			_, err := x.on.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: x.keys, Options: options.Index().SetName(x.name).SetUnique(x.unique)})
			return err
		})
		if err != nil {
			return fmt.Errorf("index %s of collection %s: %w", x.name, x.on.Name(), err)
		}
		s.o.Logger.Info("mongostore: made an index", "collection", x.on.Name(), "index", x.name, "unique", x.unique, "took", time.Since(began))
	}
	return nil
}

// hasIndex says whether there is an index of that name. If that cannot be
// told, making it shows what is wrong.
func (s *Store) hasIndex(ctx context.Context, c *mongo.Collection, name string) bool {
	list, err := c.Indexes().ListSpecifications(ctx)
	return err == nil && slices.ContainsFunc(list, func(x mongo.IndexSpecification) bool { return x.Name == name })
}

// makeView makes the view for people who query by hand. Nothing depends on it.
func (s *Store) makeView(ctx context.Context) {
	name := s.o.Prefix + "events"
	if s.kindOf(ctx, name) != "" {
		return
	}
	field := func(name string) bson.E { return bson.E{Key: name, Value: "$events." + name} }
	err := s.try(ctx, func(ctx context.Context) error {
		return s.db.CreateView(ctx, name, s.commits.Name(), mongo.Pipeline{
			{{Key: "$unwind", Value: "$events"}},
			{{Key: "$match", Value: bson.D{{Key: "events.seq", Value: bson.D{{Key: "$gt", Value: int64(stubSeq)}}}}}},
			{{Key: "$project", Value: bson.D{
				{Key: "_id", Value: 0}, field("id"), field("seq"), field("ts"), {Key: "topic", Value: "$t"},
				field("key"), field("partition"), field("sid"),
				{Key: "headers", Value: bson.D{{Key: "$arrayToObject", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$events.headers", bson.A{}}}}}}},
				field("payload"), field("caused_by"), field("tags"),
			}}},
		})
	})
	var server mongo.ServerError
	switch {
	case err == nil && s.kindOf(ctx, name) == "collection":
		// The compatible server takes the definition and makes an empty
		// collection, which would tell people that there are no events.
		if err := s.db.Collection(name).Drop(ctx); err != nil {
			s.o.Logger.Warn("mongostore: drop what should have been a view", "view", name, "error", err)
		}
		s.o.Logger.Info("mongostore: the server has no views: the view of events is left out", "view", name)
	case err == nil:
		s.o.Logger.Info("mongostore: made a view with one row per event", "view", name)
	case errors.As(err, &server) && server.HasErrorCode(48): // somebody else has made it
	default:
		s.o.Logger.Info("mongostore: the view of events is left out", "view", name, "error", err)
	}
}

// kindOf says what stands under a name: a view, a collection, or nothing.
func (s *Store) kindOf(ctx context.Context, name string) string {
	list, err := s.db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil || len(list) == 0 {
		return ""
	}
	return list[0].Type
}
