package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/internal/natstest"
	"promethean/partition/state"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
)

// lossy is an engine whose appends to the changelog fail now and then: some
// before they are stored, some after.
type lossy struct {
	*logstore.Store
	n atomic.Int64
}

var errLost = errors.New("the answer is lost")

// Append implements [store.Log].
func (l *lossy) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	n := int64(0)
	if len(b.Events) > 0 && b.Events[0].Topic == "sums.changelog" {
		n = l.n.Add(1)
	}
	if n%11 == 7 {
		return nil, errLost
	}
	got, err := l.Store.Append(ctx, b)
	if n%11 == 3 && err == nil {
		return nil, errLost
	}
	return got, err
}

// trail is a value that says which events made it.
type trail struct {
	Seqs []uint64 `json:"seqs"`
}

// What an event does to its key.
const (
	adds    = "add"
	deletes = "delete"
	keeps   = "keep"
	fails   = "fail"
)

var errFails = errors.New("it fails")

// change gives what an event does, as a function for a table.
func change(e event.Event) func(trail, bool) (trail, error) {
	return func(v trail, found bool) (trail, error) {
		if found != (len(v.Seqs) > 0) {
			return v, fmt.Errorf("found is %t with %v", found, v)
		}
		switch {
		case strings.Contains(string(e.Payload), deletes):
			return v, state.Delete
		case strings.Contains(string(e.Payload), keeps):
			return v, state.Keep
		case strings.Contains(string(e.Payload), fails):
			return v, errFails
		}
		v.Seqs = append(v.Seqs, e.Seq)
		return v, nil
	}
}

// past is a history of two owners of all partitions. Which of them is the right
// one nobody knows.
type past struct {
	*testing.T
	rand   *rand.Rand
	hubs   []*promethean.Hub
	c      *compact.Compactor
	o      state.Options
	count  int
	owners [2]*state.Table[string, trail]
	events map[string][]event.Event
	next   map[string]int // the first event of a key that is not settled
}

// fold is what the first events of a key come to.
func (p *past) fold(key string, n int) (seqs []uint64) {
	for _, e := range p.events[key][:n] {
		switch what := string(e.Payload); {
		case strings.Contains(what, adds):
			seqs = append(seqs, e.Seq)
		case strings.Contains(what, deletes):
			seqs = nil
		}
	}
	return seqs
}

// hub gives the one that an owner works with.
func (p *past) hub(owner int) *promethean.Hub { return p.hubs[owner%len(p.hubs)] }

// begin starts an owner from what is stored.
func (p *past) begin(owner int) {
	tab, err := state.New[string, trail](p.hub(owner), "sums", p.o)
	ok(p, err)
	for n := range p.count {
		ok(p, tab.Assigned(context.Background(), n))
	}
	p.owners[owner] = tab
}

// stored reads what the changelog says of a key.
func (p *past) stored(key string) (v trail) {
	for e, err := range p.hubs[0].Read(context.Background(), store.Query{Topic: "sums.changelog", Key: key, Reverse: true, Limit: 1}) {
		ok(p, err)
		if !store.Tombstone(e.Payload) {
			ok(p, json.Unmarshal(e.Payload, &v))
		}
	}
	return v
}

// update has an owner apply an event; it may have failed.
func (p *past) update(owner int, e event.Event) error {
	err := p.owners[owner].Update(context.Background(), e, nil, change(e))
	if err != nil && !errors.Is(err, errLost) && !(errors.Is(err, errFails) && strings.Contains(string(e.Payload), fails)) {
		p.Fatalf("owner %d, key %s, seq %d: %v", owner, e.Key, e.Seq, err)
	}
	return err
}

// work hands out the next event of a key to one owner or to both, and settles it
// if it was done and nothing went wrong.
func (p *past) work(key string) {
	n := p.next[key]
	if n == len(p.events[key]) {
		return
	}
	e := p.events[key][n]
	var errs [2]error
	who := p.rand.IntN(3)
	var wg sync.WaitGroup
	for i := range p.owners {
		if errs[i] = errLost; who == i || who == 2 {
			wg.Go(func() { errs[i] = p.update(i, e) })
		}
	}
	wg.Wait()
	done := errs[0] == nil || errs[1] == nil
	if done {
		if got, want := p.stored(key).Seqs, p.fold(key, n+1); !slices.Equal(got, want) {
			p.Fatalf("key %s is %v after seq %d; want %v", key, got, e.Seq, want)
		}
	}
	if done && p.rand.IntN(5) > 0 || errors.Is(errors.Join(errs[:]...), errFails) {
		p.next[key]++
	}
}

func (p *past) publish(key string) {
	what := []string{adds, adds, adds, adds, adds, deletes, keeps, fails}[p.rand.IntN(8)]
	e := publish(p, p.hub(p.rand.IntN(2)), key, map[string]string{"do": what, "key": key})
	e.Key = key // as the table knows it
	p.events[key] = append(p.events[key], e)
}

// drain settles all.
func (p *past) drain() {
	for key := range p.events {
		for p.next[key] < len(p.events[key]) {
			p.work(key)
		}
	}
}

