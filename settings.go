package promethean

import (
	"bytes"
	"sync"

	"promethean/store"
)

// settingsWatcher is somebody who wants to know the settings of topics. One
// goroutine at a time tells him, in the order of the changes.
type settingsWatcher struct {
	f  func(topic string, s store.Settings)
	mu sync.Mutex
}

// WatchSettings has f called with the settings of every topic that has any, and
// again whenever those of a topic change, here or by another hub on the same
// engine. The first round is over when WatchSettings returns. Calls of f do not
// overlap, and f must not call SetTopic. Call stop when you have seen enough; a
// call that is under way may still end after it.
func (h *Hub) WatchSettings(f func(topic string, s store.Settings)) (stop func()) {
	w := &settingsWatcher{f: f}
	w.mu.Lock() // changes wait until the first round is over
	defer w.mu.Unlock()
	h.mu.Lock()
	h.watchers[w] = struct{}{}
	first := make(map[string]store.Settings, len(h.topics))
	for name, t := range h.topics {
		if !plain(t.settings) {
			first[name] = t.settings
		}
	}
	h.mu.Unlock()
	for name, s := range first {
		f(name, s)
	}
	return func() {
		h.mu.Lock()
		delete(h.watchers, w)
		h.mu.Unlock()
	}
}

// Settings gives the settings of a topic as this hub knows them; the zero value
// for one that nobody has made. Those that another hub on the same engine has
// changed are known moments later.
func (h *Hub) Settings(topic string) store.Settings {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[topic]; t != nil {
		return t.settings
	}
	return store.Settings{}
}

// learn takes over the settings of a topic and tells those who watch. They were
// read when this hub had set topics so often: what it has set since is newer.
func (h *Hub) learn(topic string, s store.Settings, asOf uint64) {
	h.mu.Lock()
	t := h.known(topic)
	if t.setAt > asOf {
		h.mu.Unlock()
		return
	}
	changed := !same(t.settings, s)
	t.set(s)
	watchers := make([]*settingsWatcher, 0, len(h.watchers))
	for w := range h.watchers {
		watchers = append(watchers, w)
	}
	h.mu.Unlock()
	if !changed {
		return
	}
	for _, w := range watchers {
		w.mu.Lock()
		// Another change may have come between: what is told last is what holds.
		h.mu.Lock()
		now := t.settings
		h.mu.Unlock()
		w.f(topic, now)
		w.mu.Unlock()
	}
}

func same(a, b store.Settings) bool {
	return a.Retention == b.Retention && a.MaxBytes == b.MaxBytes && max(a.Partitions, 1) == max(b.Partitions, 1) &&
		a.Async == b.Async && bytes.Equal(a.Meta, b.Meta)
}

func plain(s store.Settings) bool { return same(s, store.Settings{}) }
