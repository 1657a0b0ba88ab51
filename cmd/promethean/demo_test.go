package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// words takes a line apart as a shell does, as far as the demo's lines need it.
func words(line string) (out []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		out = append(out, m[1]+m[2])
	}
	return out
}

// curl does what one of the demo's lines does and gives the beginning of the
// answer.
func (p *hub) curl(line string) string {
	p.Helper()
	method, url, body, stream := http.MethodGet, "", "", false
	for args := words(line)[1:]; len(args) > 0; args = args[1:] {
		switch args[0] {
		case "-d":
			method, body = http.MethodPost, args[1]
			args = args[1:]
		case "-N":
			stream = true
		default:
			if strings.HasPrefix(args[0], "-") {
				p.Fatalf("%s: %s is unknown to this test", line, args[0])
			}
			url = args[0]
		}
	}
	if !stream {
		a := p.call(method, strings.TrimPrefix(url, p.url), body)
		if a.status >= 300 {
			p.Errorf("%s: %d %s", line, a.status, a.body)
		}
		return string(a.body)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		p.Fatal(err)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatalf("%s: %v", line, err)
	}
	defer func() { _ = got.Body.Close() }()
	for s := bufio.NewScanner(got.Body); s.Scan(); {
		if data, ok := strings.CutPrefix(s.Text(), "data:"); ok {
			return data
		}
	}
	p.Errorf("%s: no event came", line)
	return ""
}

// The demo is up at once, has live states and a dead letter within seconds, and
// every line that it tells people to try works. It leaves nothing behind.
func TestDemo(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	p := &hub{T: t, args: []string{"demo", "--listen", "127.0.0.1:0"}}
	p.start()
	defer p.kill()
	deadline := time.Now().Add(30 * time.Second)
	for {
		var dead struct{ Count int }
		p.get(&dead, 200, "GET", "/dlq", "")
		var states struct{ Count int }
		p.get(&states, 200, "GET", "/replay?topic=process.state&from=earliest", "")
		if dead.Count > 0 && states.Count >= 5 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d dead letters and %d states after 30 s", dead.Count, states.Count)
		}
		time.Sleep(20 * time.Millisecond) // of another process: nothing wakes us
	}
	wants := map[string]string{
		"/subscribe": `"topic":"process.state"`, "/latest-by-key": `"status":"alive"`, "/publish": `"seq":`,
		"/lag": `"lag":`, "/replay": `"replayed":1`, "/dlq/heartbeat.received": `"err":"heartbeat: pid`,
	}
	lines := regexp.MustCompile(`curl .*`).FindAllString(p.said.String(), -1)
	if len(lines) < len(wants) {
		t.Errorf("it tells to try %q", lines)
	}
	for _, line := range lines {
		got := p.curl(line)
		for part, want := range wants {
			if strings.Contains(line, part) && !(part == "/dlq/heartbeat.received" && strings.Contains(line, "/replay")) && !strings.Contains(got, want) {
				t.Errorf("%s: %s has no %s", line, got, want)
			}
		}
	}
	p.stop()
	left, err := filepath.Glob(filepath.Join(temp, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it leaves %q, %v", left, err)
	}
}

// Data that are to stay do, and the next demo goes on with them.
func TestDemoKeepsItsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := &hub{T: t, args: []string{"demo", "--listen", "127.0.0.1:0", "--dir", dir}}
	p.start()
	defer p.kill()
	p.get(nil, 201, "POST", "/publish/mine", "1")
	p.stop()
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	p.start()
	var mine struct{ Events int }
	if p.get(&mine, 200, "GET", "/topics/mine", ""); mine.Events != 1 {
		t.Errorf("%d events", mine.Events)
	}
	p.stop()
}
