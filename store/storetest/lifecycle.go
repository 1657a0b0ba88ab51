package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.uber.org/goleak"

	"promethean/event"
	"promethean/store"
)

var lifecycleCases = []Case{
	{Name: "lifecycle/calls after Close", run: callsAfterClose},
	{Name: "lifecycle/close twice", run: closeTwice},
	{Name: "lifecycle/close while busy", run: closeWhileBusy},
	{Name: "lifecycle/close during a read", run: closeDuringRead},
	{Name: "lifecycle/reopened again and again", needs: needsReopen, run: reopenedOften},
	{Name: "lifecycle/no goroutine is left", run: noGoroutineLeft},
}

// calls are all calls of an engine, as functions that give their error.
func (t *trial) calls() map[string]func() error {
	ctx, e := t.ctx, t.e
	calls := map[string]func() error{
		"Append":       func() error { _, err := e.Append(ctx, store.Batch{Events: notes(topicA, 1)}); return err },
		"Append async": func() error { _, err := e.Append(ctx, store.Batch{Events: notes(topicA, 1), Async: true}); return err },
		"Read":         func() error { _, err := readAll(ctx, e, store.Query{Topic: topicA}); return err },
		"Read reverse": func() error { _, err := readAll(ctx, e, store.Query{Topic: topicA, Reverse: true}); return err },
		"Read key":     func() error { _, err := readAll(ctx, e, store.Query{Topic: topicA, Key: "k"}); return err },
		"Read unknown": func() error { _, err := readAll(ctx, e, store.Query{Topic: topicC}); return err },
		"Bounds":       func() error { _, err := e.Bounds(ctx, topicA); return err },
		"LocateID":     func() error { _, err := e.LocateID(ctx, topicA, event.NewID()); return err },
		"LocateTime":   func() error { _, err := e.LocateTime(ctx, topicA, 0); return err },
		"Trim":         func() error { return e.Trim(ctx, topicA, 1) },
		"SetTopic":     func() error { return e.SetTopic(ctx, topicA, store.Settings{}) },
		"Topics":       func() error { return drain(e.Topics(ctx)) },
		"Cursor":       func() error { _, err := e.Cursor(ctx, topicA, "g"); return err },
		"PutCursor": func() error {
			_, err := e.PutCursor(ctx, store.Cursor{Topic: topicA, Group: "g", Version: 1})
			return err
		},
		"DeleteCursor": func() error { return e.DeleteCursor(ctx, topicA, "g", 1) },
		"Cursors":      func() error { return drain(e.Cursors(ctx, topicA)) },
	}
	if l, ok := e.(store.Leases); ok {
		calls["Acquire"] = func() error { _, err := l.Acquire(ctx, "a", "me", time.Minute); return err }
		calls["Renew"] = func() error {
			_, err := l.Renew(ctx, store.Lease{Name: "a", Owner: "me", Epoch: 1}, time.Minute)
			return err
		}
		calls["Release"] = func() error { return l.Release(ctx, store.Lease{Name: "a", Owner: "me", Epoch: 1}) }
	}
	if l, ok := e.(store.Holds); ok {
		calls["Holder"] = func() error { _, err := l.Holder(ctx, "a"); return err }
	}
	return calls
}

func drain[T any](seq iter.Seq2[T, error]) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

func callsAfterClose(t *trial) {
	t.put(notes(topicA, 3)...)
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	w := t.e.Watch(topicA)
	calls := t.calls()
	late := t.e.Read(t.ctx, store.Query{Topic: topicA})
	t.ok(t.e.Close(), "close")
	for name, call := range calls {
		if err := call(); !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s after Close: %v, want %q", name, err, store.ErrClosed)
		}
	}
	if err := drain(late); !errors.Is(err, store.ErrClosed) {
		t.Errorf("an iteration that begins after Close: %v, want %q", err, store.ErrClosed)
	}
	w.Stop() // may come late
}

func closeTwice(t *trial) {
	t.put(notes(topicA, 3)...)
	t.ok(t.e.Close(), "close")
	for range 2 {
		if err := t.e.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
			t.Fatalf("close again: %v", err)
		}
	}
}

