package mongostore

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"promethean/store"
)

// watchers are the watches of a store and what they have been told.
type watchers struct {
	mu   sync.Mutex
	on   map[string]map[*store.Watch]bool // by topic
	all  map[*store.Watch]bool
	seen map[string]uint64 // the last seq of topics up to which watches were woken
	poke chan struct{}     // a new watch wants to be served
}

func (w *watchers) init() {
	w.on = make(map[string]map[*store.Watch]bool)
	w.all = make(map[*store.Watch]bool)
	w.seen = make(map[string]uint64)
	w.poke = make(chan struct{}, 1)
}

// visible wakes who watches the topic, if last is news.
func (w *watchers) visible(topic string, last uint64) (news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last <= w.seen[topic] {
		return false
	}
	w.seen[topic] = last
	for x := range w.on[topic] {
		x.Wake()
	}
	for x := range w.all {
		x.Wake()
	}
	return true
}

// Watch implements [store.Log].
func (s *Store) Watch(topics ...string) *store.Watch {
	w := &s.watch
	topics = slices.Clone(topics)
	var x *store.Watch
	x = store.NewWatch(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, x)
		for _, topic := range topics {
			delete(w.on[topic], x)
			if len(w.on[topic]) == 0 {
				delete(w.on, topic)
			}
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(topics) == 0 {
		w.all[x] = true
	}
	for _, topic := range topics {
		if w.on[topic] == nil {
			w.on[topic] = make(map[*store.Watch]bool)
		}
		w.on[topic][x] = true
	}
	select {
	case w.poke <- struct{}{}:
	default:
	}
	return x
}

// poll looks for events of other processes while somebody watches. It looks
// again soon after it found some, and ever more rarely while it finds none.
func (s *Store) poll() {
	names := pollNames{s: s}
	wait := s.o.PollMin
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-s.watch.poke:
			wait = s.o.PollMin
		case <-timer.C:
		}
		news, idle, err := s.pollOnce(s.life, &names)
		switch {
		case err != nil || !news:
			wait = min(2*wait, s.o.PollMax)
		default:
			wait = s.o.PollMin
		}
		if err != nil && s.life.Err() == nil {
			s.o.Logger.Warn("mongostore: look for new events", "error", err)
		}
		timer.Stop()
		if !idle { // else the next watch pokes
			timer.Reset(wait)
		}
	}
}

// pollNames knows the topics that there are, for watches on all of them.
type pollNames struct {
	s      *Store
	names  []string
	looked time.Time
}

// list gives all topics. While nothing comes it asks every other time only:
// a store at rest must not keep the server busy.
func (p *pollNames) list(ctx context.Context) ([]string, error) {
	if time.Since(p.looked) < 2*p.s.o.PollMax-p.s.o.PollMin && len(p.names) > 0 {
		return p.names, nil
	}
	docs, err := p.s.topicDocs(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	p.names, p.looked = p.names[:0], time.Now()
	for i := range docs {
		p.names = append(p.names, docs[i].Name)
	}
	return p.names, nil
}

// pollOnce looks once. It says whether there was something new, and whether
// nobody watches.
func (s *Store) pollOnce(ctx context.Context, names *pollNames) (news, idle bool, err error) {
	w := &s.watch
	w.mu.Lock()
	all := len(w.all) > 0
	var topics []string
	for topic := range w.on {
		topics = append(topics, topic)
	}
	w.mu.Unlock()
	if !all && len(topics) == 0 {
		return false, true, nil
	}
	if all {
		if topics, err = names.list(ctx); err != nil {
			return false, false, err
		}
	}
	var ends []any
	for _, topic := range topics {
		t, loaded := s.laneOf(topic).known()
		if !loaded { // the first look at it; wakes if there is something
			before := w.seenOf(topic)
			if t, err = s.refresh(ctx, topic); err != nil {
				return news, false, err
			}
			news = news || t.last > before
			continue
		}
		ends = append(ends, bson.D{{Key: "t", Value: topic}, {Key: "last", Value: bson.D{{Key: "$gt", Value: clamp(t.last)}}}})
	}
	const most = 100 // topics in one query
	for part := range slices.Chunk(ends, most) {
		found, err := s.newest(ctx, part)
		if err != nil {
			return news, false, err
		}
		for _, topic := range found {
			before := w.seenOf(topic)
			t, err := s.refresh(ctx, topic) // wakes
			if err != nil {
				return news, false, err
			}
			news = news || t.last > before
		}
	}
	return news, false, nil
}

func (w *watchers) seenOf(topic string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[topic]
}

// newest gives the topics that have commits behind the given ends.
func (s *Store) newest(ctx context.Context, behind bson.A) (topics []string, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		topics = nil
		found, err := s.commits.Aggregate(ctx, mongo.Pipeline{
			{{Key: "$match", Value: bson.D{{Key: "$or", Value: behind}}}},
			{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$t"}}}},
		})
		if err != nil {
			return err
		}
		var rows []struct {
			Topic string `bson:"_id"`
		}
		if err := found.All(ctx, &rows); err != nil {
			return err
		}
		for _, r := range rows {
			topics = append(topics, r.Topic)
		}
		return nil
	})
	return topics, err
}
