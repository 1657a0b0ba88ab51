package partition_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
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

var seedFlag = flag.Uint64("seed", 0, "seed of the model test; 0 takes those that are always tried")

// model is a partitioned group whose members come and go, and what became of
// every event.
type model struct {
	t     *testing.T
	rng   *rand.Rand
	seed  uint64
	hubs  []*promethean.Hub
	coord []*partition.Coordinator
	set   group.Settings
	fails bool // hooks may fail
	// reach says whether a hub reaches the engine; nil: it does.
	reach func(hub int) bool
	// patient waits for what another goroutine is about to note; nil: nothing
	// is under way.
	patient func(func() bool) bool

	mu     sync.Mutex
	all    []event.Event
	byID   map[event.ID]int
	byKey  map[string][]int
	acked  map[event.ID]bool
	actors []*actor
	hands  []*hand             // all that there were, until they are over
	epochs map[[2]uint64]*hand // who was given something in an epoch of a partition
	story  map[uint64][]string // what became of every event, by seq
	bad    error
}

// actor is a member.
type actor struct {
	m       *model
	ms      *partition.Membership
	id      string
	hub     int
	stalled bool
	over    bool // under model.mu: it left, was dropped, fenced or swept
	hands   []*hand
}

// hand is one partition in the hands of an actor.
type hand struct {
	a       *actor
	n       int
	m       *group.Member
	held    []group.Delivery
	stopped bool
	taken   bool // somebody else has the partition, or had it
}

func newModel(t *testing.T, seed uint64, set group.Settings) *model {
	t.Logf("seed %d", seed)
	return &model{
		t: t, rng: rand.New(rand.NewPCG(seed, 5)), seed: seed, set: set,
		byID: make(map[event.ID]int), byKey: make(map[string][]int), acked: make(map[event.ID]bool),
		epochs: make(map[[2]uint64]*hand), story: make(map[uint64][]string),
	}
}

