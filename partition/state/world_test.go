package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"promethean"
	"promethean/event"
	"promethean/partition/state"
	"promethean/store"
)

const source = "orders.placed"

// open gives a hub in memory.
func open(t testing.TB) *promethean.Hub {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	return hub
}

// table makes one and assigns partitions to it.
func table[V any](t testing.TB, hub *promethean.Hub, o state.Options, parts ...int) *state.Table[string, V] {
	t.Helper()
	tab, err := state.New[string, V](hub, "sums", o)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range parts {
		if err := tab.Assigned(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	return tab
}

// divide sets the number of partitions of the source.
func divide(t testing.TB, hub *promethean.Hub, n int) {
	t.Helper()
	if err := hub.SetTopic(t.Context(), source, store.Settings{Partitions: n}); err != nil {
		t.Fatal(err)
	}
}

// publish stores an event of the source and gives it as a handler gets it.
func publish(t testing.TB, hub *promethean.Hub, key string, v any) event.Event {
	t.Helper()
	payload, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	e := event.New(source, payload)
	e.Key = key
	got, err := hub.Publish(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	e.Seq, e.Partition = got[0].Seq, got[0].Partition
	return e
}

// records lists what a topic holds as seq:key=payload<source.
func records(t testing.TB, hub *promethean.Hub, topic string) (list []string) {
	t.Helper()
	for e, err := range hub.Read(context.Background(), store.Query{Topic: topic}) {
		if err != nil {
			t.Fatal(err)
		}
		from, _ := e.Headers.Get(state.SourceHeader)
		list = append(list, fmt.Sprintf("%d:%s=%s<%s", e.Seq, e.Key, e.Payload, from))
	}
	return list
}

// add is a change of a table of sums.
func add(n int) func(int, bool) (int, error) {
	return func(v int, _ bool) (int, error) { return v + n, nil }
}

// want checks the value of a key; -1 means that it has none.
func want(t testing.TB, tab *state.Table[string, int], key string, n int) {
	t.Helper()
	got, ok, err := tab.Get(key)
	if !ok && err == nil {
		got = -1
	}
	if err != nil || got != n {
		t.Errorf("%s is %d, want %d (%v)", key, got, n, err)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is checks that an error is of a kind, and what it says.
func is(t testing.TB, err, kind error, text string) {
	t.Helper()
	if !errors.Is(err, kind) || err.Error() != text {
		t.Errorf("got  %v\nwant %s", err, text)
	}
}
