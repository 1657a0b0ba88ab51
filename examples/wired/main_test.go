package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"promethean/changefeed"
	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
)

func TestWired(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		wantLines(t, w.play(settings{}),
			"1. heartbeat.received has versions 1 and 2, and is written to heartbeat.received.v2 too\n",
			"2. the collection processes is mirrored to processes.changed\n",
			"3. the group hb-consumers is handed version 2 only, and stores processes\n",
			"4. an old and a new writer published 60 heartbeats each, and all are handled\n",
			"5. a heartbeat is a dead letter after 3 attempts, as it was stored: host \"lab\" is not known\n   the host is known now, and the heartbeat replayed\n",
			"6. heartbeat.received.v2 has the 121 events of heartbeat.received in their order, all of version 2; in heartbeat.received 61 are of version 1 still\n",
			"7. processes.changed has what the collection has of 7 processes, and a tombstone of the one that was removed\n")
		var place struct {
			Token string `bson:"token"`
		}
		if err := w.db.Collection("changefeed_tokens").FindOne(w.ctx(), bson.D{{Key: "_id", Value: "cf:processes"}}).Decode(&place); err != nil || place.Token == "" {
			t.Errorf("the place of the feed is %q, %v", place.Token, err)
		}
	})
}

// A directory goes on where it was: what was mirrored is not mirrored again. A
// new one begins with all documents that are there.
func TestDirectory(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.insert(bson.D{{Key: "_id", Value: "web:nginx:7"}, {Key: "id", Value: "mine"}}, bson.D{{Key: "_id", Value: int32(5)}, {Key: "more", Value: bson.D{{Key: "x", Value: 1.5}}}})
		dir := t.TempDir()
		for n := range 2 {
			out := w.play(settings{dir: dir})
			wantLines(t, out, "7. processes.changed has what the collection has of 7 processes")
			if n == 1 {
				wantLines(t, out, "6. heartbeat.received.v2 has the 242 events of heartbeat.received in their order")
			}
		}
		events, last := mirrorOf(t, dir)
		snapshots, per := 0, make(map[string]int)
		for i := range events {
			if op, _ := events[i].Headers.Get("x-mongo-op"); op == "snapshot" {
				snapshots++
			}
			per[events[i].Key]++
		}
		if snapshots == 0 || per["web:nginx:7"] != 1 || per["5"] != 1 {
			t.Errorf("%d snapshots, %v", snapshots, per)
		}
		wantMirror(t, w, last)
		fresh := t.TempDir()
		w.play(settings{dir: fresh})
		_, last = mirrorOf(t, fresh)
		wantMirror(t, w, last)
	})
}

// wantMirror wants a mirror to have all documents of the collection and no
// others.
func wantMirror(t *testing.T, w *world, last map[string]json.RawMessage) {
	t.Helper()
	maps.DeleteFunc(last, func(_ string, payload json.RawMessage) bool { return string(payload) == "null" })
	for key, want := range map[string]string{
		"web:nginx:7": `{"_id":"web:nginx:7","id":"mine"}`, "5": `{"id":"5","_id":5,"more":{"x":1.5}}`,
	} {
		if string(last[key]) != want {
			t.Errorf("the mirror has %s of %s, not %s", last[key], key, want)
		}
	}
	if n, err := w.coll.CountDocuments(w.ctx(), bson.D{}); err != nil || int(n) != len(last) {
		t.Errorf("%d documents, %v, but %d in the mirror", n, err, len(last))
	}
}

// With -follow it goes on, and shows what changes, until it is interrupted.
func TestFollow(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(w.ctx())
		defer cancel()
		out := newScript(nil)
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, out, settings{mongodb: w.uri, follow: true}) }()
		w.ok(out.wait(ctx, "8. it goes on until it is interrupted\n"))
		w.insert(bson.D{{Key: "_id", Value: "late:x:1"}, {Key: "n", Value: int32(1)}})
		w.ok(out.wait(ctx, `   late:x:1: {"id":"late:x:1","_id":"late:x:1","n":1}`+"\n"))
		_, err := w.coll.DeleteOne(w.ctx(), bson.D{{Key: "_id", Value: "late:x:1"}})
		w.ok(err)
		w.ok(out.wait(ctx, "   late:x:1: null\n"))
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("interrupted: %v", err)
		}
	})
}

// A run that is interrupted ends soon and leaves nothing behind; the next one
// does what it left undone.
func TestInterrupted(t *testing.T) {
	w := onFake(t, mongofake.Options{})
	dir := t.TempDir()
	for _, at := range []string{"1.", "2.", "3.", "4.", "5.", "6."} {
		ctx, cancel := context.WithCancel(w.ctx())
		out := newScript(map[string]func(){at: cancel})
		if err := run(ctx, out, settings{mongodb: w.uri, dir: dir}); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted at %q: %v\n%s", at, err, &out.said)
		}
		cancel()
	}
	wantLines(t, w.play(settings{dir: dir}), "7. processes.changed has what the collection has of 7 processes")
}

