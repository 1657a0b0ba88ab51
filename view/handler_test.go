package view_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gregjones/httpcache"

	"promethean/store"
	"promethean/view"
	"promethean/wire"
)

// served is a view behind HTTP.
type served struct {
	*world
	v *view.View
	h http.Handler
}

func newServed(t testing.TB, o ...view.HandlerOptions) *served {
	w := newWorld(t)
	v := w.changelog(view.ChangelogOptions{Indexes: []store.Index{{Fields: []string{"host", "name"}}, {Fields: []string{"pid"}}, {Fields: []string{"status"}}}})
	return &served{w, v, http.StripPrefix("/processes", view.Handler(v, o...))}
}

func (s *served) put(key, payload string, ts int64) {
	s.Helper()
	s.wait(s.v, s.publishAt(ts, key, payload))
}

// answer is what came back.
type answer struct {
	StatusCode int
	Header     http.Header
	body       string
}

func (s *served) do(method, path string, header ...string) answer {
	s.Helper()
	r := httptest.NewRequest(method, "/processes"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func text(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	return string(b)
}

func TestSnap(t *testing.T) {
	s := newServed(t)
	s.put("a", `{"pid":1}`, 5)
	got := s.do(http.MethodGet, "/snap/a")
	body := doc("a", 5, `"pid":1`)
	tag := got.Header.Get("ETag")
	if b := got.body; got.StatusCode != http.StatusOK || b != body || got.Header.Get("Content-Type") != "application/json" ||
		got.Header.Get("Cache-Control") != "public, max-age=5" || len(tag) != 34 || got.Header.Get("Content-Length") != fmt.Sprint(len(body)) {
		t.Errorf("%d %s %v", got.StatusCode, b, got.Header)
	}
	head := s.do(http.MethodHead, "/snap/a")
	if b := head.body; head.StatusCode != http.StatusOK || b != "" || head.Header.Get("ETag") != tag || head.Header.Get("Content-Length") != fmt.Sprint(len(body)) {
		t.Errorf("HEAD: %d %q %v", head.StatusCode, b, head.Header)
	}
	for _, c := range []struct {
		lines []string
		want  int
	}{
		{[]string{tag}, 304},
		{[]string{"W/" + tag}, 304},
		{[]string{"*"}, 304},
		{[]string{`"x", W/"y,z" ,` + tag}, 304},
		{[]string{`"x"`, tag}, 304},
		{[]string{`nonsense, ` + tag}, 304},
		{[]string{`"x"`}, 200},
		{[]string{strings.Trim(tag, `"`)}, 200},
		{[]string{`"unclosed`}, 200},
		{[]string{`,,, W/`, `"`, ""}, 200},
		{[]string{strings.ToUpper(tag)}, 200},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			var header []string
			for _, l := range c.lines {
				header = append(header, "If-None-Match", l)
			}
			got := s.do(method, "/snap/a", header...)
			if b := got.body; got.StatusCode != c.want || got.Header.Get("ETag") != tag || c.want == 304 && b != "" {
				t.Errorf("%s %q: %d %q %v", method, c.lines, got.StatusCode, b, got.Header)
			}
		}
	}
	// Another document with the same fields has another tag.
	s.put("a", `{"pid":1}`, 6)
	if got := s.do(http.MethodGet, "/snap/a", "If-None-Match", tag); got.StatusCode != http.StatusOK || got.Header.Get("ETag") == tag {
		t.Errorf("after a change: %d %v", got.StatusCode, got.Header)
	}
	for _, c := range []struct {
		method, path, code string
		status             int
	}{
		{http.MethodGet, "/snap/none", "not_found", 404},
		{http.MethodHead, "/snap/none", "", 404},
		{http.MethodGet, "/snap/", "not_found", 404},
		{http.MethodGet, "/nothing", "not_found", 404},
		{http.MethodPost, "/snap/a", "invalid_argument", 405},
		{http.MethodDelete, "/list", "invalid_argument", 405},
		{http.MethodPut, "/watch", "invalid_argument", 405},
	} {
		got := s.do(c.method, c.path)
		var p struct {
			Code   string
			Status int
			Detail string
		}
		b := got.body
		if c.method != http.MethodHead {
			if err := json.Unmarshal([]byte(b), &p); err != nil || p.Code != c.code || p.Status != c.status || p.Detail == "" {
				t.Errorf("%s %s: %s (%v)", c.method, c.path, b, err)
			}
		}
		if got.StatusCode != c.status || got.Header.Get("Content-Type") != "application/problem+json" || c.status == 405 && got.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: %d %v", c.method, c.path, got.StatusCode, got.Header)
		}
	}
}

