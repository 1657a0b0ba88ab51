package mongostore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/event"
	"promethean/store"
)

// maxGroup is the longest name of a group, in bytes.
const maxGroup = 256

type groupName struct{ topic, group string }

// cursorDoc is a group's document. Numbers are unsigned; the server keeps
// their bits.
type cursorDoc struct {
	ID         any    `bson:"_id"`
	Topic      string `bson:"t"`
	Group      []byte `bson:"g"`
	Version    int64  `bson:"version"`
	Epoch      int64  `bson:"epoch"`
	Generation int64  `bson:"generation"`
	Floor      int64  `bson:"floor"`
	Handed     int64  `bson:"handed"`
	Settled    []byte `bson:"settled"`
	Attempts   []byte `bson:"attempts"`
	Meta       []byte `bson:"meta"`
	// Rev is another number after every change: what compare-and-set goes by.
	// It is random, so that it does not come again after the group was deleted
	// and made anew.
	Rev int64 `bson:"rev"`
	// Put is the Rev that the last PutCursor wrote. Who lost its answer knows
	// by it whether it is there, settlements or not.
	Put int64 `bson:"put"`
}

// nameID makes a name fit for an _id: text where it can be, because people
// read it.
func nameID(name string) any {
	if utf8.ValidString(name) {
		return name
	}
	return bson.Binary{Data: []byte(name)}
}

// A topic has no "/", so the two parts cannot be confused.
func (n groupName) id() any { return nameID(n.topic + "/" + n.group) }

func (n groupName) filter() bson.D { return bson.D{{Key: "_id", Value: n.id()}} }

func encodeCursor(c *store.Cursor, rev, put int64) cursorDoc {
	n := groupName{c.Topic, c.Group}
	return cursorDoc{
		ID: n.id(), Topic: c.Topic, Group: []byte(c.Group), Version: int64(c.Version), Epoch: int64(c.Epoch),
		Generation: int64(c.Generation), Floor: int64(c.Floor), Handed: int64(c.Handed),
		Settled: encodeRanges(c.Settled), Attempts: encodeAttempts(c.Attempts), Meta: append([]byte{}, c.Meta...), Rev: rev, Put: put,
	}
}

func (d *cursorDoc) decode() (store.Cursor, error) {
	c := store.Cursor{
		Topic: d.Topic, Group: string(d.Group), Version: uint64(d.Version), Epoch: uint64(d.Epoch),
		Generation: uint64(d.Generation), Floor: uint64(d.Floor), Handed: uint64(d.Handed), Meta: d.Meta,
	}
	var err error
	if c.Settled, err = decodeRanges(d.Settled); err == nil {
		c.Attempts, err = decodeAttempts(d.Attempts)
	}
	if err != nil {
		return c, fmt.Errorf("%w: cursor of group %s on topic %s: %w", store.ErrCorrupt, c.Group, c.Topic, err)
	}
	return c, nil
}

// encodeRanges writes the distance from the end of the range before, and the
// length, of each range, as varints.
func encodeRanges(rs store.Ranges) []byte {
	b, at := make([]byte, 0, 4*len(rs)), uint64(0)
	for _, r := range rs {
		b = binary.AppendUvarint(b, r.First-at)
		b = binary.AppendUvarint(b, r.Last-r.First)
		at = r.Last
	}
	return b
}

var errVarint = errors.New("a number is cut short")

func decodeRanges(b []byte) (rs store.Ranges, err error) {
	at := uint64(0)
	for len(b) > 0 {
		var gap, length uint64
		if gap, b, err = uvarint(b); err != nil {
			return nil, err
		}
		if length, b, err = uvarint(b); err != nil {
			return nil, err
		}
		r := store.Range{First: at + gap, Last: at + gap + length}
		rs, at = append(rs, r), r.Last
	}
	return rs, nil
}

func encodeAttempts(m map[uint64]uint32) []byte {
	b, at := make([]byte, 0, 4*len(m)), uint64(0)
	for _, seq := range slices.Sorted(maps.Keys(m)) {
		b = binary.AppendUvarint(b, seq-at)
		b = binary.AppendUvarint(b, uint64(m[seq]))
		at = seq
	}
	return b
}

func decodeAttempts(b []byte) (m map[uint64]uint32, err error) {
	at := uint64(0)
	for len(b) > 0 {
		var gap, count uint64
		if gap, b, err = uvarint(b); err != nil {
			return nil, err
		}
		if count, b, err = uvarint(b); err != nil {
			return nil, err
		}
		if m == nil {
			m = make(map[uint64]uint32)
		}
		at += gap
		m[at] = uint32(count)
	}
	return m, nil
}

func uvarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errVarint
	}
	return v, b[n:], nil
}

// readCursor gives a group's document, or store.ErrNotFound.
func (s *Store) readCursor(ctx context.Context, n groupName) (d cursorDoc, c store.Cursor, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		return s.cursors.FindOne(ctx, n.filter()).Decode(&d)
	})
	if errors.Is(err, mongo.ErrNoDocuments) {
		return d, c, store.ErrNotFound
	}
	if err != nil {
		return d, c, err
	}
	c, err = d.decode()
	return d, c, err
}

// Cursor implements [store.Cursors].
func (s *Store) Cursor(ctx context.Context, topic, group string) (c store.Cursor, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		_, c, err = s.readCursor(ctx, groupName{topic, group})
		return err
	})
	if err != nil {
		return store.Cursor{}, fmt.Errorf("cursor of group %s on topic %s: %w", shorten(group), shorten(topic), err)
	}
	return c, nil
}

