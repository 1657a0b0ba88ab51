package storetest

import (
	"sync"

	"promethean/event"
	"promethean/store"
)

var watchCases = []Case{
	{Name: "watch/wakes when events are readable", run: watchWakes},
	{Name: "watch/calls in place of signals", run: watchCalls},
	{Name: "watch/signals merge and never block", run: watchMerges},
	{Name: "watch/only its own topics", run: watchOwnTopics},
	{Name: "watch/all topics", run: watchAllTopics},
	{Name: "watch/nothing after Stop", run: watchStopped},
	{Name: "watch/many come and go", run: watchMany},
}

// watchWakes appends one event at a time and reads only when woken. If a wake-up
// came before the event can be read, or not at all, the reader would wait for
// ever. The watch is older than its topic.
func watchWakes(t *trial) {
	w := t.e.Watch(topicA)
	defer w.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	ready := make(chan uint64, 1)
	all.Go(func() {
		for seq := range ready {
			e := note(topicA, int(seq))
			if got, err := t.e.Append(t.ctx, store.Batch{Events: []event.Event{e}, Async: seq%3 == 0}); err != nil || got[0].Seq != seq {
				t.Errorf("append: %+v, %v; want seq %d", got, err, seq)
			}
		}
	})
	defer close(ready)
	for seq := uint64(1); seq <= 200; seq++ {
		ready <- seq
		for {
			t.wait(w.C, "a wake-up")
			if got := t.read(store.Query{Topic: topicA, After: seq - 1}); len(got) == 1 && got[0].Seq == seq {
				break
			} else if len(got) != 0 {
				t.Fatalf("read %d events after seq %d", len(got), seq-1)
			}
			// A wake-up that was left from the event before is allowed.
		}
	}
}

// watchCalls has a function called, while somebody appends, and misses nothing.
func watchCalls(t *trial) {
	for round := range 20 {
		w := t.e.Watch(topicA)
		appended := make(chan struct{})
		go func() {
			defer close(appended)
			t.put(note(topicA, round))
		}()
		called := make(chan struct{}, 1)
		w.Call(func() {
			select {
			case called <- struct{}{}:
			default:
			}
		})
		t.wait(called, "a call")
		if got := t.read(store.Query{Topic: topicA}); len(got) != round+1 {
			t.Fatalf("called when %d of %d events can be read", len(got), round+1)
		}
		<-appended
		w.Stop()
		t.put(note(topicB, round))
		if len(w.C) != 0 || len(called) != 0 {
			t.Fatal("a signal after the call, or after Stop")
		}
	}
}

func watchMerges(t *trial) {
	w := t.e.Watch(topicA)
	defer w.Stop()
	for n := range 100 { // nobody listens meanwhile
		t.put(note(topicA, n))
	}
	t.wait(w.C, "a wake-up")
	if got := t.read(store.Query{Topic: topicA}); len(got) != 100 {
		t.Fatalf("woken after 100 events, %d can be read", len(got))
	}
}

// watchOwnTopics cannot prove that a signal never comes, but a signal for
// another topic is there at the latest when that topic's own watch has its.
func watchOwnTopics(t *trial) {
	mine := t.e.Watch(topicA, topicC)
	defer mine.Stop()
	for n := range 20 {
		theirs := t.e.Watch(topicB)
		t.put(note(topicB, n))
		t.wait(theirs.C, "a wake-up")
		theirs.Stop()
	}
	select {
	case <-mine.C:
		t.Fatalf("events of topic %s wake a watch on %s and %s", topicB, topicA, topicC)
	default:
	}
	for _, topic := range []string{topicC, topicA} {
		t.put(note(topic, 0))
		t.wait(mine.C, "a wake-up of "+topic)
	}
	// Settings and trims are no events.
	t.ok(t.e.SetTopic(t.ctx, topicA, store.Settings{Partitions: 2}), "set topic")
	t.put(note(topicA, 1))
	t.wait(mine.C, "a wake-up after a change of settings")
}

func watchAllTopics(t *trial) {
	w := t.e.Watch()
	defer w.Stop()
	for n, topic := range []string{topicA, topicB, topicC, topicA, "storetest.new"} {
		t.put(note(topic, n))
		t.wait(w.C, "a wake-up of "+topic)
	}
	if t.h.Reopen == nil {
		return
	}
	t.reopen() // topics that the store knows only from its data
	w = t.e.Watch()
	defer w.Stop()
	t.put(note(topicB, 9))
	t.wait(w.C, "a wake-up after reopening")
}

func watchStopped(t *trial) {
	stopped := t.e.Watch(topicA)
	other := t.e.Watch(topicA)
	defer other.Stop()
	stopped.Stop()
	stopped.Stop() // as often as one likes
	for n := range 20 {
		t.put(note(topicA, n))
		t.wait(other.C, "a wake-up")
	}
	select {
	case _, open := <-stopped.C:
		t.Fatalf("a stopped watch was woken (channel open: %v)", open)
	default:
	}
}

// watchMany has watches made and stopped while events come in.
func watchMany(t *trial) {
	const watchers, rounds = 8, 20
	done := make(chan struct{})
	var appender, all sync.WaitGroup
	appender.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			if _, err := t.e.Append(t.ctx, store.Batch{Events: []event.Event{note(topicA, n)}}); err != nil {
				t.Errorf("append: %v", err)
				return
			}
		}
	})
	for range watchers {
		all.Go(func() {
			for range rounds {
				w := t.e.Watch(topicA)
				select {
				case <-w.C:
				case <-t.ctx.Done():
					t.Error("waited in vain for a wake-up")
				}
				w.Stop()
			}
		})
	}
	all.Wait()
	close(done)
	appender.Wait()
}
