package natsstore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"promethean/store"
)

// watches are the wake-ups of readers. A topic that is watched is tailed; one
// that has no stream yet is looked for, when the server says that a stream was
// made and now and then besides.
type watches struct {
	mu      sync.RWMutex // read while waking, so that none comes after Stop
	all     []*store.Watch
	byTopic map[string][]*store.Watch

	start sync.Once
	poke  chan struct{}
	sub   *nats.Subscription
}

// lookEvery is how often topics without a stream are looked for in case that
// no advisory came.
const lookEvery = 3 * time.Second

func (w *watches) init() {
	w.byTopic = make(map[string][]*store.Watch)
	w.poke = make(chan struct{}, 1)
}

// Watch implements [store.Log].
func (s *Store) Watch(topics ...string) *store.Watch {
	w := &s.watches
	topics = slices.Clone(topics)
	var watch *store.Watch
	drop := func(list []*store.Watch) []*store.Watch {
		return slices.DeleteFunc(slices.Clone(list), func(x *store.Watch) bool { return x == watch })
	}
	watch = store.NewWatch(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all = drop(w.all)
		for _, name := range topics {
			if list := drop(w.byTopic[name]); len(list) > 0 {
				w.byTopic[name] = list
			} else {
				delete(w.byTopic, name)
			}
		}
	})
	w.mu.Lock()
	if len(topics) == 0 {
		w.all = append(slices.Clip(w.all), watch)
	}
	for _, name := range topics {
		w.byTopic[name] = append(slices.Clip(w.byTopic[name]), watch)
	}
	w.mu.Unlock()
	if s.closing.Load() {
		return watch
	}
	w.start.Do(func() {
		if !s.spawn(s.lookForTopics) {
			return
		}
		// Somebody else made a stream, perhaps one that is waited for.
		w.sub, _ = s.bulk.Subscribe("$JS.EVENT.ADVISORY.STREAM.CREATED.*", func(m *nats.Msg) {
			if strings.Contains(m.Subject, "."+s.o.Prefix+"-") {
				s.look()
			}
		})
	})
	s.look()
	return watch
}

// look has topics looked for.
func (s *Store) look() {
	select {
	case s.watches.poke <- struct{}{}:
	default:
	}
}

// reconnected: anything may have been missed.
func (s *Store) reconnected() { s.look() }

func (s *Store) stopWatcher() {
	if sub := s.watches.sub; sub != nil {
		_ = sub.Unsubscribe()
	}
}

// Whoever has appended tells the others, by a message that nobody keeps. If it
// is lost, they find out by asking.

// tellSubject is where it is told of a topic.
func (s *Store) tellSubject(topic string) string { return s.o.Prefix + "-wake." + topic }

// tell tells the other stores that a topic has grown. It does not matter if that
// fails.
func (s *Store) tell(t *topic, seq uint64) {
	if seq > 0 {
		_ = s.nc.Publish(s.tellSubject(t.name), strconv.AppendUint(nil, seq, 10))
	}
}

// listen hears what others tell.
func (s *Store) listen() error {
	_, err := s.bulk.Subscribe(s.tellSubject(">"), func(m *nats.Msg) {
		name := strings.TrimPrefix(m.Subject, s.tellSubject(""))
		seq, err := strconv.ParseUint(string(m.Data), 10, 64)
		if err != nil {
			return
		}
		if t := s.known(name); t == nil || !s.tailing(name) {
			if s.watches.has(name) {
				s.look()
			}
		} else if pos, _ := t.tail.at(); pos < seq {
			t.tail.hint(seq)
		}
	})
	return err
}

// has says whether somebody watches a topic.
func (w *watches) has(topic string) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return len(w.all) > 0 || len(w.byTopic[topic]) > 0
}

// wake leaves a signal for those who watch a topic.
func (s *Store) wake(topic string) {
	w := &s.watches
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, watch := range w.byTopic[topic] {
		watch.Wake()
	}
	for _, watch := range w.all {
		watch.Wake()
	}
}

// wanted lists topics that are watched and not tailed, and says whether all
// topics are watched.
func (w *watches) wanted(tailed func(string) bool) (names []string, all bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for name := range w.byTopic {
		if !tailed(name) {
			names = append(names, name)
		}
	}
	return names, len(w.all) > 0
}

func (s *Store) lookForTopics() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.watches.poke:
		case <-tick.C:
		}
		names, all := s.watches.wanted(s.tailing)
		if len(names) == 0 && !all {
			continue
		}
		there, err := s.names(s.ctx)
		if err != nil {
			s.o.Logger.Warn("look for topics", "error", err)
			continue
		}
		for _, name := range there {
			if all && !s.tailing(name) || slices.Contains(names, name) {
				s.tailTopic(s.ctx, name)
			}
		}
	}
}

// tailing says whether a topic is being tailed.
func (s *Store) tailing(name string) bool {
	t := s.known(name)
	if t == nil {
		return false
	}
	t.tail.mu.Lock()
	defer t.tail.mu.Unlock()
	return t.tail.running
}

// tailTopic tails a topic that has a stream.
func (s *Store) tailTopic(ctx context.Context, name string) {
	t := s.topic(name)
	i, err := s.inspect(ctx, name)
	if err != nil || i == nil {
		if err != nil && ctx.Err() == nil {
			s.o.Logger.Warn("watch", "topic", name, "error", err)
		}
		return
	}
	s.follow(t)
	t.tail.advance(i.first()-1, time.Time{}) // what is below is gone
	t.tail.hint(i.State.LastSeq)
}
