package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/gateway"
	"promethean/gateway/auth"
)

// source is an open stream of events.
type source struct {
	t      testing.TB
	lines  *bufio.Scanner
	body   io.Closer
	cancel context.CancelFunc
}

func (s *served) listen(path string, headers ...string) *source {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	got, err := http.DefaultClient.Do(r) //nolint:bodyclose // source.close does it
	if err != nil {
		s.Fatal(err)
	}
	if got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != "text/event-stream" {
		s.Fatalf("%s: %d %v", path, got.StatusCode, got.Header)
	}
	src := &source{t: s.TB, lines: bufio.NewScanner(got.Body), body: got.Body, cancel: cancel}
	s.Cleanup(src.close)
	return src
}

func (s *source) close() {
	s.cancel()
	_ = s.body.Close()
}

// message is one event of a stream.
type message struct {
	id, event string
	data      struct {
		ID      string
		Seq     uint64
		Payload json.RawMessage
	}
	comment string
}

// next reads the next event, or says that the stream is over.
func (s *source) next() (m message, ok bool) {
	s.t.Helper()
	for s.lines.Scan() {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch name {
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			if err := json.Unmarshal([]byte(value), &m.data); err != nil {
				s.t.Fatalf("%s: %v", value, err)
			}
		case "":
			if s.lines.Text() == "" && (m.id != "" || m.event != "") {
				return m, true
			}
			m.comment += value
		}
	}
	return m, false
}

// want reads events with these payloads.
func (s *source) want(payloads ...string) (last message) {
	s.t.Helper()
	for _, p := range payloads {
		m, ok := s.next()
		if !ok || string(m.data.Payload) != p || m.event != "event" || m.id != fmt.Sprint(m.data.Seq) {
			s.t.Fatalf("%+v (%v), want %s", m, ok, p)
		}
		last = m
	}
	return last
}

func TestTail(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a.b", "k", `{"n":12345678901234567890}`, "k", `"a\nb"`)
	tail := s.listen("/subscribe?topic=a.b")
	all := s.listen("/subscribe?topic=a.b&from=earliest")
	all.want(`{"n":12345678901234567890}`, `"a\nb"`)
	s.publish("a.b", "k", `3`)
	tail.want(`3`)
	last := all.want(`3`)
	all.close()
	s.publish("a.b", "k", `4`, "k", `5`)
	s.listen("/subscribe?topic=a.b&from=earliest", "Last-Event-ID", last.id).want(`4`, `5`)
	tail.want(`4`, `5`)
	// A topic that nobody has written to.
	early := s.listen("/subscribe?topic=c.d&from=earliest")
	s.publish("c.d", "k", `1`)
	early.want(`1`)

	s.want(400, "invalid_argument", "GET", "/subscribe?topic=a.b", "", "Last-Event-ID", "x")
	s.want(400, "cursor_unknown", "GET", "/subscribe?topic=a.b", "", "Last-Event-ID", "99")
	s.want(400, "cursor_unknown", "GET", "/subscribe?topic=a.b&from=seq&seq=99", "")
	s.want(400, "invalid_argument", "GET", "/subscribe?topic=a.b&from=then", "")
	s.want(400, "invalid_argument", "GET", "/subscribe?topic=a.b&group=", "")
	s.want(400, "invalid_argument", "GET", "/subscribe?topic=a.b&group=g&maxInFlight=-1", "")
	s.want(400, "invalid_argument", "GET", "/subscribe?topic=a.b&group=g&ordering=chaos", "")
	s.want(409, "group_conflict", "GET", "/subscribe?topic=a.b&group=g&partitioned=1", "")

	// Draining ends it, in good order.
	s.g.Drain()
	if m, ok := tail.next(); ok || tail.lines.Err() != nil {
		t.Errorf("%+v, %v", m, tail.lines.Err())
	}
	s.want(503, "draining", "GET", "/subscribe?topic=a.b", "")
	s.want(503, "draining", "GET", "/readyz", "")
	s.want(200, "", "GET", "/livez", "")
}

