package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/gateway/auth"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/wire"
)

// withRoutes is a gateway that has admin routes of a test beside its own.
func withRoutes(t testing.TB, o Options, routes ...route) *Gateway {
	t.Helper()
	g := opened(t, o)
	g.routes = append(g.routes, routes...)
	g.paths = arrange(g.routes)
	return g
}

// recordsOf closes the auditor, and gives what is in system.audit.
func recordsOf(t testing.TB, g *Gateway) []auditRecord {
	t.Helper()
	if err := g.auditor.close(context.Background()); err != nil {
		t.Fatal(err)
	}
	var out []auditRecord
	for e, err := range g.hub.Read(context.Background(), store.Query{Topic: "system.audit"}) {
		if err != nil {
			t.Fatal(err)
		}
		var r auditRecord
		if err := json.Unmarshal(e.Payload, &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func answers(status int) handler {
	return func(c *call) error {
		if _, err := io.Copy(io.Discard, c.r.Body); err != nil {
			return err
		}
		return c.answer(status, []byte("{}"))
	}
}

func TestAudit(t *testing.T) {
	const secret = "the-secret-of-ops"
	admin := []route{
		{method: "PUT", path: "/test/{topic}/{group}", action: auth.Admin, handle: answers(200)},
		{method: "GET", path: "/test/{topic}/{group}", action: auth.Admin, handle: answers(200)},
		{method: "PUT", path: "/test", action: auth.Admin, handle: answers(201)},
		{method: "DELETE", path: "/test", action: auth.Admin, handle: func(*call) error { return wire.Errorf(wire.NotFound, "no group %s", secret) }},
		{method: "POST", path: "/test", action: auth.Admin, handle: func(*call) error { return nil }},
		{method: "POST", path: "/read", action: auth.Read, topic: "query", handle: answers(200)},
		{method: "POST", path: "/panic", action: auth.Admin, handle: func(*call) error { panic(http.ErrAbortHandler) }},
		{method: "POST", path: "/own", action: auth.Admin, handle: answers(409)},
	}
	g := withRoutes(t, Options{Verifier: tokens(t,
		auth.Token{Name: "OPS", Secret: secret, Scopes: []string{"admin", "read:**"}},
		auth.Token{Name: "APP", Secret: "app", Scopes: []string{"read:**"}},
	)}, admin...)
	ask(g, "GET", "/test/orders/billing", "", secret)
	ask(g, "HEAD", "/test/orders/billing", "", secret)
	ask(g, "POST", "/read?topic=a", "{}", secret)
	if w := ask(g, "POST", "/read?topic=system.audit", "{}", "app"); w.Code != 403 {
		t.Errorf("read:** reaches system.audit: %d", w.Code)
	}
	ask(g, "PUT", "/test/orders/billing", `{"to":{"from":"earliest"}}`, secret)
	ask(g, "PUT", "/test", `{"topic":"orders","group":"mail","note":"`+secret+`"}`, secret)
	ask(g, "PUT", "/test?topic=stock", strings.Repeat("[", 10000), secret)
	ask(g, "PUT", "/test/"+secret+"/x", "\xff", secret)
	ask(g, "DELETE", "/test", "", secret)
	ask(g, "POST", "/test", "", secret)
	ask(g, "POST", "/own", "", secret)
	func() {
		defer func() { _ = recover() }()
		ask(g, "POST", "/panic", "", secret)
	}()
	ask(g, "PUT", "/test", `{}`, "app")
	ask(g, "PUT", "/test", `{}`, "")
	ask(g, "GET", "/test/orders/billing", "", "a-guess")

	want := []auditRecord{
		{Action: "PUT /test/{topic}/{group}", Principal: "OPS", Topic: "orders", Group: "billing", Outcome: "ok", Status: 200, Request: `{"to":{"from":"earliest"}}`},
		{Action: "PUT /test", Principal: "OPS", Topic: "orders", Group: "mail", Outcome: "ok", Status: 201, Request: `{"topic":"orders","group":"mail","note":"[token]"}`},
		{Action: "PUT /test", Principal: "OPS", Topic: "stock", Outcome: "ok", Status: 201, Request: strings.Repeat("[", auditBody)},
		{Action: "PUT /test/{topic}/{group}", Principal: "OPS", Topic: "[token]", Group: "x", Outcome: "ok", Status: 200, Request: "\ufffd"},
		{Action: "DELETE /test", Principal: "OPS", Outcome: "not_found", Status: 404, Detail: "no group [token]"},
		{Action: "POST /test", Principal: "OPS", Outcome: "ok", Status: 200},
		{Action: "POST /own", Principal: "OPS", Outcome: "failed", Status: 409},
		{Action: "POST /panic", Principal: "OPS", Outcome: "internal", Status: 500},
		{Action: "PUT /test", Principal: "APP", Outcome: "forbidden", Status: 403, Detail: "the token lacks the scope admin"},
		{Action: "PUT /test", Principal: "unknown", Outcome: "unauthorized", Status: 401, Detail: "a token is needed"},
		{Action: "login", Principal: "unknown", Outcome: "unauthorized", Status: 401, Detail: "a valid token is needed: the token is unknown"},
	}
	got := recordsOf(t, g)
	for i := range max(len(got), len(want)) {
		var a, b auditRecord
		if i < len(got) {
			a = got[i]
			if a.Remote == "" {
				t.Errorf("%+v has no remote", a)
			}
			a.Remote = ""
		}
		if i < len(want) {
			b = want[i]
		}
		if a != b {
			t.Errorf("record %d:\n%+v, want\n%+v", i, a, b)
		}
	}
	for row, err := range g.hub.Topics(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		if row.Name == "system.audit" && row.Settings.Retention != 90*24*time.Hour {
			t.Errorf("%+v", row.Settings)
		}
	}
}

func TestAuditWithoutAuth(t *testing.T) {
	g := withRoutes(t, Options{}, route{method: "PUT", path: "/test", action: auth.Admin, handle: answers(200)})
	ask(g, "PUT", "/test", "{}", "")
	if got := recordsOf(t, g); len(got) != 1 || got[0].Principal != "anonymous" || got[0].Outcome != "ok" {
		t.Errorf("%+v", got)
	}
}

// Somebody who tries tokens does not fill the topic, and is not forgotten.
func TestRefusalsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		g := New(hub, Options{Verifier: tokens(t)})
		const tried = 500
		for i := range tried {
			if w := ask(g, "GET", "/test", "", fmt.Sprint("guess", i)); w.Code != 404 {
				t.Fatal(w.Code)
			}
			if w := ask(g, "POST", "/publish/a", "1", fmt.Sprint("guess", i)); w.Code != 401 {
				t.Fatal(w.Code)
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		got := 0
		var counted int64
		for e, err := range hub.Read(t.Context(), store.Query{Topic: "system.audit"}) {
			if err != nil {
				t.Fatal(err)
			}
			var r auditRecord
			if err := json.Unmarshal(e.Payload, &r); err != nil || r.Action != "login" || strings.Contains(string(e.Payload), "guess") {
				t.Errorf("%s %v", e.Payload, err)
			}
			got++
			if r.Status != 0 {
				counted++ // itself
			}
			counted += r.Omitted
		}
		if got < 20 || got > 60 || counted != tried {
			t.Errorf("%d records stand for %d refusals of %d", got, counted, tried)
		}
		if err := errors.Join(g.Close(t.Context()), hub.Close()); err != nil {
			t.Error(err)
		}
	})
}

// A store that does not answer holds no request up; what is lost is told.
func TestAuditNeverWaits(t *testing.T) {
	var log strings.Builder
	var mu sync.Mutex
	logger := slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(b)
	}), nil))
	engine, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	hub, err := promethean.New(&stuck{Log: engine}, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := New(hub, Options{Logger: logger})
	g.routes = append(g.routes, route{method: "PUT", path: "/test", action: auth.Admin, handle: answers(200)})
	g.paths = arrange(g.routes)
	const calls = 2 * (auditQueue + auditBatch)
	for i := range calls {
		if w := ask(g, "PUT", "/test", fmt.Sprintf(`{"topic":"t%d"}`, i), ""); w.Code != 200 {
			t.Fatal(w.Code)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	g.auditor.add(auditRecord{Action: "late"})
	mu.Lock()
	text := log.String()
	mu.Unlock()
	if !strings.Contains(text, "action=late") {
		t.Error("what came after Close is not even logged")
	}
	told := strings.Count(text, "was not stored") - strings.Count(text, "action=audit")
	count := 0
	for _, after := range strings.Split(text, "count=")[1:] {
		n := 0
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatal(err)
		}
		count += n
	}
	if count == 0 || told+count != calls+1 {
		t.Errorf("%d records told, %d counted, of %d", told, count, calls)
	}
	if err := hub.Close(); err != nil {
		t.Error(err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// stuck is an engine whose appends hang.
type stuck struct{ promethean.Log }

func (s *stuck) Append(ctx context.Context, _ store.Batch) ([]store.Appended, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestPeeked(t *testing.T) {
	p := &peeked{ReadCloser: io.NopCloser(strings.NewReader(strings.Repeat("x", 3*auditBody)))}
	n, err := io.Copy(io.Discard, p)
	if n != 3*auditBody || err != nil || len(p.seen) != auditBody {
		t.Errorf("%d %v, %d seen", n, err, len(p.seen))
	}
}

// The recorder knows what was answered.
func TestRecorder(t *testing.T) {
	for want, do := range map[int]func(http.ResponseWriter){
		200: func(w http.ResponseWriter) { _, _ = w.Write(nil) },
		404: func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound); _, _ = w.Write(nil) },
		201: func(w http.ResponseWriter) { w.WriteHeader(http.StatusEarlyHints); w.WriteHeader(http.StatusCreated) },
	} {
		rec := newRecorder(httptest.NewRecorder(), time.Second)
		if do(rec); rec.status != want || !rec.begun {
			t.Errorf("%d, want %d", rec.status, want)
		}
	}
}
