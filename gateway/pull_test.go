package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/gateway"
	"promethean/group"
)

// pulled is what a pull gives.
type pulled struct {
	Events []struct {
		Event struct {
			ID      string
			Seq     uint64
			Key     string
			Payload json.RawMessage
		}
		Attempt  int
		Lease    string
		Deadline int64 `json:"ack_deadline_ms"`
	}
}

func (s *served) pull(body string) (p pulled) {
	s.Helper()
	status, _, text := s.raw("POST", "/pull", body)
	if err := json.Unmarshal([]byte(text), &p); status != 200 || err != nil {
		s.Fatalf("%d %s: %v", status, text, err)
	}
	return p
}

// result gives the error of each id, "" for none.
func result(answer map[string]any) string {
	var out []string
	for _, r := range answer["results"].([]any) {
		x := r.(map[string]any)
		out = append(out, fmt.Sprint(x["ok"], " ", x["err"]))
	}
	return strings.Join(out, ", ")
}

func TestPullAndSettle(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a.b", "k", `{"n":12345678901234567890}`, "k", `2`, "j", `3`)
	const from = `{"topic":"a.b","group":"g","max":10,"opts":{"from":"earliest"}}`
	p := s.pull(from)
	if len(p.Events) != 2 || p.Events[0].Event.Seq != 1 || p.Events[1].Event.Seq != 3 || p.Events[0].Attempt != 1 || string(p.Events[0].Event.Payload) != `{"n":12345678901234567890}` {
		t.Fatalf("%+v", p)
	}
	if left := time.Until(time.UnixMilli(p.Events[0].Deadline)); left <= 0 || left > 31*time.Second {
		t.Errorf("the lease lasts %v", left)
	}
	if more := s.pull(from); len(more.Events) != 0 {
		t.Errorf("handed out twice: %+v", more)
	}
	one, three := p.Events[0].Event.ID, p.Events[1].Event.ID
	const nobody = "0192f7c1-0000-7000-8000-00000000dead"
	body := func(ids, more string) string { return `{"topic":"a.b","group":"g","ids":[` + ids + `]` + more + `}` }
	q := func(s string) string { return `"` + s + `"` }
	got := s.want(200, "", "POST", "/modack", body(q(one)+","+q(nobody), `,"extend_ms":60000`))
	if result(got) != "true <nil>, false unknown_id" || got["count"] != 1.0 {
		t.Errorf("%v", got)
	}
	if got = s.want(200, "", "POST", "/nack", body(q(three), `,"leases":["999999"]`)); result(got) != "false fenced" {
		t.Errorf("%v", got)
	}
	if got = s.want(200, "", "POST", "/ack", body(q(one)+","+q(nobody), "")); result(got) != "true <nil>, false unknown_id" {
		t.Errorf("%v", got)
	}
	if got = s.want(200, "", "POST", "/nack", body(q(three), `,"leases":[`+p.Events[1].Lease+`],"delay_ms":0,"reason":"no"`)); result(got) != "true <nil>" {
		t.Errorf("%v", got)
	}
	seen := map[uint64]int{}
	for len(seen) < 2 {
		for _, e := range s.pull(`{"topic":"a.b","group":"g","wait_ms":5000}`).Events {
			seen[e.Event.Seq] = e.Attempt
		}
	}
	if seen[2] != 1 || seen[3] != 2 {
		t.Errorf("%v", seen)
	}
	if got = s.want(200, "", "POST", "/ack", `{"topic":"a.b","group":"g","id":`+q(three)+`}`); result(got) != "true <nil>" {
		t.Errorf("%v", got)
	}
	// Dead at once.
	two := s.want(200, "", "GET", "/replay?topic=a.b&seq=1&limit=1", "")["events"].([]any)[0].(map[string]any)["id"].(string)
	if got = s.want(200, "", "POST", "/nack", body(q(two), `,"dead":true`)); result(got) != "true <nil>" {
		t.Errorf("%v", got)
	}
}

func TestPullRefused(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.pull(`{"topic":"a.b","group":"g","opts":{"ordering":"topic"}}`)
	const id = `"0192f7c1-0000-7000-8000-000000000001"`
	for _, c := range []struct {
		status           int
		code, path, body string
	}{
		{400, "bad_json", "/pull", `{"topic":`},
		{400, "bad_json", "/pull", `{"topic":"a","topic":"b"}`},
		{400, "bad_json", "/pull", strings.Repeat("[", 1001)},
		{400, "invalid_argument", "/pull", `[]`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","wiat_ms":1}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","max":-1}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","max":"1"}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","wait_ms":1.5}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":""}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b"}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"` + strings.Repeat("x", 257) + `"}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","opts":{"ordering":"chaos"}}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","opts":{"deadLetter":"bury"}}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","opts":{"maxAttempts":0}}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"n","opts":{"filter":"payload.("}}`},
		{400, "invalid_argument", "/pull", `{"topic":"a.b","group":"g","opts":{"colour":1}}`},
		{400, "cursor_unknown", "/pull", `{"topic":"a.b","group":"n","opts":{"from":"seq","seq":9}}`},
		{400, "invalid_topic", "/pull", `{"topic":"A","group":"g"}`},
		{409, "group_conflict", "/pull", `{"topic":"a.b","group":"g","opts":{"ordering":"key"}}`},
		{409, "group_conflict", "/pull", `{"topic":"a.b","group":"g","opts":{"partitioned":true}}`},
		{404, "not_found", "/ack", `{"topic":"a.b","group":"nobody","ids":[` + id + `]}`},
		{400, "invalid_argument", "/ack", `{"topic":"a.b","group":"g","ids":[]}`},
		{400, "invalid_argument", "/ack", `{"topic":"a.b","group":"g","ids":["x"]}`},
		{400, "invalid_argument", "/ack", `{"topic":"a.b","group":"g","ids":[` + id + `],"leases":[1,2]}`},
		{400, "invalid_argument", "/ack", `{"topic":"a.b","group":"g","ids":[` + id + `],"leases":["x"]}`},
		{400, "invalid_argument", "/ack", `{"topic":"a.b","group":"g","id":` + id + `,"ids":[` + id + `]}`},
		{400, "invalid_argument", "/modack", `{"topic":"a.b","group":"g","ids":[` + id + `]}`},
		{400, "invalid_argument", "/nack", `{"topic":"a.b","group":"g","ids":[` + id + `],"delay_ms":-1}`},
		{413, "batch_too_large", "/ack", `{"topic":"a.b","group":"g","ids":[` + strings.Repeat(id+",", 10_000) + id + `]}`},
		{413, "payload_too_large", "/pull", strings.Repeat(" ", 1<<20+1)},
	} {
		s.want(c.status, c.code, "POST", c.path, c.body)
	}
}

