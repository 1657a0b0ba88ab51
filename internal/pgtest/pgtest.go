// Package pgtest gives tests databases of a PostgreSQL server: fresh ones of the
// server that the environment names, or a server of the test's own that can be
// stopped and started again.
//
// Tests skip where there is no server; scripts/servers/postgresql starts one.
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The environment that tests are told by.
const (
	uriName = "PROMETHEAN_TEST_POSTGRES_URI"
	binName = "PROMETHEAN_TEST_POSTGRES_BIN"
)

// waitFor bounds how long servers may take.
const waitFor = time.Minute

var databases atomic.Int64

// Database gives the address of a new database, in UTF-8 and with logical
// decoding, which is dropped in the end with all that is connected to it and
// with its replication slots. The test skips if there is no server.
func Database(t testing.TB) (uri string) {
	t.Helper()
	server := os.Getenv(uriName)
	if server == "" {
		t.Skip("needs postgresql: " + uriName + " is not set")
	}
	return newDatabase(t, server)
}

func newDatabase(t testing.TB, server string) string {
	t.Helper()
	name := fmt.Sprintf("prom_%x_%d_%d", time.Now().UnixNano(), os.Getpid(), databases.Add(1))
	Exec(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		drop(t, server, name)
	})
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	address.Path = "/" + name
	return address.String()
}

// drop removes a database. Slots can be dropped once nobody reads them.
func drop(t testing.TB, server, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitFor)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Errorf("drop database %s: %v", name, err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for {
		_, err = conn.Exec(ctx, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active", name)
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1", name)
		}
		if err == nil {
			_, err = conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		}
		if err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Errorf("drop database %s: %v", name, err)
			return
		}
	}
}

// Exec runs statements, without arguments as one, on a connection of its own.
func Exec(t testing.TB, uri, sql string, args ...any) {
	t.Helper()
	conn := Connect(t, uri)
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	_ = conn.Close(context.Background())
}

// Connect gives a connection that is closed in the end.
func Connect(t testing.TB, uri string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitFor)
	defer cancel()
	conn, err := pgx.Connect(ctx, uri)
	if err != nil {
		t.Fatalf("connect to PostgreSQL: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
