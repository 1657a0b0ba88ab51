package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// knock opens a connection and sends something that a decent client would not.
// Whoever is refused early may find the connection closed.
func (p *hub) knock(text string) net.Conn {
	p.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(c, text)
	return c
}

// status gives the status of the answer to a raw request.
func (p *hub) status(text string) int {
	p.Helper()
	c := p.knock(text)
	defer func() { _ = c.Close() }()
	got, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		p.Errorf("%.80q: %v", text, err)
		return 0
	}
	_ = got.Body.Close()
	return got.StatusCode
}

// upgrade is the request that opens a WebSocket.
const upgrade = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"

// masked makes a text frame, with a mask of zeroes.
func masked(text string) []byte {
	b := []byte{0x81, 0xfe}
	b = binary.BigEndian.AppendUint16(b, uint16(len(text)))
	return append(append(b, 0, 0, 0, 0), text...)
}

// nothing wants no topic but those of the hub.
func (p *hub) nothing() {
	p.Helper()
	var got struct {
		Topics []struct {
			Topic string `json:"topic"`
			Last  uint64 `json:"last"`
		} `json:"topics"`
	}
	p.get(&got, 200, "GET", "/topics", "")
	for _, t := range got.Topics {
		if t.Last > 0 && !strings.HasPrefix(t.Topic, "system.") {
			p.Errorf("topic %s has %d events", t.Topic, t.Last)
		}
	}
}

// TestHostile sends what only an attacker sends: the documented code comes back,
// nothing is stored, and the hub holds no more than before.
func TestHostile(t *testing.T) {
	p := startHub(t, "--store", "file://"+t.TempDir())
	p.hostileBodies()
	p.hostileRequests()
	p.nothing()
	before := p.gauges()
	p.hostileFrames()
	p.hostileConnections()
	var after gauges
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // polling, up to a deadline
		after = p.gauges()
		flat := after.goroutines <= before.goroutines+20 && after.files <= before.files+5 && after.memory <= before.memory+64<<20
		if flat {
			break
		}
		if time.Now().After(end) {
			t.Errorf("it holds more: %+v, then %+v", before, after)
			break
		}
	}
	if r := p.publish("after.all", "", `1`); r.Seq != 1 {
		t.Errorf("%+v", r)
	}
	p.stop()
}

func (p *hub) hostileBodies() {
	p.Helper()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, `{"a":1}`)
	_ = z.Close()
	ids := strings.Repeat(`"0192f7c1-0000-7000-8000-000000000001",`, 10_000) + `"0192f7c1-0000-7000-8000-000000000001"`
	for _, x := range []struct {
		status             int
		code, method, path string
		body               string
		headers            []string
	}{
		{400, "invalid_topic", "POST", "/publish/%2e%2e%2fx", `1`, nil},
		{400, "invalid_topic", "POST", "/publish/DLQ.a", `1`, nil},
		{400, "invalid_topic", "POST", "/publish/dlq.a", `1`, nil},
		{400, "bad_json", "POST", "/publish/a", strings.Repeat("[", 500_000), nil},
		{400, "bad_json", "POST", "/publish/a", "\"\xff\"", nil},
		{400, "bad_json", "POST", "/publish/a", `{"a":1,"a":2}`, nil},
		{400, "invalid_argument", "POST", "/publish/a?key=%ff", `1`, nil},
		{400, "invalid_argument", "POST", "/publish/a?key=a;b", `1`, nil},
		{400, "invalid_argument", "POST", "/publish/a?ts=1e999999", `1`, nil},
		{400, "invalid_argument", "POST", "/publish/a", zipped.String(), []string{"Content-Encoding", "gzip"}},
		{400, "invalid_argument", "POST", "/cloudevents", zipped.String(), []string{
			"Content-Encoding", "gzip", "Content-Type", "application/octet-stream",
			"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "a",
		}},
		{400, "invalid_argument", "POST", "/publish", `{"topic":"a","payload":1,"tags":[` + strings.Repeat(`"t",`, 500_000) + `"t"]}`, nil},
		{400, "invalid_header", "POST", "/publish", `{"topic":"a","payload":1,"headers":{` + manyHeaders(50_000) + `}}`, nil},
		{413, "payload_too_large", "POST", "/publish", `{"topic":"a","payload":1}` + "\n" + `{"topic":"a","payload":"` + strings.Repeat("x", 2<<20) + `"}`, nil},
		{400, "bad_json", "POST", "/publish", `{"topic":"a","topic":"b","payload":1}`, nil},
		{413, "batch_too_large", "POST", "/ack", `{"topic":"a","group":"g","ids":[` + ids + `]}`, nil},
		{403, "forbidden", "POST", "/publish/a", `1`, []string{"Origin", "https://evil.example"}},
		{403, "forbidden", "POST", "/publish/a", `1`, []string{"Sec-Fetch-Site", "cross-site"}},
		{403, "forbidden", "POST", "/publish/a", `1`, []string{"Host", "evil.example"}},
	} {
		p.refused(x.status, x.code, x.method, x.path, x.body, x.headers...)
	}
}

