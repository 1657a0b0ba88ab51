package store

import (
	"context"
	"iter"
)

// Cursors keeps the state of consumer groups.
type Cursors interface {
	// Cursor gives a group's state, or ErrNotFound. The caller owns it.
	Cursor(ctx context.Context, topic, group string) (Cursor, error)

	// PutCursor replaces a group's state as a whole: the way to make a group,
	// to move its cursor and to take it over with a new epoch. It succeeds
	// only if c.Version is the stored version (0: there is no such group) and
	// c.Epoch is not below the stored epoch; otherwise ErrConflict or
	// ErrFenced. The new version is returned. It is durable when PutCursor
	// returns, and makes the topic if need be. A group's name has 1 to 256
	// bytes. Floor and Handed may lie beyond the topic's end.
	PutCursor(ctx context.Context, c Cursor) (version uint64, err error)

	// DeleteCursor removes a group if version is the stored one. A group that
	// is made again begins with version 1.
	DeleteCursor(ctx context.Context, topic, group string, version uint64) error

	// Cursors yields the groups of a topic by name; "" means of all topics,
	// by topic, then by name.
	Cursors(ctx context.Context, topic string) iter.Seq2[Cursor, error]
}

// Settles is the ability to take events and settlements in one Batch, as one
// atomic step.
type Settles interface{ SettlesInAppend() }

// Cursor is the state of one group on one topic.
type Cursor struct {
	Topic, Group string
	// Version counts the calls of PutCursor; settlements do not change it,
	// they are guarded by Epoch.
	Version uint64
	// Epoch is the owner's. A settlement with another epoch is refused.
	Epoch uint64
	// Generation is the group engine's: it changes when the cursor is moved.
	Generation uint64
	// Floor: this seq and everything below it is settled.
	Floor uint64
	// Settled holds what is settled above the floor.
	Settled Ranges
	// Attempts counts deliveries of events that are not settled, by seq.
	Attempts map[uint64]uint32
	// Handed is the watermark up to which events may have been handed out.
	Handed uint64
	// Meta belongs to the group engine; engines keep it as it is.
	Meta []byte
}

// Settlement is a change to a group's state. Applying it twice is the same as
// applying it once.
type Settlement struct {
	Topic, Group string
	Epoch        uint64
	// Done lists seqs that are settled from now on. Their attempts are
	// forgotten. A seq above the topic's last is refused with ErrInvalid; a
	// range that ends before it begins is empty.
	Done []Range
	// Attempts sets the number of deliveries of events that are not settled.
	Attempts []Attempt
	// Handed raises the watermark; a lower value changes nothing.
	Handed uint64
	// Take is the epoch from now on, if not 0; it is above Epoch. Whoever has
	// Epoch settles no more, and nothing that he has settled is lost: reading
	// the cursor and putting it back could do that. The version stays. It is
	// for engines that are [Shared]; others refuse it with ErrInvalid.
	Take uint64
}

// Attempt is how often one event was delivered.
type Attempt struct {
	Seq   uint64
	Count uint32
}

// Settle applies s to c: union of ranges, floor as far up as it goes. Engines
// share it, so that all of them agree.
func (c *Cursor) Settle(s *Settlement) {
	for _, r := range s.Done {
		c.Settled.Add(r)
	}
	if len(c.Settled) > 0 && c.Settled[0].First-1 <= c.Floor { // First is never 0
		c.Settled.Add(Range{First: 1, Last: c.Floor}) // joins the floor to what lies on it
		c.Floor = c.Settled[0].Last
		c.Settled = append(c.Settled[:0], c.Settled[1:]...)
	}
	for _, a := range s.Attempts {
		if a.Seq <= c.Floor || c.Settled.Contains(a.Seq) {
			continue
		}
		if c.Attempts == nil {
			c.Attempts = make(map[uint64]uint32)
		}
		c.Attempts[a.Seq] = a.Count
	}
	if len(s.Done) > 0 {
		for seq := range c.Attempts {
			if seq <= c.Floor || c.Settled.Contains(seq) {
				delete(c.Attempts, seq)
			}
		}
	}
	c.Handed = max(c.Handed, s.Handed)
	c.Epoch = max(c.Epoch, s.Take)
}

// Clone gives an independent copy.
func (c Cursor) Clone() Cursor {
	c.Settled = append(Ranges(nil), c.Settled...)
	if c.Attempts != nil {
		m := make(map[uint64]uint32, len(c.Attempts))
		for k, v := range c.Attempts {
			m[k] = v
		}
		c.Attempts = m
	}
	c.Meta = append([]byte(nil), c.Meta...)
	return c
}
