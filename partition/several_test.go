package partition_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/cluster"
	"promethean/event"
	"promethean/group"
	"promethean/partition"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

// cutLog is an engine that can be out of reach for one hub, as it is for one
// whose network is gone, and for ever for one that has died. The hub does not
// close it: others have it too.
type cutLog struct {
	*storetest.Shared
	cut *atomic.Bool
}

func (l cutLog) err() error {
	if l.cut.Load() {
		return fmt.Errorf("%w: cut off", store.ErrUnavailable)
	}
	return nil
}

func (cutLog) Close() error { return nil }

func (l cutLog) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	if err := l.err(); err != nil {
		return nil, err
	}
	return l.Shared.Append(ctx, b)
}

func (l cutLog) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	if err := l.err(); err != nil {
		return func(yield func(event.Event, error) bool) { yield(event.Event{}, err) }
	}
	return l.Shared.Read(ctx, q)
}

func (l cutLog) Cursor(ctx context.Context, topic, name string) (store.Cursor, error) {
	if err := l.err(); err != nil {
		return store.Cursor{}, err
	}
	return l.Shared.Cursor(ctx, topic, name)
}

func (l cutLog) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	if err := l.err(); err != nil {
		return 0, err
	}
	return l.Shared.PutCursor(ctx, c)
}

func (l cutLog) DeleteCursor(ctx context.Context, topic, name string, version uint64) error {
	if err := l.err(); err != nil {
		return err
	}
	return l.Shared.DeleteCursor(ctx, topic, name, version)
}

func (l cutLog) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	if err := l.err(); err != nil {
		return store.Lease{}, err
	}
	return l.Shared.Acquire(ctx, name, owner, ttl)
}

func (l cutLog) Renew(ctx context.Context, s store.Lease, ttl time.Duration) (store.Lease, error) {
	if err := l.err(); err != nil {
		return s, err
	}
	return l.Shared.Renew(ctx, s, ttl)
}

func (l cutLog) Release(ctx context.Context, s store.Lease) error {
	if err := l.err(); err != nil {
		return err
	}
	return l.Shared.Release(ctx, s)
}

func (l cutLog) Holder(ctx context.Context, name string) (store.Lease, error) {
	if err := l.err(); err != nil {
		return store.Lease{}, err
	}
	return l.Shared.Holder(ctx, name)
}

// site is one of several hubs.
type site struct {
	cut   *atomic.Bool
	world *world
	list  *cluster.Cluster
}

// open makes a hub over an engine that others have too.
func open(t *testing.T, log promethean.Log, cut *atomic.Bool, ho promethean.Options, o partition.Options) *site {
	t.Helper()
	s := &site{cut: cut, world: &world{t: t, log: new(lines)}}
	var err error
	if s.world.hub, err = promethean.New(log, ho); err != nil {
		t.Fatal(err)
	}
	if s.list, err = cluster.Join(s.world.hub, cluster.Options{}); err != nil {
		t.Fatal(err)
	}
	o.Hubs, o.Logger = s.list, slog.New(slog.NewTextHandler(s.world.log, nil))
	if s.world.c, err = partition.New(s.world.hub, o); err != nil {
		t.Fatal(err)
	}
	return s
}

// close ends a hub, however it stands.
func (s *site) close(t *testing.T) {
	t.Helper()
	if s.cut != nil {
		s.cut.Store(false)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, f := range []func() error{
		func() error { return s.world.c.Close(ctx) },
		func() error { return s.list.Close(ctx) },
		s.world.hub.Close,
	} {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
}

// inSeveral runs a test in virtual time with several hubs over one engine.
func inSeveral(t *testing.T, n int, f func(t *testing.T, more func() *site, sites []*site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log, err := logstore.OpenMemory(logstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := log.Close(); err != nil {
				t.Error(err)
			}
		}()
		shared := storetest.Share(log)
		var all []*site
		more := func() *site {
			cut := new(atomic.Bool)
			s := open(t, cutLog{shared, cut}, cut, promethean.Options{Owner: fmt.Sprint("hub ", len(all))}, partition.Options{})
			all = append(all, s)
			return s
		}
		defer func() {
			for _, s := range all {
				s.close(t)
			}
		}()
		for range n {
			more()
		}
		f(t, more, all)
	})
}

// Members at several hubs share the partitions; a hub that leaves gives its own
// to the others in no time, and one that dies when its lease is over.
func TestSeveralHubs(t *testing.T) {
	inSeveral(t, 3, func(t *testing.T, _ func() *site, sites []*site) {
		var workers []*worker
		for _, s := range sites {
			workers = append(workers, s.world.work(partition.Partitions(9)))
		}
		w := sites[0].world
		has := func(sizes ...int) func() bool {
			return func() bool {
				for i, n := range sizes {
					if n >= 0 && len(workers[i].partitions()) != n {
						return false
					}
				}
				return true
			}
		}
		count := func() (n int) {
			for _, k := range workers {
				n += k.count()
			}
			return n
		}
		w.until(has(3, 3, 3))
		w.publish(keys(60)[:3]...)
		for i := 3; i < 60; i += 3 {
			w.publish(keys(60)[i : i+3]...)
		}
		w.until(func() bool { return count() == 60 })
		if workers[1].count() == 0 || workers[2].count() == 0 {
			t.Errorf("%d and %d events at the others", workers[1].count(), workers[2].count())
		}

		began := time.Now()
		if err := workers[2].sub.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		ran := func(n int) func() bool {
			return func() bool {
				s, err := w.c.Show(t.Context(), topic, "g")
				return err == nil && s.Rebalance.Pending == 0 && len(s.Members) == n
			}
		}
		w.until(ran(2))
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("what a member left ran elsewhere after %v", took)
		}

		began = time.Now()
		sites[1].cut.Store(true)
		w.until(func() bool { return has(9)() && ran(1)() })
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("what a dead hub had ran elsewhere after %v", took)
		}
		for range 10 {
			w.publish(keys(3)...)
		}
		w.until(func() bool { return count() == 90 })

		// It comes back, and so do its members.
		sites[1].cut.Store(false)
		w.until(func() bool { return has(-1, 4)() || has(-1, 5)() })
		w.until(ran(2))
	})
}

