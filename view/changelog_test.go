package view_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/store"
	"promethean/view"
)

func TestChangelogReplaces(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{})
	c := v.Source()
	last := w.publishAt(7, "a", `{"pid":1,"host":"x"}`, ` { "pid" : 2.50 , "_key":"no", "_ts":0,"_seq":1,"\u005fv":2, "n":{"_key":1} } `)
	w.wait(v, last)
	w.want(c, "a", doc("a", 7, `"pid":2.50,"n":{"_key":1}`))
	last = w.publishAt(8, "a", `{}`)
	w.wait(v, last)
	w.want(c, "a", doc("a", 8, ""))
	last = w.publish("a", `null`)
	w.wait(v, last)
	w.want(c, "a", "")
	last = w.publishAt(9, "b", `{"x":1}`, `{"_deleted":true}`)
	w.wait(v, last)
	w.want(c, "b", "")
	last = w.publishAt(3, "b/ü\"", `{"late":true}`)
	w.wait(v, last)
	w.want(c, "b/ü\"", `{"_key":"b/ü\"","_ts":3,"late":true}`)
	if s := w.status(v); s.Seq != last || s.Lag != 0 || s.Collections[0].Count != 1 || s.Group != "changelog:processes" {
		t.Errorf("status is %+v", s)
	}
}

func TestChangelogFunctions(t *testing.T) {
	w := newWorld(t)
	type payload struct {
		ID   string `json:"id"`
		V    *int64 `json:"v"`
		Gone bool   `json:"gone"`
	}
	of := func(e *event.Event) (p payload, err error) { return p, json.Unmarshal(e.Payload, &p) }
	v := w.changelog(view.ChangelogOptions{
		KeyOf: func(e *event.Event) (string, error) { p, err := of(e); return p.ID, err },
		Map: func(e *event.Event) (json.RawMessage, error) {
			return json.RawMessage(`{"was": ` + string(e.Payload) + `}`), nil
		},
		Tombstone: func(e *event.Event) (bool, error) {
			p, err := of(e)
			return p.Gone, err
		},
		VersionOf: func(e *event.Event) (int64, bool, error) {
			p, err := of(e)
			if p.V == nil {
				return 0, false, err
			}
			return *p.V, true, err
		},
	})
	c := v.Source()
	w.publishAt(1, "", `{"id":"a","v":5}`)
	w.publishAt(1, "", `{"id":"a","v":5,"n":1}`) // stale
	w.publishAt(1, "", `{"id":"a","v":4}`)       // stale
	w.publishAt(1, "own", `{"v":1}`)             // the event's own key
	w.publishAt(1, "", `{"v":1}`)                // none
	w.publishAt(1, "", `{"id":"b","v":3}`)
	w.publishAt(1, "", `{"id":"b","v":4,"gone":true}`)
	last := w.publishAt(1, "", `{"id":"b","v":3,"again":true}`) // stale: the deletion is remembered
	w.wait(v, last)
	w.want(c, "a", doc("a", 1, `"was":{"id":"a","v":5}`))
	w.want(c, "own", doc("own", 1, `"was":{"v":1}`))
	w.want(c, "b", "")
	if s := w.status(v); s.NoKey != 1 || s.Stale != 3 || s.Dead != 0 {
		t.Errorf("status is %+v", s)
	}
}

func TestChangelogMerges(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{Merge: true, BatchSize: 3})
	c := v.Source()
	last := w.publishAt(1, "a", `{"a":1,"n":{"x":1.10,"y":2}}`, `{"b":null,"n":{"y":null,"z":{"q":null,"r":1}}}`, `{"a":null,"_ts":5,"l":[null]}`, `{"n":{"x":{"deep":1}}}`)
	w.wait(v, last)
	w.want(c, "a", doc("a", 1, `"n":{"x":{"deep":1},"z":{"r":1}},"l":[null]`))
	last = w.publishAt(1, "a", `null`, `{"new":1,"no":null}`)
	w.wait(v, last)
	w.want(c, "a", doc("a", 1, `"new":1`))
}

