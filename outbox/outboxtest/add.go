package outboxtest

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"time"

	"promethean/event"
	"promethean/outbox"
)

var addCases = []Case{
	{"add/committed rows come as they were given", func(x *trial) {
		full := outbox.Row{
			ID: event.NewID(), TS: 1_765_700_000_123, Topic: "orders.placed", Key: "kö\"'\\%_", SID: "s-1",
			Payload:  json.RawMessage(`{"html":"<&>","big":123456789012345678901234567890,"nul":"\u0000","ö":[null,1.50]}`),
			Headers:  event.Headers{{Name: "x-a", Value: "<1>"}, {Name: "x-b", Value: ""}},
			CausedBy: []string{event.NewID().String()}, Tags: []string{"#a", "b c"}, Partition: event.PartitionOf(3),
		}
		plain := outbox.Row{ID: event.NewID(), TS: 1, Topic: "a", Payload: json.RawMessage(`null`)}
		x.add(full, plain)
		rows := x.claim("me", 10)
		if len(rows) != 2 {
			x.Fatalf("claimed %d rows, want 2", len(rows))
		}
		for _, r := range rows {
			want := full
			if r.ID == plain.ID {
				want = plain
			}
			if r.Damage != nil || !reflect.DeepEqual(r.Event(), want.Event()) {
				x.Errorf("claimed %+v, want %+v", r, want)
			}
		}
	}},
	{"add/what is not given is made", func(x *trial) {
		before := time.Now().UnixMilli()
		given := outbox.Row{Topic: "a", Payload: json.RawMessage(`1`)}
		x.add(given, given)
		rows := x.claim("me", 10)
		if len(rows) != 2 || rows[0].ID == rows[1].ID || rows[0].ID.IsZero() {
			x.Fatalf("claimed %+v", rows)
		}
		if rows[0].TS < before || rows[0].TS > time.Now().UnixMilli() {
			x.Errorf("ts %d is not now", rows[0].TS)
		}
	}},
	{"add/rows come with the commit, not before", func(x *trial) {
		x.transactional()
		tx := x.begin()
		x.check(tx.Add(x.ctx, row("a", "k", 1)))
		x.check(tx.Commit(x.ctx))
		x.wantClaim("me", "k1")
	}},
	{"add/what is rolled back never comes", func(x *trial) {
		x.transactional()
		tx := x.begin()
		x.check(tx.Add(x.ctx, row("a", "k", 1), row("a", "", 2)))
		x.check(tx.Rollback(x.ctx))
		x.add(row("a", "k", 3))
		x.wantClaim("me", "k3")
		x.wantStats(outbox.Stats{Claimed: 1})
	}},
	{"add/a bad row is refused, and nothing of the call is there", func(x *trial) {
		for _, bad := range []struct {
			row  outbox.Row
			want error
		}{
			{outbox.Row{Topic: "Not a topic", Payload: json.RawMessage(`1`)}, event.ErrInvalidTopic},
			{outbox.Row{Topic: "system.topics", Payload: json.RawMessage(`1`)}, event.ErrInvalidTopic},
			{outbox.Row{Topic: "a", Payload: json.RawMessage(`{"a":`)}, event.ErrBadJSON},
			{outbox.Row{Topic: "a"}, event.ErrBadJSON},
			{outbox.Row{Topic: "a", Payload: json.RawMessage(`1`), Key: strings.Repeat("k", 2000)}, event.ErrInvalidArgument},
			{outbox.Row{Topic: "a", Payload: json.RawMessage(`1`), Headers: event.Headers{{Name: "Cookie", Value: "1"}}}, event.ErrInvalidHeader},
			{outbox.Row{Topic: "a", Payload: json.RawMessage(`"` + strings.Repeat("x", event.DefaultPayload) + `"`)}, event.ErrPayloadTooLarge},
		} {
			tx := x.begin()
			err := tx.Add(x.ctx, row("a", "good", 1), bad.row)
			var at *outbox.RowError
			if !errors.Is(err, bad.want) || !errors.As(err, &at) || at.Index != 1 {
				x.Errorf("topic %q: %v, want %v of row 1", bad.row.Topic, err, bad.want)
			}
			x.check(tx.Commit(x.ctx))
		}
		x.wantClaim("me")
	}},
	{"add/an id is there once", func(x *trial) {
		r := row("a", "k", 1)
		x.add(r)
		tx := x.begin()
		if err := tx.Add(x.ctx, r); err == nil {
			x.Error("the same id was taken twice")
		}
		_ = tx.Rollback(x.ctx)
		x.wantClaim("me", "k1")
	}},
	{"add/nothing is nothing", func(x *trial) {
		x.add()
		x.wantClaim("me")
	}},
	{"add/many rows in one call", func(x *trial) {
		const many = 2500
		rows := make([]outbox.Row, many)
		for i := range rows {
			rows[i] = row("a", "k", i)
		}
		x.add(rows...)
		next := 0
		for next < many {
			got := x.claim("me", 1000)
			if len(got) == 0 {
				x.Fatalf("%d rows came, want %d", next, many)
			}
			for _, r := range got {
				if r.ID != rows[next].ID {
					x.Fatalf("row %d is %s", next, r.Payload)
				}
				next++
			}
			x.sent(got...)
		}
	}},
	{"add/the order of a key is that of commits", func(x *trial) {
		x.transactional()
		first, second := x.begin(), x.begin()
		x.check(first.Add(x.ctx, row("a", "k", 1)))
		done := make(chan error, 1)
		go func() { // it may have to wait for the first one
			err := second.Add(x.ctx, row("a", "k", 2))
			if err == nil {
				err = second.Commit(x.ctx)
			}
			done <- err
		}()
		want := []string{"k1", "k2"}
		select {
		case err := <-done:
			x.check(err)
			x.check(first.Commit(x.ctx))
			want = []string{"k2", "k1"}
		case <-time.After(100 * time.Millisecond):
			x.check(first.Commit(x.ctx))
			x.check(<-done)
		}
		x.wantClaim("me", want...)
	}},
	{"add/setting up again keeps the rows", func(x *trial) {
		x.addKeyed(2, "a")
		x.check(x.Store.Setup(x.ctx))
		x.check(x.Again(x).Setup(x.ctx))
		x.wantClaim("me", "a1", "a2")
	}},
}
