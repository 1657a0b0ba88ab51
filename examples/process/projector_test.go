package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/prometheantest"
	"promethean/store"
)

var (
	beat   = process.Heartbeat{PID: 1, Name: "stt", Host: "dev", CPUPct: 12.3, MemMB: 256}
	alive  = map[string]any{"status": "alive"}
	stale  = map[string]any{"status": "stale"}
	always = process.Options{}
)

// quiet is long enough for everything that could happen to happen.
const quiet = 2 * time.Minute

// in runs a test in virtual time with a hub that has no projector.
func in(t *testing.T, f func(t *testing.T, h *prometheantest.Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, prometheantest.Start(t, prometheantest.WithoutProjector())) })
}

// start starts a projector and gives what stops it, once, by the end of the test.
func start(t *testing.T, hub process.Hub, o process.Options) (stop func()) {
	t.Helper()
	p, err := process.Start(t.Context(), hub, o)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// state decodes the payload of an event.
func state(t *testing.T, e event.Event) (s process.State) {
	t.Helper()
	if err := json.Unmarshal(e.Payload, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// after is a time so long after now.
func after(d time.Duration) promethean.PublishOption { return promethean.At(time.Now().Add(d)) }

func TestAliveStaleAlive(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		start(t, h.Bus(), always)
		began := time.Now()
		first := h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, prometheantest.Event{
			Key: "dev:stt:1", CausedBy: []event.ID{first.ID},
			Payload: prometheantest.Exactly(process.State{
				ProcessID: "dev:stt:1", Name: "stt", Host: "dev", PID: 1, CPUPct: 12.3, MemMB: 256, LastSeenTS: first.TS, Status: process.Alive,
			}),
		})
		h.ExpectEvents(process.StateTopic, prometheantest.Event{
			Key: "dev:stt:1", Payload: map[string]any{"status": "stale", "last_seen_ts": first.TS, "cpu_pct": 12.3},
		})
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("stale after %v", took)
		}
		h.ExpectNone(process.StateTopic, quiet)
		again := h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, map[string]any{"status": "alive", "last_seen_ts": again.TS})
		h.ExpectEvents(process.StateTopic, map[string]any{"status": "stale", "last_seen_ts": again.TS})
		h.ExpectNone(process.StateTopic, quiet)
		// Both are as the schema has it.
		s := schema(t, process.StateTopic)
		for _, e := range h.Events(process.StateTopic) {
			if err := judge(t, s, e.Payload); err != nil {
				t.Errorf("%s: %v", e.Payload, err)
			}
		}
	})
}

// TestSteadyHeartbeats never lets a process become stale that is heard of in
// time, whatever the phase of the scan.
func TestSteadyHeartbeats(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		start(t, h.Bus(), always)
		for i := range 40 {
			h.Publish(process.HeartbeatTopic, beat)
			h.ExpectEvents(process.StateTopic, alive)
			h.ExpectNone(process.StateTopic, 14*time.Second+time.Duration(i*20)*time.Millisecond)
		}
	})
}

func TestOptions(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		start(t, h.Bus(), process.Options{StaleAfter: 3 * time.Second, ScanEvery: time.Second})
		began := time.Now()
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, alive, stale)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("stale after %v", took)
		}
	})
}

