package schema

import (
	"math/rand/v2"
	"sync"
)

// gate is a lock that many hold for reading, each for a short time, and hardly
// anybody for writing. Readers are spread over several locks, since all of them
// counting in one place costs more than what they do behind it.
type gate struct {
	shards [16]struct {
		sync.RWMutex
		_ [40]byte // a cache line each
	}
}

// enter waits while the gate is shut, and gives the lock to leave by RUnlock.
func (g *gate) enter() *sync.RWMutex {
	s := &g.shards[rand.Uint32()%uint32(len(g.shards))].RWMutex
	s.RLock()
	return s
}

// shut waits until nobody is inside, and lets nobody in until open.
func (g *gate) shut() {
	for i := range g.shards {
		g.shards[i].Lock()
	}
}

func (g *gate) open() {
	for i := range g.shards {
		g.shards[i].Unlock()
	}
}
