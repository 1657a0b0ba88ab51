package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/gateway"
)

// benched is a client of a hub in memory.
func benched(b *testing.B) (*promethean.Hub, *client.Client) {
	b.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	server := httptest.NewServer(g)
	c, err := client.New(server.URL, client.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			b.Error(err)
		}
		if err := g.Close(context.Background()); err != nil {
			b.Error(err)
		}
		server.Close()
		if err := hub.Close(); err != nil {
			b.Error(err)
		}
	})
	return hub, c
}

var payload = json.RawMessage(`{"text":"` + strings.Repeat("x", 280) + `"}`)

// BenchmarkPublish publishes single events from 64 goroutines over one
// connection.
func BenchmarkPublish(b *testing.B) {
	_, c := benched(b)
	b.ReportAllocs()
	b.SetParallelism(32) // times the processors
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.Publish(b.Context(), "a", payload, client.Key("k")); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkPublishEvents publishes batches of 1000; an operation is one event.
func BenchmarkPublishEvents(b *testing.B) {
	_, c := benched(b)
	batch := make([]event.Event, 1000)
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(batch) {
		for i := range batch {
			batch[i] = event.Event{Topic: "a", Key: "k", Payload: payload}
		}
		if _, err := c.PublishEvents(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConsume handles and acks events that are in the log.
func BenchmarkConsume(b *testing.B) {
	hub, c := benched(b)
	for n := 0; n < b.N; {
		batch := make([]event.Event, min(1000, b.N-n))
		for i := range batch {
			batch[i] = event.New("a", payload)
			batch[i].Key = fmt.Sprint(n + i)
		}
		if _, err := hub.Publish(b.Context(), batch...); err != nil {
			b.Fatal(err)
		}
		n += len(batch)
	}
	var handled atomic.Int64
	done := make(chan struct{})
	b.ReportAllocs()
	b.ResetTimer()
	sub, err := c.Subscribe(b.Context(), "a", "g", func(context.Context, event.Event, *client.Delivery) error {
		if handled.Add(1) == int64(b.N) {
			close(done)
		}
		return nil
	}, client.FromEarliest())
	if err != nil {
		b.Fatal(err)
	}
	<-done
	if err := sub.Stop(b.Context()); err != nil { // with all acks answered
		b.Error(err)
	}
}