// TestRestart stops the projector while a process goes silent, and another one
// while a third comes.
func TestRestart(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		stop := start(t, h.Bus(), always)
		other := process.Heartbeat{PID: 2, Name: "llm", Host: "dev"}
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, map[string]any{"processId": "dev:stt:1"})
		h.Publish(process.HeartbeatTopic, other)
		h.ExpectEvents(process.StateTopic, map[string]any{"processId": "dev:llm:2"})
		stop()
		h.ExpectNone(process.StateTopic, quiet)
		h.Publish(process.HeartbeatTopic, other) // nobody is there to see it
		h.ExpectNone(process.StateTopic, time.Second)

		stop = start(t, h.Bus(), always)
		h.ExpectEvents(process.StateTopic, map[string]any{"processId": "dev:llm:2", "status": "alive"})
		h.ExpectEvents(process.StateTopic, map[string]any{"processId": "dev:stt:1", "status": "stale"})
		stop()
		// What was said is not said again.
		stop = start(t, h.Bus(), always)
		h.ExpectEvents(process.StateTopic, map[string]any{"processId": "dev:llm:2", "status": "stale"})
		h.ExpectNone(process.StateTopic, quiet)
		stop()
		start(t, h.Bus(), always)
		h.ExpectNone(process.StateTopic, quiet)
		// A process that is stale and not in memory comes back all the same.
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, map[string]any{"processId": "dev:stt:1", "status": "alive"})
	})
}

// TestBacklog starts a projector over heartbeats of an hour: whoever is heard of
// in the end was never stale, however long the backlog takes.
func TestBacklog(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		const n = 120
		for range n {
			h.Publish(process.HeartbeatTopic, beat, promethean.Key("dev:stt:1"))
			h.ExpectNone(process.StateTopic, 10*time.Second)
		}
		// Each takes a second, so that many scans fall into it.
		start(t, &slow{Hub: h.Bus(), by: time.Second}, always)
		want := make([]any, n)
		for i := range want {
			want[i] = alive
		}
		h.ExpectEvents(process.StateTopic, want[:n/2]...)
		h.ExpectEvents(process.StateTopic, want[n/2:]...)
		h.ExpectEvents(process.StateTopic, stale)
		h.ExpectNone(process.StateTopic, quiet)
	})
}

// slow is a hub whose publishes take their time.
type slow struct {
	process.Hub
	by time.Duration
}

func (s *slow) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	select {
	case <-time.After(s.by):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.Hub.PublishIf(ctx, expect, events...)
}

// TestRedelivery has heartbeats handled again: after their state was published
// and before they were acked, and because somebody moved the cursor back.
func TestRedelivery(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		hub := &forgetful{Hub: h.Bus()}
		stop := start(t, hub, always)
		for fail := range 3 {
			hub.fail = fail // of the heartbeat's state and then, perhaps, of the scan's
			h.Publish(process.HeartbeatTopic, beat)
			h.ExpectEvents(process.StateTopic, alive)
			h.ExpectEvents(process.StateTopic, stale)
			h.ExpectNone(process.StateTopic, quiet)
		}
		if hub.fail != 0 {
			t.Errorf("%d publishes did not fail", hub.fail)
		}
		// A whole replay says nothing new, to a projector that knows the states
		// and to one that has to look for them.
		for range 2 {
			if err := h.Bus().SetCursor(t.Context(), process.HeartbeatTopic, process.Group, promethean.Place{From: "earliest"}); err != nil {
				t.Fatal(err)
			}
			h.ExpectNone(process.StateTopic, quiet)
			stop()
			stop = start(t, h.Bus(), always)
		}
		if lag, err := h.Bus().Lag(t.Context(), process.HeartbeatTopic, process.Group); err != nil || lag.Events != 0 {
			t.Errorf("%+v, %v", lag, err)
		}
	})
}

// forgetful is a hub whose next publishes are stored and answered with an error,
// as when a connection is lost.
type forgetful struct {
	process.Hub
	fail int
}

func (f *forgetful) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	got, err := f.Hub.PublishIf(ctx, expect, events...)
	if err == nil && f.fail > 0 {
		f.fail--
		return nil, store.ErrUnavailable
	}
	return got, err
}

