package promethean

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"promethean/event"
	"promethean/group"
)

func isPattern(topic string) bool { return strings.Contains(topic, "*") }

// CheckPattern says what is wrong with a topic or pattern: segments of a topic,
// "*" for any one and "**" for any number of them.
func CheckPattern(p string) error {
	plain := make([]string, 0, 8)
	for s := range strings.SplitSeq(p, ".") {
		if s == "*" || s == "**" {
			s = "x"
		}
		plain = append(plain, s)
	}
	if err := event.CheckTopic(strings.Join(plain, ".")); err != nil {
		return fmt.Errorf("pattern %q: %w", p, err)
	}
	return nil
}

// MatchTopic says whether a topic fits a pattern: "*" stands for one segment,
// "**" for any number of them, also none. A pattern that begins with a
// wildcard never fits the hub's own topics under dlq. and system.
func MatchTopic(pattern, topic string) bool { return event.MatchPattern(pattern, topic) }

// Following is a set of topics that grows: those that are named, and those
// that fit a pattern, also the ones that appear later.
type Following struct {
	h        *Hub
	patterns []string
	join     func(topic string, fresh bool) error

	mu      sync.Mutex
	joined  map[string]struct{}
	stopped bool
	joining sync.WaitGroup
}

// Follow calls join for each topic that is named among patterns or fits one of
// them, and from then on for each that appears and fits: fresh is true for
// those, which are to be read from their first event. join is called for one
// topic at a time, and once for each. If it fails for one that is there already,
// Follow fails with its error; if it fails for a fresh one, that is logged.
func (h *Hub) Follow(patterns []string, join func(topic string, fresh bool) error) (*Following, error) {
	for _, p := range patterns {
		if err := CheckPattern(p); err != nil {
			return nil, fmt.Errorf("subscribe: %w", err)
		}
	}
	f := &Following{h: h, patterns: patterns, join: join, joined: make(map[string]struct{})}
	// From here on new topics are told to f, which then has to wait for mu.
	f.mu.Lock()
	defer f.mu.Unlock()
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil, ErrClosed
	}
	var topics []string
	for _, p := range patterns {
		if !isPattern(p) {
			topics = append(topics, p)
		}
	}
	for t := range h.topics {
		if f.fits(t) {
			topics = append(topics, t)
		}
	}
	h.follows[f] = struct{}{}
	h.mu.Unlock()
	slices.Sort(topics)
	for _, t := range slices.Compact(topics) {
		if err := join(t, false); err != nil {
			f.leave()
			return nil, err
		}
		f.joined[t] = struct{}{}
	}
	return f, nil
}

func (f *Following) fits(topic string) bool {
	return slices.ContainsFunc(f.patterns, func(p string) bool { return isPattern(p) && MatchTopic(p, topic) })
}

// appeared is called when a topic is new, with Hub.mu held.
func (f *Following) appeared(topic string) {
	if f.fits(topic) {
		f.joining.Go(func() { f.add(topic) })
	}
}

func (f *Following) add(topic string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.joined[topic]; known || f.stopped {
		return
	}
	if err := f.join(topic, true); err != nil {
		f.h.o.Logger.Error("join a new topic", "topic", topic, "err", err)
		return
	}
	f.joined[topic] = struct{}{}
}

// leave must be called with mu held.
func (f *Following) leave() {
	f.stopped = true
	f.h.mu.Lock()
	delete(f.h.follows, f)
	f.h.mu.Unlock()
}

// Stop ends it. When it has returned, join is not called any more.
func (f *Following) Stop() {
	f.mu.Lock()
	f.leave()
	f.mu.Unlock()
	f.joining.Wait()
}

// fan is a subscription to several topics.
type fan struct {
	h      *Hub
	follow *Following

	mu   sync.Mutex
	subs []*subscription
}

func (h *Hub) fanOut(ctx context.Context, patterns []string, name string, handler Handler, o *SubscribeOptions) (Subscription, error) {
	f := &fan{h: h}
	later := context.WithoutCancel(ctx)
	follow, err := h.Follow(patterns, func(topic string, fresh bool) error {
		ctx, o := ctx, o
		if fresh {
			ctx = later
			c := *o
			c.Start = Place{From: group.Earliest}
			o = &c
		}
		s, err := h.subscribe(ctx, topic, name, handler, o)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.subs = append(f.subs, s)
		f.mu.Unlock()
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, f.each(ctx, (*subscription).Stop))
	}
	f.follow = follow
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.fans[f] = struct{}{}
	}
	h.mu.Unlock()
	if closed {
		return nil, errors.Join(ErrClosed, f.Stop(ctx))
	}
	return f, nil
}

// Stop implements [Subscription].
func (f *fan) Stop(ctx context.Context) error {
	f.h.mu.Lock()
	delete(f.h.fans, f)
	f.h.mu.Unlock()
	f.follow.Stop()
	return f.each(ctx, (*subscription).Stop)
}

// Pause implements [Subscription].
func (f *fan) Pause(ctx context.Context) error { return f.each(ctx, (*subscription).Pause) }

// Resume implements [Subscription].
func (f *fan) Resume(ctx context.Context) error { return f.each(ctx, (*subscription).Resume) }

func (f *fan) each(ctx context.Context, do func(*subscription, context.Context) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, s := range f.subs {
		errs = append(errs, do(s, ctx))
	}
	return errors.Join(errs...)
}
