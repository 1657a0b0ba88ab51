package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/client"
	"promethean/event"
	"promethean/gateway"
)

// apiHub is a hub in memory behind a gateway, and a client of it.
type apiHub struct {
	*testing.T
	*client.Client
	ctx context.Context
	url string
	hub *promethean.Hub
}

func newAPI(t *testing.T) *apiHub {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		if err := errors.Join(g.Close(context.Background()), hub.Close()); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return &apiHub{T: t, Client: apiClient(t, server.URL), ctx: t.Context(), url: server.URL, hub: hub}
}

// apiClient makes a client whose connections end with the test.
func apiClient(t *testing.T, url string) *client.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(url, client.Options{HTTP: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// post publishes payloads 1 … n, with keys a and b in turn.
func (h *apiHub) post(topic string, n int) []client.Stored {
	h.Helper()
	var events []event.Event
	for i := range n {
		e := event.New(topic, json.RawMessage(fmt.Sprint(i+1)))
		e.Key = []string{"a", "b"}[i%2]
		e.TS = int64(1000 + i)
		events = append(events, e)
	}
	got, err := h.PostBatch(h.ctx, events)
	if err != nil {
		h.Fatal(err)
	}
	return got
}

// payloads gives those of all events.
func payloads(t *testing.T, events iter.Seq2[event.Event, error]) string {
	t.Helper()
	var all []string
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(e.Payload))
	}
	return strings.Join(all, " ")
}

// coded wants an error with a code.
func coded(t *testing.T, err error, code string) {
	t.Helper()
	if !errors.Is(err, &client.Error{Code: code}) || client.CodeOf(err) != code {
		t.Errorf("%v, want %s", err, code)
	}
}

func TestAPIPublishAndRead(t *testing.T) {
	h := newAPI(t)
	batch := []event.Event{{Topic: "a.b", Payload: json.RawMessage(`1`)}, event.New("a.b", json.RawMessage(`2`))}
	got, err := h.PostBatch(h.ctx, batch)
	if err != nil || len(got) != 2 || got[0].Seq != 1 || got[0].ID != batch[0].ID || batch[0].ID.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	// The ids stand in the slice, so the same again is known.
	if got, err = h.PostBatch(h.ctx, batch); err != nil || !got[0].Duplicate || got[1].Seq != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	e := event.New("a.b", json.RawMessage(`{"n":12345678901234567890}`))
	e.Key, e.SID, e.Tags, e.CausedBy = "k", "s", []string{"t", "u"}, []string{"c"}
	e.Headers, e.Partition, e.TS = e.Headers.Set("x-a", "b"), event.PartitionOf(0), 7
	if one, err := h.PostIf(h.ctx, &e, 2); err != nil || one.Seq != 3 || one.ID != e.ID {
		t.Errorf("%+v, %v", one, err)
	}
	late := event.New("a.b", json.RawMessage(`0`))
	_, err = h.PostIf(h.ctx, &late, 2)
	coded(t, err, "seq_conflict")
	late.Headers = late.Headers.Set("x-forwarded-for", "me")
	if _, err = h.PostIf(h.ctx, &late, 3); err == nil || !strings.Contains(err.Error(), "x-forwarded-for") {
		t.Errorf("a header that the hub would drop was sent: %v", err)
	}
	_, err = h.PostBatch(h.ctx, []event.Event{batch[0], {Topic: "A", Payload: json.RawMessage(`1`)}})
	coded(t, err, "invalid_topic")
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Index == nil || *refused.Index != 1 || refused.Status != 400 || refused.Temporary() {
		t.Errorf("%+v", refused)
	}

	var last event.Event
	for x, err := range h.Read(h.ctx, "a.b", client.Place{From: client.ByID, ID: batch[1].ID}, client.ReadOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		last = x
	}
	last.Seq = 0
	want, _ := e.AppendJSON(nil)
	if text, _ := last.AppendJSON(nil); string(text) != string(want) {
		t.Errorf("came back as %s, not %s", text, want)
	}
}

