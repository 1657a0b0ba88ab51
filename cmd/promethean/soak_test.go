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
type gauges struct{ memory, live, goroutines, files float64 }

// most takes the greater of each.
func (g gauges) most(o gauges) gauges {
	return gauges{max(g.memory, o.memory), max(g.live, o.live), max(g.goroutines, o.goroutines), max(g.files, o.files)}
}

func (g gauges) String() string {
	return fmt.Sprintf("%.0f MiB, %.0f MiB of them live, %.0f goroutines, %.0f files", g.memory/(1<<20), g.live/(1<<20), g.goroutines, g.files)
}

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
		case "go_gc_heap_live_bytes":
			g.live = v
		case "go_goroutines":
			g.goroutines = v
		case "process_open_fds":
			g.files = v
		}
	}
	if g.memory == 0 || g.live == 0 || g.goroutines == 0 || g.files == 0 {
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

// fill publishes until the engine has as many segments in memory as it ever
// keeps, and reads until its cache is full: a load of small events takes minutes
// to get there, and would look like a leak on the way.
func (p *hub) fill() {
	p.Helper()
	p.get(nil, 200, "PUT", "/topics/load.fill", `{"max_bytes":134217728}`)
	// As small as those of the load: the indexes of a segment grow with their number.
	var rows strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&rows, `{"topic":"load.fill","key":"k%d","payload":{"who":%d,"n":%d}}`+"\n", i%8, i%8, i)
	}
	for range 350 { // ten segments
		p.get(nil, 201, "POST", "/publish", rows.String(), "Content-Type", "application/x-ndjson")
	}
	p.get(nil, 200, "GET", "/export?topic=load.fill&ndjson=1", "")
	p.get(nil, 200, "PUT", "/topics/load.fill", `{"max_bytes":1048576}`)
}

// TestSoak lets a hub work for as long as PROMETHEAN_SOAK says, with good
// clients and bad ones, and wants it to hold no more at the end than in the
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
	if long {
		p.fill()
	}
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
			t.Logf("%2d/24: %v", n, now)
			if n <= 8 {
				first = first.most(now)
			}
		case <-ctx.Done():
			over = true
		}
	}
	all.Wait()
	last := p.gauges()
	l.mu.Lock()
	t.Logf("%d events published in %v; at most in the first third %v; at the end %v", l.count, length, first, last)
	if l.count == 0 {
		t.Error("nothing was published")
	}
	l.mu.Unlock()
	// Live memory shows a leak; the resident memory is up to twice that and
	// swings by where the collector of garbage is.
	bound := gauges{first.memory * 1.5, first.live + 64<<20, first.goroutines + 200, first.files + 200}
	if long {
		bound = gauges{first.memory * 1.1, first.live + 16<<20, first.goroutines + 20, first.files + 20}
	}
	if last.most(bound) != bound {
		t.Errorf("it grows: %v; then %v", first, last)
	}
	p.stop()
}
