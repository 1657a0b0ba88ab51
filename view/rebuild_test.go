package view_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"promethean/compact"
	"promethean/event"
	"promethean/group"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/view"
)

// While a view is rebuilt and events come, readers see every document all the
// time, and never an older one than before.
func TestRebuildUnderReaders(t *testing.T) {
	w := newWorld(t)
	var version atomic.Int64
	o := view.ChangelogOptions{BatchSize: 20, Map: func(e *event.Event) (json.RawMessage, error) {
		return fmt.Appendf(nil, `{"n":%s,"by":%d}`, e.Payload, version.Load()), nil
	}}
	v := w.changelog(o)
	last := uint64(0)
	for i := range 200 {
		last = w.publish(fmt.Sprint(i%10), fmt.Sprint(i))
	}
	w.wait(v, last)
	ctx, cancel := context.WithCancel(w.ctx())
	reading := make(chan error, 1)
	go func() {
		seen := make(map[string]uint64)
		for ctx.Err() == nil {
			for i := range 10 {
				d, err := v.Source().Get(w.ctx(), fmt.Sprint(i))
				if err != nil || d.Seq < seen[d.Key] {
					reading <- fmt.Errorf("key %d: seq %d after %d: %w", i, d.Seq, seen[d.Key], err)
					return
				}
				seen[d.Key] = d.Seq
			}
		}
		reading <- nil
	}()
	writing := make(chan uint64, 1)
	go func() {
		last := uint64(0)
		for i := 0; ctx.Err() == nil && i < 2000; i++ {
			got, err := w.hub.Publish(w.ctx(), event.Event{Topic: topic, Key: fmt.Sprint(i % 10), Payload: json.RawMessage(fmt.Sprint(i))})
			if err != nil {
				break
			}
			last = got[0].Seq
		}
		writing <- last
	}()
	for i := range 5 {
		version.Store(int64(i + 1))
		var told []view.Progress
		if err := v.Rebuild(w.ctx(), view.RebuildOptions{Progress: func(p view.Progress) { told = append(told, p) }}); err != nil {
			t.Fatal(err)
		}
		if len(told) == 0 || told[len(told)-1].State != "done" || told[len(told)-1].Seq < last {
			t.Errorf("told %+v", told)
		}
		for i := range 10 {
			d, err := v.Source().Get(w.ctx(), fmt.Sprint(i))
			if err != nil || !strings.Contains(string(d.Body), fmt.Sprintf(`"by":%d`, version.Load())) {
				t.Errorf("after rebuild %d: %s, %v", version.Load(), d.Body, err)
			}
		}
	}
	cancel()
	if err := <-reading; err != nil {
		t.Error(err)
	}
	w.wait(v, <-writing)
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if n := len(w.mem.readers); n != 1 {
		t.Errorf("%d readers are left", n)
	}
}

func TestRebuildEnds(t *testing.T) {
	w := newWorld(t)
	in, out := make(chan struct{}), make(chan struct{})
	var slow atomic.Bool
	v := w.changelog(view.ChangelogOptions{Map: func(e *event.Event) (json.RawMessage, error) {
		if slow.Load() {
			in <- struct{}{}
			<-out
		}
		return e.Payload, nil
	}})
	w.wait(v, w.publishAt(1, "a", `{}`))
	slow.Store(true)
	ctx, cancel := context.WithCancel(w.ctx())
	done := make(chan error, 1)
	go func() { done <- v.Rebuild(ctx, view.RebuildOptions{}) }()
	<-in
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{}); !errors.Is(err, view.ErrRebuilding) {
		t.Errorf("a second one: %v", err)
	}
	if err := v.StartRebuild(view.RebuildOptions{}); !errors.Is(err, view.ErrRebuilding) {
		t.Errorf("a second one: %v", err)
	}
	if s := w.status(v); s.Rebuild == nil || !s.Rebuild.Ended.IsZero() {
		t.Errorf("status is %+v", s.Rebuild)
	}
	set := view.NewSet()
	if err := set.Add(v); err != nil {
		t.Fatal(err)
	}
	if low := set.Low(topic); low != 1 {
		t.Errorf("low is %d while a rebuild has read nothing", low)
	}
	cancel()
	out <- struct{}{}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if p := w.status(v).Rebuild; p.State != "failed" || p.Err == "" {
		t.Errorf("progress is %+v", p)
	}
	w.want(v.Source(), "a", doc("a", 1, ""))
	if n := len(w.mem.readers); n != 1 {
		t.Errorf("%d readers are left", n)
	}
	// Closing the view ends one that nobody waits for.
	if err := v.StartRebuild(view.RebuildOptions{}); err != nil {
		t.Fatal(err)
	}
	<-in
	closed := make(chan error, 1)
	go func() { closed <- v.Close() }()
	out <- struct{}{}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
	for _, from := range []view.From{view.Latest, "middle"} {
		if err := v.Rebuild(w.ctx(), view.RebuildOptions{From: from}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("from %s: %v", from, err)
		}
	}
}