func TestAPIReadGoesOverPages(t *testing.T) {
	h := newAPI(t)
	h.post("a", 7)
	for _, c := range []struct {
		from client.Place
		o    client.ReadOptions
		want string
	}{
		{client.Place{}, client.ReadOptions{Page: 2}, "1 2 3 4 5 6 7"},
		{client.Place{}, client.ReadOptions{Page: 2, Until: 3}, "1 2 3"},
		{client.Place{}, client.ReadOptions{Until: 4, Page: 4}, "1 2 3 4"},
		{client.Place{From: client.BySeq, Seq: 5}, client.ReadOptions{}, "6 7"},
		{client.Place{From: client.ByTime, Time: time.UnixMilli(1004)}, client.ReadOptions{Page: 1}, "5 6 7"},
		{client.Place{From: client.Latest}, client.ReadOptions{}, ""},
	} {
		if got := payloads(t, h.Read(h.ctx, "a", c.from, c.o)); got != c.want {
			t.Errorf("%+v, %+v: %q, want %q", c.from, c.o, got, c.want)
		}
	}
	for place, want := range map[string]uint64{client.Latest: 7, client.Earliest: 0} {
		if seq, err := h.Locate(h.ctx, "a", client.Place{From: place}); err != nil || seq != want {
			t.Errorf("%s is after %d, %v, want %d", place, seq, err, want)
		}
	}
	if got := payloads(t, h.History(h.ctx, "a", "b", 2)); got != "4 6" {
		t.Errorf("history %q", got)
	}
	if got := payloads(t, h.Export(h.ctx, "a", client.ExportOptions{})); got != "1 2 3 4 5 6 7" {
		t.Errorf("export %q", got)
	}
	if got := payloads(t, h.Export(h.ctx, "a", client.ExportOptions{From: time.UnixMilli(1001), To: time.UnixMilli(1003)})); got != "2 3 4" {
		t.Errorf("export %q", got)
	}
	latest, err := h.LatestByKey(h.ctx, "a", "a", "nobody")
	if err != nil || len(latest) != 1 || string(latest["a"].Payload) != "7" {
		t.Errorf("%v, %v", latest, err)
	}
	for _, err := range h.Read(h.ctx, "A", client.Place{}, client.ReadOptions{}) {
		coded(t, err, "invalid_topic")
	}
	// Who has enough may stop.
	for range h.Read(h.ctx, "a", client.Place{}, client.ReadOptions{Page: 2}) {
		break
	}
}

