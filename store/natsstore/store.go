package natsstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/store"
)

// Store is an open engine. It is safe for use by any number of goroutines, and
// any number of processes may have one on the same server.
type Store struct {
	o Options
	// nc carries publishes and requests, bulk what reads and tails bring in:
	// an acknowledgement must not queue behind a scan.
	nc, bulk *nats.Conn
	js       jetstream.JetStream // on bulk

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	closing atomic.Bool
	denial  atomic.Pointer[denial] // the last one
	once    sync.Once
	work    sync.WaitGroup // tails, committers, the watcher

	replicas int
	cursors  bucket
	leases   bucket
	groups   groupCache

	mu      sync.Mutex
	ended   bool // nothing may be started any more
	topics  map[string]*topic
	watches watches
}

var (
	_ store.Log      = (*Store)(nil)
	_ store.Cursors  = (*Store)(nil)
	_ store.Leases   = (*Store)(nil)
	_ store.Holds    = (*Store)(nil)
	_ store.Shared   = (*Store)(nil)
	_ store.Bounded  = (*Store)(nil)
	_ store.Begins   = (*Store)(nil)
	_ store.Compacts = (*Store)(nil)
)

const (
	// maxEvents is what a server takes in one atomic batch.
	maxEvents = 1000
	// maxBytes bounds a batch; the server keeps it in memory until it commits.
	maxBytes = 8 << 20
	// minVersion is the first server with atomic batches.
	minMajor, minMinor = 2, 12
)

// SharedByProcesses is the ability [store.Shared].
func (s *Store) SharedByProcesses() {}

// MaxBatch implements [store.Bounded].
func (s *Store) MaxBatch() (events, bytes int) { return maxEvents, maxBytes }

// Open connects to the servers of url, several joined by commas, and checks
// that they can keep what the store promises. It makes the buckets for groups
// and leases if they are missing.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	s, err := open(ctx, url, o)
	if err != nil {
		return nil, fmt.Errorf("open nats store: %w", err)
	}
	return s, nil
}

func open(ctx context.Context, url string, o Options) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrInvalid, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Store{o: o, topics: make(map[string]*topic)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.groups.init()
	s.watches.init()
	if err := s.connect(ctx, url); err != nil {
		s.disconnect()
		return nil, err
	}
	if err := errors.Join(s.check(ctx), s.listen()); err != nil {
		s.disconnect()
		return nil, err
	}
	return s, nil
}

func (s *Store) connect(ctx context.Context, url string) error {
	for _, c := range []struct {
		conn **nats.Conn
		name string
	}{{&s.nc, "promethean"}, {&s.bulk, "promethean bulk"}} {
		opts, err := s.o.connectOptions(c.name)
		if err != nil {
			return err
		}
		opts = append(opts, nats.ReconnectHandler(func(*nats.Conn) { s.reconnected() }), nats.ErrorHandler(s.complained))
		err = s.retry(ctx, func(context.Context) (err error) {
			*c.conn, err = nats.Connect(url, opts...)
			return err
		})
		if err != nil {
			return fmt.Errorf("connect to %s: %w", url, err)
		}
	}
	var err error
	s.js, err = jetstream.New(s.bulk)
	return err
}

// check tells what is wrong with the server, and what to do about it.
func (s *Store) check(ctx context.Context) error {
	var account struct {
		answer
		API struct {
			Level int `json:"level"`
		} `json:"api"`
	}
	err := s.retry(ctx, func(ctx context.Context) error {
		err := s.ask(ctx, "INFO", nil, &account)
		if errors.Is(err, nats.ErrNoResponders) || codeOf(err) == codeNotEnabled || codeOf(err) == codeNotEnabledAcc {
			return fmt.Errorf("the account has no JetStream (%s): enable it with jetstream {} in the server's configuration and for the account", err.Error()) // not wrapped: trying again is no use
		}
		return err
	})
	if err != nil {
		return err
	}
	if v := s.nc.ConnectedServerVersion(); older(v, minMajor, minMinor) {
		return fmt.Errorf("server %s is version %s, which has no atomic batches: it must be %d.%d or newer", s.nc.ConnectedUrlRedacted(), v, minMajor, minMinor)
	}
	need := int64(s.o.Limits.Internal().Payload) + maxHeaderBytes
	if have := s.nc.MaxPayload(); have < need {
		return fmt.Errorf("the server's max_payload is %d bytes and events need %d (an internal record is twice the payload limit of %d and 64 KiB, with up to 64 KiB of headers): raise max_payload in the server's configuration, or lower Options.Limits.Payload to at most %d",
			have, need, s.o.Limits.Payload, max(0, (have-maxHeaderBytes-64<<10)/2))
	}
	if err := s.checkForeign(ctx); err != nil {
		return err
	}
	return s.openBuckets(ctx)
}

