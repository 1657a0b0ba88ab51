package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"promethean/changefeed"
	"promethean/event"
	"promethean/gateway"
	"promethean/outbox"
	"promethean/outbox/outboxtest"
	"promethean/store"
)

// three is a source of three changes.
type three struct{ lost bool }

func (s *three) Stream(ctx context.Context, token []byte, sink func(context.Context, changefeed.Batch) error) error {
	if s.lost {
		s.lost = false
		return fmt.Errorf("oplog: %w", changefeed.ErrHistoryLost)
	}
	if token == nil {
		b := changefeed.Batch{Token: []byte("3"), Position: "third"}
		for i := range 3 {
			b.Changes = append(b.Changes, changefeed.Change{
				ID: event.NameID(event.ID{}, fmt.Sprint("change ", i)), Key: fmt.Sprint("k", i), Op: changefeed.OpInsert,
				Doc: json.RawMessage(fmt.Sprint(i)), At: time.UnixMilli(1_700_000_000_000),
			})
		}
		if err := sink(ctx, b); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *three) Status(context.Context) (changefeed.SourceStatus, error) {
	return changefeed.SourceStatus{LagBytes: 12, Server: "three"}, nil
}
func (s *three) Forget(context.Context) error { return nil }
func (s *three) Close() error                 { return nil }

// places keeps one token.
type places struct{ token []byte }

func (p *places) Load(context.Context, string) ([]byte, error)         { return p.token, nil }
func (p *places) Save(_ context.Context, _ string, token []byte) error { p.token = token; return nil }
func (p *places) Delete(context.Context, string) error                 { p.token = nil; return nil }

// serveInflow serves a hub with a change feed "processes", and an outbox "shop".
func serveInflow(t *testing.T, o *gateway.Options) *served {
	o.Changefeeds, o.Outboxes = changefeed.NewSet(changefeed.SetOptions{}), outbox.NewSet()
	s := serve(t, *o)
	t.Cleanup(func() {
		if err := errors.Join(o.Changefeeds.Close(), o.Outboxes.Close()); err != nil {
			t.Error(err)
		}
	})
	err := o.Changefeeds.Add(s.g.Bus(), func() (changefeed.Source, changefeed.Tokens, error) { return &three{}, &places{}, nil },
		changefeed.Options{Name: "processes", Topic: "processes.changed"})
	if err := errors.Join(err, o.Outboxes.Add(outbox.Box{Open: opened(outboxtest.NewMemory())}, outbox.ToBus(s.g.Bus().Publish), outbox.Options{Name: "shop"})); err != nil {
		t.Fatal(err)
	}
	return s
}

func opened(s outbox.Store) func(context.Context) (outbox.Store, error) {
	return func(context.Context) (outbox.Store, error) { return s, nil }
}

// said is an answer.
type said struct {
	status     int
	text, code string
}

func askFor(s *served, method, path, body string) said {
	status, _, text := s.raw(method, path, body)
	var in struct{ Code string }
	_ = json.Unmarshal([]byte(text), &in) // not every answer has one
	return said{status, text, in.Code}
}

// within asks until what is answered fits.
func within(t *testing.T, ask func() string, fits func(string) bool) string {
	t.Helper()
	var got string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = ask(); fits(got) {
			return got
		}
	}
	t.Fatalf("it stays %s", got)
	return ""
}

func TestChangefeeds(t *testing.T) {
	feeds := changefeed.NewSet(changefeed.SetOptions{})
	s := serve(t, gateway.Options{Changefeeds: feeds})
	defer func() { _ = feeds.Close() }()
	src := &three{lost: true}
	if err := feeds.Add(s.g.Bus(), func() (changefeed.Source, changefeed.Tokens, error) { return src, &places{}, nil },
		changefeed.Options{Name: "things", Topic: "things.changed"}); err != nil {
		t.Fatal(err)
	}
	ask := func() string { return askFor(s, "GET", "/ops/changefeeds", "").text }
	got := within(t, ask, func(s string) bool { return strings.Contains(s, `"state":"failed"`) })
	if !strings.Contains(got, `"history_lost":1`) || !strings.Contains(got, `"error":"oplog: the history since`) {
		t.Errorf("%s", got)
	}
	if a := askFor(s, "POST", "/ops/changefeeds/things/resync", ""); a.status != http.StatusAccepted || !strings.Contains(a.text, `"name":"things"`) {
		t.Errorf("resync: %d %s", a.status, a.text)
	}
	got = within(t, ask, func(s string) bool { return strings.Contains(s, `"state":"streaming"`) })
	var list struct {
		Count       int
		Changefeeds []struct {
			Published  int
			Position   string
			LastChange int64 `json:"last_change"`
			LagBytes   int64 `json:"lag_bytes"`
			Error      string
		}
	}
	if err := json.Unmarshal([]byte(got), &list); err != nil {
		t.Fatal(err)
	}
	if f := list.Changefeeds[0]; list.Count != 1 || f.Published != 3 || f.Position != "third" || f.LastChange != 1_700_000_000_000 || f.LagBytes != 12 || f.Error != "" {
		t.Errorf("%s", got)
	}
	if a := askFor(s, "POST", "/ops/changefeeds/none/resync", ""); a.status != http.StatusNotFound || !strings.Contains(a.text, "none") {
		t.Errorf("no such feed: %d %s", a.status, a.text)
	}
}