func TestSnapKeys(t *testing.T) {
	s := newServed(t)
	for key, paths := range map[string][]string{
		"dev:stt:1":  {"dev:stt:1", "dev%3Astt%3A1"},
		"a/b":        {"a/b", "a%2Fb", "a%2fb"},
		"a//b/../c":  {"a%2F%2Fb%2F..%2Fc"},
		"ü 文":        {"%C3%BC%20%E6%96%87"},
		"100%":       {"100%25"},
		"q?x=1#y":    {"q%3Fx=1%23y"},
		"list":       {"list"},
		"snap/":      {"snap/", "snap%2F"},
		"%2F":        {"%252F"},
		"quote\"s\\": {"quote%22s%5C"},
	} {
		s.put(key, `{"x":1}`, 1)
		for _, p := range paths {
			got := s.do(http.MethodGet, "/snap/"+p)
			var d struct {
				Key string `json:"_key"`
			}
			if b := got.body; got.StatusCode != http.StatusOK || json.Unmarshal([]byte(b), &d) != nil || d.Key != key {
				t.Errorf("%s: %d %s", p, got.StatusCode, b)
			}
		}
	}
}

func TestHandlerOptions(t *testing.T) {
	s := newServed(t, view.HandlerOptions{MaxAge: time.Minute, Private: true, KeyField: "pid", Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, "own: "+err.Error(), http.StatusTeapot)
	}})
	s.put("a", `{"pid":7}`, 1)
	s.put("b", `{"pid":7,"new":1}`, 2)
	if got := s.do(http.MethodGet, "/snap/7"); got.Header.Get("Cache-Control") != "private, max-age=60" || got.body != doc("b", 2, `"pid":7,"new":1`) {
		t.Errorf("%v", got.Header)
	}
	if got := s.do(http.MethodGet, "/snap/8"); got.StatusCode != http.StatusTeapot || !strings.HasPrefix(got.body, "own: ") {
		t.Errorf("%d", got.StatusCode)
	}
	if got := newServed(t, view.HandlerOptions{MaxAge: -1}); true {
		got.put("a", `{}`, 1)
		if r := got.do(http.MethodGet, "/snap/a"); r.Header.Get("Cache-Control") != "public, no-cache" {
			t.Errorf("%v", r.Header)
		}
	}
}

