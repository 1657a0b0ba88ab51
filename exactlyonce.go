package promethean

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Marks remembers which events a group has handled.
type Marks interface {
	// Seen says whether the event was marked, and is not forgotten yet.
	Seen(ctx context.Context, topic, group string, id event.ID) (bool, error)
	// Mark remembers the event. Where the result is not nil, it is appended in
	// the same step as the event is settled.
	Mark(topic, group string, id event.ID) *event.Event
}

// SubscribeExactlyOnce is Subscribe for handlers that must not see an event
// again that they have handled: not after its cursor was moved back, not when
// the same id is published once more after it expired. An event that is marked
// for the topic and group is settled without being handled. The mark is
// durable, written in the same step as the settlement, and forgotten after
// ttl.
//
// An event whose handler ends the process, or fails, may be handled again:
// between the effects of a handler and the mark there is always a moment.
func (h *Hub) SubscribeExactlyOnce(ctx context.Context, topic, name string, handler Handler, ttl time.Duration, opts ...SubscribeOption) (Subscription, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("subscribe to %s: %w: ttl %v is not positive", topic, group.ErrInvalid, ttl)
	}
	m := &logMarks{h: h, ttl: ttl}
	return h.subscribeMarked(ctx, topic, name, handler, m, opts...)
}

// SubscribeOnceInMemory is SubscribeExactlyOnce whose marks are kept in memory
// only: cheaper, and forgotten when the process ends.
func (h *Hub) SubscribeOnceInMemory(ctx context.Context, topic, name string, handler Handler, ttl time.Duration, opts ...SubscribeOption) (Subscription, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("subscribe to %s: %w: ttl %v is not positive", topic, group.ErrInvalid, ttl)
	}
	return h.subscribeMarked(ctx, topic, name, handler, &memoryMarks{ttl: ttl, at: make(map[event.ID]time.Time)}, opts...)
}

func (h *Hub) subscribeMarked(ctx context.Context, topic, name string, handler Handler, marks Marks, opts ...SubscribeOption) (Subscription, error) {
	if lm, ok := marks.(*logMarks); ok {
		if err := lm.prepare(ctx, topic, name); err != nil {
			return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
		}
	}
	if handler == nil {
		return nil, fmt.Errorf("subscribe to %s: %w: no handler", topic, group.ErrInvalid)
	}
	once := func(ctx context.Context, e event.Event, d *Delivery) error {
		seen, err := marks.Seen(ctx, e.Topic, d.Group, e.ID)
		if err != nil || seen {
			return err
		}
		return handler(ctx, e, d)
	}
	return h.Subscribe(ctx, topic, name, once, append(opts, withMarks(marks))...)
}

func withMarks(m Marks) SubscribeOption { return func(o *SubscribeOptions) { o.marks = m } }

// logMarks keeps marks as events of a topic of their own, whose ids follow
// from what they mark and whose retention is the ttl.
type logMarks struct {
	h   *Hub
	ttl time.Duration
}

var markSpace = event.NameID(event.ID{}, "promethean mark")

func markID(topic, name string, id event.ID) event.ID {
	return event.NameID(markSpace, topic+"\n"+name+"\n"+id.String())
}

// marksTopic is one for each ttl.
func (m *logMarks) topic() string { return fmt.Sprintf("system.marks.ms%d", m.ttl.Milliseconds()) }

func (m *logMarks) prepare(ctx context.Context, _, _ string) error {
	return m.h.log.SetTopic(ctx, m.topic(), store.Settings{Retention: m.ttl})
}

// Seen implements [Marks].
func (m *logMarks) Seen(ctx context.Context, topic, name string, id event.ID) (bool, error) {
	_, err := m.h.log.LocateID(ctx, m.topic(), markID(topic, name, id))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Mark implements [Marks].
func (m *logMarks) Mark(topic, name string, id event.ID) *event.Event {
	e := event.New(m.topic(), []byte("null"))
	e.ID = markID(topic, name, id)
	return &e
}

// memoryMarks keeps marks in memory.
type memoryMarks struct {
	ttl   time.Duration
	mu    sync.Mutex
	at    map[event.ID]time.Time
	swept time.Time
}

// Seen implements [Marks].
func (m *memoryMarks) Seen(_ context.Context, topic, name string, id event.ID) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.at[markID(topic, name, id)]
	return ok && time.Since(at) < m.ttl, nil
}

// Mark implements [Marks].
func (m *memoryMarks) Mark(topic, name string, id event.ID) *event.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.at[markID(topic, name, id)] = now
	if now.Sub(m.swept) > m.ttl {
		for k, at := range m.at {
			if now.Sub(at) >= m.ttl {
				delete(m.at, k)
			}
		}
		m.swept = now
	}
	return nil
}