// An event that cannot be projected concerns itself alone.
func TestChangelogDeadLetters(t *testing.T) {
	w := newWorld(t)
	o := view.ChangelogOptions{
		KeyOf: func(e *event.Event) (string, error) {
			if e.Key == "nokey" {
				return "", errors.New("no such field")
			}
			return "", nil
		},
		Map: func(e *event.Event) (json.RawMessage, error) {
			switch e.Key {
			case "bad":
				return nil, errors.New("it is bad")
			case "panic":
				panic("ouch")
			case "list":
				return json.RawMessage(`[1]`), nil
			case "text":
				return json.RawMessage(`{"x":}`), nil
			case "empty":
				return nil, nil
			}
			return e.Payload, nil
		},
		VersionOf: func(e *event.Event) (int64, bool, error) {
			if e.Key == "version" {
				return 0, false, errors.New("no number")
			}
			return 0, false, nil
		},
		Tombstone: func(e *event.Event) (bool, error) {
			if e.Key == "tomb" {
				return false, errors.New("undecided")
			}
			return false, nil
		},
		Indexes: []store.Index{{Fields: []string{"mail"}, Unique: true}},
	}
	v := w.changelog(o)
	bad := []string{"nokey", "bad", "panic", "list", "text", "empty", "version", "tomb"}
	for _, key := range bad {
		w.publish(key, `{"x":1}`)
	}
	w.publish("first", `{"mail":"a"}`)
	w.publish("second", `{"mail":"a"}`)
	w.publish("third", `{"mail":"b"}`, `{"mail":"a"}`)
	last := w.publishAt(5, "good", `{"x":2}`)
	w.wait(v, last)
	w.want(v.Source(), "good", doc("good", 5, `"x":2`))
	w.want(v.Source(), "second", "")
	letters := w.letters()
	reasons := []string{"no such field", "it is bad", "ouch", "object", "JSON", "JSON", "no number", "undecided", "another document", "another document"}
	if len(letters) != len(reasons) {
		t.Fatalf("%d dead letters: %+v", len(letters), letters)
	}
	for i, l := range letters {
		if l.Group != "changelog:processes" || l.Topic != topic || l.Attempts != 1 || !strings.Contains(l.Err, reasons[i]) {
			t.Errorf("letter %d is %+v, should be about %q", i, l, reasons[i])
		}
	}
	if s := w.status(v); s.Dead != uint64(len(reasons)) || s.Lag != 0 {
		t.Errorf("status is %+v", s)
	}
	// A rebuild makes none again, and says so.
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := len(w.letters()); got != len(reasons) {
		t.Errorf("%d dead letters after a rebuild", got)
	}
	if p := w.status(v).Rebuild; p == nil || p.State != "done" || p.Failed != uint64(len(reasons)) || p.Done != last {
		t.Errorf("progress is %+v", p)
	}
	w.want(v.Source(), "good", doc("good", 5, `"x":2`))
}

// Redoing what a crash undid makes no second dead letter.
func TestDeadLettersOnce(t *testing.T) {
	w := newWorld(t)
	o := view.ChangelogOptions{Map: func(*event.Event) (json.RawMessage, error) { return nil, errors.New("no") }}
	last := w.publish("a", `{}`)
	v := w.changelog(o)
	w.wait(v, last)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	w.mem.readers["processes"].Seq = 0
	v = w.changelog(o)
	w.wait(v, last)
	if got := len(w.letters()); got != 1 {
		t.Errorf("%d dead letters", got)
	}
}

func TestChangelogUpcasts(t *testing.T) {
	w := newWorld(t)
	o := view.ChangelogOptions{}
	o.Upcast = func(_ context.Context, e event.Event) (event.Event, error) {
		if string(e.Payload) == `{"v":0}` {
			return e, errors.New("no hop")
		}
		e.Payload = json.RawMessage(`{ "up" : 1 }`)
		return e, nil
	}
	v := w.changelog(o)
	w.publishAt(1, "a", `{"v":1}`, `{"v":0}`)
	last := w.publish("b", `null`)
	w.wait(v, last)
	w.want(v.Source(), "a", doc("a", 1, `"up":1`))
	if l := w.letters(); len(l) != 1 || !strings.Contains(l[0].Err, "no hop") || string(l[0].Original.Payload) != `{"v":0}` {
		t.Errorf("letters are %+v", l)
	}
}

