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

// checkPattern says what is wrong with a topic or pattern: segments of a topic,
// "*" for any one and "**" for any number of them.
func checkPattern(p string) error {
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
func MatchTopic(pattern, topic string) bool {
	if strings.HasPrefix(pattern, "*") && (strings.HasPrefix(topic, "dlq.") || strings.HasPrefix(topic, "system.")) {
		return false
	}
	return matchSegments(strings.Split(pattern, "."), strings.Split(topic, "."))
}

func matchSegments(pattern, topic []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for i := range len(topic) + 1 {
				if matchSegments(pattern[1:], topic[i:]) {
					return true
				}
			}
			return false
		}
		if len(topic) == 0 || pattern[0] != "*" && pattern[0] != topic[0] {
			return false
		}
		pattern, topic = pattern[1:], topic[1:]
	}
	return len(topic) == 0
}

// fan is a subscription to several topics.
type fan struct {
	h        *Hub
	patterns []string
	group    string
	handler  Handler
	o        *SubscribeOptions
	ctx      context.Context

	mu      sync.Mutex
	subs    map[string]*subscription
	stopped bool
	joining sync.WaitGroup
}

func (h *Hub) fanOut(ctx context.Context, patterns []string, name string, handler Handler, o *SubscribeOptions) (Subscription, error) {
	for _, p := range patterns {
		if err := checkPattern(p); err != nil {
			return nil, fmt.Errorf("subscribe: %w", err)
		}
	}
	f := &fan{h: h, patterns: patterns, group: name, handler: handler, o: o, ctx: context.WithoutCancel(ctx), subs: make(map[string]*subscription)}
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
	h.fans[f] = struct{}{}
	h.mu.Unlock()
	slices.Sort(topics)
	for _, t := range slices.Compact(topics) {
		s, err := h.subscribe(ctx, t, name, handler, o)
		if err != nil {
			return nil, errors.Join(err, f.stopLocked(ctx))
		}
		f.subs[t] = s
	}
	return f, nil
}

func (f *fan) fits(topic string) bool {
	return slices.ContainsFunc(f.patterns, func(p string) bool { return isPattern(p) && MatchTopic(p, topic) })
}

// appeared is called when a topic is new, with Hub.mu held.
func (f *fan) appeared(topic string) {
	if f.fits(topic) {
		f.joining.Go(func() { f.join(topic) })
	}
}

// join subscribes to a topic that is new, from its first event.
func (f *fan) join(topic string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped || f.subs[topic] != nil {
		return
	}
	o := *f.o
	o.Start = Place{From: group.Earliest}
	s, err := f.h.subscribe(f.ctx, topic, f.group, f.handler, &o)
	if err != nil {
		f.h.o.Logger.Error("subscribe to a new topic", "topic", topic, "group", f.group, "err", err)
		return
	}
	f.subs[topic] = s
}

// Stop implements [Subscription].
func (f *fan) Stop(ctx context.Context) error {
	f.mu.Lock()
	err := f.stopLocked(ctx)
	f.mu.Unlock()
	f.joining.Wait()
	return err
}

func (f *fan) stopLocked(ctx context.Context) error {
	f.stopped = true
	f.h.mu.Lock()
	delete(f.h.fans, f)
	f.h.mu.Unlock()
	var errs []error
	for _, s := range f.subs {
		errs = append(errs, s.Stop(ctx))
	}
	return errors.Join(errs...)
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
