package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/internal/natstest"
)

// The tests of this file and of the other contract_*_test.go walk the outside
// contract, call by call, against the program itself. They know nothing of what
// is inside.

// hub is one in a process of its own.
type hub struct {
	*testing.T
	args []string
	cmd  *exec.Cmd
	url  string
	said *transcript

	states int // how many states were published
}

// transcript collects what a process says.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *transcript) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var address = regexp.MustCompile(`https?://[^\s/]+:\d+`)

// startHub starts "promethean serve" and waits until it is ready.
func startHub(t *testing.T, args ...string) *hub {
	t.Helper()
	p := &hub{T: t, args: append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)}
	p.start()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the hub said:\n%s", p.said)
		}
	})
	return p
}

func (p *hub) start() {
	p.Helper()
	p.said = new(transcript)
	p.cmd = exec.Command("promethean", p.args...)
	p.cmd.Stderr = p.said
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			_, _ = fmt.Fprintln(p.said, s.Text())
			if url := address.FindString(s.Text()); url != "" {
				select {
				case ready <- url:
				default:
				}
			}
		}
		close(ready)
	}()
	select {
	case url, ok := <-ready:
		if !ok {
			_ = p.cmd.Wait()
			p.Fatalf("serve ended before it was ready:\n%s", p.said)
		}
		p.url = url
		// The next start takes the same port, so that clients find it again.
		p.args[2] = strings.TrimPrefix(url, "http://")
	case <-time.After(30 * time.Second):
		p.kill()
		p.Fatalf("serve is not ready:\n%s", p.said)
	}
}

// kill ends the process as a crash does.
func (p *hub) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// crash kills the process and starts it again.
func (p *hub) crash() {
	p.Helper()
	p.kill()
	p.start()
}

// stop asks the process to end, and wants it to end well.
func (p *hub) stop() {
	p.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Fatal(err)
	}
	err := p.cmd.Wait()
	p.cmd = nil
	if err != nil {
		p.Errorf("serve that was asked to end: %v\n%s", err, p.said)
	}
}

// answer is what a call gave.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call sends a request. Headers come as pairs.
func (p *hub) call(method, path, body string, headers ...string) answer {
	p.Helper()
	r, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = got.Body.Close() }()
	data, err := io.ReadAll(got.Body)
	if err != nil {
		p.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{got.StatusCode, got.Header, data}
}

// get decodes an answer that must have the status, into what is given.
func (p *hub) get(v any, status int, method, path, body string, headers ...string) {
	p.Helper()
	a := p.call(method, path, body, headers...)
	if a.status != status {
		p.Fatalf("%s %s: %d %s, want %d", method, path, a.status, a.body, status)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		p.Fatalf("%s %s: %s: %v", method, path, a.body, err)
	}
}

// refused wants a problem with a status and a code.
func (p *hub) refused(status int, code, method, path, body string, headers ...string) map[string]any {
	p.Helper()
	a := p.call(method, path, body, headers...)
	var problem map[string]any
	if err := json.Unmarshal(a.body, &problem); err != nil {
		p.Errorf("%s %s: %d %q is no problem: %v", method, path, a.status, a.body, err)
		return nil
	}
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		p.Errorf("%s %s: content type %q", method, path, ct)
	}
	if a.status != status || problem["code"] != code || problem["status"] != float64(status) || problem["title"] == "" {
		p.Errorf("%s %s: %d %s, want %d %s", method, path, a.status, a.body, status, code)
	}
	return problem
}

// record is an event as it comes over the wire.
type record struct {
	ID        string            `json:"id"`
	Seq       uint64            `json:"seq"`
	TS        int64             `json:"ts"`
	Topic     string            `json:"topic"`
	Key       string            `json:"key"`
	Partition *int              `json:"partition"`
	SID       string            `json:"sid"`
	Headers   map[string]string `json:"headers"`
	Payload   json.RawMessage   `json:"payload"`
	CausedBy  []string          `json:"caused_by"`
	Tags      []string          `json:"tags"`
	Duplicate bool              `json:"duplicate"`
}