func TestBadOptions(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		o    view.ChangelogOptions
		want string
	}{
		"topic":    {view.ChangelogOptions{Topic: "Bad Topic"}, "topic"},
		"name":     {view.ChangelogOptions{Collection: "a b"}, `"a b"`},
		"tilde":    {view.ChangelogOptions{Collection: "a~next"}, `"a~next"`},
		"long":     {view.ChangelogOptions{Collection: strings.Repeat("a", 121)}, "121"},
		"from":     {view.ChangelogOptions{From: "middle"}, `"middle"`},
		"index":    {view.ChangelogOptions{Indexes: []store.Index{{}}}, "index without a field"},
		"snapshot": {view.ChangelogOptions{From: view.Snapshot}, "no snapshots"},
		"merge":    {view.ChangelogOptions{From: view.Snapshot, Merge: true}, "merges"},
	} {
		if v, err := w.tryChangelog(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
	w.changelog(view.ChangelogOptions{})
	if _, err := w.tryChangelog(view.ChangelogOptions{}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("two views of one name: %v", err)
	}
	o := view.TransactionalOptions{Options: w.options(), Topic: topic, Name: "other", Handler: nothing, Collections: []store.Collection{{Name: "processes"}}}
	if _, err := view.Transactional(w.ctx(), w.hub, o); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a collection of another view: %v", err)
	}
	o.Handler = nil
	if _, err := view.Transactional(w.ctx(), w.hub, o); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("no handler: %v", err)
	}
	o.Handler, o.Collections, o.Docs = nothing, []store.Collection{{Name: "x"}}, newMemDocs()
	if _, err := view.Transactional(w.ctx(), w.hub, o); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("no transactions: %v", err)
	}
}

// A view over a topic that is not there is empty until it is.
func TestMissingTopic(t *testing.T) {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{})
	if s := w.status(v); s.Seq != 0 || s.Tail != 0 {
		t.Errorf("status is %+v", s)
	}
	w.wait(v, w.publishAt(1, "a", `{}`))
	w.want(v.Source(), "a", doc("a", 1, ""))
}

func TestFromLatest(t *testing.T) {
	w := newWorld(t)
	w.publish("a", `{}`, `{}`)
	o := view.ChangelogOptions{From: view.Latest}
	v := w.changelog(o)
	w.wait(v, w.publishAt(1, "b", `{}`))
	w.want(v.Source(), "a", "")
	w.want(v.Source(), "b", doc("b", 1, ""))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	// It was interrupted before it had moved to where it begins.
	w.mem.readers["processes"].Seq = 0
	v = w.changelog(o)
	w.wait(v, 3)
	w.want(v.Source(), "a", "")
}

// The view's group shows how far it is, and nothing that is done to the group
// moves the view.
func TestGroupIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		v := w.changelog(view.ChangelogOptions{})
		last := w.publish("a", `{}`, `{}`, `{}`)
		shown := func(want uint64) {
			t.Helper()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			p, err := w.hub.Cursor(w.ctx(), topic, v.Group())
			if err != nil || p.Seq != want {
				t.Errorf("cursor is %+v (%v), should be %d", p, err, want)
			}
			if l, err := w.hub.Lag(w.ctx(), topic, v.Group()); err != nil || l.Events != 0 {
				t.Errorf("lag is %+v (%v)", l, err)
			}
		}
		shown(last)
		if err := w.hub.SetCursor(w.ctx(), topic, v.Group(), seqPlace(1)); err != nil {
			t.Fatal(err)
		}
		shown(last)
		if err := w.hub.Engine().Delete(w.ctx(), topic, v.Group()); err != nil {
			t.Fatal(err)
		}
		shown(last)
		if err := w.hub.SetCursor(w.ctx(), topic, v.Group(), seqPlace(0)); err != nil {
			t.Fatal(err)
		}
		last = w.publish("b", `{}`)
		shown(last)
		if n := w.mem.count(&w.mem.commits); n > 4 {
			t.Errorf("%d commits", n)
		}
	})
}

func TestForgetsDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		o := view.ChangelogOptions{}
		o.Forget, o.FlushEvery = time.Hour, time.Minute
		v := w.changelog(o)
		w.wait(v, w.publish("a", `{}`, `null`))
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if n := len(w.mem.all("processes")); n != 1 {
			t.Errorf("%d remembered after 50 minutes", n)
		}
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if n := len(w.mem.all("processes")); n != 0 {
			t.Errorf("%d remembered after 80 minutes", n)
		}
	})
}

// A deletion that was remembered before the view was started guards merges too.
func TestMergeAfterRememberedDeletion(t *testing.T) {
	w := newWorld(t)
	o := view.ChangelogOptions{Merge: true, VersionOf: versionOf}
	v := w.changelog(o)
	w.wait(v, w.publishAt(1, "a", `{"v":1}`, `{"v":10,"_deleted":true}`))
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	last := w.publishAt(2, "a", `{"v":5,"old":1}`, `{"v":6,"old":2}`, `{"v":11,"new":1}`, `{"v":12,"more":1}`)
	v = w.changelog(o)
	w.wait(v, last)
	w.want(v.Source(), "a", doc("a", 2, `"v":12,"new":1,"more":1`))
	if s := w.status(v); s.Stale != 2 {
		t.Errorf("status is %+v", s)
	}
}
