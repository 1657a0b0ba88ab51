package auth

import (
	"crypto/sha256"
	"sync"
	"time"
)

// cache remembers tokens that were verified, by hash, until they end or the
// keys change that verified them. Only good tokens enter it, so nobody fills it
// with made-up ones.
type cache struct {
	most int

	mu   sync.RWMutex
	rows map[[sha256.Size]byte]cached
}

type cached struct {
	who *Principal
	set *keySet // what verified it; nil for the secret, which never changes
}

// find gives the principal of a token if it is still good; now is the set of
// keys that counts.
func (c *cache) find(sum [sha256.Size]byte, now *keySet) *Principal {
	c.mu.RLock()
	row, ok := c.rows[sum]
	c.mu.RUnlock()
	if !ok || row.set != nil && row.set != now || !time.Now().Before(row.who.Expires) {
		return nil
	}
	return row.who
}

// add remembers a token. Where there is no room, those that are over go, and
// then some others, whichever they are: they are verified anew.
func (c *cache) add(sum [sha256.Size]byte, who *Principal, set *keySet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil {
		c.rows = make(map[[sha256.Size]byte]cached)
	}
	if _, has := c.rows[sum]; !has && len(c.rows) >= c.most {
		now := time.Now()
		for k, row := range c.rows {
			if !now.Before(row.who.Expires) || row.set != nil && row.set != set && set != nil {
				delete(c.rows, k)
			}
		}
		for k := range c.rows {
			if len(c.rows) <= c.most*7/8 {
				break
			}
			delete(c.rows, k)
		}
	}
	c.rows[sum] = cached{who: who, set: set}
}