// note adds to the story of an event. mu must be held.
func (m *model) note(e *event.Event, format string, args ...any) {
	m.story[e.Seq] = append(m.story[e.Seq], time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

// at picks a hub that reaches the engine.
func (m *model) at() int {
	for {
		if i := m.rng.IntN(len(m.hubs)); m.reach == nil || m.reach(i) {
			return i
		}
	}
}

func (m *model) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bad == nil {
		m.bad = fmt.Errorf(format, args...)
	}
}

func (m *model) publish(n int) {
	m.t.Helper()
	for range n {
		e := event.New(topic, []byte("{}"))
		e.ID = event.NewID()
		if e.Key = fmt.Sprint("k", m.rng.IntN(40)); m.rng.IntN(10) == 0 {
			e.Key = ""
		}
		got, err := m.hubs[m.at()].Publish(context.Background(), e)
		if err != nil {
			m.t.Fatal(err)
		}
		e.Seq = got[0].Seq
		m.mu.Lock()
		e.Partition = got[0].Partition
		m.note(&e, "published")
		m.byID[e.ID] = len(m.all)
		m.byKey[e.Key] = append(m.byKey[e.Key], len(m.all))
		m.all = append(m.all, e)
		m.mu.Unlock()
	}
}

// join makes a member.
func (m *model) join(hub int, id string) *actor {
	m.t.Helper()
	a := &actor{m: m, id: id, hub: hub}
	o := partition.Join{
		Member: id, Settings: m.set, Start: group.Start{From: group.Earliest},
		Serve: func(n int, join func(group.MemberOptions) (*group.Member, error)) (func(), error) {
			x, err := join(group.MemberOptions{MaxInFlight: 6, BatchSize: 3})
			if err != nil {
				return nil, err
			}
			h := &hand{a: a, n: n, m: x}
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, o := range m.hands {
				o.taken = o.taken || o.n == n && len(m.hubs) == 1
			}
			a.hands, m.hands = append(a.hands, h), append(m.hands, h)
			return func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				if h.stopped {
					m.bad = errors.Join(m.bad, errors.New("stopped twice"))
				}
				h.stopped = true
			}, nil
		},
		Changed: func(_ uint64, list []int) {
			if !slices.IsSorted(list) {
				m.fail("partitions %v are not in order", list)
			}
		},
		Fenced: func(error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			a.over = true
		},
	}
	if m.fails {
		fate := rand.New(rand.NewPCG(m.seed, m.rng.Uint64()))
		var mu sync.Mutex
		roll := func(n int) bool {
			mu.Lock()
			defer mu.Unlock()
			return fate.IntN(n) == 0
		}
		o.Assigned = func(ctx context.Context, n int) error {
			switch {
			case roll(20):
				return errors.New("not today")
			case roll(40):
				<-ctx.Done()
				return ctx.Err()
			case roll(60):
				panic("oh")
			}
			return nil
		}
		o.Revoked = func(ctx context.Context, n int) error {
			if roll(40) {
				<-ctx.Done()
			}
			return nil
		}
	}
	ms, err := m.coord[hub].Join(context.Background(), topic, "g", o)
	if errors.Is(err, partition.ErrFenced) {
		return nil
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a.ms = ms
	for _, o := range m.actors {
		o.over = o.over || id != "" && o.id == id
	}
	m.actors = append(m.actors, a)
	return a
}

func (m *model) live() (list []*actor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.actors {
		if !a.over {
			list = append(list, a)
		}
	}
	return list
}

// take has somebody take something, and judges it.
func (m *model) take(h *hand, n int) {
	m.mu.Lock()
	stopped := h.stopped
	m.mu.Unlock()
	if stopped {
		return
	}
	list := h.m.Take(n)
	if m.patient != nil {
		for _, d := range list {
			m.patient(func() bool { return m.before(&d.Event) == nil })
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range list {
		if m.set.Partitions > 0 {
			// The name of a lease begins with the epoch.
			epoch := [2]uint64{uint64(h.n), d.Lease >> 40}
			if o := m.epochs[epoch]; o != nil && o != h {
				m.t.Fatalf("partition %d is at two members in epoch %d", h.n, epoch[1])
			}
			m.epochs[epoch] = h
		}
		i, known := m.byID[d.Event.ID]
		switch {
		case !known:
			m.t.Fatalf("an event that nobody published: %s", d.Event.ID)
		case m.acked[d.Event.ID]:
			m.t.Fatalf("seq %d was acked and comes again", d.Event.Seq)
		}
		if o := m.unsettled(i); o != nil {
			m.t.Logf("seq %d, partition %d: %q", o.Seq, o.Partition, m.story[o.Seq])
			m.t.Logf("seq %d, partition %d: %q", d.Event.Seq, d.Event.Partition, m.story[d.Event.Seq])
			m.t.Logf("%q", m.story[0])
			m.t.Fatalf("seq %d of key %s comes to partition %d of %s before seq %d is settled", d.Event.Seq, d.Event.Key, h.n, h.a.ms.ID(), o.Seq)
		}
		m.note(&d.Event, "partition %d of %s takes it, lease %x", h.n, h.a.ms.ID(), d.Lease)
		h.held = append(h.held, d)
	}
}

// unsettled gives the first event of a key before another that is not settled.
// mu must be held.
func (m *model) unsettled(i int) *event.Event {
	key := m.all[i].Key
	if key == "" {
		return nil
	}
	for _, j := range m.byKey[key] {
		if j >= i {
			break
		}
		if !m.acked[m.all[j].ID] {
			return &m.all[j]
		}
	}
	return nil
}

func (m *model) before(e *event.Event) *event.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, known := m.byID[e.ID]
	if !known {
		return nil
	}
	return m.unsettled(i)
}

// settle ends one that was taken. Whether an ack has counted is what the engine
// says.
func (m *model) settle(h *hand, always bool) {
	if len(h.held) == 0 {
		return
	}
	i := m.rng.IntN(len(h.held))
	d := h.held[i]
	h.held = slices.Delete(h.held, i, i+1)
	if !always && m.rng.IntN(6) == 0 {
		_ = h.m.Done(&d, &group.Nack{Reason: "no"})
		return
	}
	m.mu.Lock()
	gone := h.taken
	m.mu.Unlock()
	_ = h.m.Settle(&d, group.Outcome{Then: func(err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.note(&d.Event, "partition %d of %s acks it: %v", h.n, h.a.ms.ID(), err)
		if err != nil {
			return
		}
		if gone && m.bad == nil {
			m.bad = fmt.Errorf("seq %d is acked by somebody who has lost partition %d", d.Event.Seq, h.n)
		}
		if m.acked[d.Event.ID] && m.bad == nil {
			m.bad = fmt.Errorf("seq %d is acked twice", d.Event.Seq)
		}
		m.acked[d.Event.ID] = true
	}})
}

// judge looks at who has what: nobody beside another.
func (m *model) judge() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bad != nil {
		m.t.Fatal(m.bad)
	}
	has := make(map[int]*hand)
	for _, h := range m.hands {
		if h.m.Gone() {
			continue
		}
		if o := has[h.n]; o != nil && len(m.hubs) == 1 {
			m.t.Fatalf("partition %d is at %s and at %s", h.n, o.a.ms.ID(), h.a.ms.ID())
		}
		has[h.n] = h
	}
	// Those that are over and hold nothing are done with.
	m.hands = slices.DeleteFunc(m.hands, func(h *hand) bool { return h.m.Gone() && len(h.held) == 0 })
	m.actors = slices.DeleteFunc(m.actors, func(a *actor) bool {
		a.hands = slices.DeleteFunc(a.hands, func(h *hand) bool { return h.m.Gone() && len(h.held) == 0 })
		return a.over && len(a.hands) == 0
	})
}

// some picks a hand, of those that are over too: a stale one may still try.
func (m *model) some() *hand {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.hands) == 0 {
		return nil
	}
	return m.hands[m.rng.IntN(len(m.hands))]
}

