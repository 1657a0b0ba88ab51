package storetest

import (
	"errors"
	"math"
	"math/rand/v2"

	"promethean/event"
	"promethean/store"
)

var locateCases = []Case{
	{Name: "locate/by id", run: locateByID},
	{Name: "locate/by time", run: locateByTime},
	{Name: "locate/by time on empty topics", run: locateOnEmpty},
	{Name: "locate/by time along many events", run: locateAlongMany},
}

func locateByID(t *trial) {
	log := t.putAll(notes(topicA, 50))
	elsewhere := t.put(note(topicB, 0))[0]
	t.reopens(func(when string) {
		for _, e := range log {
			if seq, err := t.e.LocateID(t.ctx, topicA, e.ID); err != nil || seq != e.Seq {
				t.Fatalf("%s: id of seq %d is located at %d, %v", when, e.Seq, seq, err)
			}
		}
		for _, c := range []struct {
			topic string
			id    event.ID
		}{
			{topicA, event.NewID()}, {topicA, randomID()}, {topicA, event.ID{}}, {topicA, elsewhere.ID},
			{topicB, log[0].ID}, {topicC, log[0].ID},
		} {
			if seq, err := t.e.LocateID(t.ctx, c.topic, c.id); !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("%s: an id that topic %s lacks is located at %d, %v", when, c.topic, seq, err)
			}
		}
	})
}

func (t *trial) wantTime(log []event.Event, last uint64, ts int64) {
	t.Helper()
	want := last + 1
	for _, e := range log {
		if e.TS >= ts {
			want = e.Seq
			break
		}
	}
	got, err := t.e.LocateTime(t.ctx, topicA, ts)
	t.ok(err, "locate time %d", ts)
	if got != want {
		t.Fatalf("locate time %d: seq %d, want %d", ts, got, want)
	}
}

// locateByTime has times that run backwards, stand still and jump ahead.
func locateByTime(t *trial) {
	times := []int64{100, 200, 200, 150, 5000, 50, 300, 300, 0, 4999, 5001, event.MaxTS, 5000, 400}
	var events []event.Event
	for i, ts := range times {
		e := note(topicA, i)
		e.TS = ts
		events = append(events, e)
	}
	log := t.put(events...)
	asked := []int64{math.MinInt64, -1, 0, 1, 49, 50, 51, 100, 101, 150, 199, 200, 201, 299, 300, 301, 4999, 5000, 5001, 5002, event.MaxTS - 1, event.MaxTS, event.MaxTS + 1, math.MaxInt64}
	for _, before := range []uint64{1, 2, 5, 6, 12, 13, 100} {
		t.ok(t.e.Trim(t.ctx, topicA, before), "trim")
		for len(log) > 0 && log[0].Seq < before {
			log = log[1:]
		}
		for _, ts := range asked {
			t.wantTime(log, uint64(len(times)), ts)
		}
	}
	if t.h.Reopen != nil {
		t.reopen()
		t.wantTime(nil, uint64(len(times)), 0)
	}
	e := note(topicA, 0)
	e.TS = 10
	t.wantTime(t.put(e), uint64(len(times)+1), 5)
}

func locateOnEmpty(t *trial) {
	t.ok(t.e.SetTopic(t.ctx, topicB, store.Settings{}), "set topic")
	for _, topic := range []string{topicA, topicB} {
		for _, ts := range []int64{math.MinInt64, 0, math.MaxInt64} {
			if seq, err := t.e.LocateTime(t.ctx, topic, ts); err != nil || seq != 1 {
				t.Fatalf("topic %s: time %d is located at %d, %v; want 1", topic, ts, seq, err)
			}
		}
	}
}

// locateAlongMany has a trend with noise, as clocks of many publishers give,
// long enough that an engine answers from an index.
func locateAlongMany(t *trial) {
	rng := rand.New(rand.NewPCG(3, 4))
	events := notes(topicA, t.h.Many/4)
	for i := range events {
		events[i].TS = baseTS + int64(i)*10 + rng.Int64N(2000) - 1000
	}
	log := t.putAll(events)
	last := uint64(len(log))
	try := func() {
		t.Helper()
		for range 200 {
			ts := baseTS + rng.Int64N(int64(last)*10+4000) - 2000
			t.wantTime(log, last, ts)
		}
		for range 50 { // exactly on an event, and right beside it
			ts := log[rng.IntN(len(log))].TS
			t.wantTime(log, last, ts)
			t.wantTime(log, last, ts+1)
		}
	}
	try()
	t.ok(t.e.Trim(t.ctx, topicA, last/3), "trim")
	log = log[last/3-1:]
	t.reopens(func(string) { try() })
}
