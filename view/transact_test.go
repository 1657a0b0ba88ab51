package view_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/view"
)

var processCollections = []store.Collection{{Name: "processes", Indexes: []store.Index{{Fields: []string{"status"}}}}, {Name: "host_stats"}}

func (w *world) processes(o view.TransactionalOptions) *view.View {
	w.Helper()
	if o.Handler == nil {
		o.Handler = countHosts
	}
	o.Collections = processCollections
	return w.transactional(o)
}

func process(id, host string) string { return fmt.Sprintf(`{"processId":%q,"host":%q}`, id, host) }

// The example of the notes: counters are exact.
func TestTransactionalCounts(t *testing.T) {
	w := newWorld(t)
	v := w.processes(view.TransactionalOptions{BatchSize: 7})
	last := uint64(0)
	for i := range 100 {
		last = w.publishAt(int64(i), "", process(fmt.Sprint(i%10), fmt.Sprint("h", i%3)))
	}
	w.wait(v, last)
	check := func() {
		t.Helper()
		w.want(v.Collection("processes"), "9", doc("9", 99, `"processId":"9","host":"h0"`))
		w.want(v.Collection("host_stats"), "h0", doc("h0", 99, `"seen":34,"last_ts":99`))
		w.want(v.Collection("host_stats"), "h1", doc("h1", 97, `"seen":33,"last_ts":97`))
	}
	check()
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{}); err != nil {
		t.Fatal(err)
	}
	check()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = w.processes(view.TransactionalOptions{})
	w.wait(v, last)
	check()
}

// What a handler wrote before it failed has not happened.
func TestHandlerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var calls []time.Duration
		began := time.Now()
		v := w.processes(view.TransactionalOptions{Handler: func(ctx context.Context, e event.Event, tx *view.Tx) error {
			if err := tx.Put("processes", "p", json.RawMessage(`{"by":"`+e.Key+`"}`)); err != nil {
				return err
			}
			if err := tx.Delete("processes", "q"); err != nil {
				return err
			}
			switch e.Key {
			case "fails":
				calls = append(calls, time.Since(began))
				return errors.New("not now")
			case "twice":
				if calls = append(calls, time.Since(began)); len(calls) < 3 {
					return errors.New("not yet")
				}
			case "retry":
				if calls = append(calls, time.Since(began)); len(calls) < 2 {
					return promethean.Retry(5*time.Second, errors.New("later"))
				}
			case "dead":
				calls = append(calls, time.Since(began))
				return promethean.Dead(errors.New("never"))
			case "panics":
				calls = append(calls, time.Since(began))
				panic("ouch")
			}
			return nil
		}})
		ms := func(list ...int) (out []time.Duration) {
			for _, n := range list {
				out = append(out, time.Duration(n)*time.Millisecond)
			}
			return out
		}
		var letters []string
		for _, c := range []struct {
			key   string
			calls []time.Duration
			by    string
			dead  string
			n     int
		}{
			{"good", nil, "good", "", 0},
			{"fails", ms(0, 100, 300, 600), "good", "not now", 4},
			{"twice", ms(0, 100, 300), "twice", "", 0},
			{"retry", ms(0, 5000), "retry", "", 0},
			{"dead", ms(0), "retry", "never", 1},
			{"panics", ms(0, 100, 300, 600), "retry", "ouch", 4},
		} {
			synctest.Wait()
			began, calls = time.Now(), nil
			last := w.publishAt(1, c.key, `{}`)
			w.wait(v, last)
			w.want(v.Source(), "p", doc("p", 1, `"by":"`+c.by+`"`))
			if !slices.Equal(calls, c.calls) {
				t.Errorf("%s: called after %v, should be %v", c.key, calls, c.calls)
			}
			if c.dead != "" {
				letters = append(letters, c.dead)
			}
			got := w.letters()
			if len(got) != len(letters) {
				t.Fatalf("%s: %d dead letters", c.key, len(got))
			}
			if c.dead == "" {
				continue
			}
			if l := got[len(got)-1]; !strings.Contains(l.Err, c.dead) || l.Attempts != c.n || l.Group != v.Name() || l.Original.Seq != last {
				t.Errorf("%s: letter is %+v", c.key, l)
			}
		}
	})
}

