package group_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// compact removes superseded events below a seq, and tombstones too.
func (w *world) compact(before uint64) {
	w.t.Helper()
	_, err := w.log.(store.Compacts).Compact(context.Background(), topic, store.Compaction{Before: before, Tombstones: before})
	if err != nil {
		w.t.Fatal(err)
	}
}

// bury appends a tombstone for a key.
func (w *world) bury(key string) {
	w.t.Helper()
	e := event.New(topic, json.RawMessage(`null`))
	e.Key = key
	if _, err := w.log.Append(context.Background(), store.Batch{Events: []event.Event{e}}); err != nil {
		w.t.Fatal(err)
	}
}

// tryOn takes an event if one can be had. Those before it may be gone, which
// shows only when they are taken: then nothing is given for them.
func (m *member) tryOn() (group.Delivery, bool) {
	for range 100 {
		if d, ok := m.try(); ok {
			return d, true
		}
	}
	return group.Delivery{}, false
}

// drain acks what comes, and gives its seqs.
func (m *member) drain() (seqs []uint64) {
	for {
		d, ok := m.tryOn()
		if !ok {
			return seqs
		}
		seqs = append(seqs, d.Event.Seq)
		m.ack(d)
	}
}

func (w *world) wantCursor(want uint64) {
	w.t.Helper()
	w.settleDown()
	if i := w.info("g"); i.Cursor != want || i.Lag != 0 {
		w.t.Fatalf("the cursor is at %d with a lag of %d, want %d\n%s", i.Cursor, i.Lag, want, w.e.Dump(topic, "g"))
	}
}

// What was removed by compaction counts as settled: before it was read, also
// at the end of the topic, and when the whole topic is gone.
func TestGapsBeforeReading(t *testing.T) {
	in(t, func(w *world) {
		w.publish("a", "b", "a", "c", "b", "a")
		w.bury("c") // 7
		w.compact(8)
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		if got := m.drain(); len(got) != 2 || got[0] != 5 || got[1] != 6 {
			w.t.Fatalf("delivered: %v", got)
		}
		w.wantCursor(7)
		w.publish("c")
		w.bury("c")
		w.bury("a")
		w.bury("b")
		w.compact(12)
		m.drain()
		w.wantCursor(11)
	})
}

// The topic ends with a gap that comes while a member waits for more.
func TestGapsAtTheEnd(t *testing.T) {
	in(t, func(w *world) {
		m := w.join("g", group.Settings{}, group.MemberOptions{MaxInFlight: 1, BatchSize: 1})
		w.publish("a", "b")
		first := m.next() // holds back what is behind it
		for range 20 {
			w.publish("x", "y")
		}
		w.bury("x")
		w.bury("y")
		w.compact(45)
		m.ack(first)
		m.drain()
		time.Sleep(time.Minute)
		m.drain()
		w.wantCursor(44)
	})
}

// What is in flight or waits when it is removed can be acked, or is settled by
// itself.
func TestGapsInFlight(t *testing.T) {
	for _, ordering := range []group.Ordering{group.ByKey, group.ByTopic, group.Unordered} {
		t.Run(string(ordering), func(t *testing.T) {
			in(t, func(w *world) {
				m := w.join("g", group.Settings{Ordering: ordering}, group.MemberOptions{MaxInFlight: 4})
				w.publish("a", "b", "a", "b", "a", "b", "c")
				var inHand []group.Delivery
				for {
					d, ok := m.try()
					if !ok {
						break
					}
					inHand = append(inHand, d)
				}
				w.bury("c")
				w.compact(9)
				for _, d := range inHand {
					m.ack(d)
				}
				m.drain()
				w.wantCursor(8)
			})
		})
	}
}

// Events of a key that were too many to be held, and are not found again.
func TestGapsBehindAStuckKey(t *testing.T) {
	in(t, func(w *world) {
		w.small(40, 1000) // four of a key
		m := w.join("g", group.Settings{}, group.MemberOptions{MaxInFlight: 2})
		keys := make([]string, 0, 60)
		for n := range 60 {
			keys = append(keys, []string{"a", "a", "b"}[n%3])
		}
		w.publish(keys...)
		a, b := m.next(), m.next()
		w.settleDown()
		w.compact(55)
		m.ack(a)
		m.ack(b)
		got := m.drain()
		if n := len(got); n < 6 || n > 20 {
			w.t.Fatalf("%d events come after the two in hand: %v", n, got)
		}
		w.wantCursor(60)
	})
}

// Whatever is removed when, the group comes to the end, and every key's last
// event is delivered.
func TestGapsAtRandom(t *testing.T) {
	for seed := range uint64(40) {
		in(t, func(w *world) {
			rng := rand.New(rand.NewPCG(seed, 7))
			w.e.Shrink(1000, 10+rng.IntN(60), 1000, 1+rng.IntN(5), 1<<uint(rng.IntN(14)))
			m := w.join("g", group.Settings{Ordering: pick(rng, []group.Ordering{group.ByKey, group.ByTopic, group.Unordered})}, group.MemberOptions{MaxInFlight: 1 + rng.IntN(8)})
			delivered, published, last := map[uint64]bool{}, uint64(0), map[string]uint64{}
			var inHand []group.Delivery
			for range 200 {
				switch rng.IntN(8) {
				case 0, 1, 2:
					for range 1 + rng.IntN(6) {
						key := pick(rng, []string{"a", "a", "a", "b", "c", ""})
						published++
						if last[key] = published; rng.IntN(5) == 0 && key != "" {
							w.bury(key)
							delete(last, key)
						} else {
							w.publish(key)
						}
					}
				case 3, 4:
					if d, ok := m.try(); ok {
						delivered[d.Event.Seq] = true
						inHand = append(inHand, d)
					}
				case 5, 6:
					if n := len(inHand); n > 0 {
						i := rng.IntN(n)
						m.ack(inHand[i])
						inHand = append(inHand[:i], inHand[i+1:]...)
					}
				case 7:
					if published > 0 {
						w.compact(rng.Uint64N(published) + 2)
					}
				}
			}
			for {
				for _, d := range inHand {
					m.ack(d)
				}
				inHand = inHand[:0]
				d, ok := m.tryOn()
				if !ok {
					break
				}
				delivered[d.Event.Seq] = true
				inHand = append(inHand, d)
			}
			w.wantCursor(published)
			for key, seq := range last {
				if !delivered[seq] {
					w.t.Fatalf("seed %d: seq %d, the last of key %q, was not delivered", seed, seq, key)
				}
			}
		})
	}
}
