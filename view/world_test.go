package view_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/view"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "process.state"

// world is a hub in memory with documents.
type world struct {
	testing.TB
	hub  *promethean.Hub
	mem  *memDocs
	docs store.Docs
}

func newWorld(t testing.TB) *world {
	t.Helper()
	log, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return newWorldOn(t, log)
}

func newWorldOn(t testing.TB, log promethean.Log) *world {
	t.Helper()
	hub, err := promethean.New(log, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	mem := newMemDocs()
	return &world{TB: t, hub: hub, mem: mem, docs: txDocs{mem}}
}

func (w *world) ctx() context.Context { return w.Context() }

func (w *world) options() view.Options {
	return view.Options{Docs: w.docs, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// publish publishes payloads with a key, and gives the last seq.
func (w *world) publish(key string, payloads ...string) uint64 {
	w.Helper()
	return w.publishAt(0, key, payloads...)
}

func (w *world) publishAt(ts int64, key string, payloads ...string) (last uint64) {
	w.Helper()
	for _, p := range payloads {
		got, err := w.hub.Publish(w.ctx(), event.Event{Topic: topic, Key: key, TS: ts, Payload: json.RawMessage(p)})
		if err != nil {
			w.Fatal(err)
		}
		last = got[0].Seq
	}
	return last
}

func (w *world) changelog(o view.ChangelogOptions) *view.View {
	w.Helper()
	v, err := w.tryChangelog(o)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

func (w *world) tryChangelog(o view.ChangelogOptions) (*view.View, error) {
	if o.Docs == nil {
		opts := w.options()
		opts.FlushEvery, opts.Forget, opts.Upcast, opts.SnapshotTopic = o.FlushEvery, o.Forget, o.Upcast, o.SnapshotTopic
		if o.Logger != nil {
			opts.Logger = o.Logger
		}
		o.Options = opts
	}
	if o.Topic == "" {
		o.Topic = topic
	}
	if o.Collection == "" {
		o.Collection = "processes"
	}
	v, err := view.Changelog(w.ctx(), w.hub, o)
	if err == nil {
		w.closed(v)
	}
	return v, err
}

func (w *world) transactional(o view.TransactionalOptions) *view.View {
	w.Helper()
	o.Options = w.options()
	if o.Topic == "" {
		o.Topic = topic
	}
	if o.Name == "" {
		o.Name = "processes.txn"
	}
	v, err := view.Transactional(w.ctx(), w.hub, o)
	if err != nil {
		w.Fatal(err)
	}
	w.closed(v)
	return v
}

func (w *world) closed(v *view.View) {
	w.Cleanup(func() {
		if err := v.Close(); err != nil {
			w.Error(err)
		}
	})
}

func (w *world) wait(v *view.View, seq uint64) {
	w.Helper()
	if err := v.Wait(w.ctx(), seq); err != nil {
		w.Fatal(err)
	}
}

func (w *world) status(v *view.View) view.Status {
	w.Helper()
	s, err := v.Status(w.ctx())
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// want checks a document; "" means that there is none.
func (w *world) want(c *view.Collection, key, body string) {
	w.Helper()
	d, err := c.Get(w.ctx(), key)
	if body == "" {
		if !errors.Is(err, store.ErrNotFound) {
			w.Errorf("document %q is %s (%v), should not be", key, d.Body, err)
		}
		return
	}
	if err != nil {
		w.Errorf("document %q: %v", key, err)
	} else if string(d.Body) != body {
		w.Errorf("document %q\n got %s\nwant %s", key, d.Body, body)
	}
}

// letters gives the dead letters of the topic.
func (w *world) letters() (out []group.Letter) {
	w.Helper()
	for e, err := range w.hub.Read(w.ctx(), store.Query{Topic: group.LetterTopic(topic)}) {
		if err != nil {
			w.Fatal(err)
		}
		var l group.Letter
		if err := json.Unmarshal(e.Payload, &l); err != nil {
			w.Fatal(err)
		}
		out = append(out, l)
	}
	return out
}

func doc(key string, ts int64, rest string) string {
	if rest != "" {
		rest = "," + rest
	}
	return fmt.Sprintf(`{"_key":%q,"_ts":%d%s}`, key, ts, rest)
}
