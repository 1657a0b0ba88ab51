package group_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
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

// TestModel puts random inputs of the table in docs/delivery.md to two groups
// of a topic, crashes and restarts included, and compares with a plain model.
func TestModel(t *testing.T) { histories(t, whole, *modelRuns) }

// The same over a log that lacks abilities, and over one that is shared.
func TestModelWeak(t *testing.T)   { histories(t, weak, *modelRuns/2) }
func TestModelShared(t *testing.T) { histories(t, shared, *modelRuns/2) }

func histories(t *testing.T, k kind, runs int) {
	first, last := uint64(1), uint64(runs)
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		last = 5000
	}
	if *modelSeed != 0 {
		first, last = *modelSeed, *modelSeed
	}
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				newModel(&world{t: t, kind: k, fs: crashfs.New()}, seed).run(*modelSteps)
			})
		})
	}
}

// fact is what the model knows of one event in one group.
type fact struct {
	ev      event.Event
	refused bool // by the filter
	settled bool
	gone    bool // trimmed
	blocked bool
	// An ack, or the move to the dead letters, was under way when the power
	// failed: it may have happened.
	maybe, maybeDead bool
	// It has a dead letter and is not settled: the power failed between the
	// two, over a log that cannot do both at once. If it dies again, that is
	// the same dead letter.
	torn bool
	// lo and hi bound how many deliveries the group counts. They differ only
	// after a crash, for an event that was not in anybody's hands.
	lo, hi  int
	lease   uint64 // 0: not handed out
	holder  *member
	held    group.Delivery
	until   time.Time
	notBy   time.Time // it does not come back before
	letters int
	open    int    // of them not done
	touched bool   // it was delivered since the last clean start
	asked   bool   // it is to be handed out again as a dead letter's original
	letter  uint64 // the dead letter that was asked for last
}

// model is a topic and what is known of its groups.
type model struct {
	*world
	rng     *rand.Rand
	seed    uint64
	shrink  func(*group.Engine)
	ledgers []*ledger
	events  []event.Event // by seq - 1
	trimmed uint64
	crashed bool // and nothing was put to the groups since
	history []string
}

// ledger is what the model knows of one group.
type ledger struct {
	*model
	name    string
	set     group.Settings
	passes  func(*event.Event) bool
	facts   []*fact // by seq - 1
	byID    map[event.ID]*fact
	members []*member
	paused  bool
	fresh   bool // nothing was taken since the crash, and somebody is suspect
	// wasParked has the keys that were parked when we looked last, where
	// events do not wait for each other.
	wasParked map[string]bool
}

func newModel(w *world, seed uint64) *model {
	rng := rand.New(rand.NewPCG(seed, 7))
	m := &model{world: w, rng: rng, seed: seed}
	for _, name := range []string{"g", "h"} {
		m.ledgers = append(m.ledgers, newLedger(m, name))
	}
	m.shrink = m.bounds()
	m.open()
	m.begin()
	return m
}

func newLedger(m *model, name string) *ledger {
	l := &ledger{model: m, name: name, byID: make(map[event.ID]*fact)}
	l.set = group.Settings{
		Ordering:    pick(m.rng, []group.Ordering{group.ByKey, group.ByKey, group.ByTopic, group.Unordered}),
		DeadLetter:  pick(m.rng, []group.Policy{group.DeadEvent, group.DeadBlock, group.DeadKey}),
		MaxAttempts: 3 + m.rng.IntN(3),
		AckTimeout:  pick(m.rng, []time.Duration{time.Second, time.Minute}),
		Filter:      pick(m.rng, []string{"", "", `key != "b"`, "payload.n != 1"}),
	}
	switch l.set.Filter {
	case "":
		l.passes = func(*event.Event) bool { return true }
	case `key != "b"`:
		l.passes = func(e *event.Event) bool { return e.Key != "b" }
	default:
		l.passes = func(e *event.Event) bool { return string(e.Payload) != `{"n":1}` }
	}
	return l
}

