package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// gauges are what a hub holds.
type gauges struct{ memory, goroutines, files float64 }

// gauges reads them from the metrics.
func (p *hub) gauges() (g gauges) {
	p.Helper()
	for s := bufio.NewScanner(strings.NewReader(string(p.call("GET", "/metrics", "").body))); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a comment
		}
		switch name {
		case "process_resident_memory_bytes":
			g.memory = v
		case "go_goroutines":
			g.goroutines = v
		case "process_open_fds":
			g.files = v
		}
	}
	if g.memory == 0 || g.goroutines == 0 || g.files == 0 {
		p.Fatalf("the metrics of the process are not there: %+v", g)
	}
	return g
}

// slow subscribes and reads nothing for a while, again and again.
func (l *load) slow(group string) {
	l.each(func(c *websocket.Conn) error {
		if err := c.Write(l.ctx, websocket.MessageText, fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"load.x","group":%q}`, group)); err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Second):
		case <-l.ctx.Done():
		}
		return nil
	})
}

// dropper subscribes, takes an event and is gone.
func (l *load) dropper(group string) {
	l.each(func(c *websocket.Conn) error {
		if err := c.Write(l.ctx, websocket.MessageText, fmt.Appendf(nil, `{"op":"SUBSCRIBE","topic":"load.x","group":%q,"opts":{"maxAttempts":1000000}}`, group)); err != nil {
			return err
		}
		for range 3 {
			if _, _, err := c.Read(l.ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// tail follows the topic by Server-Sent Events, for a while each time.
func (l *load) tail() {
	for l.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(l.ctx, 3*time.Second)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+"/subscribe?topic=load.x&from=latest", nil)
		if err == nil {
			var got *http.Response
			if got, err = http.DefaultClient.Do(r); err == nil {
				for s := bufio.NewScanner(got.Body); s.Scan(); {
				}
				_ = got.Body.Close()
			}
		}
		<-ctx.Done()
		cancel()
	}
}

// TestSoak lets a hub work for as long as PROMETHEAN_SOAK says, with good
// clients and bad ones, and wants it to hold no more at the end than after the
// first third. Without it the run is short, and judged generously.
func TestSoak(t *testing.T) {
	length, long := 12*time.Second, false
	if s := os.Getenv("PROMETHEAN_SOAK"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("PROMETHEAN_SOAK: %v", err)
		}
		length, long = d, true
	}
	p := startHub(t, "--store", "file://"+t.TempDir())
	p.get(nil, 200, "PUT", "/topics/load.x", `{"max_bytes":67108864}`)
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	l := &load{t: t, url: p.url, ctx: ctx, told: &told{published: map[string]bool{}, handled: map[string]map[string]bool{}, acked: map[string]map[string]bool{}, changed: make(chan struct{})}, forget: true}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { l.publisher(i) })
	}
	for i := range 4 {
		all.Go(func() { l.consumer([]string{"one", "two"}[i%2]) })
	}
	for i := range 2 {
		all.Go(func() { l.slow(fmt.Sprint("slow", i)) })
		all.Go(func() { l.dropper("dropped") })
	}
	all.Go(l.tail)
	var first gauges
	tick := time.NewTicker(length / 24)
	defer tick.Stop()
	for n, over := 1, false; !over; n++ {
		select {
		case <-tick.C:
			// The load rises and falls: the most of a third counts.
			now := p.gauges()
			if n <= 8 {
				first = gauges{max(first.memory, now.memory), max(first.goroutines, now.goroutines), max(first.files, now.files)}
			}
		case <-ctx.Done():
			over = true
		}
	}
	all.Wait()
	last := p.gauges()
	l.mu.Lock()
	t.Logf("%d events published in %v; at most in the first third %+v, at the end %+v", l.count, length, first, last)
	if l.count == 0 {
		t.Error("nothing was published")
	}
	l.mu.Unlock()
	slack := gauges{64 << 20, 200, 200}
	if long {
		slack = gauges{16 << 20, 20, 20}
	}
	if last.memory > first.memory+slack.memory || last.goroutines > first.goroutines+slack.goroutines || last.files > first.files+slack.files {
		t.Errorf("it grows: %+v, then %+v", first, last)
	}
	p.stop()
}