// A member with an id of its own may come again at another hub.
func TestAnotherHub(t *testing.T) {
	inSeveral(t, 2, func(t *testing.T, _ func() *site, sites []*site) {
		a, b := sites[0].world, sites[1].world
		first := a.work(partition.MemberID("w"))
		other := a.work(partition.MemberID("x"))
		before := first.partitions()
		second := b.work(partition.MemberID("w"))
		b.until(func() bool { return len(second.partitions()) == 4 && first.ended() != nil })
		if got := second.partitions(); len(other.partitions()) != 4 || fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("it has %v in place of %v", got, before)
		}
		b.until(func() bool {
			s, err := b.c.Show(t.Context(), topic, "g")
			for _, p := range s.Partitions {
				if p.Owner == "w" && !p.Here {
					return false
				}
			}
			return err == nil
		})
		for range 10 {
			a.publish(keys(30)[:3]...)
			a.publish(keys(30)[10:13]...)
		}
		b.until(func() bool { return second.count()+other.count() == 60 })
		if first.count() != 0 || second.count() == 0 {
			t.Errorf("%d events at the older one, %d at the newer", first.count(), second.count())
		}
	})
}

// A coordinator has to know of other hubs where there may be some.
func TestNoHubs(t *testing.T) {
	inSeveral(t, 1, func(t *testing.T, _ func() *site, sites []*site) {
		if _, err := partition.New(sites[0].world.hub, partition.Options{}); err == nil {
			t.Error("a coordinator that knows no hubs was made")
		}
	})
}

// The model over several hubs, which are cut off for a while and die too.
func TestModelSeveral(t *testing.T) {
	for _, r := range []struct {
		seed  uint64
		steps int
		set   group.Settings
	}{
		{1, 3000, group.Settings{Partitions: 6, MaxAttempts: 1000}},
		{2, 2000, group.Settings{Partitions: group.FollowTopic, MaxAttempts: 1000}},
	} {
		t.Run(fmt.Sprintf("%d steps %d partitions", r.steps, r.set.Partitions), func(t *testing.T) {
			if testing.Short() {
				r.steps /= 10
			}
			if *seedFlag != 0 {
				r.seed = *seedFlag
			}
			inSeveral(t, 3, func(t *testing.T, more func() *site, sites []*site) {
				m := newModel(t, r.seed, r.set)
				m.fails = true
				dead := make(map[int]bool)
				back := make(map[int]time.Time)
				add := func(s *site) {
					m.mu.Lock() // members that begin look how many hubs there are
					defer m.mu.Unlock()
					sites = append(sites, s)
					m.hubs, m.coord = append(m.hubs, s.world.hub), append(m.coord, s.world.c)
				}
				first := sites
				sites = nil
				for _, s := range first {
					add(s)
				}
				m.reach = func(i int) bool { return !sites[i].cut.Load() }
				if err := m.hubs[0].SetTopic(t.Context(), topic, store.Settings{Partitions: 5}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // all hubs have heard of it
				m.join(0, "w0")
				var leaving sync.WaitGroup
				for range r.steps {
					m.step(&leaving)
					living := 0
					for i, s := range sites {
						if at, ok := back[i]; ok && !dead[i] && time.Now().After(at) {
							s.cut.Store(false)
							delete(back, i)
						}
						if !s.cut.Load() {
							living++
						}
					}
					if x := m.rng.IntN(100); x == 0 && living > 1 {
						i := m.at()
						sites[i].cut.Store(true)
						if back[i] = time.Now().Add(time.Duration(m.rng.IntN(20)) * time.Second); m.rng.IntN(4) == 0 && len(sites) < 8 {
							dead[i] = true
							add(more())
						}
					}
					time.Sleep(time.Duration(m.rng.IntN(200)) * time.Millisecond)
					m.beat()
					synctest.Wait()
					m.judge()
				}
				for i, s := range sites {
					s.cut.Store(dead[i])
				}
				leaving.Wait()
				m.finish(func() {
					time.Sleep(time.Second)
					synctest.Wait()
				}, 2000)
				t.Logf("%d events, %d hubs of which %d died", len(m.all), len(sites), len(dead))
			})
		})
	}
}
