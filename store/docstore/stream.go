package docstore

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// stream is a sorted list of ranks: of the documents that have some values.
type stream interface {
	// seek goes to the first rank that is not below; nil is below all.
	seek(rank []byte) bool
	next() bool
	// rank is valid until the stream moves.
	rank() []byte
	err() error
}

// leaf is the rows of an index with certain values.
type leaf struct {
	it     *pebble.Iterator
	prefix []byte // and room for a rank
	n      int
}

func newLeaf(x *session, prefix []byte) (*leaf, error) {
	it, err := x.iter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return nil, err
	}
	return &leaf{it: it, prefix: prefix, n: len(prefix)}, nil
}

func (l *leaf) seek(rank []byte) bool {
	l.prefix = append(l.prefix[:l.n], rank...)
	return l.it.SeekGE(l.prefix)
}

func (l *leaf) next() bool   { return l.it.Next() }
func (l *leaf) rank() []byte { return l.it.Key()[l.n:] }
func (l *leaf) err() error   { return l.it.Error() }

// union is what is in one of several streams, none of which share a rank.
type union struct {
	parts []stream
	live  []stream // those that have not ended
	least int
}

func (u *union) seek(rank []byte) bool {
	u.live = u.live[:0]
	for _, p := range u.parts {
		if p.seek(rank) {
			u.live = append(u.live, p)
		}
	}
	return u.find()
}

func (u *union) next() bool {
	if !u.live[u.least].next() {
		u.live[u.least] = u.live[len(u.live)-1]
		u.live = u.live[:len(u.live)-1]
	}
	return u.find()
}

// find looks for the least rank.
func (u *union) find() bool {
	u.least = 0
	for i := 1; i < len(u.live); i++ {
		if bytes.Compare(u.live[i].rank(), u.live[u.least].rank()) < 0 {
			u.least = i
		}
	}
	return len(u.live) > 0
}

func (u *union) rank() []byte { return u.live[u.least].rank() }

func (u *union) err() error {
	for _, p := range u.parts {
		if err := p.err(); err != nil {
			return err
		}
	}
	return nil
}

// both is what is in all of several streams.
type both struct {
	parts []stream
	at    []byte
}

func (b *both) seek(rank []byte) bool {
	return b.parts[0].seek(rank) && b.meet()
}

func (b *both) next() bool { return b.parts[0].next() && b.meet() }

// meet moves all streams on until they agree with the first one.
func (b *both) meet() bool {
	for {
		b.at = append(b.at[:0], b.parts[0].rank()...)
		agreed := true
		for _, p := range b.parts[1:] {
			if !p.seek(b.at) {
				return false
			}
			if !bytes.Equal(p.rank(), b.at) {
				if !b.parts[0].seek(p.rank()) {
					return false
				}
				agreed = false
				break
			}
		}
		if agreed {
			return true
		}
	}
}

func (b *both) rank() []byte { return b.at }

func (b *both) err() error {
	for _, p := range b.parts {
		if err := p.err(); err != nil {
			return err
		}
	}
	return nil
}
