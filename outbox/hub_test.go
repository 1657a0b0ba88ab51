package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/gateway"
	"promethean/gateway/auth"
	"promethean/outbox"
	"promethean/outbox/outboxtest"
	"promethean/schema"
	"promethean/store"
)

// realHub is a hub with a schema for orders.placed and a limit of 2,000 bytes,
// whose gateway lets the token "good" publish orders.
type realHub struct {
	*testing.T
	hub *promethean.Hub
	reg *schema.Registry
	url string
}

func newRealHub(t *testing.T) *realHub {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{Limits: event.Limits{Payload: 2000}})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := schema.Open(t.Context(), hub, schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := reg.Register(t.Context(), schema.Definition{Topic: "orders.placed", Schema: json.RawMessage(`{"type":"object","required":["total"]}`)}); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.NewTokens(auth.Token{Secret: "good", Scopes: []string{"publish:orders.*"}})
	if err != nil {
		t.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{Schemas: reg, Verifier: tokens})
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		if err := errors.Join(g.Close(context.Background()), reg.Close(), hub.Close()); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return &realHub{t, hub, reg, server.URL}
}

// over publishes by a client.
func (h *realHub) over(t *testing.T, token string) outbox.Publisher {
	t.Helper()
	c, err := client.New(h.url, client.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return outbox.ToClient(c.PublishEvents)
}

// until waits for a state of a drainer.
func until(t *testing.T, d *outbox.Drainer, ok func(s outbox.Status) bool) {
	t.Helper()
	for ends := time.Now().Add(30 * time.Second); !ok(d.Status()); time.Sleep(time.Millisecond) {
		if time.Now().After(ends) {
			t.Fatalf("status %+v", d.Status())
		}
	}
}

// What a real hub refuses, by its schemas, scopes and limits, waits with its error,
// and the rest goes on: over the network, and within the process.
func TestRealHubRefuses(t *testing.T) {
	h := newRealHub(t)
	for _, x := range []struct {
		name string
		to   outbox.Publisher
		want map[string]string // by key, part of the error
	}{
		{"client", h.over(t, "good"), map[string]string{"schema": "total", "scope": "payments.made", "large": "too large"}},
		{"hub", outbox.ToBus(schema.Validate(h.hub, h.reg).Publish), map[string]string{"schema": "total", "large": "too large"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			m := outboxtest.NewMemory()
			addRow := func(topic, key, payload string) {
				t.Helper()
				tx := m.Begin()
				if err := errors.Join(tx.Add(t.Context(), outbox.Row{Topic: topic, Key: key, Payload: json.RawMessage(payload)}), tx.Commit(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
			addRow("orders.placed", "good", `{"total":1}`)
			addRow("orders.placed", "schema", `{"sum":1}`)
			addRow("orders.placed", "schema", `{"total":2}`) // waits behind it
			addRow("payments.made", "scope", `{"total":1}`)
			addRow("orders.placed", "large", `{"total":"`+strings.Repeat("x", 3000)+`"}`)
			addRow("orders.placed", "good", `{"total":2}`)
			d := start(t, m, x.to, outbox.Options{MinBackoff: time.Hour, MaxBackoff: time.Hour})
			until(t, d, func(s outbox.Status) bool {
				return s.RefusedTotal >= uint64(len(x.want)) && s.SentTotal >= uint64(5-len(x.want))
			})
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			list, err := m.Errors(t.Context(), 10)
			if err != nil || len(list) != len(x.want) {
				t.Fatalf("errors %+v, %v", list, err)
			}
			for _, e := range list {
				if want := x.want[e.Key]; want == "" || !strings.Contains(e.Error, want) {
					t.Errorf("error of %s: %q, want %q in it", e.Key, e.Error, want)
				}
			}
			if s, err := m.Stats(t.Context()); err != nil || s.Pending != int64(len(x.want))+1 || s.Claimed != 0 {
				t.Errorf("stats %+v, %v", s, err)
			}
		})
	}
	var keys []string
	for e, err := range h.hub.Read(t.Context(), store.Query{Topic: "orders.placed"}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	if want := []string{"good", "good", "good", "good"}; !slices.Equal(keys, want) {
		t.Errorf("stored %q, want %q", keys, want)
	}
}

// A token that is not taken is no failure of the rows.
func TestWrongTokenIsAnOutage(t *testing.T) {
	h := newRealHub(t)
	m := outboxtest.NewMemory()
	add(t, m, "a1")
	d := start(t, m, h.over(t, "wrong"), outbox.Options{Lease: 300 * time.Millisecond, Every: time.Millisecond})
	until(t, d, func(s outbox.Status) bool { return s.Outage != "" })
	t.Log(d.Status().Outage)
	if s := d.Status(); s.RefusedTotal != 0 {
		t.Errorf("status %+v", s)
	}
}
