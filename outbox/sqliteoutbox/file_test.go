package sqliteoutbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/outboxtest"
	"promethean/outbox/sqliteoutbox"
)

func TestOpenWantsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.db")
	if b, err := sqliteoutbox.Open(t.Context(), path, sqliteoutbox.Options{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("%v, %v", b, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := sqliteoutbox.Open(t.Context(), path, sqliteoutbox.Options{}); err == nil {
		t.Errorf("a text was opened: %v", b)
	}
	if _, err := sqliteoutbox.New(nil, sqliteoutbox.Options{}); err == nil {
		t.Error("no database was taken")
	}
	db := openDB(t, filepath.Join(t.TempDir(), "a.db"))
	for _, o := range []sqliteoutbox.Options{{Table: "a b"}, {Table: "x; DROP TABLE y"}, {Table: strings.Repeat("x", 64)}, {Look: -1}} {
		if _, err := sqliteoutbox.New(db, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// A hub opens the file of a service, also one whose name needs escaping, and
// drains what the service wrote.
func TestOpenBesideTheService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ser vice?#%41.db")
	db, err := sql.Open("sqlite", "file:"+strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	exec(t, db, sqliteoutbox.Schema("my_outbox"))
	exec(t, db, `INSERT INTO my_outbox (topic, key, payload) VALUES ('a', 'k', '{"by":"hand"}'), ('a', 'k', '2')`)
	hub, err := sqliteoutbox.Open(t.Context(), path, sqliteoutbox.Options{Table: "my_outbox"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	}()
	rows, err := hub.ClaimBatch(t.Context(), "me", 10, time.Minute)
	if err != nil || len(rows) != 2 || string(rows[0].Payload) != `{"by":"hand"}` || rows[0].ID.IsZero() || rows[0].TS < 1_700_000_000_000 {
		t.Fatalf("%+v, %v", rows, err)
	}
}

// What somebody writes by hand is refused by the database, or by the drainer.
func TestByHand(t *testing.T) {
	db := openDB(t, filepath.Join(t.TempDir(), "a.db"))
	box := newBox(t, db)
	for _, values := range []string{
		`(id, topic, payload) VALUES ('text', 'a', '1')`, `(id, topic, payload) VALUES (x'00', 'a', '1')`, `(topic) VALUES ('a')`, `(payload) VALUES ('1')`,
		`(topic, payload, ts) VALUES ('a', '1', 'now')`, `(topic, payload, state) VALUES ('a', '1', 'done')`, `(topic, payload, key) VALUES ('a', '1', NULL)`,
	} {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO promethean_outbox `+values); err == nil {
			t.Errorf("%s was taken", values)
		}
	}
	for _, values := range []string{
		`(topic, key, payload) VALUES ('Bad Topic', 'topic', '1')`, `(topic, key, payload) VALUES ('a', 'json', '{')`, `(topic, key, payload, meta) VALUES ('a', 'meta', '1', '{"tags":5}')`,
		`(topic, key, payload, meta) VALUES ('a', 'partition', '1', '{"partition":-1}')`, `(topic, key, payload) VALUES ('a', 'blob', x'ff')`, `(topic, key, payload) VALUES ('a', 'good', 5)`,
	} {
		exec(t, db, `INSERT INTO promethean_outbox `+values)
	}
	log := &outboxtest.Log{}
	d, err := outbox.New(box, log, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	for (log.Len() < 1 || d.Status().RefusedTotal < 5) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	_ = d.Close()
	running.Wait()
	list, err := box.Errors(t.Context(), 10)
	if err != nil || len(list) != 5 || log.Len() != 1 || log.Events()[0].Key != "good" {
		t.Fatalf("errors %+v, %v; %d events", list, err, log.Len())
	}
	for _, e := range list {
		t.Logf("%s: %s", e.Key, e.Error)
	}
}

// Connections without a busy timeout do not fail each other's claims, and a
// writer that holds the lock only delays them.
func TestBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	var dbs []*sql.DB
	for range 2 {
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		dbs = append(dbs, db)
	}
	box := newBox(t, dbs[0])
	add(t, dbs[0], box, 10)
	conn, err := dbs[1].Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.ExecContext(t.Context(), `BEGIN IMMEDIATE`); err != nil {
		t.Fatal(err)
	}
	claimed := make(chan error, 1)
	go func() {
		rows, err := box.ClaimBatch(t.Context(), "me", 100, time.Minute)
		if err == nil && len(rows) != 10 {
			err = errors.New("rows are missing")
		}
		claimed <- err
	}()
	select {
	case err := <-claimed:
		t.Errorf("claimed while another has the lock: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := box.MarkSent(ctx, event.NewID()); err == nil {
		t.Error("an ended context was ignored")
	}
	if _, err := conn.ExecContext(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	if err := <-claimed; err != nil {
		t.Fatal(err)
	}
}

// add commits n rows of 50 keys in transactions of 100.
func add(t testing.TB, db *sql.DB, box *sqliteoutbox.Outbox, n int) {
	t.Helper()
	payload := json.RawMessage(`{"order":"` + strings.Repeat("x", 180) + `"}`)
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for n > 0 {
		part := make([]outbox.Row, min(n, 100))
		for i := range part {
			part[i] = outbox.Row{Topic: "orders.placed", Key: keys[i%len(keys)], Payload: payload, Headers: event.Headers{{Name: "x-a", Value: "1"}}}
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := box.Add(t.Context(), tx, part...); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		n -= len(part)
	}
}

func TestWakeNeedsAFile(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	box := newBox(t, db)
	if _, err := box.Wake(t.Context()); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("wake: %v", err)
	}
	// It works all the same, with the one connection.
	add(t, db, box, 3)
	if rows, err := box.ClaimBatch(t.Context(), "me", 10, time.Minute); err != nil || len(rows) != 3 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

func TestWakeEndsWithTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	box := newBox(t, openDB(t, path))
	woken, err := box.Wake(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range woken { // until it is closed
	}
}

// TestDrainSpeed drains into a hub on the embedded engine, durably. The figure
// that is promised, 5,000 rows a second with one drainer, is for a machine that
// does nothing else; the test only asks for a part of it.
func TestDrainSpeed(t *testing.T) {
	n := 20_000
	if testing.Short() {
		n = 2_000
	}
	db := openDB(t, filepath.Join(t.TempDir(), "a.db"))
	box := newBox(t, db)
	add(t, db, box, n)
	hub, err := promethean.Open(t.TempDir(), promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	d, err := outbox.New(box, outbox.ToBus(hub.Publish), outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	var running sync.WaitGroup
	running.Go(func() { _ = d.Run(ctx) })
	for d.Status().SentTotal < uint64(n) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	took := time.Since(began)
	_ = d.Close()
	running.Wait()
	rate := float64(n) / took.Seconds()
	t.Logf("%d rows in %s: %.0f rows/s", n, took.Round(time.Millisecond), rate)
	if s := d.Status(); s.SentTotal != uint64(n) || s.RefusedTotal != 0 {
		t.Errorf("status %+v", s)
	}
	if rate < 500 {
		t.Errorf("%.0f rows/s", rate)
	}
}
