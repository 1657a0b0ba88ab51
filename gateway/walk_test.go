package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"promethean/gateway"
	"promethean/gateway/auth"
	"promethean/view"
	"promethean/wire"
)

// tokens knows tokens that are their own scopes, with commas between.
type tokens struct{}

func (tokens) Verify(_ context.Context, token string) (*auth.Principal, error) {
	p := &auth.Principal{Name: "somebody"}
	if token == "wrong" {
		return nil, auth.ErrUnauthorized
	}
	for _, s := range strings.Split(token, ",") {
		if s == "none" {
			continue
		}
		scope, err := auth.ParseScope(s)
		if err != nil {
			return nil, err
		}
		p.Scopes = append(p.Scopes, scope)
	}
	return p, nil
}

// request makes the example request of a route.
func (s *served) request(r gateway.Route, token string) *http.Request {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, r.Method, s.url+r.Example, strings.NewReader(r.Body))
	if err != nil {
		s.Fatal(err)
	}
	if r.Body != "" {
		req.Header.Set("Content-Type", r.BodyType)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if r.Path == "/ws" {
		for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
			req.Header.Set(name, value)
		}
	}
	return req
}

// call sends it and reads the answer, of a stream only the head.
func (s *served) call(r gateway.Route, token string) (got answer, data []byte) {
	s.Helper()
	res, err := http.DefaultClient.Do(s.request(r, token))
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	got = answer{res.StatusCode, res.Header}
	if res.StatusCode == http.StatusSwitchingProtocols || strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return got, nil
	}
	if data, err = io.ReadAll(res.Body); err != nil {
		s.Fatal(err)
	}
	return got, data
}

// answer is the head of one.
type answer struct {
	StatusCode int
	Header     http.Header
}

func codeOf(data []byte) wire.Code {
	var p struct{ Code wire.Code }
	_ = json.Unmarshal(data, &p) // no JSON has no code
	return p.Code
}

// Every route asks who calls and what he may do.
func TestWalkAccess(t *testing.T) {
	s := serve(t, gateway.Options{Views: view.NewSet(), Verifier: tokens{}, Metrics: http.NotFoundHandler()})
	for _, r := range s.g.Routes() {
		name := r.Method + " " + r.Path
		want := func(token string, status int, code wire.Code) {
			t.Helper()
			if got, data := s.call(r, token); got.StatusCode != status || codeOf(data) != code {
				t.Errorf("%s with token %q: %d %.200s, want %d %s", name, token, got.StatusCode, data, status, code)
			}
		}
		if r.Path == "/ws" { // its frames are checked one by one
			want("", 101, "")
			want("none", 101, "")
			want("wrong", 401, wire.Unauthorized)
			continue
		}
		if r.Action == auth.Open {
			want("", 200, "")
			want("none", 200, "")
			want("wrong", 200, "")
			continue
		}
		want("", 401, wire.Unauthorized)
		want("wrong", 401, wire.Unauthorized)
		want("none", 403, wire.Forbidden)
		want("publish:elsewhere,subscribe:elsewhere,read:elsewhere", 403, wire.Forbidden)
		right := string(r.Action) + ":orders.*"
		other := "admin"
		switch {
		case r.Action == auth.Admin:
			right, other = "admin", "publish:**,subscribe:**,read:**"
		case r.Topic == "all":
			right = string(r.Action) + ":**"
		}
		want(other, 403, wire.Forbidden)
		if got, data := s.call(r, right); got.StatusCode == http.StatusUnauthorized || got.StatusCode == http.StatusForbidden || got.StatusCode >= 500 {
			t.Errorf("%s with %s: %d %s", name, right, got.StatusCode, data)
		}
	}
	// One topic of a batch that is not allowed is enough, and it is named.
	if got := s.want(403, "forbidden", "POST", "/publish", `{"topic":"a","payload":1}`+"\n"+`{"topic":"b","payload":1}`, "Authorization", "Bearer publish:a"); got["index"] != 1.0 {
		t.Errorf("%v, want index 1", got)
	}
	s.want(403, "forbidden", "POST", "/cloudevents", `[{"specversion":"1.0","id":"1","source":"/","type":"a"},{"specversion":"1.0","id":"2","source":"/","type":"b"}]`, "Authorization", "Bearer publish:a", "Content-Type", "application/cloudevents-batch+json")
	s.want(404, "not_found", "GET", "/topics/a", "", "Authorization", "Bearer admin")
}

