package group_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"promethean/group"
	"promethean/internal/natstest"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
)

// serverRuns is how many histories a server gets: they take real time.
func serverRuns() uint64 {
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		return 40
	}
	return 4
}

// The model over engines that have a server.
func TestModelNATS(t *testing.T) {
	url := natstest.Start(t, nil).URL()
	var prefix atomic.Int64
	serverHistories(t, func() func() (group.Log, error) {
		o := natsstore.Options{Prefix: fmt.Sprint("model", prefix.Add(1))}
		return func() (group.Log, error) { return natsstore.Open(context.Background(), url, o) }
	})
}

func TestModelMongoDB(t *testing.T) {
	url := os.Getenv("PROMETHEAN_TEST_MONGODB_URI")
	if url == "" {
		url = os.Getenv("PROMETHEAN_TEST_MONGODB_COMPATIBLE_URI")
	}
	if url == "" {
		t.Skip("needs mongodb")
	}
	var n atomic.Int64
	serverHistories(t, func() func() (group.Log, error) {
		o := mongostore.Options{Database: fmt.Sprintf("model_%d_%d", time.Now().UnixNano(), n.Add(1))}
		return func() (group.Log, error) { return mongostore.Open(context.Background(), url, o) }
	})
}

// serverHistories tries histories, each with a log of its own.
func serverHistories(t *testing.T, fresh func() func() (group.Log, error)) {
	for seed := uint64(1); seed <= serverRuns(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			newModel(&world{t: t, server: fresh()}, seed).run(*modelSteps / 2)
			t.Logf("%v", time.Since(began).Round(time.Millisecond))
		})
	}
}
