package group_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"promethean/group"
)

// small makes the bounds of a world's groups small: so many references and
// settled ranges.
func (w *world) small(references, ranges int) { w.e.Shrink(1000, references, ranges, 4, 1<<20) }

// Many keys that are stuck keep no others from being handed out: what waits
// behind them is not held.
func TestManyStuckKeys(t *testing.T) {
	in(t, func(w *world) {
		w.small(40, 1000)
		m := w.join("g", group.Settings{}, group.MemberOptions{MaxInFlight: 100})
		var keys []string
		for range 10 { // ten rounds of the same fifteen keys
			for k := range 15 {
				keys = append(keys, string(rune('a'+k)))
			}
		}
		w.publish(keys...)
		w.publish("z")
		got := map[string]group.Delivery{}
		for len(got) < 16 {
			d := m.next()
			got[d.Event.Key] = d
		}
		// All come in the end, in order.
		last := map[string]uint64{}
		for n := 0; ; {
			for _, d := range got {
				if d.Event.Seq <= last[d.Event.Key] {
					w.t.Fatalf("key %s: seq %d after %d", d.Event.Key, d.Event.Seq, last[d.Event.Key])
				}
				last[d.Event.Key] = d.Event.Seq
				m.ack(d)
				n++
			}
			clear(got)
			if n == len(keys)+1 {
				break
			}
			d := m.next()
			got[d.Event.Key] = d
		}
	})
}

// A group that holds as much as it may reads no further; it goes on once
// something is settled.
func TestFullGroup(t *testing.T) {
	for _, c := range []struct {
		name               string
		references, ranges int
		readable           int
	}{{"references", 20, 1000, 20}, {"ranges", 1000, 20, 40}} {
		t.Run(c.name, func(t *testing.T) {
			in(t, func(w *world) {
				w.small(c.references, c.ranges)
				m := w.join("g", group.Settings{Ordering: group.Unordered}, group.MemberOptions{MaxInFlight: 500, BatchSize: 1})
				w.publish(make([]string, 200)...)
				// Every other event is acked: each ack makes a range.
				var held []group.Delivery
				for {
					d, ok := m.try()
					if !ok {
						break
					}
					if d.Event.Seq%2 == 1 {
						held = append(held, d)
					} else {
						m.ack(d)
					}
				}
				if n := len(held); n < c.references/3 && n < c.ranges/3 || n > c.readable+8 {
					w.t.Fatalf("%d are in hand, and nothing more comes", n)
				}
				for _, d := range held {
					m.ack(d)
				}
				for i := w.info("g").Cursor; i < 200; i = w.info("g").Cursor {
					m.ack(m.next())
				}
			})
		})
	}
}

// After a restart a group may have more settled ranges than it may have: it
// reads what lies between them.
func TestFullAfterRestart(t *testing.T) {
	in(t, func(w *world) {
		m := w.join("g", group.Settings{Ordering: group.Unordered}, group.MemberOptions{})
		w.publish(make([]string, 100)...)
		for range 100 {
			if d := m.next(); d.Event.Seq%2 == 0 {
				m.ack(d)
			}
		}
		w.close()
		w.open()
		w.small(1000, 10)
		m = w.join("g", group.Settings{}, group.MemberOptions{})
		for seq := uint64(1); seq < 100; seq += 2 {
			if d := m.next(); d.Event.Seq != seq {
				w.t.Fatalf("seq %d, want %d", d.Event.Seq, seq)
			} else {
				m.ack(d)
			}
		}
	})
}

// Retention makes room in a group that is full, whether something is published
// or not.
func TestRetentionMakesRoom(t *testing.T) {
	in(t, func(w *world) {
		w.small(10, 1000)
		m := w.join("g", group.Settings{DeadLetter: group.DeadBlock, MaxAttempts: 1}, group.MemberOptions{})
		var keys []string
		for k := range 20 {
			keys = append(keys, string(rune('a'+k)))
		}
		w.publish(keys[:10]...)
		for d, ok := m.try(); ok; d, ok = m.try() {
			w.nack("g", d.Event.ID, group.Nack{Reason: "no"})
		}
		w.publish(keys[10:]...) // the group is full: these are not read
		if d, ok := m.try(); ok {
			w.t.Fatalf("seq %d is delivered to a full group", d.Event.Seq)
		}
		if got := w.info("g"); got.Cursor != 0 {
			w.t.Fatalf("the cursor is %d", got.Cursor)
		}
		if err := w.log.Trim(context.Background(), topic, 19); err != nil {
			w.t.Fatal(err)
		}
		began := time.Now()
		var got []uint64
		for range 2 {
			d := m.next()
			got = append(got, d.Event.Seq)
			m.ack(d)
		}
		if !slices.Equal(got, []uint64{19, 20}) || time.Since(began) > 11*time.Second {
			w.t.Fatalf("seqs %v after %v", got, time.Since(began))
		}
	})
}

// Recovery ends when the last suspect is dead, also if the last batch that is
// read before the mark is full.
func TestRecoveryEnds(t *testing.T) {
	for suspects := 1; suspects <= 40; suspects++ {
		in(t, func(w *world) {
			set := group.Settings{DeadLetter: group.DeadBlock, MaxAttempts: 1}
			m := w.join("g", set, group.MemberOptions{})
			var keys []string
			for k := range suspects {
				keys = append(keys, string(rune('a'+k)))
			}
			w.publish(keys...)
			for range suspects {
				m.next()
			}
			synctest.Wait()
			w.crash(uint64(suspects))
			w.join("g", group.Settings{}, group.MemberOptions{})
			synctest.Wait() // they are blocked, and that is recorded
			w.crash(uint64(suspects))
			m = w.join("g", group.Settings{}, group.MemberOptions{BatchSize: 1})
			w.publish("fresh")
			if d := m.next(); d.Event.Key != "fresh" {
				w.t.Fatalf("key %s", d.Event.Key)
			}
		})
	}
}

// What a slow group had not yet got to when its owner crashed comes as usual: only
// about as much as it handles in a second is suspect.
func TestSlowGroupsHaveFewSuspects(t *testing.T) {
	in(t, func(w *world) {
		const handled, most = 200, 64
		m := w.join("g", group.Settings{}, group.MemberOptions{MaxInFlight: 1})
		keys := make([]string, 1500)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		w.publish(keys...)
		for range handled { // 20 a second
			d := m.next()
			time.Sleep(50 * time.Millisecond)
			m.ack(d)
		}
		synctest.Wait()
		w.crash(1)
		m = w.join("g", group.Settings{}, group.MemberOptions{})
		for at := handled; ; at++ {
			synctest.Wait()
			first := m.next()
			if _, ok := m.try(); ok {
				if suspects := at - handled; suspects == 0 || suspects > most {
					w.t.Errorf("%d came one at a time", suspects)
				}
				return
			}
			m.ack(first)
		}
	})
}
