package mongofeed_test

import (
	"context"
	"fmt"
	"log"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/changefeed"
	"promethean/changefeed/mongofeed"
	"promethean/internal/mongofake"
)

// A source without the feed around it: the sink is where changes and tokens are
// stored.
func Example() {
	server, err := mongofake.Open(mongofake.Options{}) // in place of a deployment
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	src, err := mongofeed.New(mongofeed.Options{URI: server.URI(), Database: "prom", Collection: "processes", Snapshot: true})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = src.Close() }()
	processes := src.Database().Collection("processes")
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := processes.InsertOne(ctx, bson.D{{Key: "_id", Value: "stt"}, {Key: "pid", Value: 17}}); err != nil {
		log.Fatal(err)
	}
	err = src.Stream(ctx, nil, func(ctx context.Context, b changefeed.Batch) error {
		for _, c := range b.Changes {
			if c.Op == changefeed.OpDelete {
				fmt.Println(c.Op, c.Key)
				cancel()
				continue
			}
			fmt.Println(c.Op, c.Key, string(c.Doc))
		}
		if !b.Snapshot && len(b.Changes) == 0 { // the stream begins
			_, err := processes.DeleteOne(ctx, bson.D{{Key: "_id", Value: "stt"}})
			return err
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// snapshot stt {"_id":"stt","pid":17}
	// delete stt
	// context canceled
}
