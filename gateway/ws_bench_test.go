package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/gateway"
)

// rawClient speaks the protocol with as little work as possible, so that a
// benchmark measures the hub.
type rawClient struct {
	nc  net.Conn
	r   *bufio.Reader
	out []byte
	in  []byte
}

func dialRaw(b testing.TB, url string) *rawClient {
	b.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = nc.Close() }) // the hub may have done so
	c := &rawClient{nc: nc, r: bufio.NewReaderSize(nc, 64<<10)}
	_, err = io.WriteString(nc, "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	if err != nil {
		b.Fatal(err)
	}
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		if line == "\r\n" {
			return c
		}
	}
}

// add appends a text frame, masked with zeros, to what flush sends.
func (c *rawClient) add(msg []byte) { c.out = appendFrame(c.out, 0x81, msg) }

// appendFrame appends a masked frame whose mask is zero.
func appendFrame(b []byte, first byte, msg []byte) []byte {
	switch n := len(msg); {
	case n < 126:
		b = append(b, first, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, first, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, first, 0x80|127), uint64(n))
	}
	return append(append(b, 0, 0, 0, 0), msg...)
}

func (c *rawClient) flush() error {
	_, err := c.nc.Write(c.out)
	c.out = c.out[:0]
	return err
}

// next reads a frame. It is valid until the next call.
func (c *rawClient) next() ([]byte, error) {
	head, err := c.r.Peek(2)
	if err != nil {
		return nil, err
	}
	size, n := 2, int(head[1])
	switch n {
	case 126:
		size = 4
	case 127:
		size = 10
	}
	if head, err = c.r.Peek(size); err != nil {
		return nil, err
	}
	switch size {
	case 4:
		n = int(binary.BigEndian.Uint16(head[2:]))
	case 10:
		n = int(binary.BigEndian.Uint64(head[2:]))
	}
	if _, err := c.r.Discard(size); err != nil {
		return nil, err
	}
	if cap(c.in) < n {
		c.in = make([]byte, n)
	}
	c.in = c.in[:n]
	_, err = io.ReadFull(c.r, c.in)
	return c.in, err
}

// ok reads an answer, which must be OK.
func (c *rawClient) ok() error {
	msg, err := c.next()
	if err == nil && !bytes.HasPrefix(msg, []byte(`{"op":"OK"`)) {
		err = fmt.Errorf("%s", msg)
	}
	return err
}

// serveDisk serves a hub on a directory, so that every answer waits for a sync.
func serveDisk(b *testing.B) (*promethean.Hub, string) {
	b.Helper()
	hub, err := promethean.Open(b.TempDir(), promethean.Options{})
	if err != nil {
		b.Fatal(err)
	}
	g := gateway.New(hub, gateway.Options{})
	s := httptest.NewServer(g)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			b.Error(err)
		}
		s.Close()
		if err := hub.Close(); err != nil {
			b.Error(err)
		}
	})
	return hub, s.URL
}

var benchPayload = `{"device":"dev-0001","state":"running","note":"` + strings.Repeat("x", 230) + `"}`

// BenchmarkPublishWS64 has 64 connections publish one event each and wait for
// its answer, which comes when it is synced.
func BenchmarkPublishWS64(b *testing.B) {
	_, url := serveDisk(b)
	const conns = 64
	clients := make([]*rawClient, conns)
	for i := range clients {
		clients[i] = dialRaw(b, url)
	}
	frame := []byte(`{"op":"PUBLISH","corr":"1","topic":"bench.events","payload":` + benchPayload + `}`)
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, c := range clients {
		n := b.N / conns
		if i < b.N%conns {
			n++
		}
		wg.Go(func() {
			for range n {
				c.add(frame)
				if err := c.flush(); err != nil {
					b.Error(err)
					return
				}
				if err := c.ok(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkPublishWSBatch publishes batches of 1000, one after the other on
// each of 4 connections.
func BenchmarkPublishWSBatch(b *testing.B) {
	_, url := serveDisk(b)
	const conns, size = 4, 1000
	row := `{"topic":"bench.events","payload":` + benchPayload + `}`
	frame := []byte(`{"op":"PUBLISH","events":[` + strings.Repeat(row+",", size-1) + row + `]}`)
	clients := make([]*rawClient, conns)
	for i := range clients {
		clients[i] = dialRaw(b, url)
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for range (b.N + conns*size - 1) / (conns * size) {
				c.add(frame)
				if err := c.flush(); err != nil {
					b.Error(err)
					return
				}
				if err := c.ok(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkConsumeWS consumes with batches of 500 and durable acks.
func BenchmarkConsumeWS(b *testing.B) {
	hub, url := serveDisk(b)
	publishMany(b, hub, b.N)
	consumeWS(b, url)
}

// BenchmarkRelay consumes a group at the hub that owns it, and at another one,
// which passes it on. The engine is NATS, in one process with both hubs.
func BenchmarkRelay(b *testing.B) {
	for _, at := range []string{"owner", "other"} {
		b.Run(at, func(b *testing.B) {
			own, other := pair(b, nil)
			own.hold("bench.events", "g", `,"batch":500,"batchSize":500,"maxInFlight":4000`)
			publishMany(b, own.hub, b.N)
			if at == "owner" {
				other = own
			}
			consumeWS(b, other.url)
		})
	}
}

// publishMany publishes n events to bench.events, or a few more.
func publishMany(b *testing.B, hub *promethean.Hub, n int) {
	b.Helper()
	batch := make([]event.Event, 500)
	for sent := 0; sent < n; sent += len(batch) {
		for i := range batch {
			batch[i] = event.New("bench.events", []byte(benchPayload))
		}
		if _, err := hub.Publish(context.Background(), batch...); err != nil {
			b.Fatal(err)
		}
	}
}

// consumeWS has a group take b.N events of bench.events at a hub, and times it.
func consumeWS(b *testing.B, url string) {
	b.Helper()
	c := dialRaw(b, url)
	b.ResetTimer()
	c.add([]byte(`{"op":"SUBSCRIBE","topic":"bench.events","group":"g","opts":{"from":"earliest","batch":500,"batchSize":500,"maxInFlight":4000}}`))
	if err := c.flush(); err != nil {
		b.Fatal(err)
	}
	for acked := 0; acked < b.N; {
		msg, err := c.next()
		if err != nil {
			b.Fatal(err)
		}
		if bytes.HasPrefix(msg, []byte(`{"op":"OK"`)) {
			acked += bytes.Count(msg, []byte(`"ok":true`))
			continue
		}
		if !bytes.HasPrefix(msg, []byte(`{"op":"EVENTS"`)) {
			b.Fatalf("%s", msg)
		}
		ack := []byte(`{"op":"ACK","topic":"bench.events","group":"g","ids":[`)
		for sep := ""; ; sep = "," {
			i := bytes.Index(msg, []byte(`{"event":{"id":"`))
			if i < 0 {
				break
			}
			msg = msg[i+16:]
			ack = append(append(append(append(ack, sep...), '"'), msg[:36]...), '"')
		}
		c.add(append(ack, `]}`...))
		if err := c.flush(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// frame reads the next frame and decodes it.
func (c *rawClient) frame(t testing.TB) (f map[string]any) {
	t.Helper()
	msg, err := c.next()
	if err == nil {
		err = json.Unmarshal(msg, &f)
	}
	if err != nil {
		t.Fatalf("%q: %v", msg, err)
	}
	return f
}
