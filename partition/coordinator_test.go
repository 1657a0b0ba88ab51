package partition_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/partition"
	"promethean/store"
)

// Members share the partitions evenly, and whoever leaves loses nothing.
func TestShare(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		a := w.work()
		w.publish(keys(40)...)
		w.settle()
		if len(a.partitions()) != 8 || a.count() != 40 {
			t.Fatalf("the only member has %v and got %d", a.partitions(), a.count())
		}
		b := w.work()
		if len(a.partitions()) != 4 || len(b.partitions()) != 4 {
			t.Fatalf("partitions %v and %v", a.partitions(), b.partitions())
		}
		w.publish(keys(40)...)
		w.settle()
		if a.count()+b.count() != 80 || b.count() == 0 {
			t.Fatalf("%d and %d of 80", a.count(), b.count())
		}
		for _, e := range b.got {
			if n := event.PartitionFor(e.Key, e.ID, 8); !slices.Contains(b.partitions(), n) {
				t.Errorf("key %s of partition %d came to the member with %v", e.Key, n, b.partitions())
			}
		}
		w.stop(a)
		w.publish(keys(40)...)
		w.settle()
		if len(b.partitions()) != 8 || a.count()+b.count() != 120 {
			t.Fatalf("partitions %v, %d and %d of 120", b.partitions(), a.count(), b.count())
		}
	})
}

// What the group looks like can be seen.
func TestShow(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		if _, err := w.c.Show(t.Context(), topic, "g"); !errors.Is(err, group.ErrNotFound) {
			t.Fatalf("before there is one: %v", err)
		}
		began := time.Now()
		w.work(partition.MemberID("a"), partition.Meta(map[string]string{"host": "x"}))
		b := w.work(partition.MemberID("b"))
		w.publish(keys(10)...)
		w.settle()
		s, err := w.c.Show(t.Context(), topic, "g")
		if err != nil {
			t.Fatal(err)
		}
		if s.Generation != 2 || s.Plan.Count != 8 || len(s.Members) != 2 || len(s.Partitions) != 8 {
			t.Fatalf("%+v", s)
		}
		if m := s.Members[0]; m.ID != "a" || !m.Static || m.Meta["host"] != "x" || m.Joined.Before(began) || m.Seen.Before(m.Joined) || len(m.Partitions) != 4 {
			t.Errorf("member %+v", m)
		}
		if !slices.Equal(s.Members[1].Partitions, b.partitions()) {
			t.Errorf("member %+v, and has %v", s.Members[1], b.partitions())
		}
		for _, p := range s.Partitions {
			if p.Owner == "" || p.Owner != p.Holder || p.Epoch == 0 || p.Lag != 0 || !p.Here {
				t.Errorf("partition %+v", p)
			}
		}
		if r := s.Rebalance; r.Moved != 4 || r.Pending != 0 || r.Took > 50*time.Millisecond || r.At.Before(began) {
			t.Errorf("rebalance %+v", r)
		}
		var names []string
		for i, err := range w.c.Groups(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, i.Group)
		}
		if !slices.Equal(names, []string{"g"}) {
			t.Errorf("groups %v", names)
		}
	})
}

// A member that chose its id has its partitions back when it comes again.
func TestStaticMember(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		a, lost := w.raw(partition.Join{Member: "a"})
		b := w.work(partition.MemberID("b"))
		w.settle()
		before := a.partitions()
		lost.Drop()
		time.Sleep(10 * time.Second)
		w.settle()
		if len(b.partitions()) != 4 {
			t.Fatalf("while a is away, b has %v", b.partitions())
		}
		s, err := w.c.Show(t.Context(), topic, "g")
		if err != nil || s.Members[0].Away.IsZero() {
			t.Fatalf("%+v %v", s.Members, err)
		}
		a, back := w.raw(partition.Join{Member: "a"})
		w.settle()
		if !slices.Equal(a.partitions(), before) || len(b.partitions()) != 4 {
			t.Fatalf("back again it has %v in place of %v", a.partitions(), before)
		}
		again, err := w.c.Show(t.Context(), topic, "g")
		if err != nil || again.Generation != s.Generation {
			t.Errorf("generation %d after %d, %v", again.Generation, s.Generation, err)
		}
		back.Drop()
		began := time.Now()
		w.until(func() bool { return len(b.partitions()) == 8 })
		if took := time.Since(began); took < 15*time.Second || took > 15*time.Second+500*time.Millisecond {
			t.Errorf("its partitions went after %v", took)
		}
	})
}