// beat has everybody heard of who is not stalled.
func (m *model) beat() {
	for _, a := range m.live() {
		if !a.stalled {
			if err := a.ms.Heartbeat(); err != nil {
				m.mu.Lock()
				a.over = true
				m.mu.Unlock()
			}
		}
	}
}

// step does something.
func (m *model) step(leaving *sync.WaitGroup) {
	live := m.live()
	switch x := m.rng.IntN(100); {
	case x < 12:
		m.publish(1 + m.rng.IntN(5))
	case x < 15 && len(live) < 7:
		id := ""
		if m.rng.IntN(2) == 0 {
			id = fmt.Sprint("w", m.rng.IntN(5))
		}
		m.join(m.at(), id)
	case x < 17 && len(live) > 0:
		a := live[m.rng.IntN(len(live))]
		m.mu.Lock()
		a.over = true
		m.mu.Unlock()
		leaving.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := a.ms.Leave(ctx); err != nil {
				m.fail("leave: %w", err)
			}
		})
	case x < 18 && len(live) > 0:
		a := live[m.rng.IntN(len(live))]
		m.mu.Lock()
		a.over = true
		m.mu.Unlock()
		a.ms.Drop()
	case x < 19 && len(live) > 0:
		live[m.rng.IntN(len(live))].stalled = true
	case x < 20 && m.set.Partitions == group.FollowTopic && m.rng.IntN(5) == 0:
		hub := m.hubs[m.at()]
		n := 1 + m.rng.IntN(12)
		m.mu.Lock()
		m.note(&event.Event{}, "%d partitions after %d events", n, len(m.all))
		m.mu.Unlock()
		if err := hub.SetTopic(context.Background(), topic, store.Settings{Partitions: n}); err != nil {
			m.t.Fatal(err)
		}
	default:
		if h := m.some(); h != nil {
			if !h.a.stalled || m.rng.IntN(4) == 0 {
				m.take(h, 1+m.rng.IntN(4))
				m.settle(h, false)
				m.settle(h, false)
			}
		}
	}
}

