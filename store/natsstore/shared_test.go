package natsstore_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/store"
	"promethean/store/natsstore"
)

// TestGroupAcrossStores: settlements of two stores add up, and a store whose
// epoch is over learns it although its cache says otherwise.
func TestGroupAcrossStores(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	ctx := deadline(t)
	a, b := open(t, url, natsstore.Options{}), open(t, url, natsstore.Options{})
	var events []event.Event
	for n := range 200 {
		events = append(events, newEvent("", n))
	}
	mustAppend(t, a, store.Batch{Events: events})
	if _, err := a.PutCursor(ctx, store.Cursor{Topic: topic, Group: "g", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	settle := func(s *natsstore.Store, epoch, seq uint64) error {
		_, err := s.Append(ctx, store.Batch{Settle: []store.Settlement{{Topic: topic, Group: "g", Epoch: epoch, Done: []store.Range{{First: seq, Last: seq}}}}})
		return err
	}
	var all sync.WaitGroup
	for w := range uint64(8) {
		all.Go(func() {
			s := []*natsstore.Store{a, b}[w%2]
			for seq := w + 1; seq <= 160; seq += 8 {
				if err := settle(s, 1, seq); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	c, err := b.Cursor(ctx, topic, "g")
	if err != nil || c.Floor != 160 || c.Version != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	c.Epoch = 2
	if _, err := b.PutCursor(ctx, c); err != nil {
		t.Fatal(err)
	}
	if err := settle(a, 1, 170); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("settle with an epoch that is over: %v", err)
	}
	if err := settle(a, 2, 161); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteCursor(ctx, topic, "g", 2); err != nil {
		t.Fatal(err)
	}
	if err := settle(a, 2, 162); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("settle a group that another store deleted: %v", err)
	}
}

func TestLeaseAcrossStores(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, nil).URL()
	ctx := deadline(t)
	a, b := open(t, url, natsstore.Options{}), open(t, url, natsstore.Options{})
	mine, err := a.Acquire(ctx, "l", "a", 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(ctx, "l", "b", time.Minute); !errors.Is(err, store.ErrHeld) {
		t.Fatal(err)
	}
	for {
		theirs, err := b.Acquire(ctx, "l", "b", time.Minute)
		if err == nil {
			if theirs.Epoch <= mine.Epoch {
				t.Fatalf("epoch %d after %d", theirs.Epoch, mine.Epoch)
			}
			break
		}
		if !errors.Is(err, store.ErrHeld) {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatal("the lease does not end")
		case <-time.After(5 * time.Millisecond):
		}
	}
	if _, err := a.Renew(ctx, mine, time.Minute); !errors.Is(err, store.ErrFenced) {
		t.Fatal(err)
	}
}
