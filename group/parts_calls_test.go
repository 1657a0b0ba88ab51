package group_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/group"
)

// three is a world with a group of three partitions, each with a member.
func three(t *testing.T, set group.Settings) (*world, *parted, group.Plan, []*hand) {
	t.Helper()
	w, p := newWorld(t), newParted(t, 1)
	if err := w.e.SetPartitions(context.Background(), topic, 1, 3, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	// An empty topic keeps no record of a number: it comes with the first event.
	if set.Partitions == group.FollowTopic {
		set.Partitions = 3
	}
	plan, err := w.e.MakeParted(context.Background(), topic, "g", set, group.Start{From: group.Earliest})
	if err != nil || plan.Count != 3 {
		t.Fatal(plan, err)
	}
	var hands []*hand
	for n := range plan.Count {
		hands = append(hands, p.joinPart(w.e, plan, n))
	}
	return w, p, plan, hands
}

// at gives the hand that an event belongs to.
func at(hands []*hand, e *event.Event) *hand {
	return hands[event.PartitionFor(e.Key, e.ID, len(hands))]
}

// takeAll has a hand take everything that there is for it.
func takeAll(h *hand) (out []group.Delivery) {
	for range 3 { // the first may wait for a record
		synctest.Wait()
		out = append(out, h.m.Take(100)...)
	}
	return out
}

func selected(d group.Delivery) []group.Selected {
	return []group.Selected{{ID: d.Event.ID, Lease: d.Lease}}
}

func TestPartsAreSettledByWhoHasThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p, plan, hands := three(t, byTopic)
		ev := w.publish("a", "a")
		mine := at(hands, &ev[0])
		other := hands[(mine.number+1)%3]
		d := takeAll(mine)
		if len(d) != 1 {
			t.Fatalf("%d deliveries, want the first of the key", len(d))
		}
		res, err := w.e.AckAs([]*group.Member{other.m}, topic, selected(d[0]), false)
		if err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			t.Fatal("an ack by somebody who has another partition:", res, err)
		}
		res, err = w.e.NackAs([]*group.Member{other.m}, topic, selected(d[0]), group.Nack{})
		if err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			t.Fatal("a nack by somebody who has another partition:", res, err)
		}
		if res, err = w.e.ExtendAs([]*group.Member{mine.m}, topic, selected(d[0]), 60e9); err != nil || res[0].Err != nil {
			t.Fatal("extend:", res, err)
		}
		// Another member takes the partition: the lease is of an epoch that is over.
		next := p.joinPart(w.e, plan, mine.number)
		if next.epoch <= mine.epoch && mine.epoch != 0 {
			t.Errorf("epoch %d after %d", next.epoch, mine.epoch)
		}
		if res, err = w.e.AckAs([]*group.Member{mine.m}, topic, selected(d[0]), false); err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			t.Fatal("an ack by a stale owner:", res, err)
		}
		if res, err = w.e.Ack(topic, "g", selected(d[0]), false); err != nil || !errors.Is(res[0].Err, group.ErrFenced) {
			t.Fatal("an ack with a stale lease:", res, err)
		}
		again := takeAll(next)
		if len(again) != 1 || again[0].Event.ID != ev[0].ID || again[0].Attempt != 2 {
			t.Fatalf("the new owner gets %+v", again)
		}
		if res, err = w.e.Ack(topic, "g", selected(again[0]), false); err != nil || res[0].Err != nil {
			t.Fatal("ack:", res, err)
		}
		if res, err = w.e.Ack(topic, "g", []group.Selected{{ID: event.NewID()}}, false); err != nil || !errors.Is(res[0].Err, group.ErrUnknownID) {
			t.Fatal("an id that nobody knows:", res, err)
		}
		if d = takeAll(next); len(d) != 1 || d[0].Event.ID != ev[1].ID {
			t.Fatalf("the second of the key: %+v", d)
		}
	})
}

func TestPartsAreNotMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, plan, _ := three(t, byTopic)
		ctx := context.Background()
		if _, err := w.e.Join(ctx, topic, "g", group.Settings{}, group.Start{}, group.MemberOptions{}); !errors.Is(err, group.ErrConflict) {
			t.Error("a member of the whole group:", err)
		}
		if err := w.e.Make(ctx, topic, "g", group.Settings{}, group.Start{}); err != nil {
			t.Error("settings that say nothing:", err)
		}
		if err := w.e.Make(ctx, topic, "g", group.Settings{Partitions: 4}, group.Start{}); !errors.Is(err, group.ErrConflict) {
			t.Error("another number:", err)
		}
		w.join("whole", group.Settings{}, group.MemberOptions{})
		if _, err := w.e.MakeParted(ctx, topic, "whole", byTopic, group.Start{}); !errors.Is(err, group.ErrConflict) {
			t.Error("a partition of a whole group:", err)
		}
		if _, err := w.e.JoinPart(ctx, topic, "whole", plan, 0, group.PartOptions{}); !errors.Is(err, group.ErrConflict) {
			t.Error("a member of a partition of a whole group:", err)
		}
		for _, n := range []int{-2, 1_000_000, 0} {
			if _, err := w.e.MakeParted(ctx, topic, "bad", group.Settings{Partitions: n}, group.Start{}); !errors.Is(err, group.ErrInvalid) {
				t.Errorf("%d partitions: %v", n, err)
			}
		}
		for _, n := range []int{-1, 3} {
			if _, err := w.e.JoinPart(ctx, topic, "g", plan, n, group.PartOptions{}); !errors.Is(err, group.ErrInvalid) {
				t.Errorf("partition %d of 3: %v", n, err)
			}
		}
		if _, err := w.e.MakeParted(ctx, topic, strings.Repeat("g", 201), byTopic, group.Start{}); !errors.Is(err, group.ErrInvalid) {
			t.Error("a long name:", err)
		}
		if _, err := w.e.Plan(ctx, topic, "nobody"); !errors.Is(err, group.ErrNotFound) {
			t.Error("no such group:", err)
		}
	})
}

func TestPartsAreToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _, hands := three(t, byTopic)
		ctx := context.Background()
		keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "", ""}
		ev := w.publish(keys...)
		counts := make([]uint64, 3)
		for i := range ev {
			counts[event.PartitionFor(ev[i].Key, ev[i].ID, 3)]++
		}
		check := func(step string, lag uint64) {
			t.Helper()
			_, list, err := w.e.Parts(ctx, topic, "g")
			if err != nil {
				t.Fatal(err)
			}
			for n, x := range list {
				if x.Lag != counts[n] || !x.Exact || x.Number != n || !x.Here || x.Epoch == 0 {
					t.Errorf("%s: partition %d: %+v, want a lag of %d", step, n, x, counts[n])
				}
			}
			if i := w.info("g"); i.Lag != lag || i.Members != 3 || i.Settings.Partitions != 3 {
				t.Errorf("%s: %+v, want a lag of %d", step, i, lag)
			}
		}
		synctest.Wait()
		check("before", 10)
		left := uint64(10)
		for _, d := range takeAll(hands[0]) {
			if err := hands[0].m.Done(&d, nil); err != nil {
				t.Fatal(err)
			}
			counts[0]--
			left--
		}
		synctest.Wait()
		check("after the first partition", left)
		for _, h := range hands {
			for d := takeAll(h); len(d) > 0; d = takeAll(h) {
				for i := range d {
					if err := h.m.Done(&d[i], nil); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		counts = make([]uint64, 3)
		check("at the end", 0)
		if i := w.info("g"); i.Cursor != ev[9].Seq {
			t.Errorf("cursor %d at the end, want %d", i.Cursor, ev[9].Seq)
		}
	})
}

func TestPartsMoveAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p, plan, hands := three(t, byTopic)
		ctx := context.Background()
		ev := w.publish("a", "b", "c")
		for _, h := range hands {
			for _, d := range takeAll(h) {
				if err := h.m.Done(&d, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		if err := w.e.Move(ctx, topic, "g", group.Start{From: group.FromSeq, Seq: ev[0].Seq}); err != nil {
			t.Fatal(err)
		}
		now, err := w.e.Plan(ctx, topic, "g")
		if err != nil || now == plan {
			t.Fatalf("the plan after a move is %v, %v", now, err)
		}
		if _, err := w.e.JoinPart(ctx, topic, "g", plan, 0, group.PartOptions{}); !errors.Is(err, group.ErrPlan) {
			t.Error("a member of the old plan:", err)
		}
		for _, h := range hands {
			if d := takeAll(h); len(d) > 0 {
				t.Errorf("a member of the old plan gets %+v", d)
			}
		}
		got := 0
		for n := range now.Count {
			h := p.joinPart(w.e, now, n)
			got += len(takeAll(h))
		}
		if got != 2 {
			t.Errorf("%d events after the move, want 2", got)
		}
		if err := w.e.Delete(ctx, topic, "g"); !errors.Is(err, group.ErrInvalid) {
			t.Error("delete a group with members:", err)
		}
		for _, h := range p.hands {
			h.m.Leave()
		}
		if err := w.e.Delete(ctx, topic, "g"); err != nil {
			t.Fatal(err)
		}
		for c, err := range w.log.Cursors(ctx, topic) {
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(c.Group, ":g") || c.Group == "g" {
				t.Errorf("cursor %q stays behind", c.Group)
			}
		}
	})
}

func TestPartsChangeAndPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _, hands := three(t, byTopic)
		ctx := context.Background()
		if err := w.e.Change(ctx, topic, "g", group.Settings{MaxAttempts: 2}); err != nil {
			t.Fatal(err)
		}
		if err := w.e.Change(ctx, topic, "g", group.Settings{Ordering: group.ByTopic}); !errors.Is(err, group.ErrConflict) {
			t.Error("another order:", err)
		}
		if err := w.e.Pause(ctx, topic, "g"); err != nil {
			t.Fatal(err)
		}
		ev := w.publish("a")
		h := at(hands, &ev[0])
		if d := takeAll(h); len(d) > 0 {
			t.Error("a paused group hands out")
		}
		if err := w.e.Resume(ctx, topic, "g"); err != nil {
			t.Fatal(err)
		}
		d := takeAll(h)
		if len(d) != 1 || d[0].MaxAttempts != 2 {
			t.Fatalf("after all that: %+v", d)
		}
	})
}

func TestDeadLettersOfParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := byTopic
		set.DeadLetter = group.DeadKey
		w, p, plan, hands := three(t, set)
		ev := w.publish("a", "a", "b")
		h := at(hands, &ev[0])
		for _, d := range takeAll(h) {
			if d.Event.Key == "a" {
				if err := h.m.Done(&d, &group.Nack{Reason: "no", Dead: true}); err != nil {
					t.Fatal(err)
				}
			} else if err := h.m.Done(&d, nil); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		letters := w.letters("g")
		if len(letters) != 2 { // the second has followed its key
			t.Fatalf("%d dead letters, want 2", len(letters))
		}
		if err := w.e.Redeliver(context.Background(), topic, "g", letters); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if i == 1 {
				h = p.joinPart(w.e, plan, h.number) // whoever has the partition next finds the rest
			}
			d := takeAll(h)
			if len(d) != 1 || d[0].Event.ID != ev[i].ID {
				t.Fatalf("replayed: %+v, want seq %d", d, ev[i].Seq)
			}
			if err := h.m.Done(&d[0], nil); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for _, o := range hands {
			if o.number != h.number {
				for _, d := range takeAll(o) {
					if d.Event.Key == "a" {
						t.Errorf("partition %d has an event of another", o.number)
					}
				}
			}
		}
	})
}

