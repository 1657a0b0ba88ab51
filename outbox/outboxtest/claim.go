package outboxtest

import (
	"fmt"
	"slices"
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

// claimTogether has several owners claim at the same time, again and again, and
// then send some of their rows and give back the others, at the same time too.
func claimTogether(x *trial) {
	const owners, keys, each = 6, 5, 12
	var names []string
	for k := range keys {
		names = append(names, fmt.Sprintf("k%d.", k))
	}
	x.addKeyed(each, names...)
	stores := make([]outbox.Store, owners)
	for i := range stores {
		stores[i] = x.Again(x)
	}
	together := func(do func(i int) error) {
		var all sync.WaitGroup
		for i := range owners {
			all.Go(func() {
				if err := do(i); err != nil {
					x.Errorf("owner %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if x.Failed() {
			x.FailNow()
		}
	}
	sent := make(map[string]int) // by key
	for round, left := 0, keys*each; left > 0; round++ {
		claims := make([][]outbox.Row, owners)
		together(func(i int) (err error) {
			claims[i], err = stores[i].ClaimBatch(x.ctx, fmt.Sprint("owner ", i), 1+(round+i)%7, lease)
			return err
		})
		keep := make([][]outbox.Row, owners)
		back := make([][]outbox.Row, owners)
		for i, rows := range claims {
			next, stopped := make(map[string]int), make(map[string]bool)
			for j, r := range rows {
				next[r.Key]++
				if want := fmt.Sprint(sent[r.Key] + next[r.Key]); string(r.Payload) != want {
					x.Fatalf("owner %d has %s%s, and %s is not sent", i, r.Key, r.Payload, want)
				}
				for o, others := range claims {
					if o != i && slices.ContainsFunc(others, func(other outbox.Row) bool { return other.Key == r.Key }) {
						x.Fatalf("owners %d and %d have rows of key %s at a time", i, o, r.Key)
					}
				}
				if stopped[r.Key] = stopped[r.Key] || (round+j)%4 == 0; stopped[r.Key] {
					back[i] = append(back[i], r)
				} else {
					keep[i] = append(keep[i], r)
				}
			}
		}
		together(func(i int) error {
			if err := stores[i].Release(x.ctx, fmt.Sprint("owner ", i), idsOf(back[i])...); err != nil {
				return err
			}
			return stores[i].MarkSent(x.ctx, idsOf(keep[i])...)
		})
		for _, rows := range keep {
			left -= len(rows)
			for _, r := range rows {
				sent[r.Key]++
			}
		}
		x.check(x.ctx.Err())
	}
}