func manyHeaders(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"x-%d":"",`, i)
	}
	return b.String() + `"x-a":""`
}

func (p *hub) hostileRequests() {
	p.Helper()
	const post = "POST /publish/a HTTP/1.1\r\nHost: localhost\r\n"
	chunk := "10000\r\n" + strings.Repeat("1", 0x10000) + "\r\n"
	for _, x := range []struct {
		text string
		want int
	}{
		{post + "Content-Length: 2147483648\r\n\r\n1", 413},
		{post + "Expect: 100-continue\r\nContent-Length: 2147483648\r\n\r\n", 413},
		{post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat(chunk, 17), 413},
		{post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		{post + "Transfer-Encoding: gzip, chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n", 501},
		{post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12", 400},
		{post + "Content-Length: -1\r\n\r\n1", 400},
		{post + "Content-Length : 1\r\n\r\n1", 400},
		{post + "Host: evil.example\r\nContent-Length: 1\r\n\r\n1", 400},
		{post + strings.Repeat("a: b\r\n", 100_000) + "\r\n", 431},
		{"POST http://evil.example/publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1", 403},
		{"POST /publish/../a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1", 404},
		{"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505},
		{"GET /healthz HTTP/1.0\r\n\r\n", 200},
	} {
		if got := p.status(x.text); got != x.want {
			p.Errorf("%.120q: %d, want %d", x.text, got, x.want)
		}
	}
}

// hostileFrames sends frames with errors by chance. The hub answers or closes,
// and each connection ends when the client does.
func (p *hub) hostileFrames() {
	p.Helper()
	good := []string{
		`{"op":"PUBLISH","topic":"fuzz","payload":{"a":[1,2,{"b":null}]},"corr":"x","opts":{"key":"k","tags":["a"]}}`,
		`{"op":"SUBSCRIBE","topic":"fuzz","group":"g","opts":{"from":"earliest","filter":"true"}}`,
		`{"op":"ACK","topic":"fuzz","group":"g","ids":["0192f7c1-0000-7000-8000-000000000001"]}`,
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		data := []byte(upgrade)
		for range 20 {
			f := masked(good[random.IntN(len(good))])
			for range random.IntN(4) {
				at := random.IntN(len(f))
				if random.IntN(4) > 0 {
					at = 8 + random.IntN(len(f)-8)
				}
				f[at] = byte(random.Uint32())
			}
			data = append(data, f...)
		}
		c := p.knock(string(data))
		_ = c.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			p.Error("a connection stays open after its client has gone")
		}
		_ = c.Close()
	}
	for text, code := range map[string]string{
		strings.Repeat("[", 5000): "bad_json",
		`{"op":"SUBSCRIBE","group":"g","topics":["a"` + strings.Repeat(`,"a"`, 10_000) + `]}`: "batch_too_large",
		`{"op":"PUBLISH","topic":"../x","payload":1}`:                                         "invalid_topic",
	} {
		c := p.knock(upgrade + string(masked(text)))
		r := bufio.NewReader(c)
		if _, err := http.ReadResponse(r, nil); err != nil { //nolint:bodyclose // the connection goes on
			p.Fatal(err)
		}
		head := make([]byte, 2)
		if _, err := io.ReadFull(r, head); err != nil {
			p.Fatal(err)
		}
		line, err := r.ReadString('}')
		if err != nil || !strings.Contains(line, `"code":"`+code+`"`) {
			p.Errorf("%.60q: %q %v, want %s", text, line, err, code)
		}
		_ = c.Close()
	}
}

// hostileConnections opens many and drops them at different places.
func (p *hub) hostileConnections() {
	p.Helper()
	for i := range 1000 {
		text := []string{"", "GET /hea", upgrade, "POST /publish/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n1", upgrade + "\x81"}[i%5]
		_ = p.knock(text).Close()
	}
}
