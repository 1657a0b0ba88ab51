package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"promethean"
	"promethean/deadletter"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

const topic = "orders.placed"

// shop is a hub whose group fails on payloads that say "bad".
type shop struct {
	t   *testing.T
	hub *promethean.Hub
	mu  sync.Mutex
	ok  []string
}

func in(t *testing.T, policy group.Policy, f func(s *shop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := hub.Close(); err != nil {
				t.Error(err)
			}
		}()
		s := &shop{t: t, hub: hub}
		for _, name := range []string{"shop", "other"} {
			_, err := deadletter.Subscribe(t.Context(), hub, topic, name, 1, func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
				if string(e.Payload) == `"bad"` && name == "shop" {
					return errors.New("no such thing")
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.ok = append(s.ok, fmt.Sprintf("%s %s %s", name, e.Key, e.Payload))
				return nil
			}, promethean.OnDead(policy))
			if err != nil {
				t.Fatal(err)
			}
		}
		f(s)
	})
}

func (s *shop) publish(key, v string) promethean.Receipt {
	s.t.Helper()
	r, err := s.hub.Emit(s.t.Context(), topic, v, promethean.Key(key))
	if err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
	return r
}

// handled gives what was handled since the last call.
func (s *shop) handled() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.ok
	s.ok = nil
	slices.Sort(ok)
	return ok
}

func (s *shop) replay(o deadletter.Options) deadletter.Report {
	s.t.Helper()
	r, err := deadletter.Replay(s.t.Context(), s.hub, topic, o)
	if err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
	return r
}

func mend(e event.Event) (event.Event, error) {
	e.Payload = []byte(`"mended"`)
	return e, nil
}

func TestReplayToTheTopic(t *testing.T) {
	in(t, group.DeadEvent, func(s *shop) {
		bad := s.publish("a", "bad")
		s.publish("a", "good")
		if got := s.handled(); !slices.Equal(got, []string{`other a "bad"`, `other a "good"`, `shop a "good"`}) {
			t.Fatalf("handled %q", got)
		}
		if r := s.replay(deadletter.Options{Transform: mend}); r != (deadletter.Report{Replayed: 1}) {
			t.Fatalf("%+v", r)
		}
		if got := s.handled(); !slices.Equal(got, []string{`other a "mended"`, `shop a "mended"`}) {
			t.Errorf("handled %q", got)
		}
		// Not again.
		if r := s.replay(deadletter.Options{}); r != (deadletter.Report{}) {
			t.Errorf("%+v", r)
		}
		for e, err := range s.hub.Read(t.Context(), store.Query{Topic: topic, After: 2}) {
			from, _ := e.Headers.Get("x-replayed-from")
			if err != nil || e.ID == bad.ID || len(e.CausedBy) != 1 || from != "dlq."+topic {
				t.Errorf("%+v, %v", e, err)
			}
		}
	})
}

func TestReplayToTheGroup(t *testing.T) {
	in(t, group.DeadEvent, func(s *shop) {
		s.publish("a", "bad")
		s.handled()
		if r := s.replay(deadletter.Options{To: deadletter.ToGroup, Transform: mend}); r.Replayed != 1 {
			t.Fatalf("%+v", r)
		}
		if got := s.handled(); !slices.Equal(got, []string{`shop a "mended"`}) {
			t.Errorf("handled %q", got)
		}
		// One that fails again is a dead letter again.
		s.publish("b", "bad")
		s.handled()
		for range 3 {
			if r := s.replay(deadletter.Options{To: deadletter.ToGroup}); r.Replayed != 1 {
				t.Fatalf("%+v", r)
			}
		}
		counts, err := deadletter.Counts(t.Context(), s.hub)
		if err != nil || !slices.Equal(counts, []deadletter.Count{{Topic: topic, Group: "shop", Letters: 1}}) {
			t.Errorf("%v, %v", counts, err)
		}
	})
}

