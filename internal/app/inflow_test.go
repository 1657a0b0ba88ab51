package app

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean/changefeed"
	"promethean/internal/app/config"
	"promethean/internal/pgtest"
	"promethean/outbox"
	"promethean/outbox/pgoutbox"
	"promethean/store"
)

// serving opens a server with a file of settings.
func serving(t *testing.T, text, dir string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Source{File: file, Flags: map[string]string{"listen": "127.0.0.1:0", "store": "file://" + dir}})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{c: c, level: new(slog.LevelVar), failed: make(chan error, 2), log: slog.New(slog.DiscardHandler)}
	if err := s.open(t.Context(), "v0"); err != nil {
		t.Fatal(err)
	}
	return s
}

// comes waits until a topic has what is wanted, in this order: keys and payloads.
func comes(t *testing.T, s *server, topic string, want ...string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		got = nil
		for e, err := range s.hub.Read(t.Context(), store.Query{Topic: topic}) {
			if err != nil {
				break // there is no such topic yet
			}
			got = append(got, e.Key+" "+string(e.Payload))
		}
		if len(got) >= len(want) {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has %q, want %q", topic, got, want)
	}
}

// A feed and an outbox of one database beside each other, over a restart.
func TestPostgreSQLInflow(t *testing.T) {
	uri := pgtest.Database(t)
	t.Setenv("SHOP_DB", uri)
	pgtest.Exec(t, uri, "CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
	pgtest.Exec(t, uri, "INSERT INTO orders VALUES (1, 1.50)")
	const text = "changefeeds: {orders: {uri_env: SHOP_DB, table: orders, topic: orders.changed}}\noutboxes: {shop: {uri_env: SHOP_DB}}\n"
	dir := filepath.Join(t.TempDir(), "data")
	s := serving(t, text, dir)
	comes(t, s, "orders.changed", `1 {"id":1,"total":1.50}`)
	box, err := pgoutbox.Open(t.Context(), uri, pgoutbox.Options{})
	if err == nil {
		err = box.Setup(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = box.Close() }()
	conn := pgtest.Connect(t, uri)
	place := func(n int, commit bool) {
		t.Helper()
		tx, err := conn.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "INSERT INTO orders VALUES ($1, 2.0)", n)
		}
		if err == nil {
			err = box.Add(t.Context(), tx, outbox.Row{Topic: "orders.placed", Key: fmt.Sprint(n), Payload: json.RawMessage(fmt.Sprint(n))})
		}
		if err == nil && commit {
			err = tx.Commit(t.Context())
		} else if err == nil {
			err = tx.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	place(2, true)
	place(3, false)
	comes(t, s, "orders.placed", "2 2")
	comes(t, s, "orders.changed", `1 {"id":1,"total":1.50}`, `2 {"id":2,"total":2.0}`)
	if err := s.close(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	place(4, true)
	pgtest.Exec(t, uri, "DELETE FROM orders WHERE id=1")
	s = serving(t, text, dir)
	defer func() {
		if err := s.close(10 * time.Second); err != nil {
			t.Error(err)
		}
	}()
	comes(t, s, "orders.placed", "2 2", "4 4")
	comes(t, s, "orders.changed", `1 {"id":1,"total":1.50}`, `2 {"id":2,"total":2.0}`, `4 {"id":4,"total":2.0}`, "1 null")
	// What is counted is counted after the events are there.
	var feed changefeed.Status
	var got outbox.Status
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && (got.SentTotal == 0 || feed.Position == ""); time.Sleep(5 * time.Millisecond) {
		feed, got = s.inflow.feeds.List()[0], s.inflow.boxes.List()[0]
	}
	if feed.Duplicates != 0 || feed.Position == "" || feed.State != changefeed.Streaming || !strings.HasPrefix(feed.Server, "PostgreSQL") {
		t.Errorf("%+v", feed)
	}
	if !got.Running || got.SentTotal != 1 || !got.Waking {
		t.Errorf("%+v", got)
	}
}
