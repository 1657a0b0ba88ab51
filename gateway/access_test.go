package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"promethean"
	"promethean/gateway/auth"
	"promethean/wire"
)

// opened is a gateway over a hub in memory.
func opened(t testing.TB, o Options) *Gateway {
	t.Helper()
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g := New(hub, o)
	t.Cleanup(func() {
		if err := errors.Join(g.Close(context.Background()), hub.Close()); err != nil {
			t.Error(err)
		}
	})
	return g
}

func tokens(t testing.TB, list ...auth.Token) auth.Verifier {
	t.Helper()
	v, err := auth.NewTokens(list...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ask sends a request with a token, which may be "".
func ask(g *Gateway, method, path, body, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost"
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

// open are the routes that anybody may call where auth is on; a WebSocket asks
// for the token itself.
var open = []string{"/healthz", "/livez", "/readyz", "/ws", "/", "/openapi.json", "/console/{file}"}

// Whoever adds a route says who may call it.
func TestEveryRouteAsksForAccess(t *testing.T) {
	g := opened(t, Options{Verifier: tokens(t, auth.Token{Name: "nobody", Secret: "no-scope"})})
	for _, route := range g.routes {
		name := route.method + " " + route.path
		switch route.action {
		case auth.Open:
			if !slices.Contains(open, route.path) {
				t.Errorf("%s is open to all", name)
			}
			continue
		case auth.Publish, auth.Subscribe, auth.Read:
			if !slices.Contains([]string{"path", "query", "handler", "all"}, route.topic) {
				t.Errorf("%s needs %s, and has no topic", name, route.action)
			}
			if route.topic == "path" && !strings.Contains(route.path, "{topic}") {
				t.Errorf("%s has no topic in its path", name)
			}
		case auth.Admin:
		default:
			t.Errorf("%s: %q is no action", name, route.action)
		}
		path := filled(route.path) + "?topic=orders"
		for token, want := range map[string]int{"": 401, "wrong": 401, "no-scope": 403} {
			if w := ask(g, route.method, path, "{}", token); w.Code != want && (route.topic != "handler" || token != "no-scope") {
				t.Errorf("%s with the token %q: %d, want %d", name, token, w.Code, want)
			} else if route.topic == "handler" && w.Code < 400 {
				t.Errorf("%s without a scope: %d", name, w.Code)
			} else if w.Code == 401 && w.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%s: 401 does not say how", name)
			}
		}
	}
}

func TestAllow(t *testing.T) {
	g := opened(t, Options{Verifier: tokens(t)})
	scopes, err := auth.ParseScopes([]string{"publish:a.*", "admin"})
	if err != nil {
		t.Fatal(err)
	}
	who := &auth.Principal{Name: "ada", Scopes: scopes}
	for _, c := range []struct {
		who   *auth.Principal
		a     auth.Action
		topic string
		code  wire.Code
	}{
		{who, auth.Publish, "a.b", ""},
		{who, auth.Admin, "", ""},
		{who, auth.Open, "", ""},
		{nil, auth.Open, "", ""},
		{nil, auth.Publish, "a.b", wire.Unauthorized},
		{nil, auth.Admin, "", wire.Unauthorized},
		{who, auth.Publish, "b", wire.Forbidden},
		{who, auth.Publish, "**", wire.Forbidden},
		{who, auth.Read, "a.b", wire.Forbidden},
		{who, "other", "a.b", wire.Forbidden},
		{&auth.Principal{}, auth.Admin, "", wire.Forbidden},
	} {
		err := g.allow(c.who, c.a, c.topic)
		if (err == nil) != (c.code == "") || err != nil && codeOf(err) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
	}
	free := opened(t, Options{})
	if err := free.allow(nil, auth.Admin, ""); err != nil {
		t.Errorf("without auth: %v", err)
	}
}

func TestAuthorizationHeader(t *testing.T) {
	var log strings.Builder
	g := opened(t, Options{
		Verifier: tokens(t, auth.Token{Secret: "s3cret", Scopes: []string{"publish:a"}}),
		Logger:   slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	for header, want := range map[string]int{
		"Bearer s3cret":                        201,
		"bearer s3cret":                        201,
		"BEARER  s3cret ":                      201,
		"":                                     401,
		"s3cret":                               401,
		"Bearer":                               401,
		"Bearer ":                              401,
		"Bearer s3cret x":                      401,
		"Basic s3cret":                         401,
		"Bearer s3cre":                         401,
		"Bearer " + strings.Repeat("x", 1<<19): 401,
	} {
		r := httptest.NewRequest(http.MethodPost, "/publish/a", strings.NewReader("1"))
		r.Host = "localhost"
		r.Header.Set("Authorization", header)
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: %d %s", clip(header), w.Code, w.Body)
		}
		if strings.Contains(w.Body.String(), "s3cre") {
			t.Errorf("the answer has the token: %s", w.Body)
		}
	}
	twice := httptest.NewRequest(http.MethodPost, "/publish/a", strings.NewReader("1"))
	twice.Host = "localhost"
	twice.Header["Authorization"] = []string{"Bearer s3cret", "Bearer other"}
	w := httptest.NewRecorder()
	if g.ServeHTTP(w, twice); w.Code != 401 {
		t.Errorf("two headers: %d", w.Code)
	}
	// A token in the address is none.
	if w := ask(g, http.MethodPost, "/publish/a?access_token=s3cret&token=s3cret", "1", ""); w.Code != 401 {
		t.Errorf("a token in the query: %d", w.Code)
	}
	// A bad token does not matter where none is needed.
	if w := ask(g, http.MethodGet, "/healthz", "", "wrong"); w.Code != 200 {
		t.Errorf("%d", w.Code)
	}
	if strings.Contains(log.String(), "s3cre") {
		t.Errorf("the log has the token: %s", log.String())
	}
}

type broken struct{}

func (broken) Verify(context.Context, string) (*auth.Principal, error) {
	return nil, errors.New("the directory is down")
}

// Who could not be asked has not said yes.
func TestVerifierFails(t *testing.T) {
	g := opened(t, Options{Verifier: broken{}})
	if w := ask(g, http.MethodPost, "/publish/a", "1", "x"); w.Code != 500 || strings.Contains(w.Body.String(), "directory") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
