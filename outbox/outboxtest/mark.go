package outboxtest

import (
	"strings"
	"time"
	"unicode/utf8"

	"promethean/event"
	"promethean/outbox"
)

var markCases = []Case{
	{"mark/what is sent does not come again", func(x *trial) {
		x.addKeyed(1, "a", "b")
		rows := x.wantClaim("me", "a1", "b1")
		x.sent(rows...)
		x.wantStats(outbox.Stats{})
		x.Advance(x, 10*lease)
		x.wantCount("requeue", 0)(x.Store.RequeueExpired(x.ctx))
		x.wantClaim("me")
		x.sent(rows...)
		x.sent(outbox.Row{ID: event.NewID()}) // nobody knows it
		x.sent()
	}},
	{"mark/a refused row waits, and is due again", func(x *trial) {
		x.addKeyed(1, "a")
		for attempt := range 3 {
			rows := x.wantClaim("me", "a1")
			if rows[0].Attempts != attempt {
				x.Errorf("attempts %d, want %d", rows[0].Attempts, attempt)
			}
			x.refuse("me", time.Hour, rows...)
			x.wantStats(outbox.Stats{Pending: 1, Refused: 1})
			x.wantClaim("me")
			x.Advance(x, 30*time.Minute)
			x.wantClaim("me")
			x.Advance(x, 31*time.Minute)
		}
	}},
	{"mark/a refused row holds up its key alone", func(x *trial) {
		x.addKeyed(2, "a", "b")
		rows := x.wantClaim("me", "a1", "a2", "b1", "b2")
		for _, r := range rows {
			switch r.Key + string(r.Payload) {
			case "a1":
				x.refuse("me", time.Hour, r)
			case "a2":
				x.check(x.Store.Release(x.ctx, "me", r.ID))
			default:
				x.sent(r)
			}
		}
		x.wantClaim("you")
		x.addKeyed(1, "c")
		x.add(row("orders.placed", "b", 3))
		x.wantClaim("you", "b3", "c1")
		x.Advance(x, 61*time.Minute)
		x.wantClaim("you", "a1", "a2")
	}},
	{"mark/one that was given up waits for a person", func(x *trial) {
		x.addKeyed(2, "a", "b")
		rows := x.claim("me", 1)
		x.giveUp("me", rows...)
		key, other := rows[0].Key, "b"
		if key == "b" {
			other = "a"
		}
		x.Advance(x, 1000*time.Hour)
		x.wantCount("requeue", 0)(x.Store.RequeueExpired(x.ctx))
		x.wantClaim("me", other+"1", other+"2")
		x.wantStats(outbox.Stats{Pending: 1, Claimed: 2, Failed: 1})
		x.wantCount("retry", 1)(x.Store.Retry(x.ctx))
		for _, r := range x.wantClaim("me", key+"1", key+"2") {
			if r.Attempts != 0 {
				x.Errorf("%d attempts after a retry, want 0", r.Attempts)
			}
		}
	}},
	{"mark/errors are visible", func(x *trial) {
		x.addKeyed(1, "a", "b", "c", "d")
		rows := x.wantClaim("me", "a1", "b1", "c1", "d1")
		byKey := make(map[string]outbox.Row)
		for _, r := range rows {
			byKey[r.Key] = r
		}
		x.refuse("me", time.Hour, byKey["a"], byKey["b"])
		x.giveUp("me", byKey["c"])
		x.sent(byKey["d"])
		list, err := x.Store.Errors(x.ctx, 10)
		x.check(err)
		if len(list) != 3 || list[0].Key != "c" || list[0].State != outbox.Failed || list[0].Error != "gave up c" {
			x.Fatalf("errors %+v, want the failed one of c first", list)
		}
		for _, e := range list {
			r := byKey[e.Key]
			if e.ID != r.ID || e.Topic != r.Topic || e.Attempts != 1 || !strings.HasSuffix(e.Error, " "+e.Key) || e.At.IsZero() {
				x.Errorf("error %+v of row %+v", e, r)
			}
			if e.Key != "c" && e.State != outbox.Pending {
				x.Errorf("state %s, want pending", e.State)
			}
		}
		if list, err = x.Store.Errors(x.ctx, 1); err != nil || len(list) != 1 || list[0].Key != "c" {
			x.Errorf("the first: %v, %v", list, err)
		}
		x.Advance(x, 2*time.Hour)
		x.sent(x.wantClaim("me", "a1", "b1")...)
		if list, err = x.Store.Errors(x.ctx, 10); err != nil || len(list) != 1 {
			x.Errorf("after the others were sent: %v, %v", list, err)
		}
	}},
	{"mark/any text is a reason", func(x *trial) {
		x.addKeyed(1, "a")
		for _, reason := range []string{"", strings.Repeat("ö", 5000), "nul \x00 and \xff", "'; drop table $1 ?"} {
			r := x.wantClaim("me", "a1")[0]
			x.check(x.Store.MarkError(x.ctx, "me", outbox.Refusal{ID: r.ID, Reason: reason}))
			list, err := x.Store.Errors(x.ctx, 10)
			x.check(err)
			if len(list) != 1 || list[0].Error == "" || !utf8.ValidString(list[0].Error) || len(list[0].Error) > 2000 {
				x.Errorf("reason %.20q became %+v", reason, list)
			}
		}
	}},
}
