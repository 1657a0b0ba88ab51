package promethean_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/deadletter"
	"promethean/event"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

// A hub over an engine without abilities does what any hub does.
func TestOverAnEngineWithoutAbilities(t *testing.T) {
	for name, engine := range map[string]func(*logstore.Store) promethean.Log{
		"alone":  func(s *logstore.Store) promethean.Log { return storetest.Plain{Engine: s} },
		"shared": func(s *logstore.Store) promethean.Log { return storetest.Share(s) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, err := logstore.OpenMemory(logstore.Options{})
				if err != nil {
					t.Fatal(err)
				}
				hub, err := promethean.New(engine(log), promethean.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := hub.Close(); err != nil {
						t.Error(err)
					}
				}()
				overPlain(t, hub)
			})
		})
	}
}

func overPlain(t *testing.T, hub *promethean.Hub) {
	ctx := context.Background()
	// More events, over more topics, than a batch of the engine may have.
	var events []event.Event
	for i := range 10 {
		e := event.New([]string{"orders.placed", "orders.paid"}[i%2], []byte(`{"n":1}`))
		e.Key = "k"
		events = append(events, e)
	}
	receipts, err := hub.Publish(ctx, events...)
	if err != nil {
		t.Fatal(err)
	}
	if r := receipts[9]; r.Seq != 5 || r.Topic != "orders.paid" {
		t.Errorf("the last one is at %+v", r)
	}
	// One is poison until it is replayed.
	sick := true
	handled := make(map[uint64]int)
	handler := func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
		if e.Seq == 3 && sick {
			return errors.New("poison")
		}
		handled[e.Seq]++
		return nil
	}
	sub, err := hub.SubscribeExactlyOnce(ctx, "orders.placed", "g", handler, time.Hour,
		promethean.FromEarliest(), promethean.MaxAttempts(2), promethean.OnDead("key"))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	counts, err := deadletter.Counts(ctx, hub)
	if err != nil || len(counts) != 1 || counts[0].Letters != 3 { // 3, and those of its key behind it
		t.Fatalf("dead letters: %+v, %v", counts, err)
	}
	sick = false
	if rep, err := deadletter.Replay(ctx, hub, "orders.placed", deadletter.Options{Group: "g"}); err != nil || rep.Replayed != 3 {
		t.Fatalf("replay: %+v, %v", rep, err)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	for seq := uint64(1); seq <= 5; seq++ {
		if handled[seq] != 1 {
			t.Errorf("seq %d was handled %d times", seq, handled[seq])
		}
	}
	// What was handled is marked: it is skipped although the cursor goes back.
	if err := hub.SetCursor(ctx, "orders.placed", "g", promethean.Place{From: "earliest"}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	if lag, err := hub.Lag(ctx, "orders.placed", "g"); err != nil || lag.Events != 0 || handled[1] != 1 {
		t.Errorf("lag %+v, %v; seq 1 was handled %d times", lag, err, handled[1])
	}
	if err := sub.Stop(ctx); err != nil {
		t.Error(err)
	}
}
