package group_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/group"
)

// in runs a test in virtual time with a world of its own.
func in(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newWorld(t)) })
}

func TestAckMovesTheCursorOverWhatIsSettled(t *testing.T) {
	in(t, func(w *world) {
		ev := w.publish("", "", "")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		for range ev {
			m.next()
		}
		w.ack("g", ev[1].ID)
		w.ack("g", ev[2].ID)
		if i := w.info("g"); i.Cursor != 0 || i.Lag != 1 || i.Pending != 1 {
			t.Errorf("%+v, want cursor 0, lag 1, pending 1", i)
		}
		w.ack("g", ev[0].ID)
		if i := w.info("g"); i.Cursor != 3 || i.Lag != 0 {
			t.Errorf("%+v, want cursor 3, lag 0", i)
		}
	})
}

func TestOneKeyOneAtATime(t *testing.T) {
	in(t, func(w *world) {
		w.publish("a", "a", "b")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		first, other := m.next(), m.next()
		if first.Event.Seq != 1 || other.Event.Seq != 3 {
			t.Fatalf("seqs %d and %d, want 1 and 3", first.Event.Seq, other.Event.Seq)
		}
		synctest.Wait()
		if got := m.Take(1); len(got) > 0 {
			t.Fatalf("seq %d before 1 was settled", got[0].Event.Seq)
		}
		m.ack(first)
		if d := m.next(); d.Event.Seq != 2 {
			t.Errorf("seq %d, want 2", d.Event.Seq)
		}
	})
}

func TestOrderOfTheTopicAndNone(t *testing.T) {
	in(t, func(w *world) {
		w.publish("a", "b", "", "a")
		strict := w.join("strict", group.Settings{Ordering: group.ByTopic}, group.MemberOptions{})
		loose := w.join("loose", group.Settings{Ordering: group.Unordered}, group.MemberOptions{})
		for range 4 {
			loose.next()
		}
		for seq := uint64(1); seq <= 4; seq++ {
			d := strict.next()
			synctest.Wait()
			if d.Event.Seq != seq || len(strict.Take(1)) > 0 {
				t.Fatalf("seq %d, want %d alone", d.Event.Seq, seq)
			}
			w.ack("strict", d.Event.ID)
		}
	})
}

func TestNackComesBackLaterEachTime(t *testing.T) {
	in(t, func(w *world) {
		w.publish("k")
		m := w.join("g", group.Settings{MaxAttempts: 4}, group.MemberOptions{})
		last := time.Now()
		for attempt := 1; attempt <= 4; attempt++ {
			d := m.next()
			if d.Attempt != attempt || d.MaxAttempts != 4 {
				t.Fatalf("attempt %d of %d, want %d of 4", d.Attempt, d.MaxAttempts, attempt)
			}
			if attempt > 1 {
				base := 100 * time.Millisecond << (attempt - 2)
				if waited := time.Since(last); waited < base*3/4 || waited > base*5/4 {
					t.Errorf("attempt %d came after %v, want about %v", attempt, waited, base)
				}
			}
			last = time.Now()
			w.nack("g", d.Event.ID, group.Nack{Reason: "no"})
		}
		synctest.Wait()
		l := w.letters("g")
		if len(l) != 1 || l[0].Attempts != 4 || l[0].Err != "no" || l[0].Original.Seq != 1 || l[0].Topic != topic || l[0].Group != "g" {
			t.Errorf("dead letters %+v", l)
		}
		if i := w.info("g"); i.Cursor != 1 {
			t.Errorf("cursor %d, want 1", i.Cursor)
		}
	})
}

func TestExactDelayAndDeadAtOnce(t *testing.T) {
	in(t, func(w *world) {
		w.publish("k", "j")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		d, other := m.next(), m.next()
		began := time.Now()
		w.nack("g", d.Event.ID, group.Nack{Delay: 7 * time.Second, HasDelay: true})
		w.nack("g", other.Event.ID, group.Nack{Reason: "poison", Dead: true})
		if d = m.next(); time.Since(began) != 7*time.Second || d.Attempt != 2 {
			t.Errorf("attempt %d after %v", d.Attempt, time.Since(began))
		}
		if l := w.letters("g"); len(l) != 1 || l[0].Original.ID != other.Event.ID || l[0].Attempts != 1 {
			t.Errorf("dead letters %+v", l)
		}
	})
}

