package mongostore_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/internal/rapidtest"
	"promethean/store/mongostore"
	"promethean/store/storetest"
)

// onEach runs a test against the fake, and against every server that there is.
func onEach(t *testing.T, test func(t *testing.T, uri string)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) { test(t, mongofake.Start(t, mongofake.Options{}).URI()) })
	mongotest.Each(t, test)
}

var databases atomic.Int64

// newDatabase gives the name of a database of the test's own, which is dropped
// in the end.
func newDatabase(t testing.TB, uri string) string {
	t.Helper()
	name := fmt.Sprintf("prom_%x_%d_%d", time.Now().UnixNano(), os.Getpid(), databases.Add(1))
	t.Cleanup(func() {
		client := connect(t, uri)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := client.Database(name).Drop(ctx); err != nil {
			t.Errorf("drop database: %v", err)
		}
		_ = client.Disconnect(ctx)
	})
	return name
}

func connect(t testing.TB, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetRetryWrites(false).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func open(t testing.TB, uri string, o mongostore.Options) *mongostore.Store {
	t.Helper()
	s, err := mongostore.Open(context.Background(), uri, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func harness(uri string) storetest.Harness {
	var mu sync.Mutex
	names := make(map[storetest.Engine]string)
	opened := func(t testing.TB, name string) storetest.Engine {
		s := open(t, uri, mongostore.Options{Database: name})
		mu.Lock()
		defer mu.Unlock()
		names[s] = name
		return s
	}
	return storetest.Harness{
		Name: "mongostore",
		Open: func(t testing.TB) storetest.Engine { return opened(t, newDatabase(t, uri)) },
		Reopen: func(t testing.TB, e storetest.Engine) storetest.Engine {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			name := names[e]
			mu.Unlock()
			return opened(t, name)
		},
		Many: 4000,
	}
}

func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) { storetest.Run(t, harness(uri)) })
}

// TestModel draws fewer sequences than rapid would: each step asks a server.
func TestModel(t *testing.T) {
	rapidtest.Checks(t, 30)
	onEach(t, func(t *testing.T, uri string) { storetest.Model(t, harness(uri)) })
}

func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, harness(mongotest.Any(b)))
}
