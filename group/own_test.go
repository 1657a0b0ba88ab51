package group_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean/group"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

// hub is one of several engines over one log.
type hub struct {
	world
	cut  atomic.Bool
	late atomic.Int64
}

// hubs makes engines that share a log. The log is closed after them.
func hubs(t *testing.T, n int) []*hub {
	first := newWorld(t)
	if err := first.e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	log := storetest.Share(first.log.(*logstore.Store))
	var out []*hub
	for i := range n {
		h := &hub{world: world{t: t, log: first.log}}
		h.e = group.New(cutLog{log, log, &h.cut, &h.late}, group.Options{Owner: fmt.Sprint("hub ", i)})
		out = append(out, h)
		t.Cleanup(func() {
			if err := h.e.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return out
}

func TestOneHubOwnsAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hubs(t, 2)
		a := h[0].join("g", group.Settings{}, group.MemberOptions{})
		synctest.Wait()
		b := h[1].join("g", group.Settings{}, group.MemberOptions{})
		ev := h[0].publish("x", "y", "z")
		d := a.next()
		time.Sleep(time.Minute) // renewed many times
		if _, ok := b.try(); ok {
			t.Fatal("both hubs hand out")
		}
		for _, call := range []func() error{
			func() error { _, err := h[1].e.Ack(topic, "g", []group.Selected{{ID: ev[0].ID}}, false); return err },
			func() error {
				_, err := h[1].e.Nack(topic, "g", []group.Selected{{ID: ev[0].ID}}, group.Nack{})
				return err
			},
			func() error { return h[1].e.Redeliver(context.Background(), topic, "g", nil) },
			func() error { return h[1].e.Delete(context.Background(), topic, "g") },
		} {
			if err := call(); !errors.Is(err, group.ErrNotOwner) && !errors.Is(err, group.ErrInvalid) {
				t.Errorf("%v, want that another hub owns the group", err)
			}
		}
		if i := h[1].info("g"); i.Lag != 3 || i.Members != 1 {
			t.Errorf("the other hub says %+v", i)
		}
		// The owner leaves; its lease of the event had expired by then.
		a.Leave()
		seen := map[uint64]int{}
		for range ev {
			d := b.next()
			seen[d.Event.Seq] = d.Attempt
		}
		if want := map[uint64]int{d.Event.Seq: 2, 2: 1, 3: 1}; !maps.Equal(seen, want) {
			t.Fatalf("attempts by seq: %v, want %v", seen, want)
		}
	})
}

// A hub that closes leaves nobody suspect, and what it gave back does not
// count.
func TestAHubLeavesCleanly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hubs(t, 2)
		a := h[0].join("g", group.Settings{}, group.MemberOptions{})
		synctest.Wait()
		b := h[1].join("g", group.Settings{}, group.MemberOptions{})
		h[0].publish("x", "y", "z")
		a.next()
		a.ack(a.next())
		began := time.Now()
		if err := h[0].e.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		first, second := b.next(), b.next() // two at a time: nobody is suspect
		if first.Event.Seq != 1 || second.Event.Seq != 3 || first.Attempt != 1 || second.Attempt != 1 {
			t.Errorf("seq %d, attempt %d and seq %d, attempt %d", first.Event.Seq, first.Attempt, second.Event.Seq, second.Attempt)
		}
		if took := time.Since(began); took > group.DefaultOwnFor/2 {
			t.Errorf("it took %v", took)
		}
	})
}