// pulled is one delivery of a pull.
type pulled struct {
	Event    record `json:"event"`
	Attempt  int    `json:"attempt"`
	Lease    any    `json:"lease"`
	Deadline int64  `json:"ack_deadline_ms"`
}

// publish publishes one event and gives where it is.
func (p *hub) publish(topic, query, payload string) record {
	p.Helper()
	var r record
	a := p.call("POST", "/publish/"+topic+query, payload)
	if a.status != 201 && a.status != 200 {
		p.Fatalf("publish %s%s: %d %s", topic, query, a.status, a.body)
	}
	if err := json.Unmarshal(a.body, &r); err != nil {
		p.Fatal(err)
	}
	return r
}

// replay reads a whole topic.
func (p *hub) replay(topic string) []record {
	p.Helper()
	var all []record
	for after := uint64(0); ; {
		var page struct {
			Count  int      `json:"count"`
			Events []record `json:"events"`
			Next   uint64   `json:"next"`
		}
		p.get(&page, 200, "GET", fmt.Sprintf("/replay?topic=%s&from=seq&seq=%d&limit=10000", topic, after), "")
		if page.Count != len(page.Events) {
			p.Fatalf("count %d with %d events", page.Count, len(page.Events))
		}
		if page.Count == 0 {
			return all
		}
		all = append(all, page.Events...)
		after = page.Next
	}
}

// pull takes deliveries.
func (p *hub) pull(topic, group string, max, wait int, opts string) []pulled {
	p.Helper()
	var got struct {
		Events []pulled `json:"events"`
	}
	if opts == "" {
		opts = "{}"
	}
	p.get(&got, 200, "POST", "/pull", fmt.Sprintf(`{"topic":%q,"group":%q,"max":%d,"wait_ms":%d,"opts":%s}`, topic, group, max, wait, opts))
	return got.Events
}

// settle calls ack, nack or modack with ids, and gives the results by id: ""
// for those that are done, else the error.
func (p *hub) settle(what, topic, group, more string, ids ...string) map[string]string {
	p.Helper()
	list, err := json.Marshal(ids)
	if err != nil {
		p.Fatal(err)
	}
	var got struct {
		Count   int `json:"count"`
		Results []struct {
			ID  string `json:"id"`
			OK  bool   `json:"ok"`
			Err string `json:"err"`
		} `json:"results"`
	}
	p.get(&got, 200, "POST", "/"+what, fmt.Sprintf(`{"topic":%q,"group":%q,"ids":%s%s}`, topic, group, list, more))
	out := make(map[string]string)
	for _, r := range got.Results {
		if r.OK != (r.Err == "") {
			p.Errorf("%s: %+v", what, r)
		}
		out[r.ID] = r.Err
	}
	if len(out) != len(ids) {
		p.Fatalf("%s of %d ids gave %d results", what, len(ids), len(out))
	}
	return out
}

// onEach runs a test with a hub on each engine that can be had.
func onEach(t *testing.T, test func(t *testing.T, store string)) {
	t.Run("memory", func(t *testing.T) { test(t, "memory://") })
	t.Run("file", func(t *testing.T) { test(t, "file://"+t.TempDir()) })
	t.Run("nats", func(t *testing.T) { test(t, natstest.Start(t, nil).URL()) })
	t.Run("fake of mongodb", func(t *testing.T) { test(t, mongofake.Start(t, mongofake.Options{}).URI()) })
	t.Run("mongodb", func(t *testing.T) { test(t, mongotest.Fresh(t, "contract")) })
}

// until waits for a condition.
func (p *hub) until(what string, ok func() bool) {
	p.Helper()
	for over := time.After(time.Minute); !ok(); { // a hub compacts every 30 s
		select {
		case <-over:
			p.Fatalf("%s did not come", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
