package group_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/internal/crashfs"
	"promethean/store"
)

var (
	modelRuns  = flag.Int("model.runs", 60, "how many random histories TestModel tries")
	modelSeed  = flag.Uint64("model.seed", 0, "try the history with this seed only")
	modelSteps = flag.Int("model.steps", 150, "how many inputs a history has")
)

// TestModel puts random inputs of the table in docs/delivery.md to a group,
// crashes and restarts included, and compares with a plain model.
func TestModel(t *testing.T) {
	first, last := uint64(1), uint64(*modelRuns)
	if *modelSeed != 0 {
		first, last = *modelSeed, *modelSeed
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newModel(t, seed).run(*modelSteps) })
		})
	}
}

// fact is what the model knows of one event.
type fact struct {
	ev      event.Event
	settled bool
	maybe   bool // an ack was under way when the power failed
	gone    bool // trimmed
	blocked bool
	// lo and hi bound how many deliveries the group counts. They differ only
	// after a crash, for an event that was not in anybody's hands.
	lo, hi  int
	lease   uint64 // 0: not handed out
	holder  *member
	held    group.Delivery
	until   time.Time
	notBy   time.Time // it does not come back before
	letters int
	open    int  // of them not done
	asked   bool // it is to be handed out again as a dead letter's original
}

type model struct {
	*world
	rng     *rand.Rand
	seed    uint64
	fs      *crashfs.FS
	set     group.Settings
	facts   []*fact // by seq - 1
	byID    map[event.ID]*fact
	members []*member
	paused  bool
	fresh   bool // nothing was taken since the crash, and somebody is suspect
	touched bool // something was delivered since the group was taken over
	trimmed uint64
	history []string
}

func newModel(t *testing.T, seed uint64) *model {
	rng := rand.New(rand.NewPCG(seed, 7))
	fs := crashfs.New()
	m := &model{world: &world{t: t, fs: fs}, rng: rng, seed: seed, fs: fs, byID: make(map[event.ID]*fact)}
	m.set = group.Settings{
		Ordering:    pick(rng, []group.Ordering{group.ByKey, group.ByKey, group.ByTopic, group.Unordered}),
		DeadLetter:  pick(rng, []group.Policy{group.DeadEvent, group.DeadBlock, group.DeadKey}),
		MaxAttempts: 3 + rng.IntN(3),
		AckTimeout:  pick(rng, []time.Duration{time.Second, time.Minute}),
	}
	if m.set.DeadLetter == group.DeadKey {
		m.set.Ordering = group.ByKey
	}
	m.open()
	m.enrol()
	return m
}

func (m *model) logf(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) fatalf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.history {
		m.t.Log(l)
	}
	if m.e != nil {
		m.t.Log(m.e.Dump(topic, "g"))
	}
	m.t.Fatalf("seed %d, %+v: %s", m.seed, m.set, fmt.Sprintf(format, args...))
}

func (m *model) enrol() {
	m.members = append(m.members, m.join("g", m.set, group.MemberOptions{MaxInFlight: 1 + m.rng.IntN(8), BatchSize: 1 + m.rng.IntN(8)}))
	m.logf("a member joins")
}

func (m *model) run(steps int) {
	defer func() {
		if m.e != nil {
			m.close()
		}
	}()
	type input struct {
		weight int
		do     func()
	}
	inputs := []input{
		{20, m.publishSome}, {40, m.take}, {25, m.ackOne}, {10, m.nackOne}, {3, m.extend}, {8, m.pass},
		{2, m.joinOne}, {2, m.leaveOne}, {2, m.dropOne}, {2, m.pause}, {1, m.move}, {1, m.trim},
		{2, m.crash}, {2, m.restart}, {2, m.strangers}, {3, m.replay},
	}
	total := 0
	for _, i := range inputs {
		total += i.weight
	}
	for range steps {
		n := m.rng.IntN(total)
		for _, i := range inputs {
			if n -= i.weight; n < 0 {
				i.do()
				break
			}
		}
		synctest.Wait()
		m.check()
	}
	m.drain()
}

// deaths finds out which events died at a restart without being delivered
// again: those that have had all their attempts.
func (m *model) deaths() map[event.ID]int {
	count := make(map[event.ID]int)
	for e, err := range m.log.Read(context.Background(), store.Query{Topic: group.LetterTopic(topic)}) {
		if err != nil {
			m.fatalf("%v", err)
		}
		var l group.LetterAt
		if err := decode(e.Payload, &l.Letter); err != nil {
			m.fatalf("%v", err)
		}
		count[l.Original.ID]++
		f := m.byID[l.Original.ID]
		if f == nil || l.Group != "g" || l.Original.Seq != f.ev.Seq {
			m.fatalf("a strange dead letter: %+v", l)
		}
	}
	return count
}

// check compares what the group says with what the model knows.
func (m *model) check() {
	count := m.deaths()
	for _, f := range m.facts {
		n := count[f.ev.ID]
		if n == f.letters+1 && (!f.settled || f.asked) && f.lease == 0 && (f.hi >= m.set.MaxAttempts || m.parked(f.ev.Key)) {
			m.logf("seq %d has had its attempts, or follows its key", f.ev.Seq)
			m.bury(f)
		}
		if n != f.letters {
			m.fatalf("seq %d has %d dead letters, want %d", f.ev.Seq, n, f.letters)
		}
	}
	i := m.info("g")
	for _, f := range m.facts[:min(int(i.Cursor), len(m.facts))] {
		if f.maybe {
			f.settle()
		}
		if !f.settled && !f.gone {
			m.fatalf("the cursor is %d, and seq %d is not settled", i.Cursor, f.ev.Seq)
		}
	}
	certain := true
	floor := uint64(0)
	for _, f := range m.facts {
		if f.maybe || f.gone {
			certain = false
		}
		if !f.settled {
			break
		}
		floor = f.ev.Seq
	}
	if certain && i.Cursor < floor {
		m.fatalf("the cursor is %d, and everything up to %d is settled", i.Cursor, floor)
	}
}

// drain handles everything that is left: nothing may be lost.
func (m *model) drain() {
	m.logf("drain")
	if m.paused {
		m.pause()
	}
	if len(m.members) == 0 {
		m.enrol()
	}
	idle := 0
	for idle < 5 {
		for _, f := range m.handedOut() {
			m.logf("ack seq %d", f.ev.Seq)
			m.ack("g", f.ev.ID)
			f.settle()
		}
		synctest.Wait()
		m.check()
		n := 0
		for _, w := range m.members {
			for _, d := range w.Take(10) {
				m.delivered(w, d)
				n++
			}
		}
		if n > 0 {
			idle = 0
			continue
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		m.check()
		idle++
	}
	stuck := make(map[string]bool)
	for _, f := range m.facts {
		key := f.ev.Key
		if m.set.Ordering == group.ByTopic {
			key = "x"
		}
		// After a crash one that had all its attempts is blocked as well.
		blocked := f.blocked || m.set.DeadLetter == group.DeadBlock && !f.settled && f.hi >= m.set.MaxAttempts
		if blocked && m.set.Ordering != group.Unordered && key != "" {
			stuck[key] = true
		}
		if !f.settled && !f.maybe && !blocked && !f.gone && !stuck[key] {
			m.fatalf("seq %d is never delivered", f.ev.Seq)
		}
	}
}