// PutCursor implements [store.Cursors].
func (s *Store) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	if err := event.CheckTopic(c.Topic); err != nil {
		return 0, fmt.Errorf("put cursor: %w", err)
	}
	if c.Group == "" || len(c.Group) > maxGroup {
		return 0, fmt.Errorf("put cursor: %w: group must have 1 to %d bytes, it has %d", store.ErrInvalid, maxGroup, len(c.Group))
	}
	put := c.Clone()
	put.Settled = nil
	for _, r := range c.Settled {
		put.Settled.Add(r)
	}
	put.Version++
	err := s.call(ctx, func(ctx context.Context) error {
		if err := s.ensureTopic(ctx, c.Topic); err != nil {
			return err
		}
		rev := newRev()
		d := encodeCursor(&put, rev, rev)
		if size := len(d.Settled) + len(d.Attempts) + len(d.Meta); size > maxCommit {
			return fmt.Errorf("%w: the state has %d bytes, the limit is %d", store.ErrTooLarge, size, maxCommit)
		}
		return s.putCursor(ctx, c.Version, &d)
	})
	if err != nil {
		return 0, fmt.Errorf("put cursor of group %s on topic %s: %w", c.Group, c.Topic, err)
	}
	return put.Version, nil
}

func newRev() int64 { return rand.Int64() }

// putCursor writes a group's document over that of the given version.
func (s *Store) putCursor(ctx context.Context, version uint64, d *cursorDoc) error {
	n := groupName{d.Topic, string(d.Group)}
	deadline := time.Now().Add(s.o.RetryFor)
	for pause := (backOff{}); ; {
		old, _, err := s.readCursor(ctx, n)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		switch {
		case old.Put == d.Put && err == nil:
			return nil // an earlier try whose answer was lost
		case uint64(old.Version) != version: // 0 if there is none
			return fmt.Errorf("version %d, stored %d: %w", version, old.Version, store.ErrConflict)
		case uint64(d.Epoch) < uint64(old.Epoch):
			return fmt.Errorf("epoch %d, stored %d: %w", uint64(d.Epoch), uint64(old.Epoch), store.ErrFenced)
		}
		done := false
		err = s.try(ctx, func(ctx context.Context) error {
			if version == 0 {
				_, err := s.cursors.InsertOne(ctx, d)
				done = err == nil
				if duplicate(err) {
					return nil
				}
				return err
			}
			result, err := s.cursors.ReplaceOne(ctx, append(n.filter(), bson.E{Key: "rev", Value: old.Rev}), d)
			done = err == nil && result.MatchedCount > 0
			return err
		})
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !transient(err):
			return err
		case err != nil && time.Now().After(deadline):
			return unavailable(err)
		case err != nil:
			if err := pause.wait(ctx); err != nil {
				return err
			}
		}
	}
}

// DeleteCursor implements [store.Cursors].
func (s *Store) DeleteCursor(ctx context.Context, topic, group string, version uint64) error {
	n := groupName{topic, group}
	err := s.call(ctx, func(ctx context.Context) error {
		lost := false
		return s.do(ctx, func(ctx context.Context) error {
			for {
				var old cursorDoc
				err := s.cursors.FindOne(ctx, n.filter()).Decode(&old)
				if errors.Is(err, mongo.ErrNoDocuments) {
					if lost { // by us, most likely: the answer was lost
						return nil
					}
					return store.ErrNotFound
				}
				if err != nil {
					return err
				}
				if uint64(old.Version) != version {
					return fmt.Errorf("version %d, stored %d: %w", version, old.Version, store.ErrConflict)
				}
				result, err := s.cursors.DeleteOne(ctx, append(n.filter(), bson.E{Key: "rev", Value: old.Rev}))
				if err != nil {
					lost = true
					return err
				}
				if result.DeletedCount > 0 {
					return nil
				}
			}
		})
	})
	if err != nil {
		return fmt.Errorf("delete cursor of group %s on topic %s: %w", shorten(group), shorten(topic), err)
	}
	return nil
}

// Cursors implements [store.Cursors].
func (s *Store) Cursors(ctx context.Context, topic string) iter.Seq2[store.Cursor, error] {
	return func(yield func(store.Cursor, error) bool) {
		filter := bson.D{}
		if topic != "" {
			filter = bson.D{{Key: "t", Value: topic}}
		}
		var list []store.Cursor
		err := s.call(ctx, func(ctx context.Context) error {
			var docs []cursorDoc
			err := s.do(ctx, func(ctx context.Context) error {
				found, err := s.cursors.Find(ctx, filter)
				if err != nil {
					return err
				}
				docs = nil
				return found.All(ctx, &docs)
			})
			for i := 0; i < len(docs) && err == nil; i++ {
				var c store.Cursor
				c, err = docs[i].decode()
				list = append(list, c)
			}
			return err
		})
		if err != nil {
			yield(store.Cursor{}, fmt.Errorf("cursors of topic %s: %w", shorten(topic), err))
			return
		}
		slices.SortFunc(list, func(a, b store.Cursor) int {
			if c := strings.Compare(a.Topic, b.Topic); c != 0 {
				return c
			}
			return strings.Compare(a.Group, b.Group)
		})
		for _, c := range list {
			if err := ctx.Err(); err != nil {
				yield(store.Cursor{}, err)
				return
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}
