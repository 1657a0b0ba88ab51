package partition_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/partition"
)

const topic = "work.done"

// world is a hub with a coordinator in virtual time.
type world struct {
	t   *testing.T
	hub *promethean.Hub
	c   *partition.Coordinator
	log *lines
}

// in runs a test in virtual time with a hub in memory. Nothing may be left
// behind at its end.
func in(t *testing.T, o partition.Options, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, log: new(lines)}
		var err error
		if w.hub, err = promethean.OpenMemory(promethean.Options{}); err != nil {
			t.Fatal(err)
		}
		o.Logger = slog.New(slog.NewTextHandler(w.log, nil))
		if w.c, err = partition.New(w.hub, o); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := w.c.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := w.hub.Close(); err != nil {
				t.Error(err)
			}
		}()
		f(t, w)
	})
}

// lines collects what is logged.
type lines struct {
	mu  sync.Mutex
	all []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, b...)
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.all)
}

func (w *world) publish(keys ...string) {
	w.t.Helper()
	events := make([]event.Event, len(keys))
	for i, k := range keys {
		events[i] = event.New(topic, []byte("{}"))
		events[i].Key = k
	}
	if _, err := w.hub.Publish(w.t.Context(), events...); err != nil {
		w.t.Fatal(err)
	}
}

// keys gives n keys.
func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("key-%d", i)
	}
	return out
}

// worker is a member that collects what it gets and is told.
type worker struct {
	mu     sync.Mutex
	got    []event.Event
	has    []int
	fenced error
	sub    promethean.Subscription
}

func (k *worker) partitions() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.has)
}

func (k *worker) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.got)
}

// work subscribes a worker and waits until everything is in place.
func (w *world) work(opts ...partition.Option) *worker {
	w.t.Helper()
	k := new(worker)
	all := append([]partition.Option{
		partition.Partitions(8), partition.Using(promethean.FromEarliest()),
		partition.OnChanged(func(_ uint64, list []int) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.has = list
		}),
		partition.OnFenced(func(err error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.fenced = err
		}),
	}, opts...)
	var err error
	k.sub, err = partition.SubscribePartitioned(w.t.Context(), w.c, topic, "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.got = append(k.got, e)
		return nil
	}, all...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	return k
}

// settle waits until a rebalance is through.
func (w *world) settle() {
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
}

func (w *world) stop(k *worker) {
	w.t.Helper()
	if err := k.sub.Stop(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

// until waits for something, in steps of virtual time.
func (w *world) until(f func() bool) {
	w.t.Helper()
	for range 100_000 {
		synctest.Wait()
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatalf("it does not come about; log:\n%s", w.log)
}

// delivery is one in somebody's hands.
type delivery struct {
	group.Delivery
	m *group.Member
}

// rawWorker is a member that takes only when it is told to.
type rawWorker struct {
	worker
	members []*group.Member
}

func (k *rawWorker) take() (list []delivery) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.members {
		for _, d := range m.Take(100) {
			list = append(list, delivery{d, m})
		}
	}
	return list
}

// raw makes a member that has to be heard of.
func (w *world) raw(o partition.Join) (*rawWorker, *partition.Membership) {
	w.t.Helper()
	k := new(rawWorker)
	o.Settings.Partitions = 8
	o.Start.From = group.Earliest
	o.Serve = func(_ int, join func(group.MemberOptions) (*group.Member, error)) (func(), error) {
		m, err := join(group.MemberOptions{})
		k.mu.Lock()
		defer k.mu.Unlock()
		k.members = append(k.members, m)
		return nil, err
	}
	o.Changed = func(_ uint64, list []int) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.has = list
	}
	o.Fenced = func(err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.fenced = err
	}
	ms, err := w.c.Join(w.t.Context(), topic, "g", o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	return k, ms
}

// ended is why the membership of a worker has ended by itself.
func (k *worker) ended() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fenced
}