func TestList(t *testing.T) {
	s := newServed(t)
	s.put("a", `{"pid":1,"host":"x","name":"n","status":"alive"}`, 1)
	s.put("b", `{"pid":"1","host":"x","name":"m","status":true}`, 3)
	s.put("c", `{"pid":1.0,"host":"y","name":"n","status":null}`, 2)
	s.put("d", `{"pid":2,"host":"y","status":"true"}`, 2)
	for query, want := range map[string]string{
		"":                                "bcda",
		"?limit=2":                        "bc",
		"?limit=2&offset=1":               "cd",
		"?offset=9":                       "",
		"?limit=0":                        "",
		"?limit=1000000000":               "bcda",
		"?offset=99999999999999999999999": "",
		"?pid=1":                          "bca",
		"?pid=1e0":                        "ca",
		"?pid=3":                          "",
		"?status=alive":                   "a",
		"?status=true":                    "bd",
		"?status=null":                    "c",
		"?host=x&name=n":                  "a",
		"?host=y":                         "cd",
		"?host=%22x%22":                   "",
		"?host=":                          "",
	} {
		got := s.do(http.MethodGet, "/list"+query)
		b := got.body
		var list struct {
			Offset, Limit, Count *int
			Items                []struct {
				Key string `json:"_key"`
			}
		}
		if err := json.Unmarshal([]byte(b), &list); err != nil || got.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s (%v)", query, got.StatusCode, b, err)
			continue
		}
		keys := ""
		for _, i := range list.Items {
			keys += i.Key
		}
		if keys != want || list.Count == nil || *list.Count != len(want) || list.Offset == nil || *list.Limit > 1000 ||
			got.Header.Get("Cache-Control") != "no-store" || !strings.HasPrefix(b, `{"offset":`) || list.Items == nil {
			t.Errorf("%s: %s, want %s: %v", query, b, want, got.Header)
		}
		head := s.do(http.MethodHead, "/list"+query)
		if head.body != "" || head.Header.Get("Content-Length") != fmt.Sprint(len(b)) {
			t.Errorf("HEAD %s: %v", query, head.Header)
		}
	}
	for _, query := range []string{
		"?status[$ne]=x", "?$where=1", "?a.b=1", "?cpu=1", "?limit=-1", "?limit=x", "?offset=-1", "?offset=1.5", "?limit=", "?pid=1&pid=2",
		"?host.x=1", "?_key=a", "?%zz", "?a;b", "?limit=1&limit=2", "?status%5B%24ne%5D=x", "?=",
	} {
		got := s.do(http.MethodGet, "/list"+query)
		b := got.body
		if got.StatusCode != http.StatusBadRequest || !strings.Contains(b, string(wire.InvalidArgument)) {
			t.Errorf("%s: %d %s", query, got.StatusCode, b)
		}
	}
	if b := s.do(http.MethodGet, "/list?cpu=1").body; !strings.Contains(b, "host, name, pid, status") {
		t.Errorf("an undeclared field: %s", b)
	}
}

// A list that is too large to be held is streamed, and says the same.
func TestLargeList(t *testing.T) {
	s := newServed(t)
	big := strings.Repeat("x", 900_000)
	for i := range 12 {
		s.put(fmt.Sprint(i), `{"x":"`+big+`"}`, int64(i))
	}
	var list struct {
		Count int
		Items []json.RawMessage
	}
	b := s.do(http.MethodGet, "/list").body
	if err := json.Unmarshal([]byte(b), &list); err != nil || list.Count != 12 || len(list.Items) != 12 {
		t.Errorf("%d of %d items, %v", len(list.Items), list.Count, err)
	}
}

// A public cache (RFC 9111) and we agree.
func TestPublicCache(t *testing.T) {
	s := newServed(t, view.HandlerOptions{MaxAge: -1})
	var statuses []int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := httptest.NewRecorder()
		s.h.ServeHTTP(rec, r)
		statuses = append(statuses, rec.Code)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	}))
	defer srv.Close()
	cache := httpcache.NewMemoryCacheTransport()
	client := cache.Client()
	inner := &http.Transport{}
	defer inner.CloseIdleConnections()
	cache.Transport = inner
	get := func() (string, bool) {
		t.Helper()
		res, err := client.Get(srv.URL + "/processes/snap/a")
		if err != nil {
			t.Fatal(err)
		}
		return text(t, res), res.Header.Get(httpcache.XFromCache) != ""
	}
	s.put("a", `{"n":1}`, 1)
	for i, want := range []struct {
		body   string
		cached bool
	}{{doc("a", 1, `"n":1`), false}, {doc("a", 1, `"n":1`), true}, {doc("a", 2, `"n":2`), false}, {doc("a", 2, `"n":2`), true}} {
		if i == 2 {
			s.put("a", `{"n":2}`, 2)
		}
		if body, cached := get(); body != want.body || cached != want.cached {
			t.Errorf("request %d: %s, from the cache: %v", i, body, cached)
		}
	}
	if want := []int{200, 304, 200, 304}; !slices.Equal(statuses, want) {
		t.Errorf("answered %v, should be %v", statuses, want)
	}
}

