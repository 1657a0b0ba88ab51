package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"promethean/wire"
)

// asked makes a request as a server would see it that is reached at 192.0.2.7.
func asked(host string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/healthz", nil)
	r.Host = host
	at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7070}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(at)))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func TestHost(t *testing.T) {
	g := newGuard([]string{"Hub.Internal."}, []string{"https://ops.example.org", "http://[2001:db8::1]:8080", "http://named.example:7070/"}, slog.New(slog.DiscardHandler))
	for _, host := range []string{
		"localhost", "localhost:7070", "LOCALHOST:7070", "localhost.", "localhost.:7070", "localhost:",
		"127.0.0.1", "127.0.0.1:7070", "127.9.9.9:1", "127.0.0.1.", "[::1]", "[::1]:7070", "[0:0:0:0:0:0:0:1]:7070", "[::ffff:127.0.0.1]:7070",
		"192.0.2.7", "192.0.2.7:7070", "[::ffff:192.0.2.7]:7070",
		"hub.internal", "hub.internal:9", "HUB.internal.:9",
		"ops.example.org", "ops.example.org:443", "OPS.example.org.", "[2001:db8::1]:8080", "[2001:DB8:0::1]:8080", "named.example:7070",
		"", // no browser
	} {
		if err := g.check(asked(host)); err != nil {
			t.Errorf("%q is refused: %v", host, err)
		}
	}
	for _, host := range []string{
		"evil.example", "evil.example:7070", "localhost.evil.example", "evil.localhost", "xlocalhost", "localhost..", "127.0.0.1.evil.example",
		"0.0.0.0:7070", "[::]:7070", "192.0.2.8", "10.0.0.1:7070", "[::2]", "127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1",
		"::1", "::1:7070", "[::1", "[::1]7070", "[::1]]", "[127.0.0.1]", "[localhost]", "[]", ":7070", ".", "[::1]:70a", "[::1]:123456",
		"127.0.0.1:x", "127.0.0.1:7070:1", "127.0.0.1@evil.example", "evil.example@127.0.0.1", "evil.example#127.0.0.1", "127.0.0.1/evil", " 127.0.0.1", "127.0.0.1,evil.example", "localhost\x00",
		// The name of an origin is ours on its own port only.
		"ops.example.org:7070", "ops.example.org:80", "[2001:db8::1]", "[2001:db8::1]:80", "named.example", "named.example:80",
	} {
		if err := g.check(asked(host)); codeOf(err) != wire.Forbidden {
			t.Errorf("%q: %v", host, err)
		}
	}
	without := httptest.NewRequest(http.MethodGet, "/", nil) // no address of the listener
	without.Host = "192.0.2.7"
	if err := g.check(without); codeOf(err) != wire.Forbidden {
		t.Error(err)
	}
}

