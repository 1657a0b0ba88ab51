package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"promethean/event"
)

// load is publishers and consumers that go on whatever happens to the hub, and
// what they were told.
type load struct {
	t   *testing.T
	url string
	ctx context.Context
	*told
	forget bool // count only: a long run would need much memory for the rest
}

// told is what clients were told.
type told struct {
	mu        sync.Mutex
	published map[string]bool            // acknowledged
	handled   map[string]map[string]bool // by group: delivered
	acked     map[string]map[string]bool // by group: the ack was answered
	count     int
	changed   chan struct{} // closed and made anew when count rises
}

// with gives the same load with another life.
func (l *load) with(ctx context.Context) *load { return &load{l.t, l.url, ctx, l.told, l.forget} }

// connect dials until somebody answers; nil when the test is over.
func (l *load) connect() *websocket.Conn {
	for l.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(l.ctx, time.Second)
		c, _, err := websocket.Dial(ctx, strings.Replace(l.url, "http", "ws", 1)+"/ws", nil) //nolint:bodyclose // the connection goes on
		cancel()
		if err == nil {
			c.SetReadLimit(8 << 20)
			return c
		}
		select {
		case <-time.After(10 * time.Millisecond): // it is being started
		case <-l.ctx.Done():
		}
	}
	return nil
}

// each runs a session on one connection after the other.
func (l *load) each(session func(c *websocket.Conn) error) {
	for l.ctx.Err() == nil {
		c := l.connect()
		if c == nil {
			return
		}
		_ = session(c)
		_ = c.CloseNow()
	}
}

// publisher publishes one event after the other. One whose answer was lost is
// sent again with its id.
func (l *load) publisher(who int) {
	pending := ""
	n := 0
	l.each(func(c *websocket.Conn) error {
		for l.ctx.Err() == nil {
			if pending == "" {
				pending = event.NewID().String()
				n++
			}
			text := fmt.Sprintf(`{"op":"PUBLISH","corr":%q,"topic":"load.x","payload":{"who":%d,"n":%d},"opts":{"id":%q,"key":"k%d"}}`, pending, who, n, pending, who)
			if err := c.Write(l.ctx, websocket.MessageText, []byte(text)); err != nil {
				return err
			}
			_, data, err := c.Read(l.ctx)
			if err != nil {
				return err
			}
			var f frame
			if err := json.Unmarshal(data, &f); err != nil {
				return err
			}
			if f.Op != "OK" {
				return fmt.Errorf("%s", data)
			}
			l.mu.Lock()
			if !l.forget {
				l.published[pending] = true
			}
			l.count++
			close(l.changed)
			l.changed = make(chan struct{})
			l.mu.Unlock()
			pending = ""
		}
		return nil
	})
}

// consumer takes events and acks each.
func (l *load) consumer(group string) {
	l.each(func(c *websocket.Conn) error {
		subscribe := fmt.Sprintf(`{"op":"SUBSCRIBE","corr":"s","topic":"load.x","group":%q,"opts":{"from":"earliest","maxAttempts":1000}}`, group)
		if err := c.Write(l.ctx, websocket.MessageText, []byte(subscribe)); err != nil {
			return err
		}
		for {
			_, data, err := c.Read(l.ctx)
			if err != nil {
				return err
			}
			var f frame
			if err := json.Unmarshal(data, &f); err != nil {
				return err
			}
			switch {
			case f.Op == "ERR" && string(f.Corr) == `"s"`:
				return fmt.Errorf("%s", data)
			case f.Op == "EVENT":
				l.took(group, &f)
				ack := fmt.Sprintf(`{"op":"ACK","corr":%q,"topic":"load.x","group":%q,"id":%q}`, f.Event.ID, group, f.Event.ID)
				if err := c.Write(l.ctx, websocket.MessageText, []byte(ack)); err != nil {
					return err
				}
			case f.Op == "OK" && string(f.Corr) != `"s"`:
				l.settled(group, strings.Trim(string(f.Corr), `"`))
			}
		}
	})
}

// took notes a delivery.
func (l *load) took(group string, f *frame) {
	if l.forget {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.acked[group][f.Event.ID] {
		l.t.Errorf("group %s: seq %d comes again, and its ack was answered", group, f.Event.Seq)
	}
	l.handled[group][f.Event.ID] = true
}

// settled notes an ack that was answered.
func (l *load) settled(group, id string) {
	if l.forget {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[group][id] = true
}

// progress waits until so many more events were acknowledged.
func (l *load) progress(n int) {
	l.t.Helper()
	timeout := time.After(time.Minute)
	l.mu.Lock()
	until := l.count + n
	l.mu.Unlock()
	for {
		l.mu.Lock()
		count, changed := l.count, l.changed
		l.mu.Unlock()
		if count >= until {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			l.t.Fatalf("%d of %d publishes in a minute", count+n-until, n)
		}
	}
}

// TestCrashServe kills the hub under load, again and again: what was
// acknowledged is there, every group gets everything, and what was acked does
// not come again. With PROMETHEAN_CRASH=long twenty times.
func TestCrashServe(t *testing.T) {
	kills, between := 3, 200
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		kills, between = 20, 5000
	}
	p := startHub(t, "--store", "file://"+t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l := &load{t: t, url: p.url, ctx: ctx, told: &told{
		published: make(map[string]bool), handled: make(map[string]map[string]bool), acked: make(map[string]map[string]bool), changed: make(chan struct{}),
	}}
	groups := []string{"one", "two"}
	var publishers, consumers sync.WaitGroup
	publishing, stop := context.WithCancel(ctx)
	defer stop()
	for _, g := range groups {
		l.handled[g], l.acked[g] = make(map[string]bool), make(map[string]bool)
	}
	for i := range 12 {
		publishers.Go(func() { l.with(publishing).publisher(i) })
	}
	for i := range 4 {
		consumers.Go(func() { l.consumer(groups[i%2]) })
	}
	for range kills {
		l.progress(between)
		p.crash()
	}
	l.progress(between)
	stop()
	publishers.Wait()
	// What was on its way when they stopped is there or is not; the log tells.
	log := p.replay("load.x")
	there := make(map[string]bool, len(log))
	for i, e := range log {
		if e.Seq != uint64(i+1) || there[e.ID] {
			t.Fatalf("event %d has seq %d; twice: %v", i+1, e.Seq, there[e.ID])
		}
		there[e.ID] = true
	}
	for id := range l.published {
		if !there[id] {
			t.Errorf("%s was acknowledged and is not there", id)
		}
	}
	for _, g := range groups {
		for deadline := time.Now().Add(time.Minute); ; {
			var lag struct{ Lag uint64 }
			p.get(&lag, 200, "GET", "/lag?topic=load.x&group="+g, "")
			if lag.Lag == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("group %s stands %d behind", g, lag.Lag)
			}
			time.Sleep(20 * time.Millisecond) // another process: there is nothing to wait for but its answer
		}
		l.mu.Lock()
		for id := range there {
			if !l.handled[g][id] {
				t.Errorf("group %s never got %s", g, id)
			}
		}
		l.mu.Unlock()
	}
	cancel()
	consumers.Wait()
	t.Logf("%d kills, %d events acknowledged, %d stored", kills, len(l.published), len(log))
	p.stop()
}
