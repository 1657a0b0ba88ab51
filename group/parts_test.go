package group_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/store"
)

var byTopic = group.Settings{Partitions: group.FollowTopic}

// parted is a partitioned group under test: who has which partition, and what
// became of every event.
type parted struct {
	t     *testing.T
	rng   *rand.Rand
	all   []event.Event
	byID  map[event.ID]int
	hands []*hand
	// count is the number of partitions, counts those that there were.
	count   int
	counts  []int
	changed time.Time

	mu    sync.Mutex
	acked map[event.ID]bool
}

// hand is a member of a partition, with what it has taken.
type hand struct {
	e      *group.Engine
	m      *group.Member
	number int
	epoch  uint64
	held   []group.Delivery
	over   bool
}

func newParted(t *testing.T, seed uint64) *parted {
	return &parted{t: t, rng: rand.New(rand.NewPCG(seed, 9)), byID: make(map[event.ID]int), acked: make(map[event.ID]bool), count: 1}
}

func (p *parted) publish(w *world, n int) {
	for range n {
		key := fmt.Sprint("k", p.rng.IntN(12))
		if p.rng.IntN(8) == 0 {
			key = ""
		}
		e := event.New(topic, []byte("{}"))
		e.Key, e.TS = key, time.Now().UnixMilli()
		if p.rng.IntN(3) > 0 {
			e.Partition = event.PartitionOf(event.PartitionFor(key, e.ID, p.count))
		} else if len(p.counts) > 0 && time.Since(p.changed) < time.Minute {
			// A hub that does not know better.
			e.Partition = event.PartitionOf(event.PartitionFor(key, e.ID, pick(p.rng, p.counts)))
		}
		got, err := w.log.Append(context.Background(), store.Batch{Events: []event.Event{e}})
		if err != nil {
			p.t.Fatal(err)
		}
		e.Seq = got[0].Seq
		p.byID[e.ID] = len(p.all)
		p.all = append(p.all, e)
	}
}

func (p *parted) join(e *group.Engine, set group.Settings) {
	p.t.Helper()
	plan, err := e.MakeParted(context.Background(), topic, "g", set, group.Start{From: group.Earliest})
	if err != nil {
		p.t.Fatal(err)
	}
	p.joinPart(e, plan, p.rng.IntN(plan.Count))
}

func (p *parted) joinPart(e *group.Engine, plan group.Plan, number int) *hand {
	p.t.Helper()
	h := &hand{e: e, number: number}
	m, err := e.JoinPart(context.Background(), topic, "g", plan, number, group.PartOptions{
		MemberOptions: group.MemberOptions{MaxInFlight: 8, BatchSize: 4},
		Owned:         func(epoch uint64) { h.epoch = epoch },
	})
	if errors.Is(err, group.ErrPlan) {
		return nil
	}
	if err != nil {
		p.t.Fatal(err)
	}
	h.m = m
	for _, o := range p.hands {
		o.over = o.over || o.e == e && o.number == number
	}
	p.hands = append(p.hands, h)
	return h
}

// take has a member take something, and judges it.
func (p *parted) take(h *hand) {
	p.t.Helper()
	list := h.m.Take(1 + p.rng.IntN(4))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range list {
		i, known := p.byID[d.Event.ID]
		if !known {
			p.t.Fatalf("an event that nobody published: %s", d.Event.ID)
		}
		if p.acked[d.Event.ID] {
			p.t.Fatalf("seq %d was acked and comes again", d.Event.Seq)
		}
		if k := d.Event.Key; k != "" {
			for _, e := range p.all[:i] {
				if e.Key == k && !p.acked[e.ID] {
					p.t.Fatalf("seq %d of key %s comes before seq %d is settled", d.Event.Seq, k, e.Seq)
				}
			}
		}
		h.held = append(h.held, d)
	}
}

// settle ends what a member has taken. Whether an ack has counted is what the
// engine says.
func (p *parted) settle(h *hand) {
	if len(h.held) == 0 {
		return
	}
	i := p.rng.IntN(len(h.held))
	d := h.held[i]
	h.held = append(h.held[:i], h.held[i+1:]...)
	if p.rng.IntN(5) == 0 {
		_ = h.m.Done(&d, &group.Nack{Reason: "no"})
		return
	}
	over := h.over
	_ = h.m.Settle(&d, group.Outcome{Then: func(err error) {
		if err == nil && over {
			p.t.Errorf("seq %d is acked by somebody who has lost partition %d", d.Event.Seq, h.number)
		}
		if err == nil {
			p.mu.Lock()
			p.acked[d.Event.ID] = true
			p.mu.Unlock()
		}
	}})
}

