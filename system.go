package promethean

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean/event"
	"promethean/store"
)

// SystemTopic is a topic under system., which only the hub writes: records of
// what it did, such as system.audit. It is for the rooms above the hub; who
// publishes for himself uses [Hub.Publish], which refuses these topics.
//
// It takes payloads, not events: what a record is called, when it was and where
// it stands is the hub's to say.
type SystemTopic struct {
	h         *Hub
	topic     string
	retention time.Duration

	mu   sync.Mutex
	made bool
}

// machinery are the names under system. whose records steer the hub: they have
// writers of their own.
var machinery = []string{"cluster", "intents", "leases", "marks"}

// SystemTopic gives the topic system.<name>; the name is one segment. When the
// first record is written and there is no such topic, it is made with that
// retention; 0 keeps records for ever. Settings of one that is there stay.
func (h *Hub) SystemTopic(name string, retention time.Duration) (*SystemTopic, error) {
	topic := "system." + name
	if err := event.CheckTopic(topic); err != nil {
		return nil, err
	}
	if strings.Contains(name, ".") || slices.Contains(machinery, name) {
		return nil, fmt.Errorf("%w: %s has a writer of its own", event.ErrInvalidTopic, topic)
	}
	return &SystemTopic{h: h, topic: topic, retention: retention}, nil
}

// Name is the topic's.
func (s *SystemTopic) Name() string { return s.topic }

// Append stores records as a whole, durably when it returns.
func (s *SystemTopic) Append(ctx context.Context, payloads ...json.RawMessage) error {
	_, err := s.append(ctx, "", nil, payloads)
	return err
}

// AppendAfter is Append if seq is the last one of the topic. Otherwise nothing
// is stored, and the error is a [*store.SeqConflictError]: another hub was
// first.
func (s *SystemTopic) AppendAfter(ctx context.Context, seq uint64, payloads ...json.RawMessage) error {
	_, err := s.append(ctx, "", []store.Expect{{Topic: s.topic, Seq: seq}}, payloads)
	return err
}

// AppendKeyed stores one record with a key if seq is the last one of that key,
// 0 if it has none, and gives the record's own seq. Otherwise nothing is stored,
// and the error is a [*store.SeqConflictError]: somebody else was first.
func (s *SystemTopic) AppendKeyed(ctx context.Context, key string, seq uint64, payload json.RawMessage) (uint64, error) {
	if key == "" {
		return 0, fmt.Errorf("append topic %s: %w: a record with a key needs one", s.topic, event.ErrInvalidArgument)
	}
	return s.append(ctx, key, []store.Expect{{Topic: s.topic, Key: key, Seq: seq}}, []json.RawMessage{payload})
}

// append gives the seq of the last record.
func (s *SystemTopic) append(ctx context.Context, key string, expect []store.Expect, payloads []json.RawMessage) (uint64, error) {
	if len(payloads) == 0 {
		return 0, nil
	}
	if err := s.make(ctx); err != nil {
		return 0, fmt.Errorf("append topic %s: %w", s.topic, err)
	}
	began := time.Now()
	s.h.mu.Lock()
	if s.h.closed {
		s.h.mu.Unlock()
		return 0, ErrClosed
	}
	n := s.h.known(s.topic).partitions
	s.h.mu.Unlock()
	batch := make([]event.Event, len(payloads))
	for i, p := range payloads {
		e := event.New(s.topic, p)
		e.ID, e.TS, e.Key = event.NewID(), began.UnixMilli(), key
		e.Partition = event.PartitionOf(event.PartitionFor(key, e.ID, n))
		batch[i] = e
	}
	got, err := s.h.log.Append(ctx, store.Batch{Events: batch, Expect: expect, Internal: true})
	if err != nil {
		return 0, err
	}
	for range batch {
		s.h.o.Metrics.Published(s.topic, time.Since(began))
	}
	return got[len(got)-1].Seq, nil
}

// make sees to it that the topic is there.
func (s *SystemTopic) make(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made {
		return nil
	}
	for t, err := range s.h.log.Topics(ctx) {
		if err != nil {
			return err
		}
		s.made = s.made || t.Name == s.topic
	}
	if !s.made {
		if err := s.h.SetTopic(ctx, s.topic, store.Settings{Retention: s.retention}); err != nil {
			return err
		}
		s.made = true
	}
	return nil
}