// A member without an id of its own leaves at once.
func TestDynamicMember(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		_, ms := w.raw(partition.Join{})
		b := w.work()
		w.settle()
		ms.Drop()
		began := time.Now()
		w.until(func() bool { return len(b.partitions()) == 8 })
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("its partitions went after %v", took)
		}
		if err := ms.Heartbeat(); !errors.Is(err, partition.ErrLeft) {
			t.Errorf("a heartbeat of one that is gone: %v", err)
		}
	})
}

// Of two members with one id the older is fenced and told, and the newer has
// what it had.
func TestTwoWithOneID(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		a := w.work(partition.MemberID("a"))
		w.work(partition.MemberID("b"))
		before := a.partitions()
		s, err := w.c.Show(t.Context(), topic, "g")
		if err != nil {
			t.Fatal(err)
		}
		c := w.work(partition.MemberID("a"))
		if !errors.Is(a.fenced, partition.ErrFenced) {
			t.Errorf("the older one was told %v", a.fenced)
		}
		if !slices.Equal(c.partitions(), before) {
			t.Errorf("the newer one has %v in place of %v", c.partitions(), before)
		}
		again, err := w.c.Show(t.Context(), topic, "g")
		if err != nil || again.Generation != s.Generation {
			t.Errorf("generation %d after %d, %v", again.Generation, s.Generation, err)
		}
		n := a.count()
		w.publish(keys(40)...)
		w.settle()
		if a.count() != n || c.count() == 0 {
			t.Errorf("the older one got %d more, the newer %d", a.count()-n, c.count())
		}
		if err := a.sub.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A member that is not heard of is swept after the TTL, whatever it holds, and
// what it says then does not count.
func TestSilentMember(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		a, ms := w.raw(partition.Join{Member: "a"})
		w.publish(keys(8)...)
		w.settle()
		held := a.take()
		b := w.work()
		began := time.Now()
		if err := ms.Heartbeat(); err != nil {
			t.Fatal(err)
		}
		w.until(func() bool { return len(b.partitions()) == 8 && b.count() == 8 })
		// What has moved by then was drained first, for as long as that may take.
		if took := time.Since(began); took < 15*time.Second || took > 15*time.Second+500*time.Millisecond {
			t.Errorf("everything was at the other after %v", took)
		}
		if err := ms.Heartbeat(); !errors.Is(err, partition.ErrSwept) || !errors.Is(a.fenced, partition.ErrSwept) {
			t.Errorf("it is told %v and %v", err, a.fenced)
		}
		for _, d := range held {
			if err := d.m.Done(&d.Delivery, nil); !errors.Is(err, group.ErrFenced) {
				t.Errorf("a late ack: %v", err)
			}
		}
	})
}

// A partition moves when what its member holds is done, and not before.
func TestDrain(t *testing.T) {
	for _, x := range []struct {
		name  string
		takes time.Duration
		moves time.Duration
	}{
		{"in time", 3 * time.Second, 3 * time.Second},
		{"too late", time.Minute, 10 * time.Second},
	} {
		t.Run(x.name, func(t *testing.T) {
			in(t, partition.Options{}, func(t *testing.T, w *world) {
				var mu sync.Mutex
				var ended []error
				sub, err := partition.SubscribePartitioned(t.Context(), w.c, topic, "g", func(ctx context.Context, _ event.Event, _ *promethean.Delivery) error {
					select {
					case <-time.After(x.takes):
					case <-ctx.Done():
					}
					mu.Lock()
					defer mu.Unlock()
					ended = append(ended, ctx.Err())
					return ctx.Err()
				}, partition.Partitions(1), partition.Using(promethean.FromEarliest(), promethean.AckTimeout(time.Hour)))
				if err != nil {
					t.Fatal(err)
				}
				w.publish("x")
				w.settle()
				b := w.work(partition.Partitions(1), partition.Using(promethean.AckTimeout(time.Hour)))
				began := time.Now()
				go func() { _ = sub.Stop(context.Background()) }()
				w.until(func() bool { return len(b.partitions()) == 1 })
				if took := time.Since(began); took < x.moves-500*time.Millisecond || took > x.moves+500*time.Millisecond {
					t.Errorf("it moved after %v", took)
				}
				w.settle()
				mu.Lock()
				defer mu.Unlock()
				if late := x.takes > x.moves; len(ended) != 1 || late != (ended[0] != nil) || late != (b.count() == 1) {
					t.Errorf("the handler ended with %v, and the event came again %d times", ended, b.count())
				}
			})
		})
	}
}