// TestOrderOfOwnKeys has a group divided, and ordered, by something that is no
// key of the log's.
func TestOrderOfOwnKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.e.Shrink(20, 1000, 1000, 2, 16<<20) // a key has more events than are held
		ctx := context.Background()
		plan, err := w.e.MakeParted(ctx, topic, "g", group.Settings{Partitions: 4}, group.Start{From: group.Earliest})
		if err != nil {
			t.Fatal(err)
		}
		host := func(e *event.Event) string {
			h, _, _ := strings.Cut(e.Key, "/")
			return h
		}
		var members []*group.Member
		for n := range plan.Count {
			m, err := w.e.JoinPart(ctx, topic, "g", plan, n, group.PartOptions{KeyOf: host})
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, m)
		}
		var keys []string
		for range 30 {
			keys = append(keys, "x/1", "y/1", "x/2", "z/9", "x/3")
		}
		ev := w.publish(keys...)
		last := make(map[string]uint64)
		place := make(map[string]int)
		idle := 0
		for done := 0; done < len(ev); {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			before := done
			for n, m := range members {
				open := make(map[string]bool)
				for _, d := range m.Take(10) {
					h := host(&d.Event)
					if was, ok := place[h]; ok && was != n {
						t.Fatalf("host %s is at partition %d and at %d", h, was, n)
					}
					if place[h] = n; d.Event.Seq < last[h] || open[h] {
						t.Fatalf("seq %d of host %s comes after %d", d.Event.Seq, h, last[h])
					}
					last[h], open[h] = d.Event.Seq, true
					if err := m.Done(&d, nil); err != nil {
						t.Fatal(err)
					}
					done++
				}
			}
			if idle++; done > before {
				idle = 0
			}
			if idle == 3 { // a take may wait for a record
				t.Fatalf("%d of %d events are handed out", done, len(ev))
			}
		}
	})
}

// TestPartsOfATrimmedTopic goes on behind what retention has removed.
func TestPartsOfATrimmedTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _, hands := three(t, byTopic)
		ev := w.publish("a", "b", "c", "d", "e", "f")
		for _, h := range hands {
			h.m.Leave()
		}
		if err := w.log.Trim(context.Background(), topic, ev[4].Seq); err != nil {
			t.Fatal(err)
		}
		plan, err := w.e.Plan(context.Background(), topic, "g")
		if err != nil {
			t.Fatal(err)
		}
		p := newParted(t, 1)
		got := 0
		for n := range plan.Count {
			h := p.joinPart(w.e, plan, n)
			for d := takeAll(h); len(d) > 0; d = takeAll(h) {
				for i := range d {
					if d[i].Event.Seq < ev[4].Seq {
						t.Errorf("seq %d is gone and comes", d[i].Event.Seq)
					}
					got++
					if err := h.m.Done(&d[i], nil); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if got != 2 {
			t.Errorf("%d events, want 2", got)
		}
		synctest.Wait()
		if i := w.info("g"); i.Lag != 0 {
			t.Errorf("lag %d at the end", i.Lag)
		}
	})
}

// TestPartsOfAnEmptyTopic changes the number before there is anything to divide.
func TestPartsOfAnEmptyTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t), context.Background()
		p := newParted(t, 1)
		for i, want := range []int{1, 5, 2} {
			if err := w.e.SetPartitions(ctx, topic, 1, want, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
			plan, err := w.e.MakeParted(ctx, topic, "g", byTopic, group.Start{From: group.Earliest})
			if err != nil || plan.Count != want {
				t.Fatalf("change %d: %+v, %v, want %d partitions", i, plan, err, want)
			}
			for n := range plan.Count {
				p.joinPart(w.e, plan, n)
			}
			synctest.Wait()
		}
	})
}
