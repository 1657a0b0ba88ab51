package compact

import "context"

// Look does what is done with a topic now and then.
func (c *Compactor) Look(ctx context.Context, topic string) Report {
	c.mu.Lock()
	w := c.workers[topic]
	c.mu.Unlock()
	return w.sweep(ctx, false)
}