func TestTx(t *testing.T) {
	w := newWorld(t)
	var over *view.Tx
	check := func(name string, err error, want string) {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	v := w.processes(view.TransactionalOptions{Retries: -1, Handler: func(_ context.Context, e event.Event, tx *view.Tx) error {
		over = tx
		var raw json.RawMessage
		_, err := tx.Get("nobody", "a", &raw)
		check("an undeclared collection", err, `"nobody"`)
		check("an empty key", tx.Put("processes", "", struct{}{}), "empty")
		check("a long key", tx.Put("processes", strings.Repeat("a", 2000), struct{}{}), "2000")
		check("a bad key", tx.Delete("processes", "\xff"), "UTF-8")
		check("a list", tx.Put("processes", "a", []int{1}), "object")
		check("no JSON", tx.Put("processes", "a", json.RawMessage("{")), "JSON")
		check("a function", tx.Put("processes", "a", func() {}), "func")
		if found, err := tx.Get("processes", "a", &raw); found || err != nil {
			t.Errorf("found %s, %v", raw, err)
		}
		if err := tx.Put("processes", "a", map[string]any{"x": 1, "_v": 2}); err != nil {
			t.Error(err)
		}
		if found, err := tx.Get("processes", "a", &raw); !found || err != nil || string(raw) != doc("a", 4, `"x":1`) {
			t.Errorf("found %s, %v", raw, err)
		}
		var bad struct{ X string }
		_, err = tx.Get("processes", "a", &bad)
		check("another type", err, "processes")
		if err := tx.Delete("processes", "a"); err != nil {
			t.Error(err)
		}
		if found, err := tx.Get("processes", "a", &raw); found || err != nil {
			t.Errorf("found %s, %v", raw, err)
		}
		if tx.Rebuilding() != (e.Key == "x" && rebuilding.Load()) {
			t.Errorf("rebuilding is %v", tx.Rebuilding())
		}
		return tx.Put("processes", "b", struct{}{})
	}})
	w.wait(v, w.publishAt(4, "x", `{}`))
	check("after the call", over.Put("processes", "a", struct{}{}), "over")
	w.want(v.Source(), "a", "")
	w.want(v.Source(), "b", doc("b", 4, ""))
	rebuilding.Store(true)
	defer rebuilding.Store(false)
	if err := v.Rebuild(w.ctx(), view.RebuildOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := len(w.letters()); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

var rebuilding atomic.Bool

// A document that a unique index refuses takes its event along, and no other.
func TestTransactionalUnique(t *testing.T) {
	w := newWorld(t)
	v := w.transactional(view.TransactionalOptions{
		Collections: []store.Collection{{Name: "users", Indexes: []store.Index{{Fields: []string{"mail"}, Unique: true}}}, {Name: "count"}},
		Handler: func(_ context.Context, e event.Event, tx *view.Tx) error {
			var n struct{ N int }
			if _, err := tx.Get("count", "all", &n); err != nil {
				return err
			}
			n.N++
			if err := tx.Put("count", "all", n); err != nil {
				return err
			}
			return tx.Put("users", e.Key, e.Payload)
		},
	})
	for i := range 40 {
		w.publishAt(1, fmt.Sprint("u", i), fmt.Sprintf(`{"mail":"m%d"}`, i%20))
	}
	// One gives a value up, another takes it, and the first is touched again.
	w.publishAt(1, "u0", `{"mail":"other"}`)
	w.publishAt(1, "u50", `{"mail":"m0"}`)
	last := w.publishAt(1, "u0", `{"mail":"other","n":1}`)
	w.wait(v, last)
	w.want(v.Collection("count"), "all", doc("all", 1, `"N":23`))
	w.want(v.Collection("users"), "u50", doc("u50", 1, `"mail":"m0"`))
	w.want(v.Collection("users"), "u20", "")
	if n := len(w.letters()); n != 20 {
		t.Errorf("%d dead letters", n)
	}
}

// An engine that fails stops the view for a while; the event is not to blame.
func TestEngineFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		v := w.processes(view.TransactionalOptions{})
		down := errors.New("no power")
		for _, op := range []string{"commit", "doc"} {
			w.mem.setFail(func(got string) error {
				if got == op {
					return down
				}
				return nil
			})
			last := w.publish("", process("a", "host-"+op))
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := w.status(v); !strings.Contains(s.Err, "no power") || s.Lag != 1 || s.Dead != 0 {
				t.Errorf("%s: status is %+v", op, s)
			}
			w.mem.setFail(nil)
			w.wait(v, last)
			if s := w.status(v); s.Err != "" || s.Lag != 0 {
				t.Errorf("%s: status is %+v", op, s)
			}
		}
		if n := len(w.letters()); n != 0 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// Closing ends a handler's context, and what it did has not happened.
func TestCloseEndsHandlers(t *testing.T) {
	w := newWorld(t)
	in := make(chan struct{})
	v := w.processes(view.TransactionalOptions{Handler: func(ctx context.Context, _ event.Event, tx *view.Tx) error {
		if err := tx.Put("processes", "a", struct{}{}); err != nil {
			return err
		}
		close(in)
		<-ctx.Done()
		return nil
	}})
	w.publish("", `{}`)
	<-in
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	w.want(v.Source(), "a", "")
	if err := v.Wait(w.ctx(), 1); !errors.Is(err, store.ErrClosed) {
		t.Errorf("wait: %v", err)
	}
	if n := len(w.letters()); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
