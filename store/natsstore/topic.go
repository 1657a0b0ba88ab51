package natsstore

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
	"promethean/store"
)

// Metadata of a topic's stream.
const (
	metaTopic    = "promethean.topic"    // the topic: this stream is ours
	metaFormat   = "promethean.format"   // the version of the layout
	metaSettings = "promethean.settings" // store.Settings but Meta, as JSON
	metaMeta     = "promethean.meta"     // Settings.Meta, as base64

	format = "1"
	// maxMeta is how large Settings.Meta may be: the server takes 128 KiB of
	// metadata for a stream.
	maxMeta = 90 << 10
	// minAge is the shortest age and window that the server takes.
	minAge = 100 * time.Millisecond
)

// topic is what a store keeps in memory about a topic that it uses.
type topic struct {
	name, stream string

	making chan struct{} // full while the stream is looked for and made
	there  atomic.Bool
	// created is when the stream was made, by the server's clock.
	created atomic.Int64
	// replicas is on how many servers the stream is, window its duplicate
	// window, as the leader said last.
	replicas atomic.Int64
	readers  readers
	window   atomic.Int64

	// visible is the highest seq that was acknowledged or tailed: whoever was
	// told of it must find it. It covers everything in the index.
	visible atomic.Uint64
	// woken is up to where watches were woken.
	woken atomic.Uint64

	index *index
	tail  tail
	queue queue
}

// topic gives what is kept about a topic and begins to keep it.
func (s *Store) topic(name string) *topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[name]
	if t == nil {
		t = &topic{name: name, stream: s.streamName(name), index: newIndex(), making: make(chan struct{}, 1)}
		t.tail.restart, t.tail.poke = make(chan struct{}, 1), make(chan struct{}, 1)
		s.topics[name] = t
	}
	return t
}

// known gives what is kept about a topic, or nil.
func (s *Store) known(name string) *topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topics[name]
}

// raise lifts a to at least v, and says whether that changed it.
func raise(a *atomic.Uint64, v uint64) bool {
	for {
		old := a.Load()
		if v <= old {
			return false
		}
		if a.CompareAndSwap(old, v) {
			return true
		}
	}
}

// learn takes over what a leader says. A stream that somebody removed and made
// again has nothing to do with what we know.
func (t *topic) learn(i *streamInfo) {
	if old := t.created.Swap(i.Created.UnixNano()); old != 0 && old != i.Created.UnixNano() {
		t.reset()
	}
	t.replicas.Store(int64(i.Config.Replicas))
	t.window.Store(int64(i.Config.Duplicates))
	t.there.Store(true)
	t.index.trim(i.first())
}

// reset forgets what was learnt from the stream.
func (t *topic) reset() {
	t.visible.Store(0)
	t.woken.Store(0)
	t.index.reset()
	t.tail.reset()
	t.readers.clear()
}

// inspect asks for a topic's stream: nil if there is none. The answer covers
// all that this store had seen acknowledged or tailed when it was called: a
// replica may apply, and deliver, an event a moment before the leader does.
//
// What is acknowledged while a question is on its way may be missing in the
// answer. Events are lost only if answers lack, for as long as one attempt
// takes, what was known before they were asked for.
func (s *Store) inspect(ctx context.Context, name string) (*streamInfo, error) {
	var seen uint64
	if t := s.known(name); t != nil {
		seen = t.visible.Load()
	}
	var end time.Time
	for wait := time.Duration(0); ; pause(ctx, &wait) {
		i, err := s.inspectOnce(ctx, name)
		if err != nil || i == nil {
			return i, err
		}
		t := s.known(name)
		if t == nil || i.State.LastSeq >= min(seen, t.visible.Load()) { // it is 0 once the stream is another one
			return i, nil
		}
		if end.IsZero() {
			end = time.Now().Add(s.o.AttemptTimeout)
		} else if time.Now().After(end) {
			s.o.Logger.Error("the stream has lost events that were acknowledged", "topic", name, "acknowledged", seen, "last", i.State.LastSeq)
			t.reset()
			return i, nil
		}
	}
}

func (s *Store) inspectOnce(ctx context.Context, name string) (*streamInfo, error) {
	var i *streamInfo
	err := s.retry(ctx, func(ctx context.Context) (err error) {
		i, err = s.info(ctx, s.streamName(name))
		return err
	})
	t := s.known(name)
	if codeOf(err) == codeStreamNotFound {
		if t != nil {
			t.there.Store(false)
		}
		return nil, nil
	}
	if err == nil {
		err = s.checkOurs(name, &i.Config)
	}
	if err != nil {
		return nil, err
	}
	if t != nil {
		t.learn(i)
	}
	return i, nil
}