func (p *past) run(steps, keys int) {
	for i := range p.owners {
		p.begin(i)
	}
	for range steps {
		key := fmt.Sprint("k", p.rand.IntN(keys))
		owner := p.rand.IntN(2)
		switch x := p.rand.IntN(100); {
		case x < 40:
			p.publish(key)
		case x < 80:
			p.work(key)
		case x < 92: // somebody who is late
			if n := p.next[key]; n > 0 {
				_ = p.update(owner, p.events[key][p.rand.IntN(n)])
			}
		case x < 95: // killed
			p.begin(owner)
		case x < 97: // there and back
			n := p.rand.IntN(p.count)
			ok(p, p.owners[owner].Revoked(context.Background(), n))
			ok(p, p.owners[owner].Assigned(context.Background(), n))
		case x < 99:
			sweep(p.T, p.c)
		case len(p.hubs) == 1 && p.o.Partitions == 0:
			// All of the old division is settled before the new one begins.
			p.drain()
			p.count = 1 + p.rand.IntN(9)
			divide(p, p.hubs[0], p.count)
			for i := range p.owners {
				p.begin(i)
			}
		}
	}
	p.drain()
	p.begin(0)
	left := 0
	for key, events := range p.events {
		got, found, err := p.owners[0].Get(key)
		want := p.fold(key, len(events))
		if err != nil || !slices.Equal(got.Seqs, want) || found != (want != nil) {
			p.Errorf("key %s is %v, want %v (%v)", key, got, want, err)
		}
		if found {
			left++
		}
	}
	if p.owners[0].Len() != left {
		p.Errorf("%d keys, want %d", p.owners[0].Len(), left)
	}
}

// newPast makes a history; own tables have keys and partitions of their own.
func newPast(t *testing.T, seed uint64, own bool, hubs ...*promethean.Hub) *past {
	t.Helper()
	p := &past{
		T: t, rand: rand.New(rand.NewPCG(seed, 9)), hubs: hubs, count: 4, o: state.Options{Source: source},
		events: make(map[string][]event.Event), next: make(map[string]int),
	}
	if own {
		p.o.Partitions = p.count
		p.o.KeyOf = func(e *event.Event) string {
			var v map[string]string
			_ = json.Unmarshal(e.Payload, &v)
			return v["key"]
		}
	} else {
		divide(t, hubs[0], p.count)
	}
	if seed%2 == 0 { // snapshots are worth their while then
		var set store.Settings
		ok(t, (compact.Settings{Compaction: true, History: compact.Age(time.Hour)}).Put(&set))
		ok(t, hubs[0].SetTopic(t.Context(), "sums.changelog", set))
	}
	var err error
	p.c, err = compact.Start(t.Context(), hubs[0], compact.Options{Every: -1})
	ok(t, err)
	t.Cleanup(func() {
		if err := p.c.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// long says that there is time.
var long = os.Getenv("PROMETHEAN_CRASH") == "long"

// With two owners that both believe to be the only one, events that come again,
// late and to both at once, answers that are lost, crashes, deletes, compactions
// and other numbers of partitions, every key is what its events come to.
func TestCrashHistories(t *testing.T) {
	seeds := uint64(12)
	if long {
		seeds = 300
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			log, err := logstore.OpenMemory(logstore.Options{})
			ok(t, err)
			hub, err := promethean.New(&lossy{Store: log}, promethean.Options{})
			ok(t, err)
			t.Cleanup(func() {
				if err := hub.Close(); err != nil {
					t.Error(err)
				}
			})
			newPast(t, seed, seed%3 == 2, hub).run(400, 1+int(seed%7))
		})
	}
}

// The same over two hubs on one server.
func TestCrashHistoriesNATS(t *testing.T) {
	url := natstest.Start(t, nil).URL()
	serverHistories(t, func(seed uint64) (promethean.Log, error) {
		return natsstore.Open(t.Context(), url, natsstore.Options{Prefix: fmt.Sprint("state", seed)})
	})
}

func TestCrashHistoriesMongoDBFake(t *testing.T) {
	historiesOnMongoDB(t, mongofake.Start(t, mongofake.Options{}).URI())
}

func TestCrashHistoriesMongoDB(t *testing.T) { historiesOnMongoDB(t, mongotest.Any(t)) }

func historiesOnMongoDB(t *testing.T, url string) {
	run := time.Now().UnixNano()
	serverHistories(t, func(seed uint64) (promethean.Log, error) {
		return mongostore.Open(t.Context(), url, mongostore.Options{Database: fmt.Sprintf("state_%d_%d", run, seed)})
	})
}

// serverHistories tries histories of two hubs, each of which opens a log.
func serverHistories(t *testing.T, open func(seed uint64) (promethean.Log, error)) {
	seeds := uint64(3)
	if long {
		seeds = 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var hubs []*promethean.Hub
			for range 2 {
				log, err := open(seed)
				ok(t, err)
				hub, err := promethean.New(log, promethean.Options{})
				ok(t, err)
				t.Cleanup(func() {
					if err := hub.Close(); err != nil {
						t.Error(err)
					}
				})
				if hubs = append(hubs, hub); len(hubs) == 1 {
					divide(t, hub, 4) // the second one finds it so
				}
			}
			newPast(t, seed, seed%3 == 2, hubs...).run(250, 4)
		})
	}
}