func TestOutboxes(t *testing.T) {
	boxes := outbox.NewSet()
	s := serve(t, gateway.Options{Outboxes: boxes})
	defer func() { _ = boxes.Close() }()
	m := outboxtest.NewMemory()
	tx := m.Begin()
	var ids []event.ID
	for _, topic := range []string{"orders.placed", "orders.refused", "orders.refused2"} {
		r := outbox.Row{ID: event.NewID(), Topic: topic, Key: "k", Payload: json.RawMessage("1")}
		ids = append(ids, r.ID)
		if err := tx.Add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	refuse := func(ctx context.Context, events []event.Event) error {
		for i := range events {
			if strings.HasPrefix(events[i].Topic, "orders.refused") {
				return fmt.Errorf("%w: no such scope", store.ErrInvalid)
			}
		}
		_, err := s.g.Bus().Publish(ctx, events...)
		return err
	}
	if err := boxes.Add(outbox.Box{Open: opened(m), Setup: true}, outbox.PublisherFunc(refuse), outbox.Options{
		Name: "shop", MaxAttempts: 1, StatsEvery: 10 * time.Millisecond,
	}); err != nil {
		t.Fatal(err)
	}
	got := within(t, func() string { return askFor(s, "GET", "/ops/outboxes", "").text },
		func(s string) bool { return strings.Contains(s, `"failed":2`) && strings.Contains(s, `"sent_total":1`) })
	if !strings.Contains(got, `"state":"draining"`) || !strings.Contains(got, `"waking":true`) || !strings.Contains(got, `no such scope`) {
		t.Errorf("%s", got)
	}
	if a := askFor(s, "GET", "/ops/outboxes/shop/errors?limit=1", ""); a.status != 200 || !strings.Contains(a.text, `"count":1`) ||
		!strings.Contains(a.text, ids[1].String()) || !strings.Contains(a.text, `"state":"failed"`) || !strings.Contains(a.text, "no such scope") {
		t.Errorf("errors: %d %s", a.status, a.text)
	}
	if a := askFor(s, "POST", "/ops/outboxes/shop/retry", fmt.Sprintf(`{"ids":["%v"]}`, ids[1])); a.status != 200 || strings.TrimSpace(a.text) != `{"retried":1}` {
		t.Errorf("retry: %d %s", a.status, a.text)
	}
	within(t, func() string { return askFor(s, "GET", "/ops/outboxes", "").text }, func(s string) bool { return strings.Contains(s, `"refused_total":3`) })
	if a := askFor(s, "POST", "/ops/outboxes/shop/discard", fmt.Sprintf(`{"ids":["%v","%v"]}`, ids[2], event.NewID())); a.status != 200 || strings.TrimSpace(a.text) != `{"discarded":1}` {
		t.Errorf("discard: %d %s", a.status, a.text)
	}
	if a := askFor(s, "POST", "/ops/outboxes/shop/retry", ""); a.status != 200 || strings.TrimSpace(a.text) != `{"retried":1}` {
		t.Errorf("retry of all: %d %s", a.status, a.text)
	}
	for _, c := range []struct{ path, body, code string }{
		{"/ops/outboxes/none/retry", "", "not_found"},
		{"/ops/outboxes/none/discard", `{"ids":["x"]}`, "not_found"},
		{"/ops/outboxes/shop/discard", "", "bad_json"},
		{"/ops/outboxes/shop/discard", "{}", "invalid_argument"},
		{"/ops/outboxes/shop/retry", `{"ids":[]}`, "invalid_argument"},
		{"/ops/outboxes/shop/retry", `{"ids":["x"]}`, "invalid_argument"},
		{"/ops/outboxes/shop/retry", `{"id":["x"]}`, "invalid_argument"},
	} {
		if a := askFor(s, "POST", c.path, c.body); a.code != c.code {
			t.Errorf("%s %s: %s, not %s: %s", c.path, c.body, a.code, c.code, a.text)
		}
	}
}

// A hub without any says so.
func TestNoInflow(t *testing.T) {
	s := serve(t, gateway.Options{})
	for _, path := range []string{"/ops/changefeeds", "/ops/outboxes"} {
		if a := askFor(s, "GET", path, ""); a.status != 200 || !strings.Contains(a.text, `"count":0`) {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	for _, path := range []string{"/ops/changefeeds/a/resync", "/ops/outboxes/a/retry"} {
		if a := askFor(s, "POST", path, ""); a.status != 404 || !strings.Contains(a.text, "this hub has no") {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
}

// A database that does not answer is unavailable, not our fault.
func TestOutboxAway(t *testing.T) {
	boxes := outbox.NewSet()
	s := serve(t, gateway.Options{Outboxes: boxes})
	defer func() { _ = boxes.Close() }()
	if err := boxes.Add(outbox.Box{Open: opened(away{})}, outbox.ToBus(s.g.Bus().Publish), outbox.Options{Name: "shop"}); err != nil {
		t.Fatal(err)
	}
	within(t, func() string { return askFor(s, "GET", "/ops/outboxes", "").text },
		func(s string) bool {
			return strings.Contains(s, `"state":"outage"`) && strings.Contains(s, "connection refused")
		})
	if a := askFor(s, "GET", "/ops/outboxes/shop/errors", ""); a.status != http.StatusServiceUnavailable || !strings.Contains(a.text, "connection refused") {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// away is an outbox whose database is.
type away struct{ outbox.Store }

var errAway = errors.New("connection refused")

func (away) ClaimBatch(context.Context, string, int, time.Duration) ([]outbox.Row, error) {
	return nil, errAway
}
func (away) Errors(context.Context, int) ([]outbox.Refused, error) { return nil, errAway }
func (away) Stats(context.Context) (outbox.Stats, error)           { return outbox.Stats{}, errAway }
func (away) RequeueExpired(context.Context) (int, error)           { return 0, errAway }
func (away) Prune(context.Context, time.Duration, int) (int, error) {
	return 0, errAway
}
