package view_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/store"
	"promethean/store/mongostore"
	"promethean/view"
)

// mongoWorld is a hub on MongoDB, with the documents there.
func mongoWorld(t testing.TB, uri, database string) *world {
	t.Helper()
	log, err := mongostore.Open(t.Context(), uri, mongostore.Options{Database: database})
	if err != nil {
		t.Fatal(err)
	}
	hub, err := promethean.New(log, promethean.Options{OwnFor: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	docs, err := log.Docs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &world{TB: t, hub: hub, docs: docs}
}

func newDatabase() string { return "view_" + strings.ReplaceAll(event.NewID().String(), "-", "") }

// Two hubs on MongoDB have a transactional view. One projects, and goes in the
// midst of it; transactions fail in every way. The counters are exact.
func TestTransactionalOnMongoDB(t *testing.T) {
	test := func(t *testing.T, uri string, trouble func(turn int)) {
		database := newDatabase()
		a, b := mongoWorld(t, uri, database), mongoWorld(t, uri, database)
		va, vb := a.processes(view.TransactionalOptions{BatchSize: 5}), b.processes(view.TransactionalOptions{BatchSize: 5})
		last := uint64(0)
		const n = 120
		for i := range n {
			if i%10 == 0 {
				trouble(i / 10)
			}
			last = b.publishAt(int64(i), "", process(fmt.Sprint(i%10), fmt.Sprint("h", i%3)))
			if i == n/2 {
				b.wait(vb, last)
				if err := va.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.wait(vb, last)
		for host := range 3 {
			at := n - 3 + host
			b.want(vb.Collection("host_stats"), fmt.Sprint("h", host), doc(fmt.Sprint("h", host), int64(at), fmt.Sprintf(`"seen":%d,"last_ts":%d`, n/3, at)))
		}
		b.want(vb.Collection("processes"), "9", doc("9", n-1, `"processId":"9","host":"h2"`))
	}
	t.Run("fake", func(t *testing.T) {
		fake := mongofake.Start(t, mongofake.Options{})
		faults := []mongofake.Fault{
			{Command: "commitTransaction", Cut: true, After: true},
			{Command: "commitTransaction", Code: 64, Labels: []string{"UnknownTransactionCommitResult"}, After: true},
			{Command: "commitTransaction", Code: 112, Labels: []string{"TransientTransactionError"}},
			{Command: "update", Cut: true},
			{Command: "commitTransaction", Cut: true},
		}
		test(t, fake.URI(), func(turn int) { fake.Fail(faults[turn%len(faults)]) })
		if fake.Calls("commitTransaction") == 0 {
			t.Error("there were no transactions")
		}
	})
	t.Run("mongodb", func(t *testing.T) { test(t, mongotest.Real(t), func(int) {}) })
	t.Run("compatible", func(t *testing.T) {
		w := mongoWorld(t, mongotest.Compatible(t), newDatabase())
		_, err := view.Transactional(w.ctx(), w.hub, view.TransactionalOptions{
			Topic: topic, Name: "processes.txn", Handler: countHosts, Collections: []store.Collection{{Name: "processes"}, {Name: "host_stats"}},
		})
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a server that only pretends to have transactions: %v", err)
		}
	})
}