func TestLeasedStream(t *testing.T) {
	s := serve(t, gateway.Options{})
	s.publish("a.b", "k", `1`, "k", `2`, "j", `3`)
	one := s.listen("/subscribe?topic=a.b&group=g&from=earliest&maxAttempts=3")
	first := one.want(`1`)
	one.want(`3`)
	if !strings.Contains(first.comment, "attempt 1, lease ") {
		t.Errorf("comment %q", first.comment)
	}
	// The next of a key comes when the one before is settled.
	s.want(200, "", "POST", "/ack", `{"topic":"a.b","group":"g","ids":["`+first.data.ID+`"]}`)
	one.want(`2`)
	s.want(409, "group_conflict", "GET", "/subscribe?topic=a.b&group=g&maxAttempts=4", "")
	// What the connection held comes to the next one, and has counted.
	one.close()
	two := s.listen("/subscribe?topic=a.b&group=g")
	seen := map[string]string{}
	for range 2 {
		m, _ := two.next()
		seen[string(m.data.Payload)] = m.comment
	}
	for _, p := range []string{"2", "3"} {
		if !strings.Contains(seen[p], "attempt 2") {
			t.Errorf("%v", seen)
		}
	}
	// When the hub ends the stream, it does not count.
	s.g.Drain()
	if _, ok := two.next(); ok {
		t.Error("more came")
	}
	if err := s.g.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 2)
	_, err := s.hub.Subscribe(context.Background(), "a.b", "g", func(_ context.Context, _ event.Event, d *promethean.Delivery) error {
		got <- d.Attempt
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := <-got, <-got; a != 2 || b != 2 {
		t.Errorf("attempts %d, %d", a, b)
	}
}

// only lets everybody do anything until a time.
type only time.Time

func (o only) Verify(context.Context, string) (*auth.Principal, error) {
	scope, err := auth.ParseScope("subscribe:**")
	return &auth.Principal{Scopes: []auth.Scope{scope}, Expires: time.Time(o)}, err
}

// A stream says that it is there, and ends with the token.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = hub.Close() }()
		for _, path := range []string{"/subscribe?topic=a.b", "/subscribe?topic=a.b&group=g"} {
			began := time.Now()
			g := gateway.New(hub, gateway.Options{Verifier: only(began.Add(4*gateway.Heartbeat - time.Second))})
			r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
			r.Header.Set("Authorization", "Bearer x")
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if n := strings.Count(w.Body.String(), ":\n\n"); w.Code != 200 || n != 3 || time.Since(began) != 4*gateway.Heartbeat-time.Second {
				t.Errorf("%s: %d %q after %v", path, w.Code, w.Body, time.Since(began))
			}
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A client that does not read loses the connection.
func TestSlowReader(t *testing.T) {
	s := serve(t, gateway.Options{WriteWait: 50 * time.Millisecond})
	row := `{"topic":"a.b","payload":"` + strings.Repeat("x", 500_000) + `"}` + "\n"
	for range 4 {
		s.want(201, "", "POST", "/publish", strings.Repeat(row, 8))
	}
	ended := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		s.g.ServeHTTP(w, r)
	}))
	defer server.Close()
	for _, path := range []string{"/export?topic=a.b", "/replay?topic=a.b", "/subscribe?topic=a.b&from=earliest", "/subscribe?topic=a.b&from=earliest&group=g"} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		<-ended // nothing is read until the hub has let go of the connection
		rest, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays open after %d bytes", path, len(rest))
		}
		if len(rest) >= 16_000_000 || strings.HasSuffix(string(rest), "0\r\n\r\n") {
			t.Errorf("%s: all of %d bytes came, %v", path, len(rest), err)
		}
		_ = conn.Close()
	}
}
