package mongostore_test

import (
	"context"
	"encoding/json"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/event"
	"promethean/store"
	"promethean/store/mongostore"
)

// The view is for people: one row per event, with the fields that they know.
func TestView(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		ctx := context.Background()
		name := newDatabase(t, uri)
		s := open(t, uri, mongostore.Options{Database: name})
		e := event.New("orders.placed", json.RawMessage(`{"n":1}`))
		e.Key, e.SID, e.Tags, e.CausedBy = "k", "session", []string{"#a"}, []string{"cause"}
		e.Headers = event.Headers{{Name: "x-a", Value: "1"}, {Name: "x-b", Value: "$2.0"}}
		e.Partition = event.PartitionOf(3)
		if _, err := s.Append(ctx, store.Batch{Events: []event.Event{e, event.New("orders.placed", json.RawMessage(`2`))}}); err != nil {
			t.Fatal(err)
		}
		client := connect(t, uri)
		defer func() { _ = client.Disconnect(ctx) }()
		names, err := client.Database(name).ListCollectionNames(ctx, bson.D{{Key: "name", Value: "promethean_events"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(names) == 0 {
			t.Skip("needs real-mongodb: the compatible server has no views")
		}
		found, err := client.Database(name).Collection("promethean_events").Find(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var rows []struct {
			ID        bson.Binary       `bson:"id"`
			Seq       int64             `bson:"seq"`
			TS        int64             `bson:"ts"`
			Topic     string            `bson:"topic"`
			Key       string            `bson:"key"`
			Partition int               `bson:"partition"`
			SID       string            `bson:"sid"`
			Headers   map[string]string `bson:"headers"`
			Payload   string            `bson:"payload"`
			CausedBy  []string          `bson:"caused_by"`
			Tags      []string          `bson:"tags"`
		}
		if err := found.All(ctx, &rows); err != nil {
			t.Fatal(err)
		}
		if len(rows) != 2 {
			t.Fatalf("the view has %d rows, want 2", len(rows))
		}
		r := rows[0]
		if event.ID(r.ID.Data) != e.ID || r.Seq != 1 || r.TS != e.TS || r.Topic != e.Topic || r.Key != "k" || r.Partition != 3 ||
			r.SID != "session" || r.Headers["x-b"] != "$2.0" || r.Payload != `{"n":1}` || len(r.Tags) != 1 || len(r.CausedBy) != 1 {
			t.Fatalf("the view shows %+v for %+v", r, e)
		}
		if rows[1].Payload != "2" || len(rows[1].Headers) != 0 {
			t.Fatalf("the view shows %+v", rows[1])
		}
	})
}
