package partition_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean/partition"
)

// The hooks of a partition come before its first and after its last event.
func TestHooks(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var calls []string
		note := func(what string) func(context.Context, int) error {
			return func(context.Context, int) error {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, what)
				return nil
			}
		}
		slow := func(ctx context.Context, n int) error {
			time.Sleep(2 * time.Second)
			return note("a assigned")(ctx, n)
		}
		a := w.work(partition.Partitions(1), partition.OnAssigned(slow), partition.OnRevoked(note("a revoked")))
		w.publish("x")
		w.settle()
		if a.count() != 0 {
			t.Fatal("an event came before the hook was through")
		}
		if got := a.partitions(); !slices.Equal(got, []int{0}) {
			t.Fatalf("it is told of %v", got)
		}
		time.Sleep(2 * time.Second)
		w.settle()
		if a.count() != 1 {
			t.Fatalf("%d events after the hook", a.count())
		}
		b := w.work(partition.Partitions(1), partition.OnAssigned(note("b assigned")), partition.OnRevoked(note("b revoked")))
		w.stop(a)
		w.publish("y")
		w.settle()
		w.stop(b)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"a assigned", "a revoked", "b assigned", "b revoked"}; !slices.Equal(calls, want) {
			t.Errorf("calls %v", calls)
		}
		if b.count() != 1 {
			t.Errorf("%d events at the second", b.count())
		}
	})
}

// A member whose hook fails, panics or hangs does not get the partition, if
// another can have it.
func TestHookFails(t *testing.T) {
	left := make(chan struct{})
	for name, hook := range map[string]func(context.Context, int) error{
		"fails":  func(context.Context, int) error { return errors.New("no space") },
		"panics": func(context.Context, int) error { panic("oh") },
		"hangs": func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"hangs for ever": nil,
	} {
		t.Run(name, func(t *testing.T) {
			in(t, partition.Options{}, func(t *testing.T, w *world) {
				if hook == nil {
					left = make(chan struct{})
					hook = func(context.Context, int) error {
						<-left
						return nil
					}
					defer close(left)
				}
				b := w.work(partition.MemberID("b"))
				a := w.work(partition.MemberID("a"), partition.OnAssigned(hook))
				if len(a.partitions()) > 4 {
					t.Fatalf("it has %v", a.partitions())
				}
				w.publish(keys(40)...)
				w.until(func() bool { return b.count() == 40 })
				if a.count() != 0 || !strings.Contains(w.log.String(), "take a partition") {
					t.Errorf("%d events at the other, log:\n%s", a.count(), w.log)
				}
			})
		})
	}
}

// Where there is nobody else, a partition that could not be taken is tried
// again, at growing distances.
func TestHookFailsAlone(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var at []time.Time
		a := w.work(partition.Partitions(1), partition.OnAssigned(func(context.Context, int) error {
			mu.Lock()
			defer mu.Unlock()
			if at = append(at, time.Now()); len(at) < 4 {
				return errors.New("not yet")
			}
			return nil
		}))
		w.publish("x")
		w.until(func() bool { return a.count() == 1 })
		mu.Lock()
		defer mu.Unlock()
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			if got := at[i+1].Sub(at[i]); got < want || got > want+100*time.Millisecond {
				t.Errorf("try %d came %v after the one before", i+2, got)
			}
		}
	})
}

// A hook that does not end when a partition is let go of does not keep it.
func TestRevokedHangs(t *testing.T) {
	in(t, partition.Options{HookTimeout: 5 * time.Second}, func(t *testing.T, w *world) {
		left := make(chan struct{})
		defer close(left)
		a := w.work(partition.Partitions(1), partition.MemberID("a"), partition.OnRevoked(func(context.Context, int) error {
			<-left
			return nil
		}))
		b := w.work(partition.Partitions(1), partition.MemberID("b"))
		began := time.Now()
		if err := a.sub.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.until(func() bool { return len(b.partitions()) == 1 })
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("it moved after %v", took)
		}
		if !strings.Contains(w.log.String(), "let go of a partition") {
			t.Errorf("log:\n%s", w.log)
		}
	})
}

// A hook that panics when a partition is let go of does not keep it either.
func TestRevokedPanics(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		a := w.work(partition.OnRevoked(func(context.Context, int) error { panic("oh") }))
		b := w.work()
		w.stop(a)
		if len(b.partitions()) != 8 || !strings.Contains(w.log.String(), "panic: oh") {
			t.Errorf("the other has %v, log:\n%s", b.partitions(), w.log)
		}
	})
}

// Who comes and goes all the time does not keep the others busy.
func TestFlapping(t *testing.T) {
	in(t, partition.Options{}, func(t *testing.T, w *world) {
		b := w.work(partition.MemberID("b"))
		for range 5 {
			w.stop(w.work(partition.MemberID("f")))
		}
		f := w.work(partition.MemberID("f"))
		if len(f.partitions()) != 0 || len(b.partitions()) != 8 {
			t.Fatalf("it has %v, and the other %v", f.partitions(), b.partitions())
		}
		s, err := w.c.Show(t.Context(), topic, "g")
		if err != nil || s.Members[1].Damped.IsZero() {
			t.Fatalf("%+v, %v", s.Members, err)
		}
		w.until(func() bool { return len(f.partitions()) == 4 })
		if late := time.Since(s.Members[1].Damped); late < 0 || late > 100*time.Millisecond {
			t.Errorf("it has its share %v after that was said", late)
		}
	})
}