// bounds chooses how much the groups may hold: in half of the histories as
// much as ever, in the others very little.
func (m *model) bounds() func(*group.Engine) {
	if m.rng.IntN(2) == 0 {
		return func(*group.Engine) {}
	}
	ahead := uint64(2 + m.rng.IntN(20))
	references, ranges := 8+m.rng.IntN(20), 3+m.rng.IntN(10)
	perKey, kept := 1+m.rng.IntN(4), 200+m.rng.IntN(2000)
	if slices.ContainsFunc(m.ledgers, func(l *ledger) bool { return l.set.DeadLetter == group.DeadBlock }) {
		references, ranges = 1000, 1000 // what is blocked for ever counts
	}
	return func(e *group.Engine) { e.Shrink(ahead, references, ranges, perKey, kept) }
}

func (m *model) logf(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) fatalf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.history {
		m.t.Log(l)
	}
	for _, l := range m.ledgers {
		if m.e != nil {
			m.t.Logf("%s: %+v %s", l.name, l.set, m.e.Dump(topic, l.name))
		}
	}
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (l *ledger) logf(format string, args ...any) {
	l.model.logf("%s: %s", l.name, fmt.Sprintf(format, args...))
}

func (l *ledger) fatalf(format string, args ...any) {
	l.t.Helper()
	l.model.fatalf("%s: %s", l.name, fmt.Sprintf(format, args...))
}

func (l *ledger) enrol() {
	l.members = append(l.members, l.join(l.name, l.set, group.MemberOptions{MaxInFlight: 1 + l.rng.IntN(8), BatchSize: 1 + l.rng.IntN(8)}))
	l.logf("a member joins")
}

func (m *model) run(steps int) {
	defer func() {
		if m.e != nil {
			m.close()
		}
	}()
	type input struct {
		weight int
		do     func(*ledger)
	}
	one := func(do func()) func(*ledger) { return func(*ledger) { do() } }
	inputs := []input{
		{20, one(m.publishSome)},
		{60, (*ledger).take},
		{35, (*ledger).ackOne},
		{14, (*ledger).nackOne},
		{4, (*ledger).extend},
		{8, one(m.pass)},
		{3, (*ledger).joinOne},
		{3, (*ledger).leaveOne},
		{3, (*ledger).dropOne},
		{3, (*ledger).pause},
		{2, (*ledger).move},
		{1, one(m.trim)},
		{3, one(m.crash)},
		{2, one(m.restart)},
		{3, (*ledger).strangers},
		{4, (*ledger).replay},
		{1, (*ledger).raise},
	}
	total := 0
	for _, i := range inputs {
		total += i.weight
	}
	for range steps {
		m.expire()
		n := m.rng.IntN(total)
		for _, i := range inputs {
			if n -= i.weight; n < 0 {
				i.do(pick(m.rng, m.ledgers))
				break
			}
		}
		m.settleDown()
		m.check()
		m.crashed = false
	}
	for _, l := range m.ledgers {
		l.drain()
	}
}

// deaths counts the dead letters of each event of a group.
func (l *ledger) deaths() map[event.ID]int {
	count := make(map[event.ID]int)
	for e, err := range l.log.Read(context.Background(), store.Query{Topic: group.LetterTopic(topic)}) {
		if err != nil {
			l.fatalf("%v", err)
		}
		var d group.Letter
		if err := decode(e.Payload, &d); err != nil {
			l.fatalf("%v", err)
		}
		if d.Group != l.name {
			continue
		}
		count[d.Original.ID]++
		if f := l.byID[d.Original.ID]; f == nil || d.Original.Seq != f.ev.Seq {
			l.fatalf("a strange dead letter: %+v", d)
		}
	}
	return count
}

func (m *model) check() {
	for _, l := range m.ledgers {
		l.check()
	}
}

