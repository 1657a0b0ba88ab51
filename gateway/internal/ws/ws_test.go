package ws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

// counted counts writes, and can hold them up.
type counted struct {
	net.Conn
	writes atomic.Int64
	began  chan struct{} // closed when the first write begins; may be nil
	gate   chan struct{} // a write waits until it is closed; nil: never
}

func (c *counted) Write(b []byte) (int, error) {
	if c.writes.Add(1) == 1 && c.began != nil {
		close(c.began)
	}
	if c.gate != nil {
		<-c.gate
	}
	return c.Conn.Write(b)
}

// pair is a connection and the other end of it.
func pair(t *testing.T, k *Keeper, o Options) (*Conn, *counted, net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	nc := &counted{Conn: here}
	c := newConn(nc, k, o)
	k.add(c)
	return c, nc, there
}

func (c *Conn) text(s string) { c.End(append(c.Begin(), s...)) }

// TestGather appends while a write is under way: all of it goes in the next.
func TestGather(t *testing.T) {
	k := NewKeeper(0, 0)
	c, nc, there := pair(t, k, Options{})
	nc.gate, nc.began = make(chan struct{}), make(chan struct{})
	sizes := []int{0, 1, 125, 126, 127, 65535, 65536, 70000}
	go func() {
		c.text("first")
		c.Flush()
	}()
	<-nc.began
	for i := range 100 {
		c.text(strings.Repeat("x", sizes[i%len(sizes)]))
		c.Flush() // somebody is at it
	}
	close(nc.gate)
	client := newClientReader(there)
	for i := range 101 {
		msg, err := client.next()
		if err != nil {
			t.Fatal(err)
		}
		if want := sizes[max(i-1, 0)%len(sizes)]; i > 0 && len(msg) != want || i == 0 && string(msg) != "first" {
			t.Fatalf("message %d has %d bytes", i, len(msg))
		}
	}
	total := 0
	for i := range 100 {
		total += sizes[i%len(sizes)] + 10
	}
	if n, most := nc.writes.Load(), int64(1+1+total/maxChunk); n > most {
		t.Errorf("%d writes for 101 messages, at most %d", n, most)
	}
	_ = there.Close()
	c.Finish()
	if c.box != nil || c.buf != nil {
		t.Error("buffers were kept")
	}
}

// clientReader reads what a server sends.
type clientReader struct{ r io.Reader }

func newClientReader(r io.Reader) *clientReader { return &clientReader{r} }

func (c *clientReader) next() ([]byte, error) {
	_, msg, err := c.frame()
	return msg, err
}

func (c *clientReader) frame() (op byte, msg []byte, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(c.r, head); err != nil {
		return 0, nil, err
	}
	n := int(head[1])
	if n >= 126 {
		more := make([]byte, map[int]int{126: 2, 127: 8}[n])
		if _, err := io.ReadFull(c.r, more); err != nil {
			return 0, nil, err
		}
		n = 0
		for _, b := range more {
			n = n<<8 | int(b)
		}
	}
	msg = make([]byte, n)
	_, err = io.ReadFull(c.r, msg)
	return head[0] & 0x0f, msg, err
}

// adding is a network on which each write meets somebody who adds a message.
type adding struct {
	net.Conn
	add func()
}

func (a *adding) Write(b []byte) (int, error) {
	a.add()
	return a.Conn.Write(b)
}

// Who reads goes on reading, though others add to the queue without end.
func TestPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(0, 0)
		here, there := net.Pipe()
		var c *Conn
		var enough atomic.Bool
		c = newConn(&adding{here, func() {
			if !enough.Load() {
				c.text("more")
			}
		}}, k, Options{})
		k.add(c)
		read := make(chan int)
		go func() {
			n := 0
			for client := newClientReader(there); ; n++ {
				if op, _, err := client.frame(); err != nil || op == opClose {
					break
				}
			}
			_ = there.Close()
			read <- n
		}()
		c.text("first")
		c.Push()
		c.Push() // somebody is at it
		enough.Store(true)
		synctest.Wait()
		c.mu.Lock()
		if c.busy || c.queued() > 0 {
			t.Errorf("%d bytes wait, busy %v", c.queued(), c.busy)
		}
		c.mu.Unlock()
		c.Finish()
		if n := <-read; n < 2 {
			t.Errorf("%d messages came", n)
		}
	})
}

// Who waits for room goes on once there was some, though others take it first.
func TestWaitRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queue = 64 << 10
		k := NewKeeper(time.Hour, time.Hour)
		var c *Conn
		fill := func() {
			for !c.Full() {
				c.text(strings.Repeat("x", 1000))
			}
		}
		c, _, there := pair(t, k, Options{Queue: queue, Room: func() { fill() }})
		fill()
		go c.Flush()
		waited := make(chan struct{})
		go func() {
			c.WaitRoom()
			close(waited)
		}()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("there was no room")
		default:
		}
		go func() { _, _ = io.Copy(io.Discard, io.LimitReader(there, queue)) }() // then it reads no more
		synctest.Wait()
		select {
		case <-waited:
		default:
			t.Error("there was room, and it waits")
		}
		if c.mu.Lock(); c.queued() < queue/2 {
			t.Errorf("%d bytes wait: nobody took the room", c.queued())
		}
		c.mu.Unlock()
		_ = there.Close()
		c.Finish()
	})
}