// inside runs a handler without a network, in virtual time.
func inside(t *testing.T, o gateway.Options, f func(t *testing.T, g *gateway.Gateway, hub *promethean.Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		g := gateway.New(hub, o)
		defer func() {
			if err := g.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := hub.Close(); err != nil {
				t.Error(err)
			}
		}()
		f(t, g, hub)
	})
}

func post(ctx context.Context, g *gateway.Gateway, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

// The member of pulls keeps its leases while nobody pulls, takes nothing away
// from others, and is gone after a while.
func TestPullMember(t *testing.T) {
	inside(t, gateway.Options{}, func(t *testing.T, g *gateway.Gateway, hub *promethean.Hub) {
		ctx := context.Background()
		const body = `{"topic":"a.b","group":"g","opts":{"from":"earliest","ackTimeoutMs":300000}}`
		publish := func(v any) {
			if _, err := hub.Emit(ctx, "a.b", v); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		publish(1)
		if w := post(ctx, g, "/pull", body); strings.Count(w.Body.String(), `"lease"`) != 1 {
			t.Fatalf("%s", w.Body)
		}
		// Somebody else in the group gets what is new, at once.
		m, err := hub.Engine().Join(ctx, "a.b", "g", group.Settings{}, group.Start{}, group.MemberOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			publish(i)
			if got := m.Take(10); len(got) != 1 {
				t.Fatalf("took %d", len(got))
			}
		}
		m.Leave()
		time.Sleep(3 * gateway.PullIdle)
		if g.Pullers() != 1 {
			t.Error("the member is gone while it holds a lease")
		}
		time.Sleep(3 * gateway.PullIdle) // the lease is over
		synctest.Wait()
		if g.Pullers() != 0 {
			t.Error("the member stays without a lease")
		}
	})
}

// A pull waits for the first event, no longer than it may, and ends when the
// hub drains.
func TestPullWaits(t *testing.T) {
	inside(t, gateway.Options{}, func(t *testing.T, g *gateway.Gateway, hub *promethean.Hub) {
		ctx := context.Background()
		begin := func(ctx context.Context, group string, wait int64) <-chan string {
			got := make(chan string, 1)
			go func() {
				got <- post(ctx, g, "/pull", fmt.Sprintf(`{"topic":"a.b","group":%q,"wait_ms":%d}`, group, wait)).Body.String()
			}()
			synctest.Wait()
			return got
		}
		one, two := begin(ctx, "g", 20_000), begin(ctx, "g", 20_000)
		gone, cancel := context.WithCancel(ctx)
		three := begin(gone, "g", 20_000)
		cancel()
		<-three
		for i := range 2 {
			if _, err := hub.Emit(ctx, "a.b", i); err != nil {
				t.Fatal(err)
			}
		}
		if got := <-one + <-two; strings.Count(got, `"lease"`) != 2 {
			t.Errorf("%s", got)
		}
		began := time.Now()
		if got := <-begin(ctx, "h", 1<<40); strings.Contains(got, "lease") || time.Since(began) != gateway.MaxPullWait {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		last := begin(ctx, "h", 20_000)
		began = time.Now()
		g.Drain()
		if got := <-last; !strings.Contains(got, `"events":[]`) || time.Since(began) != 0 {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		if w := post(ctx, g, "/pull", `{"topic":"a.b","group":"g"}`); w.Code != 503 || !strings.Contains(w.Body.String(), `"draining"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// Groups that the hub itself has are nobody else's.
func TestGroupsOfTheHub(t *testing.T) {
	s := serve(t, gateway.Options{})
	for _, group := range []string{"system.roller", ""} {
		s.want(400, "invalid_argument", "POST", "/pull", `{"topic":"a.b","group":"`+group+`"}`)
		s.want(400, "invalid_argument", "POST", "/ack", `{"topic":"a.b","group":"`+group+`","ids":["0192f7c1-0000-7000-8000-000000000001"]}`)
		s.want(400, "invalid_argument", "PUT", "/cursors", `{"topic":"a.b","group":"`+group+`","to":{"from":"latest"}}`)
		s.want(400, "invalid_argument", "GET", "/subscribe?topic=a.b&group="+group, "")
	}
	s.want(400, "invalid_argument", "PUT", "/groups/a.b/system.roller", `{}`)
	s.want(400, "invalid_argument", "DELETE", "/groups/a.b/system.roller", "")
}
