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
var machinery = []string{"intents", "leases", "marks"}

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
	return s.append(ctx, nil, payloads)
}

// AppendAfter is Append if seq is the last one of the topic. Otherwise nothing
// is stored, and the error is a [*store.SeqConflictError]: another hub was
// first.
func (s *SystemTopic) AppendAfter(ctx context.Context, seq uint64, payloads ...json.RawMessage) error {
	return s.append(ctx, []store.Expect{{Topic: s.topic, Seq: seq}}, payloads)
}

func (s *SystemTopic) append(ctx context.Context, expect []store.Expect, payloads []json.RawMessage) error {
	if len(payloads) == 0 {
		return nil
	}
	if err := s.make(ctx); err != nil {
		return fmt.Errorf("append topic %s: %w", s.topic, err)
	}
	began := time.Now()
	s.h.mu.Lock()
	if s.h.closed {
		s.h.mu.Unlock()
		return ErrClosed
	}
	n := s.h.known(s.topic).partitions
	s.h.mu.Unlock()
	batch := make([]event.Event, len(payloads))
	for i, p := range payloads {
		e := event.New(s.topic, p)
		e.ID, e.TS = event.NewID(), began.UnixMilli()
		e.Partition = event.PartitionOf(event.PartitionFor("", e.ID, n))
		batch[i] = e
	}
	if _, err := s.h.log.Append(ctx, store.Batch{Events: batch, Expect: expect, Internal: true}); err != nil {
		return err
	}
	for range batch {
		s.h.o.Metrics.Published(s.topic, time.Since(began))
	}
	return nil
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