// Partitions that do not move go on as if nothing happened, and what a member
// leaves is at work elsewhere in no time.
func TestNoPause(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		w.publish(keys(64)...)
		type mark struct {
			at time.Time
			by string
		}
		var mu sync.Mutex
		last := make(map[int]mark)
		stay, move := time.Duration(0), time.Duration(0)
		work := func(id string) promethean.Subscription {
			sub, err := partition.SubscribePartitioned(t.Context(), w.c, topic, "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
				n := event.PartitionFor(e.Key, e.ID, 16)
				mu.Lock()
				defer mu.Unlock()
				now := mark{time.Now(), id}
				if m, ok := last[n]; ok && m.by == id {
					stay = max(stay, now.at.Sub(m.at))
				} else if ok {
					move = max(move, now.at.Sub(m.at))
				}
				last[n] = now
				return nil
			}, partition.Partitions(16), partition.MemberID(id))
			if err != nil {
				t.Fatal(err)
			}
			return sub
		}
		var subs []promethean.Subscription
		tick := func() {
			for range 40 {
				w.publish(keys(64)...)
				time.Sleep(5 * time.Millisecond)
			}
		}
		for _, id := range []string{"a", "b", "c", "d"} {
			subs = append(subs, work(id))
			tick()
		}
		for _, s := range subs[:3] {
			go func() { _ = s.Stop(context.Background()) }()
			tick()
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if stay > 50*time.Millisecond || move > 200*time.Millisecond {
			t.Errorf("partitions that stay paused for %v, those that move for %v", stay, move)
		}
	})
}

// A topic that gets another number of partitions has its groups divided anew,
// when all that was before is done.
func TestAnotherNumber(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		set := func(n int) {
			if err := w.hub.SetTopic(t.Context(), topic, store.Settings{Partitions: n}); err != nil {
				t.Fatal(err)
			}
		}
		set(4)
		var mu sync.Mutex
		has := make(map[int]int)
		hook := func(by int) func(context.Context, int) error {
			return func(_ context.Context, n int) error {
				mu.Lock()
				defer mu.Unlock()
				if has[n] += by; has[n] < 0 || has[n] > 1 {
					t.Errorf("partition %d is assigned %d times", n, has[n])
				}
				return nil
			}
		}
		opts := []partition.Option{partition.Partitions(0), partition.OnAssigned(hook(1)), partition.OnRevoked(hook(-1))}
		a, b := w.work(opts...), w.work(opts...)
		total := 0
		for _, n := range []int{6, 2, 9} {
			w.publish(keys(30)...)
			set(n)
			w.publish(keys(30)...)
			time.Sleep(3 * time.Second)
			w.settle()
			total += 60
			if a.count()+b.count() != total {
				t.Fatalf("%d and %d of %d", a.count(), b.count(), total)
			}
			all := slices.Sorted(slices.Values(append(a.partitions(), b.partitions()...)))
			if len(all) != n || len(slices.Compact(all)) != n {
				t.Fatalf("partitions %v and %v of %d", a.partitions(), b.partitions(), n)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for n, count := range has {
			if want := 1; n < 9 && count != want {
				t.Errorf("partition %d is assigned %d times", n, count)
			}
		}
	})
}

// That is so too if everything was done long before.
func TestAnotherNumberLater(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		if err := w.hub.SetTopic(t.Context(), topic, store.Settings{Partitions: 4}); err != nil {
			t.Fatal(err)
		}
		a := w.work(partition.Partitions(0))
		w.publish("x")
		w.settle()
		if err := w.hub.SetTopic(t.Context(), topic, store.Settings{Partitions: 6}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		w.publish("x")
		began := time.Now()
		w.until(func() bool { return a.count() == 2 })
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the next event came after %v", took)
		}
	})
}

// A cursor that is moved brings everything again.
func TestMoved(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		a, b := w.work(), w.work()
		w.publish(keys(30)...)
		w.settle()
		if err := w.hub.SetCursor(t.Context(), topic, "g", promethean.Place{From: group.Earliest}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		w.settle()
		if a.count()+b.count() != 60 {
			t.Errorf("%d and %d of 60", a.count(), b.count())
		}
	})
}