// TestBound fills the queue of a peer that does not read.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queue = 64 << 10
		var room, stalled atomic.Int64
		var c *Conn
		k := NewKeeper(time.Hour, 30*time.Second)
		c, _, there := pair(t, k, Options{
			Queue: queue, Room: func() { room.Add(1) },
			Stalled: func() { stalled.Add(1); c.Shut(4001, "slow", true, []byte("slow_consumer")) },
		})
		msg := strings.Repeat("x", 1000)
		for !c.Full() {
			c.text(msg)
			go c.Flush()
			synctest.Wait()
		}
		if n := c.queued(); n > queue/2+1100 {
			t.Errorf("%d bytes wait", n)
		}
		// There is room again when it reads.
		client := newClientReader(there)
		got := 0
		for room.Load() == 0 {
			if _, err := client.next(); err != nil {
				t.Fatal(err)
			}
			got++
			synctest.Wait()
		}
		for !c.Full() {
			c.text(msg)
			go c.Flush()
			synctest.Wait()
		}
		waited := make(chan struct{})
		go func() {
			c.WaitRoom()
			close(waited)
		}()
		time.Sleep(29 * time.Second)
		if stalled.Load() != 0 {
			t.Error("it was told too early")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if stalled.Load() != 1 {
			t.Fatalf("told %d times", stalled.Load())
		}
		<-waited
		// What was not begun is gone; why comes next, and then the end.
		var last []byte
		for {
			op, msg, err := client.frame()
			if err != nil {
				t.Fatal(err)
			}
			if op == opClose {
				if code := int(msg[0])<<8 | int(msg[1]); code != 4001 || string(last) != "slow_consumer" {
					t.Errorf("%d after %q", code, last)
				}
				break
			}
			last = msg
		}
		c.text("too late")
		c.Flush()
		go func() { _, _ = io.Copy(io.Discard, there) }() // until it is closed
		if _, err := c.Next(); err == nil {
			t.Error("a message came")
		}
		c.Finish()
	})
}

// TestSilent asks a peer that says nothing whether it lives.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(30*time.Second, 0)
		c, _, there := pair(t, k, Options{})
		go func() {
			client := newClientReader(there)
			for i := 0; ; i++ {
				op, _, err := client.frame()
				if err != nil {
					return
				}
				if op == opPing && i < 3 {
					_, _ = there.Write([]byte{0x80 | opPong, 0x80, 1, 2, 3, 4}) // the test ends if it fails
				}
			}
		}()
		began := time.Now()
		if _, err := c.Next(); err == nil || errors.Is(err, ErrKicked) {
			t.Errorf("%v", err)
		}
		// Three pings were answered, the fourth was not.
		if took := time.Since(began); took < 145*time.Second || took > 160*time.Second {
			t.Errorf("it ended after %v", took)
		}
		c.Finish()
	})
}

// TestHeldUp has the whole process stand still for long: that is no silence of
// those who are connected. They are asked, and have the time to answer.
func TestHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(30*time.Second, 0)
		c, _, _ := pair(t, k, Options{})
		defer c.Finish()
		for range 3 {
			k.look(c, k.tick(time.Hour))
			if c.told {
				t.Fatal("it counts as silent")
			}
		}
		for passed := time.Duration(0); passed <= 2*30*time.Second; passed += k.every {
			k.look(c, k.tick(k.every))
		}
		if !c.told {
			t.Error("it was silent for two pings, and is still there")
		}
	})
}

// TestLargeBuffer sends much and then nothing: the large buffer is given back.
func TestLargeBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(time.Hour, 0)
		c, _, there := pair(t, k, Options{Limit: 1 << 20})
		frame := masked(opText, []byte(strings.Repeat("x", 10_000)))
		done := make(chan error)
		go func() {
			for range 100 {
				if _, err := there.Write(frame); err != nil {
					t.Error(err)
				}
			}
			<-done
			_, _ = there.Write(masked(opText, []byte("small"))) // Next tells
		}()
		for i := range 100 {
			if msg, err := c.Next(); err != nil || len(msg) != 10_000 {
				t.Fatalf("message %d: %d bytes, %v", i, len(msg), err)
			}
		}
		got := make(chan string)
		go func() {
			msg, err := c.Next()
			if err != nil {
				t.Error(err)
			}
			got <- string(msg)
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(c.buf) != smallRead {
			t.Errorf("an idle connection has a buffer of %d bytes", len(c.buf))
		}
		close(done)
		if msg := <-got; msg != "small" {
			t.Errorf("%q", msg)
		}
		// A kick is seen, and the next read goes on.
		c.Kick()
		if _, err := c.Next(); !errors.Is(err, ErrKicked) {
			t.Errorf("%v", err)
		}
		go func() { _, _ = there.Write(masked(opText, []byte("again"))) }() // as above
		if msg, err := c.Next(); err != nil || string(msg) != "again" {
			t.Errorf("%q %v", msg, err)
		}
		_ = there.Close()
		if _, err := c.Next(); err == nil {
			t.Error("the peer is gone")
		}
		c.Finish()
	})
}

