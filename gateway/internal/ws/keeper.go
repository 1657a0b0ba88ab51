package ws

import (
	"sync"
	"sync/atomic"
	"time"
)

// Keeper looks after connections: one goroutine for all, while there are any.
type Keeper struct {
	ping, stall, every time.Duration
	now                atomic.Int64 // the keeper's own time in nanoseconds, as of the last look

	mu    sync.Mutex
	conns map[*Conn]struct{}
	quit  chan struct{} // ends the goroutine; nil if there is none
}

// NewKeeper makes a keeper that sends a ping to who was silent for so long, and
// tells of those who have read nothing for stall. Defaults: both 30 s.
func NewKeeper(ping, stall time.Duration) *Keeper {
	if ping <= 0 {
		ping = 30 * time.Second
	}
	if stall <= 0 {
		stall = 30 * time.Second
	}
	k := &Keeper{ping: ping, stall: stall, conns: make(map[*Conn]struct{})}
	k.every = max(min(ping, stall, 16*time.Second)/16, time.Millisecond)
	return k
}

func (k *Keeper) add(c *Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.quit == nil {
		k.quit = make(chan struct{})
		go k.run(k.quit)
	}
	now := k.now.Load()
	c.heard.Store(now)
	c.pinged = now
	k.conns[c] = struct{}{}
}

func (k *Keeper) remove(c *Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
	if len(k.conns) == 0 && k.quit != nil {
		close(k.quit)
		k.quit = nil
	}
}

func (k *Keeper) run(quit chan struct{}) {
	t := time.NewTicker(k.every)
	defer t.Stop()
	for last := time.Now(); ; {
		select {
		case <-quit:
			return
		case <-t.C:
		}
		looked := time.Now()
		now := k.tick(looked.Sub(last))
		last = looked
		k.mu.Lock()
		for c := range k.conns {
			k.look(c, now)
		}
		k.mu.Unlock()
	}
}

// tick has the keeper's time go on. A look that comes much too late means that
// this process was held up, and not the others, whose answers may wait to be
// read: it counts no more than a few.
func (k *Keeper) tick(passed time.Duration) int64 {
	return k.now.Add(int64(min(passed, 4*k.every)))
}

// look sees whether a connection needs something.
func (k *Keeper) look(c *Conn, now int64) {
	silent := time.Duration(now - c.heard.Load())
	ping := k.ping
	if often := time.Duration(c.often.Load()); often > 0 {
		ping = min(ping, often)
	}
	switch {
	case c.told:
	case c.stuck.Load() && time.Duration(now-c.moved.Load()) >= k.stall:
		c.told = true
		tell(c, c.o.Stalled)
	case silent >= 2*k.ping+k.every:
		c.told = true
		tell(c, c.o.Silent)
	case silent >= ping && time.Duration(now-c.pinged) >= ping:
		c.pinged = now
		c.control(opPing, nil)
		go c.Flush()
	case c.fat.Load() && silent >= 2*k.every:
		c.interrupt() // it takes a small buffer then
	}
}

func tell(c *Conn, f func()) {
	if f == nil {
		f = func() { _ = c.nc.Close() } // the reader finds out
	}
	f()
}
