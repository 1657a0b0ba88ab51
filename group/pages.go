package group

import (
	"sync"
	"sync/atomic"

	"promethean/event"
	"promethean/store"
)

// pages keeps what was read last of one topic. The partitions of a group read
// the same events one after the other: the first reads them from the log, the
// others find them here.
type pages struct {
	e     *Engine
	topic string

	// grown counts the signals that there is more.
	grown atomic.Uint64

	mu    sync.Mutex
	list  []*page // the one that was used last comes last
	bytes int
	last  *page // one that was empty
}

// Bounds of what pages keep for a topic.
const (
	maxPages     = 64
	maxPageBytes = 16 << 20
)

// page is all events of a topic after one seq up to another.
type page struct {
	after, upto uint64
	events      []event.Event
	end         bool   // there was nothing behind it
	grown       uint64 // how often the topic had grown before it was read
	first       uint64 // where the topic begins, if it was asked; else 0
	terms       terms  // as they were after the events were read
	bytes       int
	done        chan struct{} // closed once all this is known
	err         error

	mu    sync.Mutex
	parts map[*divider][]uint16
}

// pagesOf gives the pages of a topic.
func (e *Engine) pagesOf(topic string) *pages {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.pages[topic]
	if p == nil {
		p = &pages{e: e, topic: topic}
		e.pages[topic] = p
		if w := e.topics[topic]; w != nil {
			w.pages.Store(p)
		}
	}
	return p
}

// read gives a page with what comes after a seq. Its upto is that seq if there
// is nothing. A page that was kept may have more events before. That it has the
// end is certain if it was read after the topic had grown so often as given.
func (p *pages) read(after, grown uint64) (*page, error) {
	p.mu.Lock()
	if g := p.last; g != nil && g.after == after && g.grown >= grown {
		p.mu.Unlock()
		return g, nil
	}
	for i, g := range p.list {
		select {
		case <-g.done:
			if g.after > after || after >= g.upto {
				continue
			}
		default:
			if g.after != after {
				continue
			}
		}
		copy(p.list[i:], p.list[i+1:])
		p.list[len(p.list)-1] = g
		p.mu.Unlock()
		<-g.done
		return g, g.err
	}
	g := &page{after: after, grown: p.grown.Load(), done: make(chan struct{})}
	p.list = append(p.list, g)
	p.mu.Unlock()
	p.fill(g)
	p.mu.Lock()
	close(g.done)
	p.keep(g)
	p.mu.Unlock()
	return g, g.err
}

// keep makes room for a page, or forgets it if it says nothing. mu must be
// held.
func (p *pages) keep(g *page) {
	p.bytes += g.bytes
	drop := func(i int) {
		p.bytes -= p.list[i].bytes
		p.list = append(p.list[:i], p.list[i+1:]...)
	}
	if g.err == nil && g.upto == g.after {
		p.last = g
	}
	if g.err != nil || g.upto == g.after {
		for i := range p.list {
			if p.list[i] == g {
				drop(i)
				break
			}
		}
	}
	for i := 0; i < len(p.list) && (len(p.list) > maxPages || p.bytes > maxPageBytes); {
		select {
		case <-p.list[i].done:
			drop(i)
		default:
			i++
		}
	}
}

// fill reads a page from the log.
func (p *pages) fill(g *page) {
	g.upto = g.after
	list := func(until uint64) bool {
		q := store.Query{Topic: p.topic, After: g.upto, Until: until, Limit: readStep - len(g.events)}
		for ev, err := range p.e.log.Read(p.e.ctx, q) {
			if err != nil {
				g.err = err
				return false
			}
			g.events = append(g.events, ev)
			g.upto = ev.Seq
			g.bytes += 256 + len(ev.Payload)
		}
		return true
	}
	if !list(0) {
		return
	}
	if n := len(g.events); n < readStep || g.upto != g.after+uint64(n) {
		var b store.Bounds
		if b, g.err = p.e.log.Bounds(p.e.ctx, p.topic); g.err != nil {
			return
		}
		g.first = b.First
		if n < readStep && b.Last > g.upto {
			// More has become visible since, or the topic ends with events that
			// are gone: reading up to there tells.
			if !list(b.Last) {
				return
			}
			if len(g.events) < readStep {
				g.upto = b.Last
			}
		}
		g.end = len(g.events) < readStep && g.upto >= b.Last
	}
	// The events were read before this look, so what it does not know of lies
	// behind them.
	g.terms, g.err = p.e.settledTerms(p.e.ctx, p.topic)
}

// of gives the partitions of the page's events.
func (g *page) of(d *divider) []uint16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n, ok := g.parts[d]; ok {
		return n
	}
	n := make([]uint16, len(g.events))
	for i := range g.events {
		n[i] = uint16(d.of(&g.events[i]))
	}
	if g.parts == nil {
		g.parts = make(map[*divider][]uint16)
	}
	g.parts[d] = n
	return n
}
