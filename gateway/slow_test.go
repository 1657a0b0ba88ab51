package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"promethean/gateway"
)

// knock opens a connection with a small window and sends something.
func (s *served) knock(text string) net.Conn {
	s.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close() })
	if err := errors.Join(conn.(*net.TCPConn).SetReadBuffer(4096), conn.SetDeadline(time.Now().Add(20*time.Second))); err != nil {
		s.Fatal(err)
	}
	_, _ = io.WriteString(conn, text) // it may be closed before it has all
	return conn
}

// A body that is announced and does not come is not waited for, whoever would
// have read it, or nobody.
func TestBodyThatDoesNotCome(t *testing.T) {
	s := serve(t, gateway.Options{BodyWait: 50 * time.Millisecond})
	for request, want := range map[string]int{
		"GET /healthz":             400,
		"GET /subscribe?topic=a":   400,
		"HEAD /export?topic=a":     400,
		"POST /nosuch":             404,
		"POST /publish/a":          400,
		"POST /publish/a?key=%zz":  400,
		"POST /schemas/a":          400,
		"DELETE /groups/a/nobody":  404,
		"OPTIONS /publish/a":       204,
		"PUT /groups/a/b":          400,
		"POST /dlq/a/replay":       400,
		"POST /cloudevents":        400,
		"POST /publish/a?ts=never": 400,
	} {
		for _, length := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
			conn := s.knock(request + " HTTP/1.1\r\nHost: localhost\r\n" + length + "\r\n\r\n")
			got, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Errorf("%s, %s: %v", request, length, err)
				continue
			}
			_ = got.Body.Close()
			if _, err := io.Copy(io.Discard, conn); got.StatusCode != want || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s, %s: %d, want %d; then %v", request, length, got.StatusCode, want, err)
			}
		}
	}
	s.want(200, "", "GET", "/healthz", "")
}

// Who sends requests and takes no answers is let go.
func TestAnswersThatNobodyTakes(t *testing.T) {
	s := serve(t, gateway.Options{WriteWait: 50 * time.Millisecond})
	s.want(201, "", "POST", "/publish", strings.Repeat(`{"topic":"a.b","payload":"`+strings.Repeat("x", 700_000)+`"}`+"\n", 10))
	closed := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(s.g)
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			// A pull may answer with one event: that alone must not fit between
			// the two ends.
			if err := conn.(*net.TCPConn).SetWriteBuffer(1 << 12); err != nil {
				t.Error(err)
			}
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	plain := s.url
	s.url = server.URL
	body := `{"topic":"a.b","group":"g","wait_ms":5000,"opts":{"from":"earliest","maxAttempts":1000}}`
	for name, text := range map[string]string{
		"pull":  fmt.Sprintf("POST /pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		"large": strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 2000),
		"heads": strings.Repeat("HEAD /export?topic=a.b HTTP/1.1\r\nHost: localhost\r\n\r\n", 2000) + strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 2000),
	} {
		s.knock(text)
		select {
		case <-closed:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the hub holds the connection", name)
		}
	}
	s.url = plain
	// What nobody took is there for others.
	if got := s.want(200, "", "POST", "/pull", body); len(got["events"].([]any)) == 0 {
		t.Error("the events of the pull did not come back")
	}
}

// A stale deadline of one answer does not hold for the next request.
func TestConnectionGoesOnAfterItsDeadlines(t *testing.T) {
	const wait = 50 * time.Millisecond
	s := serve(t, gateway.Options{WriteWait: wait, BodyWait: wait})
	conn := s.knock("")
	r := bufio.NewReader(conn)
	for range 3 {
		fmt.Fprint(conn, "POST /publish/a HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
		if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
			t.Fatalf("%q %v", line, err)
		}
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "1")
		got, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, got.Body)
		if err = errors.Join(err, got.Body.Close()); err != nil || got.StatusCode != http.StatusCreated {
			t.Fatalf("%d %v", got.StatusCode, err)
		}
		<-time.After(2 * wait) // longer than the deadline that the answer had
	}
}
