package docstore

import "sync"

// cache holds documents of one collection that were read from the database
// lately. It has two generations: what is not read for as long as it takes to
// fill one goes, and so does, by age, what nobody reads.
//
// An entry goes in only if nothing was committed since before it was read, and
// out when its document changes, both under the reader's lock; so what is in it
// is what the database has, or will have, under the overlays.
type cache struct {
	mu         sync.RWMutex
	young, old map[string]*entry
	bytes      [2]int // of the two
}

func (c *cache) size() int { return c.bytes[0] + c.bytes[1] }

// get finds a document.
func (c *cache) get(key string) *entry {
	c.mu.RLock()
	e, stays := c.young[key]
	if e == nil {
		e = c.old[key]
	}
	c.mu.RUnlock()
	if e != nil && !stays {
		c.mu.Lock()
		if c.old[key] == e { // it has not changed meanwhile
			c.drop(key)
			c.add(e)
		}
		c.mu.Unlock()
	}
	return e
}

func (c *cache) add(e *entry) {
	if c.young == nil {
		c.young = make(map[string]*entry)
	}
	c.young[e.key] = e
	c.bytes[0] += e.size()
}

func (c *cache) drop(key string) {
	if e := c.young[key]; e != nil {
		delete(c.young, key)
		c.bytes[0] -= e.size()
	}
	if e := c.old[key]; e != nil {
		delete(c.old, key)
		c.bytes[1] -= e.size()
	}
}

// turn makes the young ones old.
func (c *cache) turn() {
	c.old, c.young = c.young, nil
	c.bytes = [2]int{0, c.bytes[0]}
}

// keep takes a document in that was read from the database when the reader's
// clock was at.
func (c *collection) keep(e *entry, at uint64) {
	c.r.mu.RLock()
	defer c.r.mu.RUnlock()
	if c.r.clock != at || c.r.gone {
		return // it may have changed since
	}
	c.read.mu.Lock()
	defer c.read.mu.Unlock()
	was := c.read.size()
	c.read.drop(e.key)
	c.read.add(e)
	if c.r.s.cached.Load() > int64(c.r.s.o.Reads) || c.read.bytes[0] > c.r.s.o.Reads/2 {
		c.read.turn()
	}
	c.r.s.cached.Add(int64(c.read.size() - was))
}

// unkeep forgets documents that change. The reader's mu must be held.
func (r *reader) unkeep(order []staged) {
	for i, c := range r.cols {
		c.read.mu.Lock()
		if was := c.read.size(); was > 0 {
			for _, x := range order {
				if x.slot == i {
					c.read.drop(x.e.key)
				}
			}
			r.s.cached.Add(int64(c.read.size() - was))
		}
		c.read.mu.Unlock()
	}
}

// unkeepAll forgets everything, for good: the reader is gone.
func (r *reader) unkeepAll() {
	for _, c := range r.cols {
		c.read.mu.Lock()
		r.s.cached.Add(int64(-c.read.size()))
		c.read.young, c.read.old, c.read.bytes = nil, nil, [2]int{}
		c.read.mu.Unlock()
	}
}

// tireReads lets go of what was not read for a while.
func (r *reader) tireReads() {
	for _, c := range r.cols {
		c.read.mu.Lock()
		was := c.read.size()
		c.read.turn()
		r.s.cached.Add(int64(c.read.size() - was))
		c.read.mu.Unlock()
	}
}