// drain has every partition read to its end.
func (p *parted) drain(engines ...*group.Engine) {
	p.t.Helper()
	for _, h := range p.hands {
		h.m.Leave()
	}
	p.hands = nil
	for round := 0; len(p.acked) < len(p.all); round++ {
		if round == 2000 {
			for _, e := range p.all {
				if !p.acked[e.ID] {
					p.t.Logf("seq %d key %s partition of 3: %d", e.Seq, e.Key, event.PartitionFor(e.Key, e.ID, 3))
				}
			}
			p.t.Fatalf("%d of %d events are acked", len(p.acked), len(p.all))
		}
		e := engines[round%len(engines)]
		plan, err := e.Plan(context.Background(), topic, "g")
		if err != nil {
			p.t.Fatal(err)
		}
		for n := range plan.Count {
			p.joinPart(e, plan, n)
		}
		for range 50 {
			synctest.Wait()
			for _, h := range p.hands {
				p.take(h)
				for len(h.held) > 0 {
					p.settle(h)
				}
			}
		}
		time.Sleep(time.Minute) // delays
		for _, h := range p.hands {
			h.m.Leave()
		}
		p.hands = nil
		synctest.Wait()
	}
}

func TestPartsModel(t *testing.T) {
	for seed := range uint64(30) {
		for _, k := range []kind{whole, weak} {
			t.Run(fmt.Sprintf("seed %d kind %d", seed, k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.close()
					w.kind = k
					w.open()
					w.e.Shrink(20, 100_000, 1_000_000, 4, 16<<20)
					p := newParted(t, seed)
					set := byTopic
					set.MaxAttempts = 1000
					if seed%3 == 2 {
						set.Partitions = 5
					}
					p.join(w.e, set)
					for range 400 {
						switch p.rng.IntN(14) {
						case 0, 1, 2:
							p.publish(w, 1+p.rng.IntN(6))
						case 3, 4:
							p.join(w.e, set)
						case 5:
							h := pick(p.rng, p.hands)
							h.m.Leave()
						case 6:
							if p.rng.IntN(4) == 0 {
								time.Sleep(40 * time.Second) // leases run out
							}
						case 7:
							if p.rng.IntN(6) == 0 {
								synctest.Wait()
								w.crash(p.rng.Uint64())
								w.e.Shrink(20, 100_000, 1_000_000, 4, 16<<20)
								p.hands = nil
								p.join(w.e, set)
							}
						case 8:
							if p.rng.IntN(5) == 0 && set.Partitions == group.FollowTopic {
								now := 1 + p.rng.IntN(5)
								if now == p.count {
									continue
								}
								if err := w.e.SetPartitions(context.Background(), topic, p.count, now, func() error { return nil }); err != nil {
									t.Fatal(err)
								}
								p.counts, p.count, p.changed = append(p.counts, p.count), now, time.Now()
							}
						default:
							h := pick(p.rng, p.hands)
							synctest.Wait()
							p.take(h)
							p.settle(h)
						}
					}
					synctest.Wait()
					p.drain(w.e)
					if i := w.info("g"); i.Lag != 0 || i.InFlight != 0 {
						t.Fatalf("at the end: %+v", i)
					}
				})
			})
		}
	}
}

// TestPartsOfTwoHubs has members of two hubs take partitions from each other.
func TestPartsOfTwoHubs(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub := hubs(t, 2)
				engines := []*group.Engine{hub[0].e, hub[1].e}
				p := newParted(t, seed)
				set := byTopic
				set.MaxAttempts = 1000
				if seed%3 == 2 {
					set.Partitions = 3
				}
				p.join(engines[0], set)
				for range 300 {
					switch p.rng.IntN(13) {
					case 0, 1, 2:
						p.publish(&hub[0].world, 1+p.rng.IntN(6))
					case 3, 4:
						p.join(pick(p.rng, engines), set)
					case 5, 6:
						pick(p.rng, p.hands).m.Leave()
					case 7:
						if p.rng.IntN(4) == 0 {
							time.Sleep(40 * time.Second)
						}
					case 8:
						if p.rng.IntN(5) == 0 && set.Partitions == group.FollowTopic {
							now := 1 + p.rng.IntN(5)
							if now == p.count {
								continue
							}
							if err := pick(p.rng, engines).SetPartitions(context.Background(), topic, p.count, now, func() error { return nil }); err != nil {
								t.Fatal(err)
							}
							p.counts, p.count, p.changed = append(p.counts, p.count), now, time.Now()
						}
					case 9:
						h := pick(p.rng, hub)
						h.cut.Store(!h.cut.Load() && p.rng.IntN(3) == 0)
						time.Sleep(time.Second)
						h.cut.Store(false)
					default:
						h := pick(p.rng, p.hands)
						time.Sleep(10 * time.Millisecond)
						synctest.Wait()
						p.take(h)
						p.settle(h)
					}
				}
				synctest.Wait()
				p.drain(engines...)
			})
		})
	}
}