// A hub that cannot reach the store stops handing out before its time is over,
// and what its handlers ack later is refused. The other one has the group then.
func TestACutOffHubStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hubs(t, 2)
		a := h[0].join("g", group.Settings{AckTimeout: time.Hour}, group.MemberOptions{})
		synctest.Wait()
		b := h[1].join("g", group.Settings{}, group.MemberOptions{})
		h[0].publish("x", "y", "z")
		d := a.next()
		a.ack(a.next())
		h[0].cut.Store(true)
		began := time.Now()
		var theirs group.Delivery
		for ok := false; !ok; theirs, ok = b.try() {
			if got := a.Take(1); len(got) > 0 && time.Since(began) >= group.DefaultOwnFor {
				t.Fatalf("seq %d is handed out %v after the cut", got[0].Event.Seq, time.Since(began))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took < group.DefaultOwnFor/2 || took > 2*group.DefaultOwnFor {
			t.Errorf("taken over after %v", took)
		}
		if theirs.Event.Seq != 1 || theirs.Attempt != 2 {
			t.Errorf("seq %d, attempt %d; want 1 and 2", theirs.Event.Seq, theirs.Attempt)
		}
		h[0].cut.Store(false)
		if err := a.Done(&d, nil); !errors.Is(err, group.ErrFenced) && !errors.Is(err, group.ErrNotOwner) {
			t.Errorf("a late ack: %v", err)
		}
		if at, alive := a.Alive(&d); alive {
			t.Errorf("the late delivery is alive until %v", at)
		}
		synctest.Wait()
		if i := h[1].info("g"); i.Cursor != 0 {
			t.Errorf("the late ack counts: %+v", i)
		}
		b.ack(theirs)
		for range 1 {
			b.ack(b.next())
		}
		if i := h[1].info("g"); i.Lag != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// A hub that is not answered in time stops by itself, and begins anew when it
// is: what it had handed out before is over, and comes again.
func TestAnOwnerThatIsNotAnsweredStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hubs(t, 1)
		a := h[0].join("g", group.Settings{AckTimeout: time.Hour}, group.MemberOptions{})
		ev := h[0].publish("x", "x", "y")
		d := a.next()
		h[0].late.Store(int64(group.DefaultOwnFor))
		synctest.Wait()
		time.Sleep(group.DefaultOwnFor/3 + group.DefaultOwnFor - group.DefaultOwnFor/10)
		if got := a.Take(2); len(got) > 0 {
			t.Fatalf("seq %d is handed out by one who may not be the owner", got[0].Event.Seq)
		}
		if at, alive := a.Alive(&d); alive {
			t.Errorf("the delivery is alive until %v", at)
		}
		h[0].late.Store(0)
		// An ack waits for the answer, takes the group again and counts.
		if r, err := h[0].e.Ack(topic, "g", []group.Selected{{ID: d.Event.ID}}, false); err != nil || r[0].Err != nil {
			t.Fatal(err, r)
		}
		for range ev[1:] {
			a.ack(a.next())
		}
		synctest.Wait()
		if i := h[0].info("g"); i.Lag != 0 || i.InFlight != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// An owner that does not notice that its time is over, because it was stopped,
// changes nothing: the epoch refuses it.
func TestALateSettlementIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hubs(t, 2)
		a := h[0].join("g", group.Settings{AckTimeout: time.Hour}, group.MemberOptions{})
		synctest.Wait()
		ev := h[0].publish("x", "y")
		d := a.next()
		// Somebody takes the group over although the lease is not over: what
		// the first owner says now comes too late.
		c, err := h[0].log.Cursor(context.Background(), topic, "g")
		if err != nil {
			t.Fatal(err)
		}
		c.Epoch++
		if _, err := h[0].log.PutCursor(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		if _, err := h[0].e.Ack(topic, "g", []group.Selected{{ID: d.Event.ID}}, false); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("ack: %v, want fenced", err)
		}
		if i := h[0].info("g"); i.Cursor != 0 {
			t.Fatalf("the cursor is %d", i.Cursor)
		}
		// It begins again from the cursor.
		if again := a.next(); again.Event.ID != ev[0].ID || again.Attempt != 2 {
			t.Errorf("seq %d, attempt %d", again.Event.Seq, again.Attempt)
		}
	})
}