func TestAPIPast(t *testing.T) {
	h := newAPI(t)
	for i, payload := range []string{`{"n":12345678901234567890}`, `{"s":"<&>"}`, `null`} {
		e := event.New("a.b", []byte(payload))
		e.Key, e.TS = "k", int64(1000*(i+1))
		if _, err := h.hub.Publish(h.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		when client.When
		want string
		seq  uint64
	}{
		{client.When{}, `null`, 3},
		{client.When{Time: time.UnixMilli(2999)}, `{"s":"<&>"}`, 2},
		{client.When{Time: time.UnixMilli(2999), Reduce: "merge"}, `{"n":12345678901234567890,"s":"<&>"}`, 2},
		{client.When{AsOf: new(uint64(1))}, `{"n":12345678901234567890}`, 1},
		{client.When{AsOf: new(uint64(0))}, `null`, 0},
	} {
		s, err := h.At(h.ctx, "a.b", "k", c.when)
		if err != nil || string(s.State) != c.want || s.Seq != c.seq || s.TS != int64(1000*c.seq) || s.Topic != "a.b" || s.Key != "k" {
			t.Errorf("%+v: %+v, %v", c.when, s, err)
		}
	}
	_, err := h.At(h.ctx, "a.b", "k", client.When{Reduce: "sum"})
	coded(t, err, "invalid_argument")
	var steps []string
	for s, err := range h.HistoryDiff(h.ctx, "a.b", "k", 1, "merge") {
		if err != nil {
			t.Fatal(err)
		}
		steps = append(steps, fmt.Sprintf("%d %s %s%s", s.Event.Seq, s.State, s.Changes[0].Op, s.Changes[0].Path))
	}
	if want := `[2 {"n":12345678901234567890,"s":"<&>"} add/s 3 null replace]`; fmt.Sprint(steps) != want {
		t.Errorf("%v, want %s", steps, want)
	}
	if err := h.hub.Log().Trim(h.ctx, "a.b", 2); err != nil {
		t.Fatal(err)
	}
	_, err = h.At(h.ctx, "a.b", "k", client.When{Time: time.UnixMilli(1500)})
	coded(t, err, "history_gone")
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Oldest == nil || *refused.Oldest != 2000 {
		t.Errorf("%+v", refused)
	}
	_, err = h.At(h.ctx, "a.b", "k", client.When{AsOf: new(uint64(1))})
	if !errors.As(err, &refused) || refused.OldestSeq != 2 {
		t.Errorf("%+v", refused)
	}
}

func TestAPISteer(t *testing.T) {
	h := newAPI(t)
	h.post("a.b", 3)
	if err := h.Ready(h.ctx); err != nil {
		t.Error(err)
	}
	topic, err := h.SetTopic(h.ctx, "a.b", map[string]any{"retention": "72h", "partitions": 2})
	if err != nil || topic.Settings.Retention != "72h" || topic.Settings.Partitions != 2 || topic.Events != 3 {
		t.Errorf("%+v, %v", topic, err)
	}
	if one, err := h.TopicInfo(h.ctx, "a.b"); err != nil || one != topic {
		t.Errorf("%+v, %v", one, err)
	}
	all, err := h.TopicInfos(h.ctx)
	if err != nil || !slices.Contains(all, topic) {
		t.Errorf("%+v, %v", all, err)
	}
	_, err = h.TopicInfo(h.ctx, "none")
	coded(t, err, "not_found")

	// A name may hold anything, also what means something in an address.
	const name = "who/what ever?#%"
	made, err := h.MakeGroup(h.ctx, "a.b", name, client.GroupSettings{MaxAttempts: 1, Ordering: "none"}, client.Place{From: client.BySeq, Seq: 1})
	if err != nil || made.Group != name || made.Cursor != 1 || made.Settings.MaxAttempts != 1 {
		t.Fatalf("%+v, %v", made, err)
	}
	_, err = h.MakeGroup(h.ctx, "a.b", name, client.GroupSettings{Ordering: "key"}, client.Place{})
	coded(t, err, "group_conflict")
	if groups, err := h.Groups(h.ctx, ""); err != nil || len(groups) != 1 || groups[0].Group != name {
		t.Errorf("%+v, %v", groups, err)
	}
	at, err := h.MoveCursor(h.ctx, "a.b", name, client.Place{From: client.Earliest})
	if err != nil || at.Seq != 0 {
		t.Errorf("%+v, %v", at, err)
	}
	if cursors, err := h.Cursors(h.ctx, "a.b"); err != nil || len(cursors) != 1 || cursors[0].Topic != "a.b" {
		t.Errorf("%+v, %v", cursors, err)
	}
	if lag, err := h.GroupLag(h.ctx, "a.b", name); err != nil || lag.Lag != 3 || lag.Tail != 3 {
		t.Errorf("%+v, %v", lag, err)
	}

	pulled, err := h.Pull(h.ctx, client.PullRequest{Topic: "a.b", Group: name, Max: 10, Wait: 10 * time.Second})
	if err != nil || len(pulled) == 0 || pulled[0].Attempt != 1 || pulled[0].Lease == "" {
		t.Fatalf("%+v, %v", pulled, err)
	}
	first := []event.ID{pulled[0].Event.ID}
	for _, s := range []client.Settlement{
		{Do: client.DoExtend, Extend: time.Minute, IDs: first, Leases: []string{pulled[0].Lease}},
		{Do: client.DoNack, Reason: "no use", IDs: first, Leases: []string{pulled[0].Lease}},
	} {
		s.Topic, s.Group = "a.b", name
		if got, err := h.Settle(h.ctx, s); err != nil || len(got) != 1 || !got[0].OK || got[0].ID != first[0] {
			t.Fatalf("%s: %+v, %v", s.Do, got, err)
		}
	}
	got, err := h.Settle(h.ctx, client.Settlement{Topic: "a.b", Group: name, Do: client.DoAck, IDs: []event.ID{event.NewID()}})
	if err != nil || got[0].OK || got[0].Err != "unknown_id" {
		t.Errorf("%+v, %v", got, err)
	}

	if counts, err := h.LetterCounts(h.ctx); err != nil || len(counts) != 1 || counts[0] != (client.LetterCount{Topic: "a.b", Group: name, Count: 1}) {
		t.Errorf("%+v, %v", counts, err)
	}
	var letters []client.Letter
	for l, err := range h.Letters(h.ctx, "a.b", name, 0) {
		if err != nil {
			t.Fatal(err)
		}
		letters = append(letters, l)
	}
	if len(letters) != 1 || letters[0].Err != "no use" || letters[0].Original.ID != first[0] || string(letters[0].Original.Payload) != "1" {
		t.Fatalf("%+v", letters)
	}
	replayed, err := h.ReplayLetters(h.ctx, "a.b", client.LetterReplay{IDs: []event.ID{letters[0].ID}, To: "topic"})
	if err != nil || replayed != (client.Replayed{Replayed: 1}) {
		t.Errorf("%+v, %v", replayed, err)
	}
	if err := h.DeleteGroup(h.ctx, "a.b", name); err != nil {
		t.Error(err)
	}
	coded(t, h.DeleteGroup(h.ctx, "a.b", name), "not_found")
}

// fake is a server that answers as it is told.
func fake(t *testing.T, f http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return apiClient(t, s.URL)
}

func TestAPIAnswersOfOthers(t *testing.T) {
	for _, c := range []struct {
		status     int
		kind, body string
		want       string
		temporary  bool
	}{
		{404, "text/plain; charset=utf-8", "404 page not found\n", "404 page not found (HTTP status 404)", false},
		{502, "text/html", "<html>Bad Gateway</html>", "HTTP status 502", true},
		{503, "application/problem+json", `{"code":"draining","title":"T","detail":"D"}`, "draining: D", true},
		{500, "application/problem+json", `{"code":"internal","title":"T"}`, "internal: T", true},
		{418, "application/problem+json", `not JSON`, "HTTP status 418", false},
		{200, "text/html", "<html>", "client: GET /topics: the answer is not that of a hub: ", false},
	} {
		cl := fake(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		_, err := cl.TopicInfos(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || client.Temporary(err) != c.temporary {
			t.Errorf("%d %s: %v, temporary %t", c.status, c.body, err, client.Temporary(err))
		}
	}
	cl := fake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"code":"rate_limited"}`)
	})
	var refused *client.Error
	if err := cl.Ready(t.Context()); !errors.As(err, &refused) || refused.RetryAfter != 3*time.Second || !client.Temporary(err) {
		t.Errorf("%+v", refused)
	}
}

func TestAPIToken(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != fmt.Sprintf("Bearer t%d", asked) || strings.Contains(r.URL.String(), "t1") {
			t.Errorf("%s with %q", r.URL, r.Header.Get("Authorization"))
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	defer s.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c, err := client.New(s.URL, client.Options{HTTP: &http.Client{Transport: transport}, TokenSource: func(context.Context) (string, error) {
		if asked++; asked == 3 {
			return "", io.ErrNoProgress
		}
		return fmt.Sprintf("t%d", asked), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Ready(t.Context()), c.Ready(t.Context())); err != nil {
		t.Error(err)
	}
	if err := c.Ready(t.Context()); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
}

// cut answers with the beginning of a text, and ends the connection.
func cut(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush() // what was sent arrives
		panic(http.ErrAbortHandler)
	}
}

func TestAPICutStreams(t *testing.T) {
	const one, half = `{"id":"0192f7c1-0000-7000-8000-000000000001","seq":1,"topic":"a","payload":1}`, `{"id":"0192f7c1-0000-7000-`
	read := func(c *client.Client) iter.Seq2[event.Event, error] {
		return c.Read(t.Context(), "a", client.Place{}, client.ReadOptions{})
	}
	export := func(c *client.Client) iter.Seq2[event.Event, error] {
		return c.Export(t.Context(), "a", client.ExportOptions{})
	}
	for text, get := range map[string]func(*client.Client) iter.Seq2[event.Event, error]{
		`{"topic":"a","events":[` + one + `,`:        read,
		`{"topic":"a","events":[` + one + `,` + half: read,
		`{"topic":"a","events":[` + one + `]`:        read,
		one + "\n" + half:                            export,
		one + "\n":                                   export,
	} {
		n, failed := 0, error(nil)
		for _, err := range get(fake(t, cut(text))) {
			if err != nil {
				failed = err
				continue
			}
			n++
		}
		if n != 1 || !client.Temporary(failed) {
			t.Errorf("%s: %d events, then %v", text, n, failed)
		}
	}
}

// A stream is never held as a whole.
func TestAPIStreamsInConstantMemory(t *testing.T) {
	const events, size = 500, 64 << 10 // 31 MiB
	fill := strings.Repeat("x", size)
	row := func(w io.Writer, i int) {
		_, _ = fmt.Fprintf(w, `{"id":"0192f7c1-0000-7000-8000-%012d","seq":%d,"topic":"a","payload":"%s"}`, i+1, i+1, fill)
	}
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		lines := r.URL.Path == "/export"
		if !lines {
			_, _ = io.WriteString(w, `{"events":[`)
		}
		for i := range events {
			if i > 0 && !lines {
				_, _ = io.WriteString(w, ",")
			}
			if row(w, i); lines {
				_, _ = io.WriteString(w, "\n")
			}
		}
		if !lines {
			_, _ = io.WriteString(w, `],"count":1}`)
		}
	})
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, stream := range map[string]iter.Seq2[event.Event, error]{
		"export": c.Export(t.Context(), "a", client.ExportOptions{}),
		"read":   c.Read(t.Context(), "a", client.Place{}, client.ReadOptions{Until: events}),
	} {
		n, most := 0, uint64(0)
		for _, err := range stream {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n%100 == 0 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		if n != events || most > before.HeapAlloc+8<<20 {
			t.Errorf("%s: %d events, %d bytes held", name, n, most)
		}
	}
}