// The server loses cursors, cuts connections, refuses writes, and is no primary
// for a while: all is as if it did not.
func TestServerFails(t *testing.T) {
	w := onFake(t, mongofake.Options{})
	w.fake.Fail(mongofake.Fault{Command: "update", Skip: 5, Times: 2, Code: 8})
	w.fake.Fail(mongofake.Fault{Command: "getMore", Times: 2, Cut: true})
	out := newScript(map[string]func(){
		"3.": w.fake.KillCursors,
		"4.": w.fake.CutConnections,
		"5.": func() {
			w.fake.StepDown(0)
			w.fake.StepUp()
		},
	})
	if err := run(w.ctx(), out, settings{mongodb: w.uri}); err != nil {
		t.Fatalf("%v\n%s", err, &out.said)
	}
	wantLines(t, out.said.String(), "7. processes.changed has what the collection has of 7 processes")
	if n := w.fake.Pending(); n != 0 {
		t.Errorf("%d faults did not happen", n)
	}
}

// What never comes about fails the run, with the reason.
func TestFails(t *testing.T) {
	const noStreams = "change feed of processes: failed: MongoDB feed of "
	t.Run("no change streams", func(t *testing.T) {
		w := onFake(t, mongofake.Options{Standalone: true})
		w.wantFailure(noStreams, settings{})
	})
	t.Run("no change streams at the compatible server", func(t *testing.T) {
		connect(t, mongotest.Compatible(t), nil).wantFailure(noStreams, settings{})
	})
	t.Run("collection is dropped", func(t *testing.T) {
		w := onFake(t, mongofake.Options{})
		out := newScript(map[string]func(){"4.": func() {
			w.ok(w.fake.Await(w.ctx(), "getMore", 1)) // the feed is at work
			var docs []bson.D
			all, err := w.coll.Find(w.ctx(), bson.D{})
			w.ok(err)
			w.ok(all.All(w.ctx(), &docs))
			w.ok(w.coll.Drop(w.ctx()))
			w.insert(docs...)
		}})
		if err := run(w.ctx(), out, settings{mongodb: w.uri}); err == nil || !strings.Contains(err.Error(), "change feed of processes: gone: ") {
			t.Errorf("%v\n%s", err, &out.said)
		}
	})
	t.Run("processes cannot be stored", func(t *testing.T) {
		w := onFake(t, mongofake.Options{})
		w.fake.Fail(mongofake.Fault{Command: "update", Skip: 1, Times: -1, Code: 8, Message: "the disk is full", When: func(c bson.Raw) bool {
			return c.Lookup("update").StringValue() == collection
		}})
		w.wantFailure("failed for good: store process dev:stt:", settings{})
	})
	t.Run("server is away", func(t *testing.T) {
		w := onFake(t, mongofake.Options{})
		w.fake.Down(true)
		w.uri += "&serverSelectionTimeoutMS=100"
		w.wantFailure("ask MongoDB whether it is there: ", settings{})
		w.fake.Down(false)
	})
	for what, uri := range map[string]string{
		"names of a database and of a collection": "mongodb://127.0.0.1:27017/",
		"the address of the server":               "postgres://127.0.0.1/prom",
	} {
		if err := run(t.Context(), io.Discard, settings{mongodb: uri}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want %q", uri, err, what)
		}
	}
}

// Work that stands still is noticed, and work that goes on is waited for.
func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		began := time.Now()
		time.AfterFunc(patience-time.Second, func() { b.meet("x") })
		err := b.wait(t.Context(), func() error { return nil }, func() (bool, error) { return false, nil })
		if took := time.Since(began); took != 2*patience-time.Second || err == nil || err.Error() != "nothing has happened for 1m0s" {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

func TestWithID(t *testing.T) {
	for _, c := range []struct{ key, doc, want string }{
		{"a", `{"_id":"a","n":1.0}`, `{"id":"a","_id":"a","n":1.0}`},
		{`"q"`, ` { "_id" : "\"q\"" }`, `{"id":"\"q\"", "_id" : "\"q\"" }`},
		{"a", `{"_id":"a","id":7}`, `{"_id":"a","id":7}`},
		{"a", `[1]`, ""},
	} {
		got, err := withID(&changefeed.Change{Key: c.key, Doc: json.RawMessage(c.doc)})
		if string(got) != c.want || (err == nil) != (c.want != "") || err == nil && !json.Valid(got) {
			t.Errorf("%s: %s, %v, want %s", c.doc, got, err, c.want)
		}
	}
}

// A mirror, or an event, that is not as it should be is noticed.
func TestNotices(t *testing.T) {
	want := map[string]document{"a": {ID: "a", PID: 1}}
	for payload, what := range map[string]string{
		`{"id":"a","_id":"a","pid":1}`: "",
		`{"id":"a","_id":"a","pid":2}`: "the mirror has",
		`{"id":"b","_id":"a","pid":1}`: "the mirror has",
		"":                             "is not in the mirror yet",
	} {
		err := mirrored(want, map[string]json.RawMessage{"a": json.RawMessage(payload), removed: json.RawMessage("null")})
		if (err == nil) != (what == "") || err != nil && !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, want %q", payload, err, what)
		}
	}
	if err := mirrored(nil, map[string]json.RawMessage{removed: json.RawMessage("{}")}); err == nil {
		t.Error("a process that is removed is in the mirror")
	}
	for payload, version := range map[string]string{`{"mem_mib":1}`: "1", `{"mem_mb":1}`: "2", `{"mem_mb":1,"mem_mib":1}`: "2", `{}`: "2", `1`: "2"} {
		e := event.New(topic, []byte(payload))
		e.Headers = e.Headers.Set("x-schema-version", version)
		if err := wantV2(&e); err == nil {
			t.Errorf("%s, stamped %s, was taken for version 2", payload, version)
		}
	}
}