func TestPoison(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		start(t, h.Bus(), always)
		h.Publish(process.HeartbeatTopic, map[string]any{"pid": "one"}, promethean.Key("dev:stt:1"))
		h.Publish(process.HeartbeatTopic, beat, promethean.Key("dev:stt:1"))
		h.ExpectEvents("dlq."+process.HeartbeatTopic, prometheantest.Event{Key: "dev:stt:1", Payload: map[string]any{
			"group": "process-projector", "attempts": 1, "original": map[string]any{"payload": map[string]any{"pid": "one"}},
		}})
		h.ExpectEvents(process.StateTopic, alive) // those behind it go on
		// A name that makes no key cannot be mended by trying again either.
		h.Publish(process.HeartbeatTopic, process.Heartbeat{Name: strings.Repeat("x", 2000), Host: "dev"})
		h.ExpectEvents("dlq."+process.HeartbeatTopic, map[string]any{"attempts": 1})
		h.ExpectNone("dlq."+process.HeartbeatTopic, quiet)
	})
}

func TestLateHeartbeats(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		start(t, h.Bus(), always)
		time.Sleep(time.Hour)
		now := h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, alive)
		// Older ones, that were held up on their way, change nothing.
		h.Publish(process.HeartbeatTopic, beat, after(-time.Second))
		h.Publish(process.HeartbeatTopic, beat, after(-time.Hour))
		h.ExpectNone(process.StateTopic, time.Second)
		// One of the same moment has figures of its own.
		h.Publish(process.HeartbeatTopic, process.Heartbeat{PID: 1, Name: "stt", Host: "dev", CPUPct: 99}, promethean.At(time.UnixMilli(now.TS)))
		h.ExpectEvents(process.StateTopic, map[string]any{"cpu_pct": 99, "last_seen_ts": now.TS})
		h.ExpectEvents(process.StateTopic, stale)
		// But it does not bring a process back that was silent since.
		h.Publish(process.HeartbeatTopic, beat, promethean.At(time.UnixMilli(now.TS)))
		h.ExpectNone(process.StateTopic, quiet)
		// A clock that is a day fast counts as now, and does not hide what comes
		// after it was set right.
		h.Publish(process.HeartbeatTopic, beat, after(24*time.Hour))
		h.ExpectEvents(process.StateTopic, map[string]any{"status": "alive", "last_seen_ts": time.Now().UnixMilli()})
		time.Sleep(time.Second)
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, map[string]any{"status": "alive", "last_seen_ts": time.Now().UnixMilli()})
		h.ExpectEvents(process.StateTopic, stale)
	})
}

// TestOutOfOrder hands heartbeats without a key out in any order: the last state
// is that of the latest one, and times never run backwards.
func TestOutOfOrder(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		batch := make([]event.Event, 500)
		base := time.Now().UnixMilli()
		for i := range batch {
			payload, err := json.Marshal(beat)
			if err != nil {
				t.Fatal(err)
			}
			batch[i] = event.New(process.HeartbeatTopic, payload)
			batch[i].TS = base + int64(i*7919%500)*10
		}
		if _, err := h.Bus().Publish(t.Context(), batch...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		start(t, h.Bus(), always)
		h.Eventually(func() error {
			lag, err := h.Bus().Lag(t.Context(), process.HeartbeatTopic, process.Group)
			if err == nil && lag.Events > 0 {
				err = fmt.Errorf("%d heartbeats are left", lag.Events)
			}
			return err
		})
		var last int64
		for _, e := range h.Events(process.StateTopic) {
			s := state(t, e)
			if s.LastSeenTS < last {
				t.Fatalf("seq %d: last seen at %d after %d", e.Seq, s.LastSeenTS, last)
			}
			last = s.LastSeenTS
		}
		if last != base+4990 {
			t.Errorf("last seen at +%d ms", last-base)
		}
		if n := len(h.Events("dlq." + process.HeartbeatTopic)); n != 0 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// TestSeveralProjectors shares the work: they all know all processes, and none
// of them contradicts another.
func TestSeveralProjectors(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		stops := make([]func(), 3)
		for i := range stops {
			stops[i] = start(t, h.Bus(), always)
		}
		const processes, rounds = 40, 6
		for range rounds {
			for pid := range processes {
				h.Publish(process.HeartbeatTopic, process.Heartbeat{PID: int64(pid), Name: "w", Host: "dev"})
			}
			time.Sleep(5 * time.Second)
		}
		stops[0]() // those that it has handled are watched by the others
		stops[1]()
		time.Sleep(time.Minute)
		byKey := make(map[string][]process.State)
		for _, e := range h.Events(process.StateTopic) {
			byKey[e.Key] = append(byKey[e.Key], state(t, e))
		}
		if len(byKey) != processes {
			t.Fatalf("%d processes", len(byKey))
		}
		for key, list := range byKey {
			if len(list) != rounds+1 || slices.ContainsFunc(list[:rounds], func(s process.State) bool { return s.Status != process.Alive }) || list[rounds].Status != process.Stale {
				t.Errorf("%s: %+v", key, list)
			}
		}
	})
}