// A view whose definition has changed is built anew beside the old one.
func TestDefinitionChanges(t *testing.T) {
	w := newWorld(t)
	say := func(what string) func(e *event.Event) (json.RawMessage, error) {
		return func(*event.Event) (json.RawMessage, error) { return fmt.Appendf(nil, `{"by":%q}`, what), nil }
	}
	v := w.changelog(view.ChangelogOptions{Map: say("old"), Definition: "1"})
	last := w.publishAt(1, "a", `{}`)
	w.publishAt(1, "b", `{}`)
	w.wait(v, last+1)
	stop := func() {
		t.Helper()
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	// The same definition goes on, whatever the functions do; indexes change.
	v = w.changelog(view.ChangelogOptions{Map: say("same"), Definition: "1", Indexes: []store.Index{{Fields: []string{"by"}}}})
	w.wait(v, last+1)
	w.want(v.Source(), "a", doc("a", 1, `"by":"old"`))
	if r := w.mem.readers["processes"]; len(r.colls[0].Indexes) != 1 {
		t.Errorf("the index was not declared: %+v", r.Reader)
	}
	stop()
	in, out := make(chan struct{}), make(chan struct{})
	v = w.changelog(view.ChangelogOptions{Definition: "2", Map: func(e *event.Event) (json.RawMessage, error) {
		if e.Seq == 1 {
			close(in)
			<-out
		}
		return json.RawMessage(`{"by":"new"}`), nil
	}})
	<-in
	w.want(v.Source(), "a", doc("a", 1, `"by":"old"`))
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{}); !errors.Is(err, view.ErrRebuilding) {
		t.Errorf("meanwhile: %v", err)
	}
	close(out)
	w.wait(v, w.publishAt(2, "c", `{}`))
	for _, key := range []string{"a", "b"} {
		w.want(v.Source(), key, doc(key, 1, `"by":"new"`))
	}
	w.want(v.Source(), "c", doc("c", 2, `"by":"new"`))
	stop()
	// Another topic, which is shorter.
	if _, err := w.hub.Emit(w.ctx(), "other.topic", struct{}{}); err != nil {
		t.Fatal(err)
	}
	v = w.changelog(view.ChangelogOptions{Topic: "other.topic", Definition: "2", Map: say("other"), KeyOf: func(*event.Event) (string, error) { return "k", nil }})
	for w.status(v).Rebuild == nil || w.status(v).Rebuild.State != "done" {
		w.wait(v, 1)
	}
	w.want(v.Source(), "a", "")
	if d, err := v.Source().Get(w.ctx(), "k"); err != nil || !strings.Contains(string(d.Body), "other") {
		t.Errorf("%s, %v", d.Body, err)
	}
}

// Collections come and go with the definition.
func TestCollectionsChange(t *testing.T) {
	w := newWorld(t)
	h := func(_ context.Context, e event.Event, tx *view.Tx) error { return tx.Put("one", e.Key, struct{}{}) }
	v := w.transactional(view.TransactionalOptions{Handler: h, Collections: []store.Collection{{Name: "one"}, {Name: "old"}}})
	w.wait(v, w.publishAt(1, "a", `{}`))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	h = func(_ context.Context, e event.Event, tx *view.Tx) error { return tx.Put("two", e.Key, struct{}{}) }
	v = w.transactional(view.TransactionalOptions{Handler: h, Collections: []store.Collection{{Name: "two"}, {Name: "one"}, {Name: "three"}}})
	w.wait(v, w.publishAt(2, "b", `{}`))
	w.want(v.Collection("two"), "a", doc("a", 1, ""))
	w.want(v.Collection("two"), "b", doc("b", 2, ""))
	w.want(v.Collection("one"), "a", "")
	if v.Collection("old") != nil {
		t.Error("the old collection is there")
	}
}

// A view that is further than its topic belongs to another log.
func TestBeyondTheEnd(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{})
	w.publish("a", `{}`, `{}`)
	w.wait(v, w.publish("b", `{}`))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := newWorldOn(t, log)
	other.mem, other.docs = w.mem, w.docs
	other.publishAt(5, "c", `{}`)
	v = other.changelog(view.ChangelogOptions{})
	for s := other.status(v); s.Rebuild == nil || s.Rebuild.State != "done"; s = other.status(v) {
		other.wait(v, 1)
	}
	other.want(v.Source(), "a", "")
	other.want(v.Source(), "c", doc("c", 5, ""))
	other.wait(v, other.publishAt(6, "d", `{}`))
	other.want(v.Source(), "d", doc("d", 6, ""))
	if s := other.status(v); s.Seq != 2 {
		t.Errorf("status is %+v", s)
	}
}

