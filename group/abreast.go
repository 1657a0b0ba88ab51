package group

import (
	"sync/atomic"
	"time"
)

// The partitions of a group read the same pages, as long as they are not too
// far from each other: what one has read is kept for a while only. So the one in
// front waits a little for others that are reading and close behind. One that
// has far to go, or whose member takes its time, keeps nobody waiting.

const (
	// near is how far behind a partition may be without anybody waiting for it,
	// far from where on nobody does.
	near = 16 * readStep
	far  = 128 * readStep
	// patience is how long one waits for others before it reads a page.
	patience  = 10 * time.Millisecond
	lookAfter = 200 * time.Microsecond
)

// place is how far a partition has read; free if it is not reading now.
type place struct {
	seq     atomic.Uint64
	reading atomic.Bool
}

// places are those of one plan.
type places struct {
	plan Plan
	list []*place
}

// placeOf gives a place among those of a plan.
func (g *parted) placeOf(p Plan) *place {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.places == nil || g.places.plan != p {
		g.places = &places{plan: p}
	}
	at := new(place)
	// Others may be looking at the list.
	g.places = &places{plan: p, list: append(g.places.list[:len(g.places.list):len(g.places.list)], at)}
	return at
}

// abreast says that a partition reads what comes after a seq, and waits for
// others if it is in front of them.
func (g *parted) abreast(p *place, after uint64) {
	p.seq.Store(after)
	p.reading.Store(true)
	g.mu.Lock()
	list := g.places.list
	g.mu.Unlock()
	for waited := time.Duration(0); waited < patience && isFront(list, after); waited += lookAfter {
		time.Sleep(lookAfter)
	}
}

func isFront(list []*place, after uint64) bool {
	for _, o := range list {
		if at := o.seq.Load(); o.reading.Load() && at+near < after && after < at+far {
			return true
		}
	}
	return false
}

// stopped says that the runner does not read now. mu must be held.
func (r *runner) stopped() {
	if r.part != nil {
		r.part.place.reading.Store(false)
	}
}