// With a max-age the cache does not ask at all until it is over.
func TestPublicCacheAge(t *testing.T) {
	s := newServed(t, view.HandlerOptions{MaxAge: time.Hour})
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
		s.h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	cache := httpcache.NewMemoryCacheTransport()
	inner := &http.Transport{}
	defer inner.CloseIdleConnections()
	cache.Transport = inner
	s.put("a", `{}`, 1)
	for range 3 {
		res, err := cache.Client().Get(srv.URL + "/processes/snap/a")
		if err != nil {
			t.Fatal(err)
		}
		if b := text(t, res); b != doc("a", 1, "") {
			t.Error(b)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// sse reads a stream of events.
type sse struct {
	*served
	lines *bufio.Scanner
}

func (s *served) sse(ctx context.Context, path string, header ...string) *sse {
	s.Helper()
	r, w := io.Pipe()
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/processes"+path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	go func() {
		s.h.ServeHTTP(&pipeWriter{header: make(http.Header), Writer: w}, req)
		_ = w.Close()
	}()
	context.AfterFunc(ctx, func() { _ = r.Close() }) // nobody reads any more
	out := &sse{s, bufio.NewScanner(r)}
	if got := out.event(); got != ": open" {
		s.Fatalf("opened with %q", got)
	}
	return out
}

type pipeWriter struct {
	header http.Header
	io.Writer
}

func (p *pipeWriter) Header() http.Header { return p.header }
func (p *pipeWriter) WriteHeader(int)     {}
func (p *pipeWriter) Flush()              {}

// event gives the lines of the next event, joined by bars.
func (s *sse) event() string {
	var out []string
	for s.lines.Scan() && s.lines.Text() != "" {
		out = append(out, s.lines.Text())
	}
	return strings.Join(out, "|")
}

func (s *sse) want(list ...string) {
	s.Helper()
	for _, w := range list {
		if got := s.event(); got != w {
			s.Fatalf("got %s\nwant %s", got, w)
		}
	}
}

func TestWatchOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServed(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.put("a", `{"n":1}`, 1)
		first := s.sse(ctx, "/watch")
		s.put("b", `{ "n" : "x y" }`, 2)
		s.put("a", `null`, 3)
		change := `id: 2|event: change|data: ` + doc("b", 2, `"n":"x y"`)
		gone := `id: 3|event: delete|data: {"_key":"a"}`
		first.want(change, gone)
		s.sse(ctx, "/watch?after=1").want(change, gone)
		s.sse(ctx, "/watch?after=0", "Last-Event-ID", "2").want(gone)
		s.sse(ctx, "/watch?snapshot=1").want(`event: change|data: `+doc("b", 2, `"n":"x y"`), `id: 3|event: live|data: {}`)
		time.Sleep(15 * time.Second)
		first.want(":")
		ahead := s.sse(ctx, "/watch?after=100")
		ahead.want("id: 3|event: reset|data: {}")
		s.put("c", `{}`, 4)
		for _, x := range []*sse{first, ahead} {
			x.want(`id: 4|event: change|data: ` + doc("c", 4, ""))
		}
		if err := s.v.Rebuild(t.Context(), view.RebuildOptions{}); err != nil {
			t.Fatal(err)
		}
		first.want("id: 4|event: reset|data: {}")
		for _, path := range []string{"/watch?after=x", "/watch?after=-1", "/watch?what=1", "/watch?snapshot=maybe", "/watch?after=1&after=2"} {
			if got := s.do(http.MethodGet, path); got.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: %d", path, got.StatusCode)
			}
		}
		// A view that is closed ends the streams.
		if err := s.v.Close(); err != nil {
			t.Fatal(err)
		}
		for got := first.event(); got != ""; got = first.event() {
			if got != ":" {
				t.Errorf("after the end: %s", got)
			}
		}
		cancel()
		synctest.Wait()
	})
}

// Several documents of one event stand under one id, which comes with the last.
func TestWatchIDs(t *testing.T) {
	w := newWorld(t)
	v := w.processes(view.TransactionalOptions{Handler: putTwo})
	s := &served{w, v, http.StripPrefix("/processes", view.Handler(v))}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x := s.sse(ctx, "/watch")
	s.put("k", `{}`, 1)
	x.want(`event: change|data: `+doc("k1", 1, ""), `id: 1|event: change|data: `+doc("k2", 1, ""))
}