// finish has everything that is left read to its end.
func (m *model) finish(pass func(), patience int) {
	m.t.Helper()
	m.fails = false
	for _, a := range m.live() {
		m.mu.Lock()
		a.over = true
		m.mu.Unlock()
		a.ms.Drop()
	}
	for i := range m.hubs {
		if m.reach == nil || m.reach(i) {
			m.join(i, "")
		}
	}
	for round := 0; ; round++ {
		m.mu.Lock()
		left := len(m.all) - len(m.acked)
		hands := slices.Clone(m.hands)
		m.mu.Unlock()
		if left == 0 {
			break
		}
		if round == patience {
			m.explain()
			m.t.Fatalf("%d of %d events are not acked", left, len(m.all))
		}
		for _, h := range hands {
			m.take(h, 6)
			for len(h.held) > 0 {
				m.settle(h, true)
			}
		}
		m.beat()
		pass()
		m.judge()
	}
}

// explain logs how everything stands.
func (m *model) explain() {
	s, err := m.coord[m.at()].Show(context.Background(), topic, "g")
	m.t.Logf("plan %+v, generation %d, rebalance %+v, %v", s.Plan, s.Generation, s.Rebalance, err)
	for _, x := range s.Members {
		m.t.Logf("member %+v", x)
	}
	for _, p := range s.Partitions {
		m.t.Logf("partition %+v", p)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.hands {
		m.t.Logf("partition %d at %s: gone %v, stopped %v, holds %d", h.n, h.a.ms.ID(), h.m.Gone(), h.stopped, h.m.Held())
	}
	for i := range m.all {
		if e := &m.all[i]; !m.acked[e.ID] {
			m.t.Logf("seq %d, key %s, is not acked", e.Seq, e.Key)
		}
	}
}

// Members join, leave, die and stall at random: nobody has a partition beside
// another, the order of every key holds over all of them, nothing is lost,
// nothing that was acked comes again, and in the end every event has counted
// once.
func TestModel(t *testing.T) {
	runs := []struct {
		seed  uint64
		steps int
		set   group.Settings
	}{
		{1, 10_000, group.Settings{Partitions: 8, MaxAttempts: 1000}},
		{2, 4_000, group.Settings{Partitions: group.FollowTopic, MaxAttempts: 1000}},
		{3, 4_000, group.Settings{Partitions: group.FollowTopic, MaxAttempts: 1000}},
		{4, 2_000, group.Settings{Partitions: 3, MaxAttempts: 1000}},
	}
	for _, r := range runs {
		t.Run(fmt.Sprintf("%d steps %d partitions", r.steps, r.set.Partitions), func(t *testing.T) {
			if testing.Short() {
				r.steps /= 10
			}
			if *seedFlag != 0 {
				r.seed = *seedFlag
			}
			in(t, partition.Options{}, func(t *testing.T, w *world) {
				m := newModel(t, r.seed, r.set)
				m.hubs, m.coord = []*promethean.Hub{w.hub}, []*partition.Coordinator{w.c}
				m.fails = true
				if r.set.Partitions == group.FollowTopic {
					if err := w.hub.SetTopic(t.Context(), topic, store.Settings{Partitions: 5}); err != nil {
						t.Fatal(err)
					}
				}
				m.join(0, "w0")
				var leaving sync.WaitGroup
				for range r.steps {
					m.step(&leaving)
					time.Sleep(time.Duration(m.rng.IntN(200)) * time.Millisecond)
					m.beat()
					synctest.Wait()
					m.judge()
				}
				leaving.Wait()
				m.finish(func() {
					time.Sleep(time.Second)
					synctest.Wait()
				}, 2000)
				i, err := w.hub.Engine().Info(t.Context(), topic, "g")
				if err != nil || i.Lag != 0 || i.InFlight != 0 {
					t.Fatalf("at the end: %+v, %v", i, err)
				}
				s, err := w.c.Show(t.Context(), topic, "g")
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d events, plan %s, generation %d", len(m.all), s.Plan.ID, s.Generation)
				for _, line := range []string{"not heard of", "take a partition", "let go of", "before all is done"} {
					t.Logf("%s: %d times", line, strings.Count(w.log.String(), line))
				}
			})
		})
	}
}
