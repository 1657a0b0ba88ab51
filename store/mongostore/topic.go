package mongostore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/event"
	"promethean/store"
)

// topicDoc is a topic's document: its settings and how far it is trimmed.
type topicDoc struct {
	Name string `bson:"_id"`
	// First is the smallest seq that is not trimmed, 1 at the beginning. Base
	// is the first seq of the commit that holds First, or of the newest commit
	// if all is trimmed. Gone counts the bytes of all events below First.
	// They change together, and only upwards.
	First int64 `bson:"first"`
	Base  int64 `bson:"base"`
	Gone  int64 `bson:"gone"`
	// Gaps is the seq below which events may be missing, Less about how many
	// bytes compaction has removed of those from First on.
	Gaps int64 `bson:"gaps,omitempty"`
	Less int64 `bson:"less,omitempty"`
	// Done is the First up to which events were really removed.
	Done int64 `bson:"done"`
	// Tail was the topic's last seq when somebody noted it: a place from
	// which to look for the end.
	Tail int64 `bson:"tail"`

	Retention  int64  `bson:"retention,omitempty"` // nanoseconds
	MaxBytes   int64  `bson:"max_bytes,omitempty"`
	Partitions int32  `bson:"partitions,omitempty"`
	Async      bool   `bson:"async,omitempty"`
	Meta       []byte `bson:"meta,omitempty"`
}

// newTopic is what a topic's document begins with.
var newTopic = bson.D{
	{Key: "first", Value: int64(1)}, {Key: "base", Value: int64(0)}, {Key: "gone", Value: int64(0)},
	{Key: "done", Value: int64(1)}, {Key: "tail", Value: int64(0)},
}

func (d *topicDoc) settings() store.Settings {
	return store.Settings{
		Retention: time.Duration(d.Retention), MaxBytes: d.MaxBytes, Partitions: int(d.Partitions), Async: d.Async, Meta: d.Meta,
	}
}

// hides says whether a commit is below all that counts: trimmed, or written
// there by a writer that had slept through the trim.
func (d *topicDoc) hides(c *commit) bool { return c.first < uint64(d.Base) }

// shows says whether an event of a commit that counts is retained.
func (d *topicDoc) shows(seq uint64) bool { return seq >= uint64(d.First) }

func (d *topicDoc) bounds(t tail) store.Bounds {
	// Somebody may have appended and trimmed since the tail was read.
	last := max(t.last, uint64(max(d.First, 1))-1)
	if last == 0 {
		return store.Bounds{First: 1}
	}
	return store.Bounds{First: uint64(max(d.First, 1)), Last: last, Bytes: max(t.cum-d.Gone-d.Less, 0)}
}

// lane is what the store remembers of a topic, and its queue of appends.
type lane struct {
	topic string

	mu      sync.Mutex
	queue   []*request
	running bool
	tail    tail   // a tail that was true once; the real one is not below it
	loaded  bool   // tail comes from the server
	exists  bool   // the topic has a document
	noted   uint64 // the tail that its document notes, or an earlier one
}

func (s *Store) laneOf(topic string) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lane[topic]
	if l == nil {
		l = &lane{topic: topic}
		s.lane[topic] = l
	}
	return l
}

// known gives the highest tail that was seen.
func (l *lane) known() (t tail, loaded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail, l.loaded
}

func (l *lane) learn(t tail) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.last >= l.tail.last {
		l.tail = t
	}
	l.loaded = true
}

// topicDoc reads a topic's document; an unknown topic gives that of a new one.
func (s *Store) topicDoc(ctx context.Context, topic string) (topicDoc, error) {
	d := topicDoc{Name: topic, First: 1, Done: 1}
	err := s.do(ctx, func(ctx context.Context) error {
		err := s.topics.FindOne(ctx, bson.D{{Key: "_id", Value: topic}}).Decode(&d)
		if errors.Is(err, mongo.ErrNoDocuments) {
			return nil
		}
		if err == nil {
			s.laneExists(topic)
		}
		return err
	})
	return d, err
}

func (s *Store) laneExists(topic string) {
	l := s.laneOf(topic)
	l.mu.Lock()
	l.exists = true
	l.mu.Unlock()
}

// ensureTopic makes the topic's document if there is none.
func (s *Store) ensureTopic(ctx context.Context, topic string) error {
	l := s.laneOf(topic)
	l.mu.Lock()
	exists := l.exists
	l.mu.Unlock()
	if exists {
		return nil
	}
	err := s.upsertTopic(ctx, topic, bson.D{{Key: "$setOnInsert", Value: newTopic}})
	if err == nil {
		s.laneExists(topic)
	}
	return err
}