// The document is a valid one, all routes are in it, and requests and answers
// are as it says.
func TestOpenAPI(t *testing.T) {
	o := gateway.Options{Views: view.NewSet(), Version: "1.2.3", Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "up 1\n")
	})}
	s := serveInflow(t, &o)
	_, _, text := s.raw("GET", "/openapi.json", "")
	doc, err := libopenapi.NewDocument([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if ok, problems := v.ValidateDocument(); !ok {
		for _, p := range problems {
			t.Errorf("%s: %s", p.Message, p.Reason)
		}
	}
	var described struct {
		OpenAPI string
		Paths   map[string]map[string]json.RawMessage
		Info    struct{ Version string }
	}
	if err := json.Unmarshal([]byte(text), &described); err != nil || described.OpenAPI != "3.1.0" || described.Info.Version != "1.2.3" {
		t.Fatalf("%+v: %v", described, err)
	}
	for _, e := range wire.Table() {
		if !strings.Contains(text, `"`+string(e.Code)+`"`) {
			t.Errorf("the code %s is not in the document", e.Code)
		}
	}
	// Something to answer with.
	s.publish("orders.placed", "a", `1`)
	s.want(200, "", "PUT", "/groups/orders.placed/unused", `{}`)
	p := s.pull(`{"topic":"orders.placed","group":"dead","opts":{"from":"earliest"},"wait_ms":5000}`)
	s.want(200, "", "POST", "/nack", `{"topic":"orders.placed","group":"dead","ids":["`+p.Events[0].Event.ID+`"],"dead":true}`)
	s.want(200, "", "POST", "/ack", `{"topic":"orders.placed","group":"dead","ids":["`+p.Events[0].Event.ID+`"]}`)
	s.publish("orders.placed", "a", `{"n":1}`)
	waitFor(t, "the document", func() bool { status, _ := s.do("GET", "/views/orders/snap/a", ""); return status == 200 })
	walked := 0
	for _, r := range s.g.Routes() {
		name := r.Method + " " + r.Path
		path := strings.ReplaceAll(r.Path, "...}", "}")
		if described.Paths[path][strings.ToLower(r.Method)] == nil {
			t.Errorf("%s is not in the document", name)
			continue
		}
		walked++
		if r.BodyType != "application/x-ndjson" || r.Body == "" {
			if ok, problems := v.ValidateHttpRequest(s.request(r, "x")); !ok {
				for _, p := range problems {
					t.Errorf("%s: request: %s: %s", name, p.Message, p.Reason)
				}
			}
		}
		got, data := s.call(r, "")
		if got.StatusCode >= 300 {
			t.Errorf("%s: %d %s", name, got.StatusCode, data)
		}
		if !strings.Contains(string(described.Paths[path][strings.ToLower(r.Method)]), fmt.Sprintf(`"%d":`, got.StatusCode)) {
			t.Errorf("%s: status %d is not in the document", name, got.StatusCode)
		}
		if kind := got.Header.Get("Content-Type"); !strings.HasSuffix(kind, "json") || strings.Contains(kind, "ndjson") {
			continue
		}
		res := &http.Response{StatusCode: got.StatusCode, Header: got.Header, Body: io.NopCloser(strings.NewReader(string(data)))}
		if ok, problems := v.ValidateHttpResponse(s.request(r, ""), res); !ok {
			for _, p := range problems {
				t.Errorf("%s: answer %d: %s: %s\n%s", name, got.StatusCode, p.Message, p.Reason, data)
			}
		}
	}
	n := 0
	for _, item := range described.Paths {
		n += len(item)
	}
	if n != walked {
		t.Errorf("%d operations in the document, %d were called", n, walked)
	}
}