// masked makes a frame of a client.
func masked(op byte, body []byte) []byte {
	mask := [4]byte{1, 2, 3, 250}
	b := []byte{0x80 | op, 0x80 | byte(len(body))}
	if len(body) > 125 {
		b = []byte{0x80 | op, 0x80 | 126, byte(len(body) >> 8), byte(len(body))}
	}
	b = append(append(b, mask[:]...), body...)
	unmask(b[len(b)-len(body):], mask)
	return b
}

// TestClaim says that much will come, and sends little: that takes no memory.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(time.Hour, 0)
		c, _, there := pair(t, k, Options{Limit: 64 << 20})
		go func() {
			_, _ = there.Write([]byte{0x81, 0xff, 0, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 4, 'x'}) // Next tells
			_, _ = io.Copy(io.Discard, there)
		}()
		_, err := c.Next()
		var ce *CloseError
		if !errors.As(err, &ce) || ce.Code != closeProtocol {
			t.Errorf("%v", err)
		}
		if len(c.buf) > largeRead {
			t.Errorf("a buffer of %d bytes", len(c.buf))
		}
		c.Finish()
	})
}

// TestAgainstOther exchanges random messages with another implementation, in
// fragments and whole, small and large.
func TestAgainstOther(t *testing.T) {
	k := NewKeeper(0, 0)
	var open sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := k.Accept(w, r, Options{Limit: 4 << 20})
		if err != nil {
			t.Error(err)
			return
		}
		open.Go(func() {
			defer c.Finish()
			for {
				msg, err := c.Next()
				if err != nil {
					var ce *CloseError
					if !errors.As(err, &ce) || !ce.Peer || ce.Code != 1000 {
						t.Error(err)
					}
					return
				}
				c.End(append(c.Begin(), msg...))
				if !c.Buffered() {
					c.Flush()
				}
			}
		})
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, s.URL, &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover}) //nolint:bodyclose // it has none
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(4 << 20)
	random := rand.New(rand.NewPCG(1, 2))
	var sent [][]byte
	for range 200 {
		n := random.IntN(200)
		if random.IntN(10) == 0 {
			n = random.IntN(300_000)
		}
		sent = append(sent, bytes.Repeat([]byte("é"), n/2))
	}
	sent = append(sent, bytes.Repeat([]byte("x"), 4<<20))
	go func() {
		for i, msg := range sent {
			w, err := c.Writer(ctx, websocket.MessageText)
			if err != nil {
				t.Error(err)
				return
			}
			for len(msg) > 0 { // each write may be a fragment
				n := min(1+i*977%9000, len(msg))
				if _, err := w.Write(msg[:n]); err != nil {
					t.Error(err)
					return
				}
				msg = msg[n:]
			}
			if err := w.Close(); err != nil {
				t.Error(err)
				return
			}
			if i%20 == 0 {
				if err := c.Ping(ctx); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for i := range sent {
		_, msg, err := c.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(msg, sent[i]) {
			t.Fatalf("message %d: %d bytes came back of %d", i, len(msg), len(sent[i]))
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Error(err)
	}
	open.Wait()
}

// FuzzRead gives any bytes to the reader: it neither panics nor gives more than
// was sent, and its messages are UTF-8.
func FuzzRead(f *testing.F) {
	f.Add(masked(opText, []byte("hello")))
	f.Add(append(masked(opPing, nil), masked(opClose, []byte{3, 232})...))
	f.Add([]byte{0x01, 0x81, 0, 0, 0, 0, 'a', 0x80, 0x81, 0, 0, 0, 0, 'b'})
	f.Fuzz(func(t *testing.T, data []byte) {
		k := NewKeeper(time.Hour, time.Hour)
		c := newConn(&canned{in: bytes.NewReader(data)}, k, Options{Limit: 1 << 10})
		total := 0
		for {
			msg, err := c.Next()
			if err != nil {
				break
			}
			if total += len(msg); total > len(data) {
				t.Fatal(fmt.Sprint("more came out than went in: ", total))
			}
		}
		c.Finish()
	})
}

// canned is a connection that has all its input.
type canned struct {
	net.Conn
	in *bytes.Reader
}

func (c *canned) Read(b []byte) (int, error)       { return c.in.Read(b) }
func (c *canned) Write(b []byte) (int, error)      { return len(b), nil }
func (c *canned) Close() error                     { return nil }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return os.ErrInvalid }
func (c *canned) SetWriteDeadline(time.Time) error { return os.ErrInvalid }