// TestThousands lets thousands of processes fall silent at once, while one of
// them comes back.
func TestThousands(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		start(t, h.Bus(), always)
		const n = 2000
		var batch []event.Event
		for pid := range n {
			payload, err := json.Marshal(process.Heartbeat{PID: int64(pid), Name: "w", Host: "dev"})
			if err != nil {
				t.Fatal(err)
			}
			e := event.New(process.HeartbeatTopic, payload)
			if e.Key = fmt.Sprintf("dev:w:%d", pid); pid%2 == 0 {
				e.Key = ""
			}
			batch = append(batch, e)
		}
		if _, err := h.Bus().Publish(t.Context(), batch...); err != nil {
			t.Fatal(err)
		}
		count := func(want map[process.Status]int) func() error {
			return func() error {
				b, err := h.Bus().Log().Bounds(t.Context(), process.StateTopic)
				if total := want[process.Alive] + want[process.Stale]; err != nil {
					return err
				} else if b.Last != uint64(total) {
					return fmt.Errorf("there are %d states, want %d", b.Last, total)
				}
				got := make(map[process.Status]int)
				for _, e := range h.Events(process.StateTopic) {
					got[state(t, e).Status]++
				}
				if got[process.Alive] != want[process.Alive] || got[process.Stale] != want[process.Stale] {
					return fmt.Errorf("got %v, want %v", got, want)
				}
				return nil
			}
		}
		h.Eventually(count(map[process.Status]int{process.Alive: n}))
		time.Sleep(14 * time.Second)
		h.Publish(process.HeartbeatTopic, process.Heartbeat{PID: 77, Name: "w", Host: "dev"})
		h.Eventually(count(map[process.Status]int{process.Alive: n + 1, process.Stale: n - 1}))
		time.Sleep(15 * time.Second)
		h.Eventually(count(map[process.Status]int{process.Alive: n + 1, process.Stale: n}))
	})
}

// TestRaceWithTheScan has a heartbeat come while the scan is about to say that
// the process is silent: the scan must not have the last word, and others who
// are silent do not wait for the next one.
func TestRaceWithTheScan(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		hub := &interrupted{Hub: h.Bus(), at: func(e event.Event) bool { return len(e.CausedBy) == 0 }}
		start(t, hub, always)
		began := time.Now()
		h.Publish(process.HeartbeatTopic, beat)
		h.Publish(process.HeartbeatTopic, process.Heartbeat{PID: 2, Name: "stt", Host: "dev"})
		h.ExpectEvents(process.StateTopic, alive, alive)
		hub.before = func() {
			h.Publish(process.HeartbeatTopic, beat)
			synctest.Wait()
		}
		h.ExpectEvents(process.StateTopic,
			map[string]any{"processId": "dev:stt:1", "status": "alive"}, // it was first
			map[string]any{"processId": "dev:stt:2", "status": "stale"})
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("the other is stale after %v", took)
		}
		h.ExpectEvents(process.StateTopic, map[string]any{"processId": "dev:stt:1", "status": "stale"}) // 15 s after its last one
		h.ExpectNone(process.StateTopic, quiet)
	})
}

