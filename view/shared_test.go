package view_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/group"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/storetest"
	"promethean/view"
)

// sharedLog is an engine that several hubs have open, with its documents.
type sharedLog struct {
	*storetest.Shared
	docs store.Docs
}

func (s *sharedLog) Docs(context.Context) (store.Docs, error) { return s.docs, nil }

// Close leaves the engine to the others.
func (s *sharedLog) Close() error { return nil }

// Several hubs over one engine: one of them projects, all of them serve.
func TestSharedDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, err := logstore.OpenMemory(logstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = log.Close() }()
		mem := newMemDocs()
		shared := storetest.Share(log)
		hub := func(docs store.Docs) *world {
			h, err := promethean.New(&sharedLog{shared, docs}, promethean.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return &world{TB: t, hub: h, mem: mem, docs: docs}
		}
		start := func(w *world, definition string) *view.View {
			v, err := view.Changelog(w.ctx(), w.hub, view.ChangelogOptions{Topic: topic, Collection: "processes", Definition: definition})
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		a, b := hub(txDocs{mem}), hub(otherDocs{mem})
		va := start(a, "1")
		vb := start(b, "1")
		watching := b.follow(vb.Source(), 0)
		last := a.publishAt(1, "a", `{}`)
		b.wait(vb, last)
		watching.want("a@1")
		b.want(vb.Source(), "a", doc("a", 1, ""))
		if err := vb.Rebuild(t.Context(), view.RebuildOptions{}); !errors.Is(err, group.ErrNotOwner) {
			t.Errorf("a rebuild by another hub: %v", err)
		}
		if !va.Projects() || vb.Projects() {
			t.Error("both project, or none")
		}
		for _, v := range []*view.View{va, vb} {
			if at, err := v.Projector(t.Context()); err != nil || at != a.hub.Engine().Owner() {
				t.Errorf("it is projected by %q, %v", at, err)
			}
		}
		if err := va.Rebuild(t.Context(), view.RebuildOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, err, _ := watching.next(); !errors.Is(err, store.ErrGone) {
			t.Errorf("the documents were replaced by another hub: %v", err)
		}
		// A long time later it is still the one.
		time.Sleep(5 * time.Minute)
		a.wait(va, a.publishAt(2, "b", `{}`))
		if err := vb.Rebuild(t.Context(), view.RebuildOptions{}); !errors.Is(err, group.ErrNotOwner) {
			t.Errorf("a rebuild by another hub: %v", err)
		}
		p, err := b.hub.Cursor(t.Context(), topic, "changelog:processes")
		if err != nil || p.Seq != 1 {
			t.Errorf("cursor is %+v (%v)", p, err)
		}
		// Once it is gone another one goes on.
		if err := va.Close(); err != nil {
			t.Fatal(err)
		}
		last = b.publishAt(3, "c", `{}`)
		b.wait(vb, last)
		b.want(vb.Source(), "c", doc("c", 3, ""))
		for s := b.status(vb); s.Err != ""; s = b.status(vb) {
			time.Sleep(time.Second)
		}
		if err := vb.Rebuild(t.Context(), view.RebuildOptions{}); err != nil {
			t.Error(err)
		}
		if err := vb.Close(); err != nil {
			t.Error(err)
		}
		for _, h := range []*promethean.Hub{a.hub, b.hub} {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// otherDocs are the same documents as another process has them.
type otherDocs struct{ *memDocs }

func (otherDocs) CommitsAsOne() {}

// Somebody else has moved the place: the view goes on from there.
func TestConflict(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{})
	w.wait(v, w.publish("a", `{}`))
	if _, err := w.docs.Commit(w.ctx(), store.DocBatch{Reader: "processes", From: 1, To: 2}); err != nil {
		t.Fatal(err)
	}
	w.publish("skipped", `{}`)
	w.wait(v, w.publishAt(3, "b", `{}`))
	w.want(v.Source(), "skipped", "")
	w.want(v.Source(), "b", doc("b", 3, ""))
	if s := w.status(v); s.Err != "" || s.Seq != 3 {
		t.Errorf("status is %+v", s)
	}
}

// Each hub has documents of its own: all project, none shows a group.
func TestOwnDocuments(t *testing.T) {
	log, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	shared := storetest.Share(log)
	a := newWorldOn(t, shared)
	va := a.changelog(view.ChangelogOptions{})
	a.wait(va, a.publishAt(1, "a", `{}`))
	if err := va.Close(); err != nil {
		t.Fatal(err)
	}
	a.want(va.Source(), "a", doc("a", 1, ""))
	if _, err := a.hub.Cursor(t.Context(), topic, va.Group()); !errors.Is(err, group.ErrNotFound) {
		t.Errorf("the group: %v", err)
	}
	_, err = view.Changelog(t.Context(), a.hub, view.ChangelogOptions{Topic: topic, Collection: "x"})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "keeps no documents") {
		t.Errorf("an engine without documents: %v", err)
	}
}

func TestSet(t *testing.T) {
	w := newWorld(t)
	s := view.NewSet()
	b := w.changelog(view.ChangelogOptions{Collection: "b"})
	a := w.transactional(view.TransactionalOptions{Name: "a", Handler: nothing, Collections: []store.Collection{{Name: "x"}, {Name: "y"}}})
	for _, v := range []*view.View{b, a} {
		if err := s.Add(v); err != nil {
			t.Fatal(err)
		}
		if err := s.Add(v); !errors.Is(err, store.ErrConflict) {
			t.Errorf("twice: %v", err)
		}
	}
	if l := s.Views(); len(l) != 2 || l[0] != a || l[1] != b {
		t.Errorf("views are %v", l)
	}
	if s.Collection("y") != a.Collection("y") || s.Collection("b") != b.Source() || s.Collection("none") != nil {
		t.Error("collections are others")
	}
	last := w.publish("k", `{}`, `{}`)
	w.wait(a, last)
	w.wait(b, last)
	if low := s.Low("other"); low != 1<<64-1 {
		t.Errorf("low of another topic is %d", low)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if low := s.Low(topic); low != last+1 {
		t.Errorf("low is %d, should be %d", low, last+1)
	}
}