func TestLeaseRunsOutAndIsFenced(t *testing.T) {
	in(t, func(w *world) {
		w.publish("k")
		m := w.join("g", group.Settings{AckTimeout: time.Second}, group.MemberOptions{})
		old := m.next()
		began := time.Now()
		d := m.next()
		if took := time.Since(began); took < 1075*time.Millisecond || took > 1125*time.Millisecond {
			t.Errorf("came back after %v", took)
		}
		if d.Attempt != 2 || d.Lease == old.Lease {
			t.Errorf("attempt %d, lease %d after %d", d.Attempt, d.Lease, old.Lease)
		}
		res, err := w.e.Nack(topic, "g", []group.Selected{{ID: d.Event.ID, Lease: old.Lease}}, group.Nack{})
		if err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			t.Errorf("nack with an old lease: %v, %v", err, res)
		}
		if res, err = w.e.Extend(topic, "g", []group.Selected{{ID: d.Event.ID, Lease: d.Lease}}, time.Minute); err != nil || res[0].Err != nil {
			t.Fatal(err, res)
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if got := m.Take(1); len(got) > 0 {
			t.Fatal("came back in spite of the extension")
		}
		if err := m.Done(&old, nil); err != nil { // an ack settles whoever holds it
			t.Fatal(err)
		}
		synctest.Wait()
		if i := w.info("g"); i.Cursor != 1 || i.InFlight != 0 {
			t.Errorf("%+v", i)
		}
	})
}

func TestAnswersForIDs(t *testing.T) {
	in(t, func(w *world) {
		ev := w.publish("k", "k")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		m.next()
		res, err := w.e.Ack(topic, "g", []group.Selected{{ID: ev[0].ID}, {ID: ev[1].ID}, {ID: event.NewID()}, {ID: ev[0].ID}}, false)
		if err != nil {
			t.Fatal(err)
		}
		if res[0].Err != nil || !errors.Is(res[1].Err, group.ErrUnknownID) || !errors.Is(res[2].Err, group.ErrUnknownID) || res[3].Err != nil {
			t.Errorf("%v", res)
		}
		if res, _ = w.e.Nack(topic, "g", []group.Selected{{ID: ev[0].ID}}, group.Nack{}); !errors.Is(res[0].Err, group.ErrFenced) {
			t.Errorf("nack of what is acked: %v", res)
		}
	})
}

func TestLeavingDoesNotCountAndDroppingDoes(t *testing.T) {
	in(t, func(w *world) {
		w.publish("k")
		a := w.join("g", group.Settings{}, group.MemberOptions{})
		if d := a.next(); d.Attempt != 1 {
			t.Fatal(d.Attempt)
		}
		b := w.join("g", group.Settings{}, group.MemberOptions{})
		a.Leave()
		if d := b.next(); d.Attempt != 1 {
			t.Errorf("attempt %d after the member left, want 1", d.Attempt)
		}
		c := w.join("g", group.Settings{}, group.MemberOptions{})
		b.Drop()
		if d := c.next(); d.Attempt != 2 {
			t.Errorf("attempt %d after the member was lost, want 2", d.Attempt)
		}
	})
}

func TestParkedKeyIsReplayedInOrder(t *testing.T) {
	in(t, func(w *world) {
		ev := w.publish("a", "a", "b", "a")
		m := w.join("g", group.Settings{DeadLetter: group.DeadKey}, group.MemberOptions{})
		d := m.next()
		w.nack("g", d.Event.ID, group.Nack{Dead: true, Reason: "poison"})
		if d = m.next(); d.Event.Key != "b" {
			t.Fatalf("key %s, want b", d.Event.Key)
		}
		m.ack(d)
		synctest.Wait()
		l := w.letters("g")
		if len(l) != 3 || l[0].Original.ID != ev[0].ID || l[1].Original.ID != ev[1].ID || l[2].Original.ID != ev[3].ID {
			t.Fatalf("dead letters %+v", l)
		}
		w.close()
		w.open() // parked keys survive
		m = w.join("g", group.Settings{}, group.MemberOptions{})
		w.publish("a", "c")
		if d = m.next(); d.Event.Key != "c" {
			t.Fatalf("key %s, want c", d.Event.Key)
		}
		m.ack(d)
		synctest.Wait()
		if err := w.e.Redeliver(context.Background(), topic, "g", w.letters("g")); err != nil {
			t.Fatal(err)
		}
		if n := len(w.letters("g")); n != 0 {
			t.Errorf("%d dead letters are still to be replayed", n)
		}
		w.publish("a") // behind what is replayed
		for i, want := range []uint64{1, 2, 4, 5} {
			d := m.next()
			if d.Event.Seq != want || d.Attempt != 1 {
				t.Fatalf("replay %d: seq %d, attempt %d; want %d, 1", i, d.Event.Seq, d.Attempt, want)
			}
			m.ack(d)
		}
		synctest.Wait()
		// What came meanwhile comes after them, now that the key is released.
		for want := uint64(7); want <= 8; want++ {
			d := m.next()
			if d.Event.Seq != want {
				t.Fatalf("seq %d, want %d", d.Event.Seq, want)
			}
			m.ack(d)
			w.publish("a")
		}
		if l := w.letters("g"); len(l) > 0 {
			t.Errorf("dead letters %+v", l)
		}
	})
}