// TestRaceOfHeartbeats has a newer heartbeat handled while the state of an older
// one is about to be published.
func TestRaceOfHeartbeats(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		hub := &interrupted{Hub: h.Bus(), at: func(event.Event) bool { return true }}
		start(t, hub, always)
		time.Sleep(time.Minute)
		for i := range 3 { // a process that is new, one that is alive, one that is stale
			hub.before = func() {
				h.Publish(process.HeartbeatTopic, process.Heartbeat{PID: 1, Name: "stt", Host: "dev", CPUPct: 2})
				synctest.Wait()
			}
			h.Publish(process.HeartbeatTopic, process.Heartbeat{PID: 1, Name: "stt", Host: "dev", CPUPct: 1}, after(-time.Second))
			h.ExpectEvents(process.StateTopic, map[string]any{"status": "alive", "cpu_pct": 2})
			if h.ExpectNone(process.StateTopic, 10*time.Second); i > 0 {
				h.ExpectEvents(process.StateTopic, stale)
			}
		}
		h.ExpectNone(process.StateTopic, quiet)
	})
}

// interrupted is a hub where something happens before one publish.
type interrupted struct {
	process.Hub
	at     func(event.Event) bool
	before func()
}

func (i *interrupted) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	if f := i.before; f != nil && i.at(events[0]) {
		i.before = nil
		f()
	}
	return i.Hub.PublishIf(ctx, expect, events...)
}

// TestIDsFollowFromHeartbeats projects the same heartbeats twice: the states are
// the same events, so that whoever merges two projections has each once.
func TestIDsFollowFromHeartbeats(t *testing.T) {
	var all [2][]event.ID
	for i := range all {
		in(t, func(t *testing.T, h *prometheantest.Hub) {
			start(t, h.Bus(), always)
			for n := range 3 {
				h.Publish(process.HeartbeatTopic, beat, promethean.ID(event.ID{15: byte(n + 1)}))
				h.ExpectEvents(process.StateTopic, alive, stale)
			}
			for _, e := range h.Events(process.StateTopic) {
				all[i] = append(all[i], e.ID)
			}
		})
	}
	if !slices.Equal(all[0], all[1]) || len(all[0]) != 6 {
		t.Errorf("%v\n%v", all[0], all[1])
	}
}

// TestForeignStates has somebody else publish to process.state.
func TestForeignStates(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		for _, v := range []any{nil, "x", map[string]any{"processId": 7}, map[string]any{"processId": "dev:stt:1", "status": "dozing"}, map[string]any{"processId": "other", "status": "alive"}} {
			h.Publish(process.StateTopic, v, promethean.Key("dev:stt:1"))
		}
		h.ExpectEvents(process.StateTopic, nil, "x", prometheantest.Event{}, prometheantest.Event{}, prometheantest.Event{})
		start(t, h.Bus(), always)
		h.ExpectNone(process.StateTopic, quiet)
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, alive, stale)
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, alive)
		h.Publish(process.StateTopic, nil, promethean.Key("dev:stt:1"))
		h.ExpectEvents(process.StateTopic, nil)
		h.Publish(process.HeartbeatTopic, beat)
		h.ExpectEvents(process.StateTopic, alive)
		h.Publish(process.StateTopic, nil, promethean.Key("dev:stt:1"))
		h.ExpectEvents(process.StateTopic, nil, stale) // it is watched all the same
		h.ExpectNone(process.StateTopic, quiet)
	})
}

func TestStartFails(t *testing.T) {
	in(t, func(t *testing.T, h *prometheantest.Hub) {
		h.Stop()
		if _, err := process.Start(t.Context(), h.Bus(), always); !errors.Is(err, promethean.ErrClosed) {
			t.Error(err)
		}
	})
}