// Partition and order follow what is said to be the key.
func TestKeyOf(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		half := func(e *event.Event) string { return strings.TrimSuffix(e.Key, "!") }
		a := w.work(partition.KeyOf(half))
		b := w.work(partition.KeyOf(half))
		for _, k := range keys(20) {
			w.publish(k, k+"!")
		}
		w.publish("", "", "") // no key at all
		w.settle()
		if a.count()+b.count() != 43 {
			t.Fatalf("%d and %d of 43", a.count(), b.count())
		}
		at := make(map[string]*worker)
		for _, k := range []*worker{a, b} {
			for _, e := range k.got {
				if key := half(&e); key != "" {
					if at[key] != nil && at[key] != k {
						t.Errorf("key %s is at two members", key)
					}
					at[key] = k
				}
			}
		}
	})
}

// Bad input is refused with a reason.
func TestRefused(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		handler := func(context.Context, event.Event, *promethean.Delivery) error { return nil }
		if _, err := w.hub.Subscribe(t.Context(), topic, "plain", handler); err != nil {
			t.Fatal(err)
		}
		w.work()
		for _, x := range []struct {
			name, group string
			err         error
			says        string
			opts        []partition.Option
		}{
			{"fewer than none", "n", group.ErrInvalid, "partitions -2", []partition.Option{partition.Partitions(-2)}},
			{"a million", "n", group.ErrInvalid, "1000000", []partition.Option{partition.Partitions(1_000_000)}},
			{"another number", "g", group.ErrConflict, "partitions is 8", []partition.Option{partition.Partitions(9)}},
			{"not partitioned", "plain", group.ErrConflict, "partitioned", nil},
			{"no name", "", group.ErrInvalid, "name", nil},
			{"a long name", strings.Repeat("x", 230), group.ErrInvalid, "name", nil},
			{"a long id", "n", group.ErrInvalid, "257", []partition.Option{partition.MemberID(strings.Repeat("x", 257))}},
			{"much to say", "n", group.ErrInvalid, "1024", []partition.Option{partition.Meta(map[string]string{"x": strings.Repeat("x", 1024)})}},
			{"a key that is not followed", "n", group.ErrInvalid, "key", []partition.Option{partition.KeyOf(func(*event.Event) string { return "" })}},
			{"several topics", "n", group.ErrInvalid, "one topic", []partition.Option{partition.Using(promethean.Topics("b"))}},
			{"a bad ordering", "n", group.ErrInvalid, "ordering", []partition.Option{partition.Using(promethean.Ordered("x"))}},
		} {
			_, err := partition.SubscribePartitioned(t.Context(), w.c, topic, x.group, handler, x.opts...)
			if !errors.Is(err, x.err) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s: %v", x.name, err)
			}
		}
		if _, err := partition.SubscribePartitioned(t.Context(), w.c, topic, "n", nil); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("no handler: %v", err)
		}
		if _, err := partition.SubscribePartitioned(t.Context(), w.c, "Not A Topic", "n", handler); !errors.Is(err, event.ErrInvalidTopic) {
			t.Errorf("no topic: %v", err)
		}
		if _, err := w.c.Join(t.Context(), topic, "n", partition.Join{}); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("nothing is said: %v", err)
		}
		if _, err := w.hub.Subscribe(t.Context(), topic, "g", handler); !errors.Is(err, group.ErrConflict) {
			t.Errorf("a plain member of a partitioned group: %v", err)
		}
		if _, err := partition.New(w.hub, partition.Options{TTL: -1}); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("a negative TTL: %v", err)
		}
	})
}

// A coordinator that is closed takes nobody, and has let go of everything.
func TestClose(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		revoked := 0
		a := w.work(partition.OnRevoked(func(context.Context, int) error {
			revoked++
			return nil
		}), partition.Partitions(1))
		w.publish("x")
		w.settle()
		if err := w.c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if revoked != 1 || a.count() != 1 {
			t.Errorf("%d partitions revoked, %d events", revoked, a.count())
		}
		_, err := partition.SubscribePartitioned(t.Context(), w.c, topic, "g", func(context.Context, event.Event, *promethean.Delivery) error { return nil })
		if !errors.Is(err, partition.ErrClosed) {
			// The settings are looked at first.
			if !errors.Is(err, group.ErrConflict) {
				t.Errorf("after Close: %v", err)
			}
		}
		if err := a.sub.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}
