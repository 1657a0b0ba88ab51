package group_test

import (
	"testing"

	"promethean/group"
)

// A member that rests is handed nothing; what is ready goes to others, and to
// it again afterwards. What it holds it keeps.
func TestRest(t *testing.T) {
	in(t, func(w *world) {
		a := w.join("g", group.Settings{}, group.MemberOptions{})
		w.publish("a")
		held := a.next()
		a.Rest(true)
		w.publish("b", "c")
		b := w.join("g", group.Settings{}, group.MemberOptions{})
		for range 2 {
			b.ack(b.next())
		}
		if _, ok := a.try(); ok {
			w.t.Error("a member that rests was handed something")
		}
		w.publish("a")
		b.Leave()
		a.ack(held)
		w.publish("d")
		if list := a.Take(10); len(list) != 0 {
			w.t.Errorf("%d events for a member that rests", len(list))
		}
		a.Rest(false)
		for _, key := range []string{"a", "d"} {
			if d := a.next(); d.Event.Key != key {
				w.t.Errorf("key %s, want %s", d.Event.Key, key)
			}
		}
	})
}

// TakeWithin stops at the event that passes the bound.
func TestTakeWithin(t *testing.T) {
	in(t, func(w *world) {
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		w.publish("a", "b", "c", "d")
		first := m.next() // the others are read by now
		w.settleDown()
		if list := m.TakeWithin(10, 1); len(list) != 1 || list[0].Event.Seq == first.Event.Seq {
			w.t.Errorf("%d events, want 1", len(list))
		}
		if list := m.TakeWithin(10, 1<<20); len(list) != 2 {
			w.t.Errorf("%d events, want the other 2", len(list))
		}
	})
}