// What retention took before it was read is counted, and the view goes on.
func TestExpired(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{})
	w.wait(v, w.publish("a", `{}`))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	w.publish("b", `{}`, `{}`, `{}`)
	if err := w.hub.Log().Trim(w.ctx(), topic, 4); err != nil {
		t.Fatal(err)
	}
	v = w.changelog(view.ChangelogOptions{})
	w.wait(v, 4)
	if s := w.status(v); s.Expired != 2 || s.Lag != 0 {
		t.Errorf("status is %+v", s)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	w.publish("b", `{}`, `{}`)
	if err := w.hub.Log().Trim(w.ctx(), topic, 100); err != nil {
		t.Fatal(err)
	}
	v = w.changelog(view.ChangelogOptions{})
	w.wait(v, 6)
	if s := w.status(v); s.Expired != 2 || s.Lag != 0 {
		t.Errorf("status is %+v", s)
	}
}

// A view may begin with the snapshots of its topic.
func TestFromSnapshot(t *testing.T) {
	w := newWorld(t)
	var s store.Settings
	if err := (compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{}}).Put(&s); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.SetTopic(w.ctx(), topic, s); err != nil {
		t.Fatal(err)
	}
	w.publishAt(1, "gone", `{"n":1}`)
	w.publishAt(2, "a", `{"n":2}`)
	w.publishAt(3, "a", `{"n":3}`)
	w.publishAt(4, "gone", `null`)
	w.publishAt(5, "b", `{"n":5.0}`)
	w.publishAt(6, "a", `{"n":6}`)
	snap := func(key, payload string, ts int64, seq uint64) {
		t.Helper()
		p := fmt.Sprintf(`{"key":%q,"payload":%s,"ts":%d,"seq":%d,"max_ts":%d,"upto":%d}`, key, payload, ts, seq, ts, seq)
		if _, err := w.hub.Publish(w.ctx(), event.Event{Topic: topic + ".snapshot", Key: key, Payload: json.RawMessage(p)}); err != nil {
			t.Fatal(err)
		}
	}
	snap("a", `{"n":2}`, 2, 2)
	snap("a", `{"n":3}`, 3, 3)
	snap("gone", `null`, 4, 4)
	snap("b", `{"n":5.0}`, 5, 5)
	// What the snapshots stand for is not needed.
	if err := w.hub.Log().Trim(w.ctx(), topic, 6); err != nil {
		t.Fatal(err)
	}
	v := w.changelog(view.ChangelogOptions{From: view.Snapshot})
	check := func() {
		t.Helper()
		w.wait(v, 6)
		w.want(v.Source(), "a", doc("a", 6, `"n":6`))
		w.want(v.Source(), "b", doc("b", 5, `"n":5.0`))
		w.want(v.Source(), "gone", "")
		if s := w.status(v); s.Expired != 0 || s.Seq != 6 {
			t.Errorf("status is %+v", s)
		}
	}
	check()
	if d, err := v.Source().Get(w.ctx(), "b"); err != nil || d.Seq != 5 {
		t.Errorf("%+v, %v", d, err)
	}
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{From: view.Snapshot}); err != nil {
		t.Fatal(err)
	}
	check()
	if p := w.status(v).Rebuild; p.Done != 5 {
		t.Errorf("progress is %+v", p)
	}
	// A handler that counts sees what was interrupted only once.
	o := view.TransactionalOptions{From: view.Snapshot, Name: "counts", Collections: []store.Collection{{Name: "counts"}}, Handler: func(_ context.Context, e event.Event, tx *view.Tx) error {
		var n struct{ N int }
		if _, err := tx.Get("counts", e.Key, &n); err != nil {
			return err
		}
		n.N++
		return tx.Put("counts", e.Key, n)
	}}
	fails := atomic.Int32{}
	fails.Store(2)
	w.mem.setFail(func(op string) error {
		if op == "commit" && fails.Add(-1) == 0 {
			return errors.New("no power")
		}
		return nil
	})
	o.BatchSize = 2
	counts := w.transactional(o)
	for w.status(counts).Err == "" && w.status(counts).Seq == 0 {
	}
	if err := counts.Close(); err != nil {
		t.Fatal(err)
	}
	counts = w.transactional(o)
	w.wait(counts, 6)
	w.want(counts.Source(), "a", doc("a", 6, `"N":3`))
	if group.LetterTopic(topic) == "" || len(w.letters()) != 0 {
		t.Error("dead letters")
	}
}