// check compares what the group says with what the model knows.
func (l *ledger) check() {
	count := l.deaths()
	// Some die without being delivered again: at a restart, having had all
	// their attempts, or behind their key.
	for more := true; more; {
		more = false
		for _, f := range l.facts {
			if count[f.ev.ID] == f.letters+1 && (!f.settled || f.asked) && f.lease == 0 && (f.hi >= l.set.MaxAttempts || f.maybeDead || l.parked(f.ev.Key) || l.wasParked[f.ev.Key]) {
				l.logf("seq %d has had its attempts, or follows its key", f.ev.Seq)
				l.bury(f)
				if l.crashed && l.steps() && !l.isSettled(f.ev.Seq) {
					l.logf("seq %d is not settled all the same", f.ev.Seq)
					f.settled, f.torn = false, true
				}
				more = true
			}
		}
	}
	l.wasParked = make(map[string]bool)
	for _, f := range l.facts {
		if n := count[f.ev.ID]; n != f.letters {
			l.fatalf("seq %d has %d dead letters, want %d", f.ev.Seq, n, f.letters)
		}
		if l.set.Ordering == group.Unordered && l.parked(f.ev.Key) {
			l.wasParked[f.ev.Key] = true // until its release is durable
		}
	}
	i := l.info(l.name)
	for _, f := range l.facts[:min(int(i.Cursor), len(l.facts))] {
		if f.maybe || f.torn {
			f.settle()
		}
		if !f.settled && !f.gone && !f.refused {
			l.fatalf("the cursor is %d, and seq %d is not settled", i.Cursor, f.ev.Seq)
		}
	}
	certain := true
	floor := uint64(0)
	for _, f := range l.facts {
		if f.maybe || f.gone || f.refused || f.torn { // when it is read
			certain = false
		}
		if !f.settled {
			break
		}
		floor = f.ev.Seq
	}
	if certain && i.Cursor < floor {
		l.fatalf("the cursor is %d, and everything up to %d is settled", i.Cursor, floor)
	}
}

// patience is how long nothing must come before nothing is left.
func (m *model) patience() time.Duration {
	if m.server != nil {
		return 700 * time.Millisecond // five times; longer than any back-off
	}
	return 10 * time.Second
}

// isSettled says whether the log has an event as settled.
func (l *ledger) isSettled(seq uint64) bool {
	c, err := l.log.Cursor(context.Background(), topic, l.name)
	if err != nil {
		l.fatalf("%v", err)
	}
	return seq <= c.Floor || c.Settled.Contains(seq)
}

// drain handles everything that is left: nothing may be lost.
func (l *ledger) drain() {
	l.logf("drain")
	if l.paused {
		l.pause()
	}
	if len(l.members) == 0 {
		l.enrol()
	}
	idle := 0
	for idle < 5 {
		for _, f := range l.handedOut() {
			l.logf("ack seq %d", f.ev.Seq)
			l.ack(l.name, f.ev.ID)
			f.settle()
		}
		l.settleDown()
		l.model.check()
		n := 0
		for _, w := range l.members {
			for _, d := range w.Take(10) {
				l.delivered(w, d)
				n++
			}
		}
		if n > 0 {
			idle = 0
			continue
		}
		l.sleep(l.patience())
		l.model.check()
		idle++
	}
	stuck := make(map[string]bool)
	for _, f := range l.facts {
		key := f.ev.Key
		if l.set.Ordering == group.ByTopic {
			key = "x"
		}
		// After a crash one that had all its attempts is blocked as well.
		blocked := f.blocked || l.set.DeadLetter == group.DeadBlock && !f.settled && f.hi >= l.set.MaxAttempts
		if blocked && l.set.Ordering != group.Unordered && key != "" {
			stuck[key] = true
		}
		if !f.settled && !f.maybe && !f.torn && !blocked && !f.gone && !f.refused && !stuck[key] {
			l.fatalf("seq %d is never delivered", f.ev.Seq)
		}
	}
}
