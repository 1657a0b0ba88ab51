package outboxtest

import (
	"fmt"
	"sync"
	"time"

	"promethean/event"
	"promethean/outbox"
)

var claimCases = []Case{
	{"claim/nobody else has the rows", func(x *trial) {
		x.addKeyed(3, "a", "b", "")
		x.wantClaim("me", "1", "2", "3", "a1", "a2", "a3", "b1", "b2", "b3")
		x.wantClaim("you")
		x.wantClaim("me")
		x.wantStats(outbox.Stats{Claimed: 9})
	}},
	{"claim/no more than asked for, the first of each key first", func(x *trial) {
		x.addKeyed(4, "a")
		wantRows(x, x.claim("me", 1), "a1")
		x.wantClaim("you") // the others are behind it
		x.addKeyed(1, "b")
		wantRows(x, x.claim("you", 5), "b1")
	}},
	{"claim/a key goes on where it was sent", func(x *trial) {
		x.addKeyed(4, "a")
		x.sent(x.claim("me", 2)...)
		wantRows(x, x.claim("you", 1), "a3")
		x.wantClaim("me")
	}},
	{"claim/one key of two topics is two", func(x *trial) {
		x.add(row("a", "k", 1), row("b", "k", 2))
		one := x.claim("me", 1)
		other := x.claim("you", 10)
		if len(one) != 1 || len(other) != 1 || one[0].Topic == other[0].Topic {
			x.Fatalf("claimed %v and %v", one, other)
		}
	}},
	{"claim/rows without a key do not wait for each other", func(x *trial) {
		x.addKeyed(3, "")
		first := x.claim("me", 1)
		x.giveUp("me", first...)
		if rest := x.claim("you", 10); len(rest) != 2 {
			x.Fatalf("claimed %d, want 2", len(rest))
		}
	}},
	{"claim/rows that are given back come again", func(x *trial) {
		x.addKeyed(2, "a")
		rows := x.wantClaim("me", "a1", "a2")
		x.check(x.Store.Release(x.ctx, "me", idsOf(rows)...))
		for _, r := range x.wantClaim("you", "a1", "a2") {
			if r.Attempts != 0 {
				x.Errorf("giving back counted as an attempt: %d", r.Attempts)
			}
		}
	}},
	{"claim/a key of which one is given back waits for it", func(x *trial) {
		x.addKeyed(3, "a")
		rows := x.wantClaim("me", "a1", "a2", "a3")
		x.check(x.Store.Release(x.ctx, "me", rows[2].ID))
		x.wantClaim("you") // a1 and a2 are still claimed
		x.sent(rows[0], rows[1])
		x.wantClaim("you", "a3")
	}},
	{"claim/a lease ends, and not earlier", func(x *trial) {
		x.addKeyed(2, "a")
		x.wantClaim("me", "a1", "a2")
		x.wantCount("requeue", 0)(x.Store.RequeueExpired(x.ctx))
		x.Advance(x, lease/2)
		x.wantCount("requeue", 0)(x.Store.RequeueExpired(x.ctx))
		x.wantClaim("you")
		x.Advance(x, lease)
		x.wantCount("requeue", 2)(x.Store.RequeueExpired(x.ctx))
		for _, r := range x.wantClaim("you", "a1", "a2") {
			if r.Attempts != 0 {
				x.Errorf("a lease that ended counted as an attempt: %d", r.Attempts)
			}
		}
		x.wantCount("requeue", 0)(x.Store.RequeueExpired(x.ctx))
	}},
	{"claim/one that is over changes nothing but what was sent", func(x *trial) {
		x.addKeyed(1, "a", "b", "c")
		old := x.wantClaim("old", "a1", "b1", "c1")
		x.Advance(x, 2*lease)
		x.wantCount("requeue", 3)(x.Store.RequeueExpired(x.ctx))
		x.wantClaim("new", "a1", "b1", "c1")
		x.refuse("old", time.Hour, old[0])
		x.giveUp("old", old[0])
		x.check(x.Store.Release(x.ctx, "old", old[1].ID))
		x.wantStats(outbox.Stats{Claimed: 3})
		x.sent(old[2]) // it is in the log, whoever says so
		x.wantStats(outbox.Stats{Claimed: 2})
		x.refuse("new", time.Hour, old[2]) // and stays there
		x.check(x.Store.Release(x.ctx, "new", old[2].ID))
		x.wantStats(outbox.Stats{Claimed: 2})
		if list, err := x.Store.Errors(x.ctx, 10); err != nil || len(list) != 0 {
			x.Errorf("errors %v, %v", list, err)
		}
	}},
	{"claim/the clock is set back", func(x *trial) {
		x.addKeyed(1, "a", "b")
		rows := x.wantClaim("me", "a1", "b1")
		x.refuse("me", time.Hour, rows[0])
		x.Advance(x, -100*time.Hour)
		x.wantCount("requeue", 1)(x.Store.RequeueExpired(x.ctx))
		x.wantClaim("you", "a1", "b1")
	}},
	{"claim/the clock is set forward", func(x *trial) {
		x.addKeyed(1, "a")
		old := x.wantClaim("me", "a1")
		x.Advance(x, 100*24*time.Hour)
		x.wantCount("requeue", 1)(x.Store.RequeueExpired(x.ctx))
		x.wantClaim("you", "a1")
		x.sent(old...)
		x.sent(old...)
		x.wantStats(outbox.Stats{})
	}},
	{"claim/bad arguments are refused", func(x *trial) {
		x.addKeyed(1, "a")
		for _, c := range []struct {
			owner string
			n     int
			lease time.Duration
		}{{"", 1, lease}, {"me", 0, lease}, {"me", -1, lease}, {"me", 1, 0}} {
			if rows, err := x.Store.ClaimBatch(x.ctx, c.owner, c.n, c.lease); err == nil || len(rows) > 0 {
				x.Errorf("%+v: %d rows, %v; want an error", c, len(rows), err)
			}
		}
		x.wantClaim("me", "a1")
	}},
	{"claim/a row by hand does not hold up others", func(x *trial) {
		if x.Raw == nil {
			x.Skip("the driver takes no rows by hand")
		}
		x.Raw(x, event.NewID(), "orders.placed", "hand", `{"not":`)
		x.addKeyed(1, "a")
		rows := x.claim("me", 10)
		if len(rows) != 2 {
			x.Fatalf("claimed %d rows, want 2", len(rows))
		}
		for _, r := range rows {
			if err := r.Check(event.Limits{}); (err != nil) != (r.Key == "hand") {
				x.Errorf("row of key %s: %v", r.Key, err)
			}
		}
	}},
	{"claim/many at once never share a row, nor a key", claimTogether},
}