func TestBlockedKeyWaits(t *testing.T) {
	in(t, func(w *world) {
		w.publish("a", "a", "b")
		m := w.join("g", group.Settings{DeadLetter: group.DeadBlock, MaxAttempts: 1}, group.MemberOptions{})
		w.nack("g", m.next().Event.ID, group.Nack{})
		time.Sleep(time.Hour)
		if d := m.next(); d.Event.Key != "b" {
			t.Fatal(d.Event.Key)
		}
		w.close()
		w.open()
		m = w.join("g", group.Settings{}, group.MemberOptions{})
		if d := m.next(); d.Event.Key != "b" {
			t.Errorf("after a restart key %s is delivered", d.Event.Key)
		}
		synctest.Wait()
		if got := m.Take(1); len(got) > 0 {
			t.Errorf("key %s is delivered", got[0].Event.Key)
		}
		if l := w.letters("g"); len(l) > 0 {
			t.Errorf("dead letters %v", l)
		}
	})
}

func TestManyBehindAStuckKey(t *testing.T) {
	in(t, func(w *world) {
		keys := []string{"stuck"}
		for i := range 400 {
			keys = append(keys, []string{"stuck", "free"}[i%2])
		}
		w.publish(keys...)
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		stuck := m.next()
		for range 200 {
			d := m.next()
			if d.Event.Key != "free" {
				t.Fatalf("key %s", d.Event.Key)
			}
			m.ack(d)
		}
		m.ack(stuck)
		for last := uint64(1); last < 400; {
			d := m.next()
			if d.Event.Key != "stuck" || d.Event.Seq <= last {
				t.Fatalf("key %s, seq %d after %d", d.Event.Key, d.Event.Seq, last)
			}
			last = d.Event.Seq
			m.ack(d)
		}
		if i := w.info("g"); i.Lag != 0 || i.Cursor != 401 {
			t.Errorf("%+v", i)
		}
	})
}

func TestMovingTheCursor(t *testing.T) {
	in(t, func(w *world) {
		ev := w.publish("a", "b", "c")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		held := m.next()
		m.ack(m.next())
		m.ack(m.next())
		if err := w.e.Move(context.Background(), topic, "g", group.Start{From: group.AfterID, AfterID: ev[0].ID}); err != nil {
			t.Fatal(err)
		}
		if err := m.Done(&held, &group.Nack{}); !errors.Is(err, group.ErrFenced) {
			t.Errorf("a lease from before: %v", err)
		}
		for want := uint64(2); want <= 3; want++ {
			if d := m.next(); d.Event.Seq != want || d.Attempt != 1 {
				t.Errorf("seq %d, attempt %d; want %d, 1", d.Event.Seq, d.Attempt, want)
			}
		}
		err := w.e.Move(context.Background(), topic, "g", group.Start{From: group.AfterID, AfterID: event.NewID()})
		if !errors.Is(err, group.ErrCursorUnknown) {
			t.Errorf("an unknown id: %v", err)
		}
	})
}

func TestALeaseDoesNotOutliveAMove(t *testing.T) {
	in(t, func(w *world) {
		w.publish("a")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		old := m.next()
		if err := w.e.Move(context.Background(), topic, "g", group.Start{From: group.Earliest}); err != nil {
			t.Fatal(err)
		}
		d := m.next()
		res, err := w.e.Nack(topic, "g", []group.Selected{{ID: d.Event.ID, Lease: old.Lease}}, group.Nack{})
		if err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			t.Errorf("nack with the lease from before the move: %v, %v", err, res)
		}
		m.ack(d)
	})
}

