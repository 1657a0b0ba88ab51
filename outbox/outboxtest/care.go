package outboxtest

import (
	"context"
	"time"

	"promethean/event"
	"promethean/outbox"
)

var careCases = []Case{
	{"care/retry makes rows due at once", func(x *trial) {
		x.addKeyed(1, "a", "b", "c", "d")
		byKey := make(map[string]outbox.Row)
		for _, r := range x.wantClaim("me", "a1", "b1", "c1", "d1") {
			byKey[r.Key] = r
		}
		x.refuse("me", time.Hour, byKey["a"])
		x.giveUp("me", byKey["b"], byKey["c"])
		x.wantCount("retry of a claimed and an unknown row", 0)(x.Store.Retry(x.ctx, byKey["d"].ID, event.NewID()))
		x.wantCount("retry of one", 1)(x.Store.Retry(x.ctx, byKey["b"].ID))
		x.wantClaim("you", "b1")
		x.wantCount("retry of all", 2)(x.Store.Retry(x.ctx))
		x.wantClaim("you", "a1", "c1")
		x.sent(byKey["a"])
		x.wantCount("retry of what is sent", 0)(x.Store.Retry(x.ctx, byKey["a"].ID))
	}},
	{"care/retry counts rows that were due already", func(x *trial) {
		x.addKeyed(1, "a", "b")
		x.refuse("me", 0, x.wantClaim("me", "a1", "b1")...)
		// Often enough that two of them come within a tick of any clock.
		for range 50 {
			x.wantCount("retry of all", 2)(x.Store.Retry(x.ctx))
		}
	}},
	{"care/discarded rows are gone, others are not", func(x *trial) {
		x.addKeyed(2, "a", "b")
		x.addKeyed(1, "c")
		byName := make(map[string]outbox.Row)
		for _, r := range x.claim("me", 10) {
			byName[r.Key+string(r.Payload)] = r
		}
		x.giveUp("me", byName["a1"])
		x.refuse("me", time.Hour, byName["b1"])
		x.check(x.Store.Release(x.ctx, "me", byName["a2"].ID, byName["b2"].ID))
		x.wantCount("discard of good rows", 0)(x.Store.Discard(x.ctx, byName["a2"].ID, byName["c1"].ID, event.NewID()))
		x.wantCount("discard of none", 0)(x.Store.Discard(x.ctx))
		x.wantCount("discard", 2)(x.Store.Discard(x.ctx, byName["a1"].ID, byName["b1"].ID))
		x.wantClaim("you", "a2", "b2")
		x.wantStats(outbox.Stats{Claimed: 3})
	}},
	{"care/prune removes what was sent long ago", func(x *trial) {
		x.addKeyed(3, "a", "b")
		rows := x.claim("me", 10)
		x.sent(rows[:4]...)
		x.wantCount("prune at once", 0)(x.Store.Prune(x.ctx, time.Hour, 100))
		x.Advance(x, 2*time.Hour)
		x.sent(rows[4])
		x.wantCount("prune up to a limit", 3)(x.Store.Prune(x.ctx, time.Hour, 3))
		x.wantCount("prune the rest", 1)(x.Store.Prune(x.ctx, time.Hour, 100))
		x.wantCount("prune nothing", 0)(x.Store.Prune(x.ctx, time.Hour, 100))
		x.giveUp("me", rows[5])
		x.Advance(x, 1000*time.Hour)
		x.wantCount("prune the last", 1)(x.Store.Prune(x.ctx, 0, 100))
		x.wantStats(outbox.Stats{Failed: 1})
		x.add(rows[0]) // its id is free again
		for _, c := range []struct {
			age   time.Duration
			limit int
		}{{-1, 1}, {0, 0}} {
			if _, err := x.Store.Prune(x.ctx, c.age, c.limit); err == nil {
				x.Errorf("prune of age %s, limit %d: want an error", c.age, c.limit)
			}
		}
	}},
	{"care/stats tell counts and age", func(x *trial) {
		x.wantStats(outbox.Stats{})
		x.addKeyed(2, "a", "b")
		x.Advance(x, time.Hour)
		x.addKeyed(1, "c")
		s, err := x.Store.Stats(x.ctx)
		x.check(err)
		if s.Pending != 5 || s.Oldest < time.Hour || s.Oldest > 2*time.Hour {
			x.Fatalf("stats %+v, want 5 pending, an hour old", s)
		}
		rows := x.claim("me", 4)
		x.sent(rows[0], rows[1])
		x.refuse("me", time.Hour, rows[2])
		x.giveUp("me", rows[3])
		x.wantStats(outbox.Stats{Pending: 2, Refused: 1, Failed: 1})
	}},
	{"care/a commit wakes", func(x *trial) {
		w, ok := x.Store.(outbox.Waker)
		if !ok {
			x.Skip("the store does not tell when rows come")
		}
		if x.NoWaking != "" {
			if _, err := w.Wake(x.ctx); err == nil {
				x.Errorf("it began to wake, and cannot: %s", x.NoWaking)
			}
			x.Skipf("no waking: %s", x.NoWaking)
		}
		ctx, cancel := context.WithCancel(x.ctx)
		defer cancel()
		woken, err := w.Wake(ctx)
		x.check(err)
		for range 3 {
			x.addKeyed(1, "a")
			select {
			case _, open := <-woken:
				if !open {
					x.Fatal("the channel was closed")
				}
			case <-x.ctx.Done():
				x.Fatal("nobody was woken")
			}
		}
		cancel()
		for {
			select {
			case _, open := <-woken:
				if !open {
					return
				}
			case <-x.ctx.Done():
				x.Fatal("the channel was not closed")
			}
		}
	}},
}