// claimTogether has several owners claim, send, refuse and give back at the same
// time, and watches that nobody has a row while another has it or an earlier one
// of its key.
func claimTogether(x *trial) {
	const owners, keys, each = 6, 5, 12
	var names []string
	for k := range keys {
		names = append(names, fmt.Sprintf("k%d.", k))
	}
	x.addKeyed(each, names...)
	var mu sync.Mutex
	held := make(map[event.ID]string)
	next := make(map[string]int) // by key, how many are sent
	take := func(owner string, rows []outbox.Row) {
		mu.Lock()
		defer mu.Unlock()
		mine := make(map[string]int)
		for _, r := range rows {
			if other, taken := held[r.ID]; taken {
				x.Errorf("%s and %s have %s%s at a time", owner, other, r.Key, r.Payload)
			}
			held[r.ID] = owner
			if _, ok := mine[r.Key]; !ok {
				mine[r.Key] = next[r.Key]
			}
			mine[r.Key]++
			if want := fmt.Sprint(mine[r.Key]); string(r.Payload) != want {
				x.Errorf("%s has %s%s, and %s is not sent", owner, r.Key, r.Payload, want)
			}
		}
	}
	drop := func(r outbox.Row, sent bool) {
		mu.Lock()
		defer mu.Unlock()
		delete(held, r.ID)
		if sent {
			next[r.Key]++
		}
	}
	left := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range names {
			n += each - next[key]
		}
		return n
	}
	var all sync.WaitGroup
	for i := range owners {
		s := x.Again(x)
		all.Go(func() {
			owner := fmt.Sprint("owner ", i)
			for round := 0; left() > 0 && x.ctx.Err() == nil && !x.Failed(); round++ {
				rows, err := s.ClaimBatch(x.ctx, owner, 1+(round+i)%7, lease)
				if err != nil {
					x.Errorf("claim: %v", err)
					return
				}
				take(owner, rows)
				// From the end, so that the key is never seen to go on behind a
				// row that is not sent yet.
				for j := len(rows) - 1; j >= 0; j-- {
					if (round+j)%3 == 0 {
						drop(rows[j], false)
						err = s.Release(x.ctx, owner, rows[j].ID)
						rows = append(rows[:j], rows[j+1:]...)
					}
					if err != nil {
						x.Errorf("release: %v", err)
						return
					}
				}
				rows = beforeGaps(rows, func(r outbox.Row) {
					drop(r, false)
					if err := s.Release(x.ctx, owner, r.ID); err != nil {
						x.Errorf("release: %v", err)
					}
				}, func(key string) int { mu.Lock(); defer mu.Unlock(); return next[key] })
				for _, r := range rows {
					drop(r, true)
				}
				if err := s.MarkSent(x.ctx, idsOf(rows)...); err != nil {
					x.Errorf("mark sent: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := left(); n > 0 && !x.Failed() {
		x.Errorf("%d rows were never given out", n)
	}
}

// beforeGaps keeps the rows that follow on what is sent of their key, and gives
// the others back.
func beforeGaps(rows []outbox.Row, back func(outbox.Row), sent func(key string) int) (keep []outbox.Row) {
	at := make(map[string]int)
	for _, r := range rows {
		if _, ok := at[r.Key]; !ok {
			at[r.Key] = sent(r.Key)
		}
		if string(r.Payload) != fmt.Sprint(at[r.Key]+1) {
			back(r)
			continue
		}
		at[r.Key]++
		keep = append(keep, r)
	}
	return keep
}