func older(version string, major, minor int) bool {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return false // an unknown scheme: the first stream will tell
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a < major || a == major && b < minor)
}

// checkForeign looks for streams that take subjects of ours and are not ours.
func (s *Store) checkForeign(ctx context.Context) error {
	type page struct {
		answer
		Total   int          `json:"total"`
		Streams []streamInfo `json:"streams"`
	}
	for offset := 0; ; {
		var p page
		err := s.retry(ctx, func(ctx context.Context) error {
			return s.ask(ctx, "STREAM.LIST", map[string]any{"offset": offset, "subject": s.o.Prefix + ".>"}, &p)
		})
		if err != nil {
			return err
		}
		for i := range p.Streams {
			c := &p.Streams[i].Config
			topic, ok := s.topicOf(c.Name)
			if !ok {
				return s.foreign(c, "takes subjects "+strings.Join(c.Subjects, ", "))
			}
			if err := s.checkOurs(topic, c); err != nil {
				return err
			}
		}
		if offset += len(p.Streams); len(p.Streams) == 0 || offset >= p.Total {
			return nil
		}
	}
}

func (s *Store) foreign(c *jetstream.StreamConfig, why string) error {
	return fmt.Errorf("foreign stream %s: it %s, and this store did not make it: remove it or choose another Options.Prefix than %q", c.Name, why, s.o.Prefix)
}

// checkOurs says why a stream cannot be that of a topic.
func (s *Store) checkOurs(topic string, c *jetstream.StreamConfig) error {
	switch {
	case c.Metadata[metaTopic] != topic:
		return s.foreign(c, "lacks the mark "+metaTopic+"="+topic)
	case !slices.Equal(c.Subjects, []string{s.allSubjects(topic)}):
		return s.foreign(c, "takes subjects "+strings.Join(c.Subjects, ", ")+" in place of "+s.allSubjects(topic))
	case c.Metadata[metaFormat] != format:
		return fmt.Errorf("stream %s: %w: %q, this program knows %q", c.Name, store.ErrFormat, c.Metadata[metaFormat], format)
	case !c.AllowAtomicPublish || !c.AllowDirect:
		return fmt.Errorf("stream %s does not allow atomic batches and direct gets: set allow_batch and allow_direct", c.Name)
	}
	return nil
}

// Close implements [store.Log]. Appends that are under way are answered first,
// for as long as one attempt takes.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.closing.Store(true)
		s.drain()
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		s.cancel()
		s.stopWatcher()
		s.disconnect()
		s.work.Wait()
	})
	return nil
}

// spawn runs f in a goroutine that Close waits for. After Close it does not.
func (s *Store) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.work.Go(f)
	return true
}

// drain waits until no committer is at work, or has waited long enough.
func (s *Store) drain() {
	end := time.NewTimer(s.o.AttemptTimeout)
	defer end.Stop()
	s.mu.Lock()
	all := make([]*topic, 0, len(s.topics))
	for _, t := range s.topics {
		all = append(all, t)
	}
	s.mu.Unlock()
	for _, t := range all {
		select {
		case <-t.idle():
		case <-end.C:
			return
		}
	}
}

func (s *Store) disconnect() {
	s.cancel()
	for _, c := range []*nats.Conn{s.nc, s.bulk} {
		if c != nil {
			c.Close()
		}
	}
}