// Moving the cursor works from any hub; the owner begins again there.
func TestMoveFromAnotherHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hubs(t, 2)
		a := h[0].join("g", group.Settings{}, group.MemberOptions{})
		synctest.Wait()
		h[0].publish("x", "y", "z")
		for range 3 {
			a.ack(a.next())
		}
		if err := h[1].e.Move(context.Background(), topic, "g", group.Start{From: group.FromSeq, Seq: 1}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if d := a.next(); d.Event.Seq != 2 || d.Attempt != 1 {
			t.Errorf("seq %d, attempt %d; want 2 and 1", d.Event.Seq, d.Attempt)
		}
		if took := time.Since(began); took > group.DefaultOwnFor {
			t.Errorf("the owner noticed after %v", took)
		}
	})
}

// Dead letters written and not settled, because the hub died between the two,
// are not doubled by the next owner.
func TestDeadLetterIsNotDoubled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hubs(t, 2)
		set := group.Settings{MaxAttempts: 2}
		a := h[0].join("g", set, group.MemberOptions{})
		synctest.Wait()
		b := h[1].join("g", set, group.MemberOptions{})
		h[0].publish("x", "y")
		d := a.next()
		h[0].nack("g", d.Event.ID, group.Nack{HasDelay: true})
		for d = a.next(); d.Event.Seq != 1; d = a.next() {
		}
		// The settlement is refused, the dead letter is there by then.
		c, err := h[0].log.Cursor(context.Background(), topic, "g")
		if err != nil {
			t.Fatal(err)
		}
		c.Epoch++
		if _, err := h[0].log.PutCursor(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		if err := a.Done(&d, &group.Nack{Reason: "no"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(h[1].letters("g")); n != 1 {
			t.Fatalf("%d dead letters, want 1", n)
		}
		h[0].cut.Store(true)
		if d := b.next(); d.Event.Seq != 2 {
			t.Fatalf("seq %d is delivered", d.Event.Seq)
		}
		if n := len(h[1].letters("g")); n != 1 {
			t.Fatalf("%d dead letters, want 1", n)
		}
		h[0].cut.Store(false)
	})
}

// Members learn who owns their group, and can have it sought at once.
func TestMembersLearnOfTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		h := hubs(t, 2)
		if _, err := h[0].e.OwnerOf(ctx, topic, "g"); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("the owner of a group that is not there: %v", err)
		}
		told := make([]atomic.Pointer[bool], 2)
		var members []*group.Member
		for i := range h {
			m, err := h[i].e.Join(ctx, topic, "g", group.Settings{}, group.Start{}, group.MemberOptions{Owned: func(is bool) { told[i].Store(&is) }})
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, m)
			synctest.Wait()
		}
		want := func(owner int) {
			t.Helper()
			for i := range h {
				if got, err := h[i].e.OwnerOf(ctx, topic, "g"); err != nil || got != h[owner].e.Owner() {
					t.Errorf("hub %d says that the owner is %q, %v", i, got, err)
				}
				if is := told[i].Load(); is == nil || *is != (i == owner) || h[i].e.Owns(topic, "g") != (i == owner) {
					t.Errorf("hub %d is told %v, and owns it: %v", i, is, h[i].e.Owns(topic, "g"))
				}
			}
		}
		want(0)
		var not *group.NotOwnerError
		if _, err := h[1].e.Ack(topic, "g", nil, false); !errors.As(err, &not) || not.Topic != topic || not.Group != "g" || !errors.Is(err, group.ErrNotOwner) {
			t.Errorf("ack where it is not owned: %v", err)
		}
		members[0].Leave()
		synctest.Wait()
		members[1].Seek()
		synctest.Wait() // no time passes
		told[0].Store(new(false))
		want(1)
		// It cannot renew: it says so before its time is over.
		h[1].cut.Store(true)
		time.Sleep(group.DefaultOwnFor)
		if *told[1].Load() || h[1].e.Owns(topic, "g") {
			t.Error("a hub that is cut off says that it owns the group")
		}
		h[1].cut.Store(false)
		members[1].Seek()
		synctest.Wait()
		want(1)
	})
}
