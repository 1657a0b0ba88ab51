package view_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"promethean/event"
	"promethean/store"
	"promethean/view"
)

// follower pulls changes one by one.
type follower struct {
	*world
	next func() (store.Doc, error, bool)
}

func (w *world) follow(c *view.Collection, after uint64) *follower {
	next, stop := iter.Pull2(c.Watch(w.ctx(), after))
	w.Cleanup(stop)
	return &follower{w, next}
}

// want checks what comes next: key@seq, with - for a deletion.
func (f *follower) want(list ...string) {
	f.Helper()
	var got []string
	for range list {
		d, err, ok := f.next()
		if err != nil || !ok {
			f.Fatalf("after %v: %v", got, err)
		}
		s := fmt.Sprintf("%s@%d", d.Key, d.Seq)
		if d.Body == nil {
			s = "-" + s
		}
		got = append(got, s)
	}
	if !slices.Equal(got, list) {
		f.Fatalf("got %v, want %v", got, list)
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{})
	c := v.Source()
	w.publish("a", `{}`, `{}`)
	w.wait(v, w.publish("b", `{}`, `null`))
	f := w.follow(c, 0)
	f.want("a@1", "a@2", "b@3", "-b@4")
	late := w.follow(c, 3)
	late.want("-b@4")
	w.publish("c", `{}`)
	f.want("c@5")
	late.want("c@5")
	// After a restart the steps are forgotten, how it ended is not.
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err, _ := f.next(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("a closed view: %v", err)
	}
	v = w.changelog(view.ChangelogOptions{})
	c = v.Source()
	w.wait(v, 5)
	w.follow(c, 0).want("a@2", "-b@4", "c@5")
	f = w.follow(c, 4)
	f.want("c@5")
	w.publish("d", `{}`)
	f.want("d@6")
	// What is forgotten is said to be.
	if err := w.docs.Forget(w.ctx(), "processes", 4); err != nil {
		t.Fatal(err)
	}
	if _, err, _ := w.follow(c, 3).next(); !errors.Is(err, store.ErrGone) {
		t.Errorf("forgotten: %v", err)
	}
	if _, err, _ := w.follow(c, 100).next(); !errors.Is(err, store.ErrGone) {
		t.Errorf("beyond the end: %v", err)
	}
	// So is that the documents are others.
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err, _ := f.next(); !errors.Is(err, store.ErrGone) {
		t.Errorf("rebuilt: %v", err)
	}
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	for _, err := range c.Watch(ctx, c.Seq()) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

// Of stale events watchers do not hear.
func TestWatchStale(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{VersionOf: func(e *event.Event) (int64, bool, error) { return int64(len(e.Payload)), true, nil }})
	f := w.follow(v.Source(), 0)
	w.publish("a", `{"x":1}`, `{}`)
	w.publish("b", `{}`)
	f.want("a@1", "b@3")
}

// Whoever does not read holds nobody up, and misses nothing that is so.
func TestSlowWatcher(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{})
	c := v.Source()
	f := w.follow(c, 0)
	w.publish("first", `{}`)
	f.want("first@1")
	body := `{"x":"` + strings.Repeat("x", 500_000) + `"}`
	last := uint64(0)
	for i := range 60 {
		last = w.publish(fmt.Sprint("k", i%3), body)
	}
	w.wait(v, last)
	f.want("k0@59", "k1@60", "k2@61")
	w.publish("last", `{}`)
	f.want("last@62")
}