func TestRetentionSettles(t *testing.T) {
	in(t, func(w *world) {
		w.publish("a", "a", "b", "c")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		d := m.next()
		w.nack("g", d.Event.ID, group.Nack{Delay: time.Hour, HasDelay: true})
		if err := w.log.Trim(context.Background(), topic, 4); err != nil {
			t.Fatal(err)
		}
		w.publish("d")
		for want := uint64(4); want <= 5; {
			d = m.next()
			m.ack(d)
			switch d.Event.Seq {
			case 3: // it may have been read before
			case want:
				want++
			default:
				w.t.Fatalf("seq %d, want %d", d.Event.Seq, want)
			}
		}
		synctest.Wait()
		if i := w.info("g"); i.Cursor != 5 {
			t.Errorf("cursor %d, want 5", i.Cursor)
		}
	})
}

func TestSettingsThatContradict(t *testing.T) {
	in(t, func(w *world) {
		w.join("g", group.Settings{MaxAttempts: 3, Ordering: group.ByTopic}, group.MemberOptions{})
		for _, set := range []group.Settings{{MaxAttempts: 4}, {Ordering: group.ByKey}, {DeadLetter: group.DeadKey}, {AckTimeout: time.Second}} {
			if err := w.e.Make(context.Background(), topic, "g", set, group.Start{}); !errors.Is(err, group.ErrConflict) {
				t.Errorf("%+v: %v", set, err)
			}
		}
		for _, set := range []group.Settings{{MaxAttempts: -1}, {Ordering: "x"}, {DeadLetter: "x"}, {AckTimeout: -1}} {
			if err := w.e.Make(context.Background(), topic, "h", set, group.Start{}); !errors.Is(err, group.ErrInvalid) {
				t.Errorf("%+v: %v", set, err)
			}
		}
		if err := w.e.Make(context.Background(), topic, "g", group.Settings{MaxAttempts: 3}, group.Start{}); err != nil {
			t.Error(err)
		}
	})
}

func TestMembersShare(t *testing.T) {
	in(t, func(w *world) {
		w.publish(make([]string, 90)...)
		var members []*member
		for range 3 {
			members = append(members, w.join("g", group.Settings{}, group.MemberOptions{}))
		}
		got := make([]int, 3)
		for range 30 {
			synctest.Wait()
			for i, m := range members {
				got[i] += len(m.Take(10))
			}
		}
		if got[0]+got[1]+got[2] != 90 || got[0] < 20 || got[1] < 20 || got[2] < 20 {
			t.Errorf("the members got %v", got)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	in(t, func(w *world) {
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		if err := w.e.Pause(context.Background(), topic, "g"); err != nil {
			t.Fatal(err)
		}
		w.publish("a")
		synctest.Wait()
		if got := m.Take(1); len(got) > 0 {
			t.Error("delivered in a pause")
		}
		if err := w.e.Resume(context.Background(), topic, "g"); err != nil {
			t.Fatal(err)
		}
		m.next()
	})
}

func TestAttemptsSurviveACleanRestart(t *testing.T) {
	in(t, func(w *world) {
		w.publish("a", "b")
		m := w.join("g", group.Settings{}, group.MemberOptions{})
		d := m.next()
		w.nack("g", d.Event.ID, group.Nack{Delay: time.Hour, HasDelay: true})
		m.next() // in hand when we close: does not count
		w.close()
		w.open()
		m = w.join("g", group.Settings{}, group.MemberOptions{})
		for want := 2; want >= 1; want-- {
			a := m.next()
			if other := 3 - want; a.Attempt != want && a.Attempt != other {
				t.Errorf("attempt %d", a.Attempt)
			}
			if (a.Event.Seq == 1) != (a.Attempt == 2) {
				t.Errorf("seq %d, attempt %d", a.Event.Seq, a.Attempt)
			}
		}
	})
}

func TestUnknownGroup(t *testing.T) {
	in(t, func(w *world) {
		if _, err := w.e.Ack(topic, "nobody", nil, false); !errors.Is(err, group.ErrNotFound) {
			t.Errorf("%v", err)
		}
		if _, err := w.e.Info(context.Background(), topic, "nobody"); !errors.Is(err, group.ErrNotFound) {
			t.Errorf("%v", err)
		}
	})
}