// ensure makes a topic's stream if it is not there.
func (s *Store) ensure(ctx context.Context, t *topic) error {
	if t.there.Load() {
		return nil
	}
	select {
	case t.making <- struct{}{}:
		defer func() { <-t.making }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if t.there.Load() {
		return nil
	}
	i, err := s.inspect(ctx, t.name)
	if err != nil || i != nil {
		return err
	}
	asked := time.Now()
	i, err = s.create(ctx, t.name, store.Settings{})
	if err != nil {
		return err
	}
	t.learn(i)
	if i.DidCreate {
		t.tail.advance(0, asked) // nobody was before us: the index is complete
	}
	return nil
}

// create makes a topic's stream. Two that do so at once agree.
func (s *Store) create(ctx context.Context, name string, set store.Settings) (*streamInfo, error) {
	c, err := s.config(name, set)
	if err != nil {
		return nil, err
	}
	var i streamInfo
	err = s.putStream(ctx, "CREATE", &c, &i)
	if codeOf(err) == codeNameInUse {
		return s.mustInspect(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("make stream %s: %w", c.Name, err)
	}
	if err := s.checkOurs(name, &i.Config); err != nil {
		return nil, err
	}
	return &i, nil
}

func (s *Store) mustInspect(ctx context.Context, name string) (*streamInfo, error) {
	i, err := s.inspect(ctx, name)
	if err == nil && i == nil {
		err = fmt.Errorf("%w: stream %s was removed", store.ErrUnavailable, s.streamName(name))
	}
	return i, err
}

// putStream creates or updates a stream. A limit of bytes beyond what the
// server has is left out: its own limit comes first then.
func (s *Store) putStream(ctx context.Context, verb string, c *jetstream.StreamConfig, i *streamInfo) error {
	put := func(ctx context.Context) error { return s.ask(ctx, "STREAM."+verb+"."+c.Name, c, i) }
	err := s.retry(ctx, put)
	if code := codeOf(err); c.MaxBytes > 0 && (code == codeStorageExceeded || code == codeNoPeers) {
		s.o.Logger.Warn("the servers have less storage than the topic's limit of bytes; the limit is not set", "stream", c.Name, "bytes", c.MaxBytes)
		c.MaxBytes = -1
		err = s.retry(ctx, put)
	}
	if code := codeOf(err); code == codeNoPeers || code == codeNoReplicas {
		return fmt.Errorf("%w: start more servers with JetStream, or set Options.Replicas, which is %d, to what the cluster has", err, c.Replicas)
	}
	return err
}

// config is that of a topic's stream.
func (s *Store) config(name string, set store.Settings) (jetstream.StreamConfig, error) {
	c := jetstream.StreamConfig{Replicas: s.replicas, Storage: s.o.Storage, Placement: s.o.Placement}
	if s.o.Stream != nil {
		s.o.Stream(name, &c)
	}
	c = jetstream.StreamConfig{
		Name: s.streamName(name), Subjects: []string{s.allSubjects(name)},
		Replicas: c.Replicas, Storage: c.Storage, Placement: c.Placement,
		Description: "events of topic " + name,
		AllowDirect: true, AllowAtomicPublish: true,
		Metadata: map[string]string{metaTopic: name, metaFormat: format},
	}
	return c, s.apply(&c, set)
}

// apply puts settings into a stream's configuration.
func (s *Store) apply(c *jetstream.StreamConfig, set store.Settings) error {
	c.MaxAge, c.MaxBytes, c.Duplicates = 0, -1, s.o.Duplicates
	if set.Retention > 0 {
		c.MaxAge = max(set.Retention, minAge)
		c.Duplicates = min(c.Duplicates, c.MaxAge)
	}
	if set.MaxBytes > 0 {
		c.MaxBytes = set.MaxBytes
	}
	delete(c.Metadata, metaMeta)
	if len(set.Meta) > maxMeta {
		return fmt.Errorf("%w: meta has %d bytes, a stream's metadata takes %d", store.ErrTooLarge, len(set.Meta), maxMeta)
	}
	if len(set.Meta) > 0 {
		c.Metadata[metaMeta] = base64.StdEncoding.EncodeToString(set.Meta)
	}
	set.Meta = nil
	text, err := json.Marshal(set)
	if err != nil {
		return err
	}
	c.Metadata[metaSettings] = string(text)
	return nil
}

// settings reads them back.
func settings(c *jetstream.StreamConfig) (set store.Settings, err error) {
	if text := c.Metadata[metaSettings]; text != "" {
		err = json.Unmarshal([]byte(text), &set)
	}
	if text := c.Metadata[metaMeta]; text != "" && err == nil {
		set.Meta, err = base64.StdEncoding.DecodeString(text)
	}
	if err != nil {
		err = fmt.Errorf("settings of stream %s: %w", c.Name, err)
	}
	return set, err
}

// SetTopic implements [store.Log].
func (s *Store) SetTopic(ctx context.Context, name string, set store.Settings) error {
	if err := event.CheckTopic(name); err != nil {
		return fmt.Errorf("set topic: %w", err)
	}
	if set.Retention < 0 || set.MaxBytes < 0 || set.Partitions < 0 || set.Partitions > event.MaxPartitions {
		return fmt.Errorf("set topic %s: %w: retention, max bytes and partitions must not be negative, and partitions at most %d", name, store.ErrInvalid, event.MaxPartitions)
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := s.setTopic(ctx, name, set); err != nil {
		return fmt.Errorf("set topic %s: %w", name, s.outcome(ctx, err))
	}
	return nil
}

func (s *Store) setTopic(ctx context.Context, name string, set store.Settings) error {
	t := s.topic(name)
	i, err := s.inspect(ctx, name)
	if err != nil {
		return err
	}
	if i == nil {
		asked := time.Now()
		if i, err = s.create(ctx, name, set); err != nil {
			return err
		}
		t.learn(i)
		if i.DidCreate {
			t.tail.advance(0, asked)
			return nil
		}
	}
	c := i.Config
	if err := s.apply(&c, set); err != nil {
		return err
	}
	var now streamInfo
	if err := s.putStream(ctx, "UPDATE", &c, &now); err != nil {
		return err
	}
	t.learn(&now)
	return nil
}

// bounds is the extent of a topic: the leader's word, and what we know to have
// been acknowledged or seen on another replica.
func (s *Store) extent(name string, i *streamInfo) store.Bounds {
	b := store.Bounds{First: i.first(), Last: i.State.LastSeq, Bytes: int64(i.State.Bytes)}
	if t := s.known(name); t != nil {
		b.Last = max(b.Last, t.visible.Load())
	}
	if i.State.Msgs == 0 && b.Last == i.State.LastSeq {
		b.First = b.Last + 1
	}
	return b
}

// Bounds implements [store.Log].
func (s *Store) Bounds(ctx context.Context, name string) (store.Bounds, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return store.Bounds{}, err
	}
	defer end()
	none := store.Bounds{First: 1}
	if event.CheckTopic(name) != nil {
		return none, nil
	}
	i, err := s.inspect(ctx, name)
	if err != nil {
		return none, fmt.Errorf("bounds of topic %s: %w", name, s.outcome(ctx, err))
	}
	if i == nil {
		return none, nil
	}
	return s.extent(name, i), nil
}

// Trim implements [store.Log].
func (s *Store) Trim(ctx context.Context, name string, before uint64) error {
	if err := event.CheckTopic(name); err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := s.trim(ctx, name, before); err != nil {
		return fmt.Errorf("trim topic %s: %w", name, s.outcome(ctx, err))
	}
	return nil
}

func (s *Store) trim(ctx context.Context, name string, before uint64) error {
	i, err := s.inspect(ctx, name)
	if err != nil || i == nil {
		return err
	}
	// A purge beyond the end would move the end: seqs would be skipped.
	before = min(before, i.State.LastSeq+1)
	if before <= i.first() {
		return nil
	}
	err = s.retry(ctx, func(ctx context.Context) error {
		return s.ask(ctx, "STREAM.PURGE."+s.streamName(name), map[string]uint64{"seq": before}, &answer{})
	})
	if t := s.known(name); t != nil && err == nil {
		t.index.trim(before)
		t.readers.clear()
	}
	return err
}

// names lists the topics that have a stream.
func (s *Store) names(ctx context.Context) ([]string, error) {
	var out []string
	for offset := 0; ; {
		var p struct {
			answer
			Total   int      `json:"total"`
			Streams []string `json:"streams"`
		}
		err := s.retry(ctx, func(ctx context.Context) error {
			return s.ask(ctx, "STREAM.NAMES", map[string]any{"offset": offset, "subject": s.o.Prefix + ".>"}, &p)
		})
		if err != nil {
			return nil, err
		}
		for _, stream := range p.Streams {
			if name, ok := s.topicOf(stream); ok {
				out = append(out, name)
			}
		}
		if offset += len(p.Streams); len(p.Streams) == 0 || offset >= p.Total {
			slices.SortFunc(out, strings.Compare)
			return slices.Compact(out), nil
		}
	}
}

// Topics implements [store.Log].
func (s *Store) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	return func(yield func(store.Topic, error) bool) {
		ctx, end, err := s.begin(ctx)
		if err != nil {
			yield(store.Topic{}, err)
			return
		}
		defer end()
		names, err := s.names(ctx)
		if err != nil {
			yield(store.Topic{}, fmt.Errorf("topics: %w", s.outcome(ctx, err)))
			return
		}
		for _, name := range names {
			row := store.Topic{Name: name}
			i, err := s.inspect(ctx, name)
			if err == nil && i == nil {
				continue // removed while we went
			}
			if err == nil {
				row.Bounds = s.extent(name, i)
				row.Settings, err = settings(&i.Config)
			}
			if err != nil {
				err = fmt.Errorf("topic %s: %w", name, s.outcome(ctx, err))
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

var errLag = errors.New("the local index of ids lags behind the stream")
