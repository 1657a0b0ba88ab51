package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/internal/mongofake"
	"promethean/internal/natstest"
	"promethean/outbox"
	"promethean/outbox/sqliteoutbox"
)

// command runs a command against the hub, and wants it to succeed.
func (p *process) command(args ...string) string {
	p.Helper()
	out, err := exec.Command("promethean", append(args, "--addr", p.url)...).CombinedOutput()
	if err != nil {
		p.Fatalf("promethean %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// shows waits until a command says something.
func (p *process) shows(want string, args ...string) {
	p.Helper()
	var got string
	p.until(strings.Join(args, " ")+" shows "+want, func() bool {
		got = p.command(args...)
		return strings.Contains(got, want)
	})
}

// id is how other hubs know this one.
func (p *process) id() string {
	p.Helper()
	var got struct {
		Hubs []struct {
			ID   string
			Self bool
		}
	}
	if err := json.Unmarshal([]byte(p.want(200, "GET", "/ops/cluster", "")), &got); err != nil {
		p.Fatal(err)
	}
	for _, h := range got.Hubs {
		if h.Self {
			return h.ID
		}
	}
	p.Fatal("the hub is not on its own list")
	return ""
}

// payloads are those of a topic, in order.
func (p *process) payloads(topic string) (list []string) {
	p.Helper()
	for line := range strings.Lines(p.command("export", topic)) {
		var e struct {
			Key     string
			Payload json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			p.Fatalf("%s: %v", line, err)
		}
		list = append(list, e.Key+string(e.Payload))
	}
	return list
}

// holds waits until a topic has so many events, and gives them.
func (p *process) holds(topic string, n int) (list []string) {
	p.Helper()
	p.until(fmt.Sprintf("%s has %d events", topic, n), func() bool {
		status, body, err := p.try("GET", "/topics/"+topic, "")
		return err == nil && status == 200 && strings.Contains(body, fmt.Sprintf(`"last":%d,`, n))
	})
	return p.payloads(topic)
}

// A hub drains an outbox whose file is not even there when it starts, is killed
// in between, and repeats nothing.
func TestServeDrainsSQLite(t *testing.T) {
	dir := t.TempDir()
	file, data := filepath.Join(dir, "shop.db"), "file://"+filepath.Join(dir, "data")
	settings := filepath.Join(dir, "p.yaml")
	write(t, settings, "outboxes: {shop: {uri: \"sqlite://"+file+"\", table: mail, lease: 2s}}\n")
	p := serveProcess(t, nil, "--config", settings, "--store", data)
	p.shows(`"state":"outage"`, "outbox", "status")

	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	box, err := sqliteoutbox.New(db, sqliteoutbox.Options{Table: "mail"})
	if err == nil {
		err = box.Setup(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	add := func(commit bool, rows ...outbox.Row) {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		if err == nil {
			err = box.Add(t.Context(), tx, rows...)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !commit {
			err = tx.Rollback()
		} else {
			err = tx.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	row := func(key string, n int) outbox.Row {
		return outbox.Row{Topic: "orders.placed", Key: key, Payload: json.RawMessage(fmt.Sprint(n))}
	}
	add(true, row("a", 1), row("b", 2))
	add(false, row("a", 99))
	add(true, row("a", 3))
	if got := p.holds("orders.placed", 3); fmt.Sprint(got) != "[a1 b2 a3]" {
		t.Errorf("published %v", got)
	}
	p.shows(`"state":"draining"`, "outbox", "status", "shop")

	p.signal(syscall.SIGKILL)
	p.ends(-1)
	add(true, row("a", 4))
	if _, err := db.ExecContext(t.Context(), "UPDATE mail SET payload='{' WHERE payload='4'"); err != nil {
		t.Fatal(err)
	}
	add(true, row("a", 5), row("c", 6))
	p = serveProcess(t, nil, "--config", settings, "--store", data)
	if got := p.holds("orders.placed", 4); fmt.Sprint(got) != "[a1 b2 a3 c6]" { // a5 waits behind a4
		t.Errorf("published %v", got)
	}
	p.shows(`"refused":1`, "outbox", "status")
	var bad struct{ ID, Error string }
	if err := json.Unmarshal([]byte(p.command("outbox", "errors", "shop")), &bad); err != nil || !strings.Contains(bad.Error, "payload") {
		t.Fatalf("%+v, %v", bad, err)
	}
	if got := p.command("outbox", "discard", "shop", bad.ID); got != "1 row removed\n" {
		t.Errorf("discard: %s", got)
	}
	if got := p.holds("orders.placed", 5); fmt.Sprint(got) != "[a1 b2 a3 c6 a5]" {
		t.Errorf("published %v", got)
	}
	for _, name := range []string{"outbox_up", "outbox_sent_total", "outbox_lag_ms", "outbox_failed"} {
		if got := p.want(200, "GET", "/metrics", ""); !strings.Contains(got, name+`{outbox="shop"}`) {
			t.Errorf("no %s in the metrics", name)
		}
	}
	p.signal(syscall.SIGTERM)
	p.ends(0)
}

// watched is a collection of the fake of MongoDB.
func watched(t *testing.T) (*mongofake.Server, *mongo.Collection) {
	t.Helper()
	s := mongofake.Start(t, mongofake.Options{})
	c, err := mongo.Connect(options.Client().ApplyURI(s.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return s, c.Database("prom").Collection("processes")
}

func save(t *testing.T, c *mongo.Collection, id, status string) {
	t.Helper()
	_, err := c.ReplaceOne(t.Context(), bson.M{"_id": id}, bson.M{"_id": id, "status": status}, options.Replace().SetUpsert(true))
	if err != nil {
		t.Fatal(err)
	}
}

// A feed begins with what is there, goes on where a killed hub was, and says so
// when its history is lost.
func TestServeFeedsFromMongoDB(t *testing.T) {
	s, c := watched(t)
	save(t, c, "a", "up")
	dir := t.TempDir()
	settings, data := filepath.Join(dir, "p.yaml"), "file://"+filepath.Join(dir, "data")
	write(t, settings, fmt.Sprintf(`changefeeds:
  processes: {uri: %q, database: prom, collection: processes, topic: processes.changed, filter: .status != "silent", map: "{id: ._id, status}"}
`, s.URI()))
	p := serveProcess(t, nil, "--config", settings, "--store", data)
	p.holds("processes.changed", 1)
	save(t, c, "a", "silent")
	save(t, c, "b", "up")
	if _, err := c.DeleteOne(t.Context(), bson.M{"_id": "a"}); err != nil {
		t.Fatal(err)
	}
	if got := p.holds("processes.changed", 3); fmt.Sprint(got) != `[a{"id":"a","status":"up"} b{"id":"b","status":"up"} anull]` {
		t.Errorf("published %v", got)
	}
	p.shows(`"state":"streaming"`, "changefeed", "status", "processes")
	p.signal(syscall.SIGKILL)
	p.ends(-1)

	save(t, c, "c", "up")
	p = serveProcess(t, nil, "--config", settings, "--store", data)
	p.holds("processes.changed", 4)
	p.shows(`"duplicates":0`, "changefeed", "status")
	p.signal(syscall.SIGTERM)
	p.ends(0)

	save(t, c, "d", "up")
	save(t, c, "e", "up")
	s.TrimHistory(s.ClusterTime())
	p = serveProcess(t, nil, "--config", settings, "--store", data)
	p.shows(`"state":"failed"`, "changefeed", "status")
	p.shows(`"history_lost":1`, "changefeed", "status")
	if got := p.want(200, "GET", "/metrics", ""); !strings.Contains(got, `changefeed_history_lost_total{feed="processes"} 1`) || !strings.Contains(got, `changefeed_up{feed="processes"} 0`) {
		t.Errorf("metrics:\n%s", got)
	}
	p.command("changefeed", "resync", "processes")
	p.holds("processes.changed", 8) // b, c, d and e are there
	p.shows(`"state":"streaming"`, "changefeed", "status")
	p.signal(syscall.SIGTERM)
	p.ends(0)
}

// Of two hubs on one engine one runs the feed; when it is killed the other goes
// on, and nothing is stored twice.
func TestServeFeedsFromOneHub(t *testing.T) {
	s, c := watched(t)
	store := natstest.Start(t, nil).URL() + "?prefix=feed"
	settings := filepath.Join(t.TempDir(), "p.yaml")
	write(t, settings, fmt.Sprintf("changefeeds: {processes: {uri: %q, database: prom, collection: processes, topic: processes.changed}}\n", s.URI()))
	p := serveProcess(t, nil, "--config", settings, "--store", store)
	save(t, c, "a", "up")
	p.holds("processes.changed", 1)
	q := serveProcess(t, nil, "--config", settings, "--store", store)
	for _, at := range []*process{p, q} {
		at.shows(fmt.Sprintf(`"state":"streaming","hub":%q`, p.id()), "changefeed", "status")
	}
	mine := q.id()
	p.signal(syscall.SIGKILL)
	p.ends(-1)
	save(t, c, "b", "up")
	q.shows(fmt.Sprintf(`"state":"streaming","hub":%q`, mine), "changefeed", "status")
	if got := q.holds("processes.changed", 2); len(got) != 2 {
		t.Errorf("published %v", got)
	}
}

// What is wrong by itself is told at start, with file and line; a secret is not.
func TestServeRefusesBadInflow(t *testing.T) {
	for text, want := range map[string]string{
		"changefeeds: {f: {uri_env: NO_SUCH_DB, table: t, topic: t}}":                        "p.yaml:1: change feed f: uri_env: the variable NO_SUCH_DB is not set",
		"changefeeds: {f: {uri_env: SOME_DB, collection: t, topic: t}}":                      "p.yaml:1: change feed f: collection goes with another kind of database than postgres://***@127.0.0.1:1/x",
		"outboxes: {o: {uri_file: none, table: t}}":                                          "p.yaml:1: outbox o: uri_file: open none",
		"outboxes: {o: {uri: \"mongodb://u:hunter2@h\", table: t}}":                          "p.yaml:1: outboxes.o.table: MongoDB has collections",
		"changefeeds: {f: {uri: \"postgres://u:hunter2@h/d\", table: a.b.c, topic: t}}":      "p.yaml:1: change feed f: PostgreSQL feed: ",
		"changefeeds: {f: {uri: \"postgres://u:hunter2@h:x/d\", table: orders, topic: t}}":   "p.yaml:1: change feed f: ",
		"outboxes: {o: {uri: \"postgres://u:hunter2@h/d\", table: \"a; drop table users\"}}": "p.yaml:1: outbox o: ",
	} {
		file := filepath.Join(t.TempDir(), "p.yaml")
		write(t, file, text+"\n")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, "promethean", "serve", "--listen", "127.0.0.1:0", "--store", "memory://", "--config", file)
		cmd.Dir, cmd.Env = filepath.Dir(file), append(cmd.Environ(), "SOME_DB=postgres://u:hunter2@127.0.0.1:1/x")
		out, err := cmd.CombinedOutput()
		cancel()
		if code := cmd.ProcessState.ExitCode(); code != 1 && code != 2 || !strings.Contains(string(out), want) || strings.Contains(string(out), "hunter2") {
			t.Errorf("%s\n%v: %s\nwant %s", text, err, out, want)
		}
	}
}