// A handler is told that an event is replayed to its group, and from which dead
// letter.
func TestHandlerKnowsTheLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = hub.Close() }()
		var got []uint64
		_, err = deadletter.Subscribe(t.Context(), hub, topic, "shop", 1, func(_ context.Context, _ event.Event, d *promethean.Delivery) error {
			if got = append(got, d.Letter); len(got) <= 2 {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s := &shop{t: t, hub: hub}
		s.publish("a", "one")
		s.publish("b", "two")
		s.replay(deadletter.Options{Limit: 1, To: deadletter.ToGroup})
		s.replay(deadletter.Options{To: deadletter.ToGroup})
		s.publish("a", "three")
		if !slices.Equal(got, []uint64{0, 0, 1, 2, 0}) {
			t.Errorf("letters %v", got)
		}
	})
}

func TestReplayOfAParkedKey(t *testing.T) {
	in(t, group.DeadKey, func(s *shop) {
		s.publish("a", "bad")
		s.publish("a", "one")
		s.publish("b", "free")
		s.publish("a", "two")
		if got := s.handled(); !slices.Contains(got, `shop b "free"`) || slices.Contains(got, `shop a "one"`) {
			t.Fatalf("handled %q", got)
		}
		if r := s.replay(deadletter.Options{Limit: 1, Transform: mend}); r != (deadletter.Report{Replayed: 1, Remaining: 2}) {
			t.Fatalf("%+v", r)
		}
		s.publish("a", "three") // still parked
		if got := s.handled(); slices.Contains(got, `shop a "three"`) || !slices.Contains(got, `shop a "mended"`) {
			t.Fatalf("handled %q", got)
		}
		if r := s.replay(deadletter.Options{}); r.Replayed != 3 {
			t.Fatalf("%+v", r)
		}
		s.publish("a", "four")
		if got := s.handled(); !slices.Equal(got, []string{`other a "four"`, `shop a "four"`, `shop a "one"`, `shop a "three"`, `shop a "two"`}) {
			t.Errorf("handled %q", got)
		}
	})
}

func TestChosenAndRefused(t *testing.T) {
	in(t, group.DeadEvent, func(s *shop) {
		first := s.publish("a", "bad")
		s.publish("b", "bad")
		if r := s.replay(deadletter.Options{IDs: []event.ID{first.ID}, Transform: mend}); r.Replayed != 1 {
			t.Errorf("%+v", r)
		}
		if r := s.replay(deadletter.Options{Group: "nobody"}); r != (deadletter.Report{}) {
			t.Errorf("%+v", r)
		}
		broken := errors.New("broken")
		if r, err := deadletter.Replay(t.Context(), s.hub, topic, deadletter.Options{Transform: func(e event.Event) (event.Event, error) { return e, broken }}); !errors.Is(err, broken) || r.Remaining != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		for _, o := range []deadletter.Options{{Limit: -1}, {To: "nowhere"}} {
			if _, err := deadletter.Replay(t.Context(), s.hub, topic, o); !errors.Is(err, group.ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		if _, err := deadletter.Replay(t.Context(), s.hub, "No", deadletter.Options{}); !errors.Is(err, event.ErrInvalidTopic) {
			t.Errorf("%v", err)
		}
	})
}

// A group on dead letters has none of its own.
func TestNoDeadLetterOfADeadLetter(t *testing.T) {
	in(t, group.DeadEvent, func(s *shop) {
		s.publish("a", "bad")
		_, err := s.hub.Subscribe(t.Context(), "dlq."+topic, "g", func(context.Context, event.Event, *promethean.Delivery) error {
			return promethean.Dead(errors.New("no"))
		}, promethean.FromEarliest())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for top, err := range s.hub.Topics(t.Context()) {
			if err != nil || top.Name == "dlq.dlq."+topic {
				t.Errorf("topic %s, %v", top.Name, err)
			}
		}
		if p, err := s.hub.Cursor(t.Context(), "dlq."+topic, "g"); err != nil || p.Seq != 1 {
			t.Errorf("%+v, %v", p, err)
		}
	})
}