func (s *Store) upsertTopic(ctx context.Context, topic string, update bson.D) error {
	return s.do(ctx, func(ctx context.Context) error {
		for {
			_, err := s.topics.UpdateOne(ctx, bson.D{{Key: "_id", Value: topic}}, update, options.UpdateOne().SetUpsert(true))
			if !duplicate(err) { // else somebody else has made it just now
				return err
			}
		}
	})
}

// refresh reads where the topic ends. The newest commit of a topic is never
// deleted, so the commit that begins last is one that counts. The one that
// ends last may not be: a slow writer can have left a long one far below.
func (s *Store) refresh(ctx context.Context, topic string) (tail, error) {
	l := s.laneOf(topic)
	from, loaded := l.known()
	if !loaded {
		// The noted tail saves the server from looking at the whole topic.
		d, err := s.topicDoc(ctx, topic)
		if err != nil {
			return tail{}, err
		}
		from.last = max(from.last, uint64(d.Tail))
		l.mu.Lock()
		l.noted = max(l.noted, uint64(d.Tail))
		l.mu.Unlock()
	}
	deadline := time.Now().Add(s.o.RetryFor)
	for pause := (backOff{}); ; {
		found, err := s.findCommits(ctx, query{topic: topic, from: from.last, to: noEnd, newest: true, heads: true})
		if err != nil {
			return tail{}, err
		}
		t := tail{}
		if len(found) > 0 {
			t = found[0].tail
		}
		if t.last >= from.last {
			l.learn(t)
			s.watch.visible(topic, t.last)
			return t, nil
		}
		// A primary that was elected just now may not know yet how much is on
		// the majority. A topic's end must not seem to go back meanwhile.
		if time.Now().After(deadline) {
			return tail{}, fmt.Errorf("%w: topic %s had seq %d, and now there is no commit at or above it", store.ErrCorrupt, topic, from.last)
		}
		if err := pause.wait(ctx); err != nil {
			return tail{}, err
		}
	}
}

// Bounds implements [store.Log].
func (s *Store) Bounds(ctx context.Context, topic string) (b store.Bounds, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		t, err := s.refresh(ctx, topic)
		if err != nil {
			return err
		}
		d, err := s.topicDoc(ctx, topic)
		b = d.bounds(t)
		return err
	})
	if err != nil {
		return store.Bounds{}, fmt.Errorf("bounds of topic %s: %w", shorten(topic), err)
	}
	return b, nil
}

// SetTopic implements [store.Log].
func (s *Store) SetTopic(ctx context.Context, topic string, set store.Settings) error {
	if err := event.CheckTopic(topic); err != nil {
		return fmt.Errorf("set topic: %w", err)
	}
	if set.Retention < 0 || set.MaxBytes < 0 || set.Partitions < 0 || set.Partitions > event.MaxPartitions {
		return fmt.Errorf("set topic %s: %w: retention, max bytes and partitions must not be negative, and partitions at most %d", topic, store.ErrInvalid, event.MaxPartitions)
	}
	if len(set.Meta) > maxBatchBytes {
		return fmt.Errorf("set topic %s: %w: meta has %d bytes, the limit is %d", topic, store.ErrTooLarge, len(set.Meta), maxBatchBytes)
	}
	meta := set.Meta
	if meta == nil {
		meta = []byte{}
	}
	err := s.call(ctx, func(ctx context.Context) error {
		err := s.upsertTopic(ctx, topic, bson.D{
			{Key: "$setOnInsert", Value: newTopic},
			{Key: "$set", Value: bson.D{
				{Key: "retention", Value: int64(set.Retention)}, {Key: "max_bytes", Value: set.MaxBytes},
				{Key: "partitions", Value: int32(set.Partitions)}, {Key: "async", Value: set.Async}, {Key: "meta", Value: meta},
			}},
		})
		if err == nil {
			s.laneExists(topic)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("set topic %s: %w", topic, err)
	}
	return nil
}

// Topics implements [store.Log].
func (s *Store) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	return func(yield func(store.Topic, error) bool) {
		var docs []topicDoc
		err := s.call(ctx, func(ctx context.Context) (err error) {
			docs, err = s.topicDocs(ctx, bson.D{})
			return err
		})
		if err != nil {
			yield(store.Topic{}, fmt.Errorf("topics: %w", err))
			return
		}
		for _, d := range docs {
			b, err := s.Bounds(ctx, d.Name)
			if !yield(store.Topic{Name: d.Name, Bounds: b, Settings: d.settings()}, err) || err != nil {
				return
			}
		}
	}
}

// topicDocs reads the documents of topics by name.
func (s *Store) topicDocs(ctx context.Context, filter bson.D) (docs []topicDoc, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		found, err := s.topics.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
		if err != nil {
			return err
		}
		docs = nil
		return found.All(ctx, &docs)
	})
	return docs, err
}
