package group_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"promethean/group"
)

// Settings change under a member at work: leases stay, what is settled stays,
// and the next failure is judged by the new number of attempts.
func TestChange(t *testing.T) {
	in(t, func(w *world) {
		ctx := context.Background()
		m := w.join("g", group.Settings{MaxAttempts: 5, AckTimeout: time.Minute}, group.MemberOptions{})
		w.publish("a", "b", "c")
		one, two, three := m.next(), m.next(), m.next()
		m.ack(two) // above the floor
		w.settleDown()
		if err := w.e.Change(ctx, topic, "g", group.Settings{MaxAttempts: 1, AckTimeout: time.Hour}); err != nil {
			w.t.Fatal(err)
		}
		i := w.info("g")
		if i.Settings.MaxAttempts != 1 || i.Settings.AckTimeout != time.Hour || i.Settings.Ordering != group.ByKey || i.InFlight != 2 || i.Lag != 2 {
			w.t.Errorf("%+v", i)
		}
		if err := m.Done(&three, &group.Nack{Reason: "no"}); err != nil { // its lease is as good as before
			w.t.Fatal(err)
		}
		m.ack(one)
		w.settleDown()
		if i := w.info("g"); i.Lag != 0 || i.Cursor != 3 {
			w.t.Errorf("%+v: the event is dead after one attempt", i)
		}
		w.publish("a")
		if d := m.next(); time.Until(d.Deadline) < 59*time.Minute {
			w.t.Errorf("the lease ends %v", d.Deadline)
		}
		// Who joins with the old value is told; who names none is not.
		_, err := w.e.Join(ctx, topic, "g", group.Settings{MaxAttempts: 5}, group.Start{}, group.MemberOptions{})
		if !errors.Is(err, group.ErrConflict) {
			w.t.Errorf("%v, want a conflict", err)
		}
	})
}

// What was handed out or skipped by other rules cannot be changed, and then
// nothing is.
func TestChangeThatCannotBe(t *testing.T) {
	in(t, func(w *world) {
		ctx := context.Background()
		w.join("g", group.Settings{Filter: `key == "a"`}, group.MemberOptions{})
		for _, set := range []group.Settings{
			{Ordering: group.ByTopic}, {DeadLetter: group.DeadKey}, {Filter: `key == "b"`}, {MaxAttempts: 2, Ordering: group.Unordered},
		} {
			if err := w.e.Change(ctx, topic, "g", set); !errors.Is(err, group.ErrConflict) {
				w.t.Errorf("%+v: %v, want a conflict", set, err)
			}
		}
		if err := w.e.Change(ctx, topic, "g", group.Settings{MaxAttempts: -1}); !errors.Is(err, group.ErrInvalid) {
			w.t.Errorf("%v, want that it is invalid", err)
		}
		if err := w.e.Change(ctx, topic, "nobody", group.Settings{MaxAttempts: 1}); !errors.Is(err, group.ErrNotFound) {
			w.t.Errorf("%v, want that there is no such group", err)
		}
		if i := w.info("g"); i.Settings.MaxAttempts != group.DefaultMaxAttempts {
			w.t.Errorf("%+v", i.Settings)
		}
	})
}

// Settings outlive the process, and what was settled above the floor with them.
func TestChangeIsKept(t *testing.T) {
	in(t, func(w *world) {
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		w.publish("a", "b")
		m.next()
		m.ack(m.next())
		w.settleDown()
		if err := w.e.Change(context.Background(), topic, "g", group.Settings{MaxAttempts: 9}); err != nil {
			w.t.Fatal(err)
		}
		if err := w.e.Close(context.Background()); err != nil {
			w.t.Fatal(err)
		}
		w.e = group.New(w.log, group.Options{})
		m = w.join("g", group.Settings{MaxAttempts: 9}, group.MemberOptions{})
		if d := m.next(); d.Event.Seq != 1 || d.MaxAttempts != 9 {
			w.t.Errorf("seq %d of %d attempts", d.Event.Seq, d.MaxAttempts)
		}
		if d, ok := m.try(); ok {
			w.t.Errorf("seq %d was acked", d.Event.Seq)
		}
	})
}

// Another hub learns of the change: when somebody asks it for other settings
// than it knows, and when it takes the group over.
func TestChangeOnAnotherHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		h := hubs(t, 2)
		a := h[0].join("g", group.Settings{}, group.MemberOptions{})
		synctest.Wait()
		b := h[1].join("g", group.Settings{MaxAttempts: 5}, group.MemberOptions{})
		if err := h[1].e.Change(ctx, topic, "g", group.Settings{MaxAttempts: 2}); !errors.Is(err, group.ErrNotOwner) {
			t.Errorf("%v, want that another hub owns the group", err)
		}
		if err := h[0].e.Change(ctx, topic, "g", group.Settings{MaxAttempts: 2}); err != nil {
			t.Fatal(err)
		}
		h[1].join("g", group.Settings{MaxAttempts: 2}, group.MemberOptions{}).Leave()
		a.Leave()
		h[0].publish("x")
		if d := b.next(); d.MaxAttempts != 2 {
			t.Errorf("%d attempts on the other hub", d.MaxAttempts)
		}
	})
}