func TestOrigin(t *testing.T) {
	g := newGuard(nil, []string{"https://Ops.example.org", "http://dev.example:3000/", "app://desk", "*", "null", "https://", "https://x/y"}, slog.New(slog.DiscardHandler))
	const host = "localhost:7070"
	for _, c := range []struct {
		host, origin string
		tls          bool
	}{
		{host, "http://localhost:7070", false},
		{host, "HTTP://LOCALHOST:7070", false},
		{host, "https://localhost:7070", true},
		{"localhost", "http://localhost", false},
		{"localhost:80", "http://localhost", false},
		{"localhost", "http://localhost:80", false},
		{"localhost:443", "https://localhost", true},
		{"[::1]:7070", "http://[::1]:7070", false},
		{host, "https://ops.example.org", false},
		{host, "https://OPS.example.org", false},
		{host, "https://ops.example.org:443", false},
		{host, "http://dev.example:3000", false},
		{host, "app://desk", false},
	} {
		r := asked(c.host, "Origin", c.origin)
		if c.tls {
			r.TLS = &tls.ConnectionState{}
		}
		if err := g.check(r); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []struct {
		host, origin string
		tls          bool
	}{
		{host, "null", false},
		{"", "null", false},
		{"", "http://", false},
		{host, "*", false},
		{host, "http://localhost:7071", false},
		{host, "http://localhost", false},
		{host, "http://127.0.0.1:7070", false}, // another page than localhost
		{host, "https://localhost:7070", false},
		{host, "http://localhost:7070", true},
		{"localhost", "https://localhost", false},
		{"localhost", "http://localhost", true},
		{host, "https://evil.example", false},
		{host, "http://ops.example.org", false},
		{host, "https://ops.example.org:8443", false},
		{host, "https://ops.example.org.evil.example", false},
		{host, "https://xops.example.org", false},
		{host, "http://dev.example", false},
		{host, "http://localhost:7070/", false},
		{host, "http://localhost:7070/x", false},
		{host, "http://evil@localhost:7070", false},
		{host, "http://localhost:7070?", false},
		{host, "http://localhost:7070#", false},
		{host, "localhost:7070", false},
		{host, "//localhost:7070", false},
		{host, "http://localhost:7070 http://evil.example", false},
		{host, "https://x", false},
		{host, "", false},
	} {
		r := asked(c.host, "Origin", c.origin)
		if c.tls {
			r.TLS = &tls.ConnectionState{}
		}
		if err := g.check(r); codeOf(err) != wire.Forbidden {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := g.check(asked(host, "Origin", "http://localhost:7070", "Origin", "https://ops.example.org")); codeOf(err) != wire.Forbidden {
		t.Errorf("two origins: %v", err)
	}
}

func TestCheckOrigin(t *testing.T) {
	for _, s := range []string{"https://a.example", "https://a.example/", "http://localhost:3000", "http://[::1]:1", "chrome-extension://abcdef"} {
		if err := CheckOrigin(s); err != nil {
			t.Error(err)
		}
	}
	for s, want := range map[string]string{
		"*": "one by one", "null": "sandboxed", "": "is none", "a.example": "is none", "https://": "is none", "https://a/b": "is none",
		"https://u:p@a": "is none", "https://a?x": "is none", "https://a#x": "is none", "https://*.a.example:x": "is none", "http://[x]": "none",
	} {
		if err := CheckOrigin(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestFetchSite(t *testing.T) {
	g := newGuard(nil, []string{"https://ops.example.org"}, slog.New(slog.DiscardHandler))
	const host = "localhost:7070"
	ok := [][]string{
		{"Sec-Fetch-Site", "same-origin"},
		{"Sec-Fetch-Site", "none"},
		{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:7070"},
		{"Sec-Fetch-Site", "cross-site", "Origin", "https://ops.example.org"},
		{"Sec-Fetch-Site", "same-site", "Origin", "https://ops.example.org"},
		{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
	}
	no := [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
		{"Sec-Fetch-Site", "cross-site", "Origin", "http://localhost:7070"}, // came back by a redirect
		{"Sec-Fetch-Site", "cross-site", "Origin", "null"},
		{"Sec-Fetch-Site", "same-site"}, // another port of localhost, in an image
		{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
		{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
		{"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:3000"},
		{"Sec-Fetch-Site", "CROSS-SITE"},
		{"Sec-Fetch-Site", "something new"},
	}
	for _, h := range ok {
		if err := g.check(asked(host, h...)); err != nil {
			t.Errorf("%v: %v", h, err)
		}
	}
	for _, h := range no {
		if err := g.check(asked(host, h...)); codeOf(err) != wire.Forbidden {
			t.Errorf("%v: %v", h, err)
		}
	}
}

// raw sends bytes to a server and gives the status of the answer.
func raw(t *testing.T, addr, request string) int {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	got, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	_ = got.Body.Close()
	return got.StatusCode
}

// What a real server makes of odd request lines is still guarded.
func TestGuardOnTheWire(t *testing.T) {
	g := opened(t, Options{Origins: []string{"https://ops.example.org"}})
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	addr := s.Listener.Addr().String()
	for _, c := range []struct {
		request string
		status  int
	}{
		{"GET /healthz HTTP/1.1\r\nHost: " + addr + "\r\n\r\n", 200},
		{"GET /healthz HTTP/1.0\r\n\r\n", 200},
		{"GET /healthz HTTP/1.0\r\nOrigin: null\r\n\r\n", 403},
		{"GET /healthz HTTP/1.0\r\nSec-Fetch-Site: cross-site\r\n\r\n", 403},
		{"GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403},
		{"GET /healthz HTTP/1.1\r\n\r\n", 400}, // the server's own
		{"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400},
		{"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 403},
		{"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
		{"GET http:///healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
		{"GET //evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"GET /nothing HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
		{"GET /healthz HTTP/1.1\r\nHost: " + addr + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nOrigin: https://evil.example\r\n\r\n", 403},
		{"GET /ws HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 403},
		{"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", 403},
	} {
		if got := raw(t, addr, c.request); got != c.status {
			t.Errorf("%q: %d, want %d", c.request, got, c.status)
		}
	}
}

func TestEveryRouteIsGuarded(t *testing.T) {
	g := opened(t, Options{})
	for _, route := range g.routes {
		for _, h := range [][2]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Host", "evil.example"}} {
			r := httptest.NewRequest(route.method, filled(route.path), nil)
			r.Host = "localhost"
			if h[0] == "Host" {
				r.Host = h[1]
			} else {
				r.Header.Set(h[0], h[1])
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if w.Code != http.StatusForbidden {
				t.Errorf("%s %s with %s: %d", route.method, route.path, h, w.Code)
			}
		}
	}
}

// filled puts something into the variables of a path.
func filled(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if strings.HasPrefix(s, "{") {
			segments[i] = "orders"
		}
	}
	return strings.Join(segments, "/")
}

func TestPreflight(t *testing.T) {
	g := opened(t, Options{Origins: []string{"https://ops.example.org"}})
	ask := func(method, path string, headers ...string) string {
		r := httptest.NewRequest(method, path, nil)
		r.Host = "localhost:7070"
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		h := w.Header()
		return fmt.Sprintf("%d %s|%s|%s|%s|%s|%s", w.Code, h.Get("Access-Control-Allow-Origin"), h.Get("Access-Control-Allow-Methods"),
			h.Get("Access-Control-Allow-Headers"), h.Get("Access-Control-Allow-Private-Network"), h.Get("Access-Control-Allow-Credentials"), h.Get("Vary"))
	}
	for _, c := range []struct{ got, want string }{
		{
			ask("OPTIONS", "/publish/a", "Origin", "https://ops.example.org", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-a", "Access-Control-Request-Private-Network", "true"),
			"204 https://ops.example.org|OPTIONS, POST|authorization,x-a|true||Origin",
		},
		{ask("OPTIONS", "/publish/a", "Origin", "https://evil.example", "Access-Control-Request-Method", "POST"), "403 |||||Origin"},
		{ask("OPTIONS", "/publish/a", "Origin", "null", "Access-Control-Request-Method", "POST"), "403 |||||Origin"},
		{ask("OPTIONS", "/publish/a"), "204 |||||Origin"},
		{ask("GET", "/healthz", "Origin", "https://ops.example.org"), "200 https://ops.example.org|||||Origin"},
		{ask("GET", "/healthz", "Origin", "http://localhost:7070"), "200 |||||Origin"},
		{ask("GET", "/nothing", "Origin", "https://ops.example.org"), "404 https://ops.example.org|||||Origin"},
		{ask("POST", "/publish/A", "Origin", "https://ops.example.org"), "400 https://ops.example.org|||||Origin"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

func FuzzGuard(f *testing.F) {
	g := newGuard(nil, []string{"https://ops.example.org"}, slog.New(slog.DiscardHandler))
	f.Add("localhost:7070", "http://localhost:7070", "same-origin")
	f.Add("[::1]", "null", "cross-site")
	f.Fuzz(func(t *testing.T, host, from, site string) {
		r := asked(host, "Origin", from, "Sec-Fetch-Site", site)
		if g.check(r) != nil {
			return
		}
		// Who gets in from a page is one of ours or one that was named.
		from = strings.ToLower(from)
		if from != "https://ops.example.org" && from != "https://ops.example.org:443" && !strings.HasPrefix(from, "http://") && !strings.HasPrefix(from, "https://ops.example.org.") {
			t.Errorf("host %q origin %q site %q", host, from, site)
		}
		if site == "cross-site" && !g.allows(r) {
			t.Errorf("host %q origin %q site %q", host, from, site)
		}
	})
}
