package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const inflowFile = `changefeeds:
  processes: {uri: "mongodb://u:pw@h/prom", database: prom, collection: processes, topic: processes.changed, filter: .live, map: "{id: ._id}", resnapshot: true}
  orders: {uri_env: ORDERS_DB, table: shop.orders, topic: orders.changed, snapshot: false, slot: p_orders, max_slot_bytes: 2GiB, refused: skip, key: mine}
outboxes:
  shop: {uri: "postgres://u:pw@h/shop", table: app.outbox, batch: 500, max_attempts: 9, setup: false}
  local: {uri: "sqlite:///var/lib/shop.db", every: 1s, lease: 5s, keep: 0s}
`

func TestInflow(t *testing.T) {
	c, err := load(t, inflowFile, Source{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Changefeed{
		{
			Name: "processes", Database: Database{URI: "mongodb://u:pw@h/prom"}, DatabaseName: "prom", Collection: "processes", Topic: "processes.changed",
			Filter: ".live", Map: "{id: ._id}", Key: "changefeed:processes", Snapshot: true, Resnapshot: true, Refused: "wait", Place: "p.yaml:2",
		},
		{
			Name: "orders", Database: Database{URIEnv: "ORDERS_DB"}, Table: "shop.orders", Topic: "orders.changed", Slot: "p_orders",
			MaxSlotBytes: 2 << 30, Refused: "skip", Key: "mine", Place: "p.yaml:3",
		},
	}
	for i := range c.Changefeeds {
		c.Changefeeds[i].Place = filepath.Base(c.Changefeeds[i].Place)
		c.Outboxes[i].Place = filepath.Base(c.Outboxes[i].Place)
	}
	if !reflect.DeepEqual(c.Changefeeds, want) {
		t.Errorf("change feeds\n%+v", c.Changefeeds)
	}
	boxes := []Outbox{
		{Name: "shop", Database: Database{URI: "postgres://u:pw@h/shop"}, Table: "app.outbox", Batch: 500, Every: 250 * time.Millisecond, Lease: 30 * time.Second, MaxAttempts: 9, Keep: 24 * time.Hour, Place: "p.yaml:5"},
		{Name: "local", Database: Database{URI: "sqlite:///var/lib/shop.db"}, Setup: true, Batch: 100, Every: time.Second, Lease: 5 * time.Second, Place: "p.yaml:6"},
	}
	if !reflect.DeepEqual(c.Outboxes, boxes) {
		t.Errorf("outboxes\n%+v", c.Outboxes)
	}

	// What is printed says the same, without secrets.
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "pw@") {
		t.Errorf("a secret is printed:\n%s", text)
	}
	again, err := load(t, string(text), Source{})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	for i := range want {
		want[i].URI = Redact(want[i].URI)
		want[i].Place = again.Changefeeds[i].Place
	}
	if !reflect.DeepEqual(again.Changefeeds, want) {
		t.Errorf("printed change feeds\n%+v", again.Changefeeds)
	}

	// A running hub cannot change them.
	other, err := load(t, strings.Replace(inflowFile, "batch: 500", "batch: 501", 1), Source{})
	if err != nil {
		t.Fatal(err)
	}
	if got := Differences(c, other); !reflect.DeepEqual(got, []string{"changefeeds or outboxes"}) {
		t.Errorf("differences %q", got)
	}
	KeepFixed(other, c)
	if other.Outboxes[0].Batch != 500 {
		t.Error("an outbox changed")
	}
}

func TestBadInflow(t *testing.T) {
	for text, want := range map[string]string{
		`changefeeds: {a b: {}}`:                                                                                                            `changefeeds.a b: the name of a change feed has`,
		`changefeeds: {f: {topic: t, collection: c}}`:                                                                                       `changefeeds.f: name the database by one of uri, uri_env and uri_file`,
		`changefeeds: {f: {uri: "mongodb://h", uri_env: X}}`:                                                                                `changefeeds.f: name the database by one of uri, uri_env and uri_file`,
		`changefeeds: {f: {uri: "mongodb://h", collection: c}}`:                                                                             `changefeeds.f: name the topic that gets the changes`,
		`changefeeds: {f: {uri: "mongodb://h", topic: t}}`:                                                                                  `changefeeds.f: name the collection (MongoDB) or table (PostgreSQL)`,
		`changefeeds: {f: {uri: "redis://h", topic: t}}`:                                                                                    `changefeeds.f.uri: "redis://h" is no address such as`,
		`changefeeds: {f: {uri: "redis://:pw@h", topic: t}}`:                                                                                `"redis://***@h" is no address`,
		`changefeeds: {f: {uri: "sqlite://f", table: x, topic: t}}`:                                                                         `changefeeds.f.uri: SQLite does not tell its changes`,
		`changefeeds: {f: {uri: "mongodb://h", table: c, topic: t}}`:                                                                        `changefeeds.f.table: MongoDB has collections`,
		`changefeeds: {f: {uri: "postgres://h", collection: c, topic: t}}`:                                                                  `changefeeds.f.collection: only MongoDB has collections`,
		`changefeeds: {f: {uri: "postgres://h", table: c, topic: T}}`:                                                                       `changefeeds.f.topic: topic: must be segments`,
		`changefeeds: {f: {uri: "postgres://h", table: c, topic: t, full_document: updateLookup}}`:                                          `changefeeds.f.full_document: that is a setting of MongoDB`,
		`changefeeds: {f: {uri: "mongodb://h", collection: c, topic: t, slot: s}}`:                                                          `changefeeds.f.slot: that is a setting of PostgreSQL`,
		`changefeeds: {f: {uri: "mongodb://h", collection: c, topic: t, map: "{"}}`:                                                         `changefeeds.f.map: `,
		`changefeeds: {f: {uri: "mongodb://h", collection: c, topic: t, full_document: all}}`:                                               `changefeeds.f.full_document: "all" is none of updateLookup`,
		`changefeeds: {f: {uri: "mongodb://h", collection: c, topic: t, colection: c}}`:                                                     `unknown key "changefeeds.f.colection", did you mean collection?`,
		`changefeeds: {f: {uri: "mongodb://h", collection: c, topic: t, key: k}, g: {uri: "mongodb://h", collection: c, topic: t, key: k}}`: `changefeeds.g.key: f keeps its place under "k" already`,
		`outboxes: {o: {}}`: `outboxes.o: name the database by one of`,
		`outboxes: {o: {uri: "postgres://h", batch: 0}}`:    `outboxes.o.batch: "0" is no number from 1 to 10000`,
		`outboxes: {o: {uri: "postgres://h", every: 0s}}`:   `outboxes.o: every and lease must be more than nothing`,
		`outboxes: {o: {uri: "postgres://h", database: x}}`: `outboxes.o.database: that is a setting of MongoDB`,
		`outboxes: {o: {uri: "sqlite://f", collection: x}}`: `outboxes.o.collection: only MongoDB has collections`,
		`outboxes: {o: {uri: "sqlite://f", topic: x}}`:      `unknown key "outboxes.o.topic"`,
		`outboxes: [a]`: `outboxes: must be a map, not a list`,
		`outboxes: {o: {uri_env: X, collection: a, table: b}}`: `outboxes.o.table: a collection is MongoDB's, a table is not`,
	} {
		_, err := load(t, text+"\n", Source{})
		var p Problems
		if !errors.As(err, &p) || !strings.Contains(said(err), want) || !strings.HasPrefix(said(err), "p.yaml:1: ") {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}

func TestDatabaseAddress(t *testing.T) {
	t.Setenv("SOME_DB", "postgres://h/d")
	t.Setenv("BAD_DB", "h:5432")
	file := filepath.Join(t.TempDir(), "uri")
	if err := os.WriteFile(file, []byte("sqlite://x.db\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		d         Database
		want, err string
	}{
		{Database{URI: "mongodb://h"}, "mongodb://h", ""},
		{Database{URIEnv: "SOME_DB"}, "postgres://h/d", ""},
		{Database{URIFile: file}, "sqlite://x.db", ""},
		{Database{URIEnv: "NO_SUCH_DB"}, "", "NO_SUCH_DB is not set"},
		{Database{URIEnv: "BAD_DB"}, "h:5432", "is no address such as"},
		{Database{URIFile: file + "x"}, "", "uri_file: open"},
	} {
		got, err := c.d.Address()
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: %q, %v", c.d, got, err)
		}
	}
}