// closeWhileBusy closes the store under appenders, readers and watchers. All
// calls return; what was acknowledged is there afterwards.
func closeWhileBusy(t *trial) {
	const workers = 6
	e := t.e
	started := make(chan struct{}, 3*workers)
	var mu sync.Mutex
	acknowledged := make(map[event.ID]uint64)
	tried := make(map[event.ID]bool)
	var all sync.WaitGroup
	loop := func(what string, call func() error) {
		all.Go(func() {
			for n := 0; ; n++ {
				err := call()
				if n == 5 || err != nil {
					started <- struct{}{}
				}
				if errors.Is(err, store.ErrClosed) {
					return
				}
				if err != nil {
					t.Errorf("%s while the store closes: %v", what, err)
					return
				}
			}
		})
	}
	for range workers {
		loop("append", func() error {
			events := notes(topicA, 2)
			mu.Lock()
			tried[events[0].ID], tried[events[1].ID] = true, true
			mu.Unlock()
			got, err := e.Append(t.ctx, store.Batch{Events: events})
			if err == nil {
				mu.Lock()
				acknowledged[events[0].ID], acknowledged[events[1].ID] = got[0].Seq, got[1].Seq
				mu.Unlock()
			}
			return err
		})
		loop("read", func() error { return drain(e.Read(t.ctx, store.Query{Topic: topicA, Reverse: true, Limit: 500})) })
		loop("bounds", func() error { _, err := e.Bounds(t.ctx, topicA); return err })
	}
	defer all.Wait()
	defer func() { _ = e.Close() }()
	for range 3 * workers {
		t.wait(started, "the workers to be at work")
	}
	t.ok(e.Close(), "close")
	all.Wait()
	if t.Failed() || t.h.Reopen == nil {
		return
	}
	t.reopen()
	log := t.read(store.Query{Topic: topicA})
	for i, stored := range log {
		if seq, ok := acknowledged[stored.ID]; ok && seq != stored.Seq || !tried[stored.ID] {
			t.Fatalf("seq %d holds an event that was acknowledged as %d", stored.Seq, seq)
		}
		delete(acknowledged, stored.ID)
		if stored.Seq != uint64(i+1) {
			t.Fatalf("event %d has seq %d", i+1, stored.Seq)
		}
	}
	if len(acknowledged) > 0 || len(log)%2 != 0 {
		t.Fatalf("%d acknowledged events are gone; %d events of batches of 2 are there", len(acknowledged), len(log))
	}
}

func closeDuringRead(t *trial) {
	log := t.putAll(notes(topicA, 2000))
	next, stop := iter.Pull2(t.e.Read(t.ctx, store.Query{Topic: topicA}))
	defer stop()
	if _, err, ok := next(); err != nil || !ok {
		t.Fatalf("read: %v, %v", err, ok)
	}
	t.ok(t.e.Close(), "close during a read")
	for n := 1; ; n++ {
		e, err, ok := next()
		if errors.Is(err, store.ErrClosed) {
			return
		}
		if err != nil || !ok || n >= len(log) {
			t.Fatalf("a read that ran into Close ended after %d events with %v", n, err)
		}
		// What it had at hand may still come, and is right.
		if !same(&e, &log[n]) {
			t.Fatalf("event %d is %s, want %s", n, show(&e), show(&log[n]))
		}
		if n == len(log)-1 {
			return
		}
	}
}

func reopenedOften(t *trial) {
	var log []event.Event
	want := store.Cursor{Topic: topicA, Group: "g"}
	for n := range 12 {
		if n%3 != 2 { // sometimes nothing happens between two starts
			log = append(log, t.put(full(topicA, n), note(topicA, n))...)
			c := want
			version, err := t.e.PutCursor(t.ctx, c)
			t.ok(err, "put cursor")
			want.Version = version
		}
		t.reopen()
		t.wantLog(topicA, log)
		t.wantCursor(want)
		t.wantDuplicate(log[0])
	}
}

func noGoroutineLeft(t *trial) {
	work := func() {
		t.putAll(notes(topicA, 500))
		t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
		for n := range 20 {
			t.append(store.Batch{Events: []event.Event{keyed(topicB, fmt.Sprint(n), n)}, Async: true})
		}
		t.ok(t.e.Trim(t.ctx, topicA, 100), "trim")
		w := t.e.Watch(topicA)
		next, stop := iter.Pull2(t.e.Read(t.ctx, store.Query{Topic: topicA}))
		if _, err, ok := next(); err != nil || !ok {
			t.Fatalf("read: %v, %v", err, ok)
		}
		stop()
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, _ = t.e.Append(ctx, store.Batch{Events: notes(topicA, 1)})
		w.Stop()
		t.ok(t.e.Close(), "close")
	}
	work() // what a library starts once for the whole process is no leak
	before := goleak.IgnoreCurrent()
	t.e = t.h.Open(t.TB)
	work()
	if err := goleak.Find(before); err != nil {
		t.Fatalf("after Close: %v", err)
	}
}
