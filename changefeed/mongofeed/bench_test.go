package mongofeed_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/changefeed"
	"promethean/changefeed/mongofeed"
	"promethean/internal/mongofake"
)

// row is a document of the usual size.
func row(i int) bson.D {
	return doc(bson.NewObjectID(), "name", "a process with a name", "host", "host-17.example", "n", i,
		"at", bson.DateTime(1765700000120+i), "load", bson.D{{Key: "one", Value: 0.25}, {Key: "five", Value: 1.5}}, "tags", bson.A{"a", "b"}, "up", true)
}

// full gives a server that has n changes to tell, from a place on.
func full(t testing.TB, n int) (w *world, from bson.Raw, token []byte) {
	w = onFake(t, mongofake.Options{})
	l := begun(w, mongofeed.Options{})
	changes, err := w.coll.Watch(w.ctx(), mongo.Pipeline{})
	w.ok(err)
	from = changes.ResumeToken()
	w.ok(changes.Close(w.ctx()))
	docs := make([]bson.D, 0, 1000)
	for i := range n {
		if docs = append(docs, row(i)); len(docs) == cap(docs) || i == n-1 {
			w.insert(docs...)
			docs = docs[:0]
		}
	}
	return w, from, l.place()
}

// raw reads n changes with the driver alone, and throws them away.
func raw(w *world, from bson.Raw, n int) time.Duration {
	w.t.Helper()
	ctx := w.ctx()
	began := time.Now()
	changes, err := w.coll.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().
		SetStartAfter(from).SetFullDocument(options.UpdateLookup).SetBatchSize(1000))
	w.ok(err)
	for range n {
		if !changes.Next(ctx) {
			w.t.Fatal(changes.Err())
		}
	}
	took := time.Since(began)
	w.ok(changes.Close(w.ctx()))
	return took
}

var errEnough = errors.New("enough")

// fed reads n changes with the feed's source, into memory. As above, what it takes
// to close is not counted.
func fed(w *world, token []byte, n int) time.Duration {
	w.t.Helper()
	src := w.source(mongofeed.Options{MaxAwait: time.Second})
	began := time.Now()
	got := 0
	var took time.Duration
	err := src.Stream(w.ctx(), token, func(_ context.Context, b changefeed.Batch) error {
		if got += len(b.Changes); got >= n {
			took = time.Since(began)
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		w.t.Fatal(err)
	}
	return took
}

// BenchmarkFeed compares the source with the driver alone, both reading from the
// fake, in turns. The figure is how much of the driver's speed is left.
func BenchmarkFeed(b *testing.B) {
	const n = 50_000
	w, from, token := full(b, n)
	var alone, ours time.Duration
	for b.Loop() {
		alone += raw(w, from, n)
		ours += fed(w, token, n)
	}
	b.ReportMetric(float64(n*b.N)/alone.Seconds(), "raw/s")
	b.ReportMetric(float64(n*b.N)/ours.Seconds(), "fed/s")
	b.ReportMetric(alone.Seconds()/ours.Seconds(), "ratio")
}
