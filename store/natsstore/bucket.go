package natsstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
	"promethean/store"
)

// bucket is a key-value bucket: a stream that keeps the last message of each
// subject. A revision is the seq of that message.
type bucket struct {
	name, stream, subject string
}

// entry is a key's value.
type entry struct {
	value []byte
	rev   uint64
	at    time.Time // when the server stored it
	op    string    // who wrote it
}

const (
	metaBucket = "promethean.bucket"
	hdrOp      = "Op"           // tells a write of ours from another's after a lost answer
	hdrKV      = "KV-Operation" // of a deleted key
)

var (
	// errRace: the key has another revision than expected.
	errRace = errors.New("somebody else was quicker")
	// errBusy: the server is about to write the key.
	errBusy = errors.New("another write is under way")
)

func (s *Store) bucket(name string) bucket {
	name = s.o.Prefix + "-" + name
	return bucket{name: name, stream: "KV_" + name, subject: "$KV." + name + "."}
}

// openBuckets makes the buckets, and finds out on the way how many replicas
// there can be.
func (s *Store) openBuckets(ctx context.Context) error {
	s.cursors, s.leases = s.bucket("groups"), s.bucket("leases")
	s.replicas = s.o.Replicas
	for _, b := range []bucket{s.cursors, s.leases} {
		if err := s.openBucket(ctx, b); err != nil {
			return fmt.Errorf("bucket %s: %w", b.name, err)
		}
	}
	return nil
}

func (s *Store) openBucket(ctx context.Context, b bucket) error {
	c := jetstream.StreamConfig{
		Name: b.stream, Subjects: []string{b.subject + ">"}, Storage: s.o.Storage, Placement: s.o.Placement,
		Replicas: s.replicas, MaxMsgsPerSubject: 1, MaxBytes: -1, Discard: jetstream.DiscardNew,
		AllowRollup: true, DenyDelete: true, AllowDirect: true,
		Metadata: map[string]string{metaBucket: format},
	}
	if s.replicas == 0 {
		c.Replicas = 3
	}
	var i *streamInfo
	err := s.retry(ctx, func(ctx context.Context) (err error) {
		i, err = s.info(ctx, b.stream)
		return err
	})
	if codeOf(err) == codeStreamNotFound {
		i, err = s.makeBucket(ctx, &c)
	}
	if err != nil {
		return err
	}
	switch i.Config.Metadata[metaBucket] {
	case format:
	case "":
		return s.foreign(&i.Config, "lacks the mark "+metaBucket)
	default:
		return fmt.Errorf("%w: %q, this program knows %q", store.ErrFormat, i.Config.Metadata[metaBucket], format)
	}
	if s.replicas == 0 {
		s.replicas = i.Config.Replicas
	}
	return nil
}

// makeBucket creates a bucket. Where nobody asked for a number of replicas and
// the server stands alone, or in a pair, one has to do.
func (s *Store) makeBucket(ctx context.Context, c *jetstream.StreamConfig) (*streamInfo, error) {
	var i streamInfo
	err := s.retry(ctx, func(ctx context.Context) error {
		err := s.ask(ctx, "STREAM.CREATE."+c.Name, c, &i)
		if codeOf(err) == codeNoPeers && strings.Contains(err.Error(), "offline") {
			return fmt.Errorf("%w: %s", nats.ErrNoServers, err.Error()) // one that is starting, perhaps
		}
		return err
	})
	if code := codeOf(err); s.replicas == 0 && (code == codeNoReplicas || code == codeNoPeers) {
		c.Replicas = 1
	}
	if err != nil {
		err = s.putStream(ctx, "CREATE", c, &i)
	}
	return &i, err
}

// get reads a key from the bucket's leader: errGone if there is none. The
// revision of a deleted key is given too.
func (s *Store) get(ctx context.Context, b bucket, key string) (e entry, err error) {
	err = s.retry(ctx, func(ctx context.Context) error {
		m, err := s.fromLeader(ctx, b.stream, getRequest{Last: b.subject + key})
		if err != nil {
			return err
		}
		h, err := m.header()
		e = entry{value: m.Data, rev: m.Seq, at: m.Time, op: h.Get(hdrOp)}
		if err == nil && h.Get(hdrKV) != "" {
			err = errGone
		}
		return err
	})
	return e, err
}

// put replaces a key that has revision rev, 0 for none, and gives the new
// revision. With nil it deletes the key.
func (s *Store) put(ctx context.Context, b bucket, key string, value []byte, rev uint64) (uint64, error) {
	if most := s.nc.MaxPayload() - 1024; int64(len(value)) > most {
		return 0, fmt.Errorf("%w: a state of %d bytes, the server takes %d", store.ErrTooLarge, len(value), most)
	}
	op := event.NewID().String()
	m := &nats.Msg{Subject: b.subject + key, Data: value, Header: nats.Header{
		hdrLastSubjSeq: {strconv.FormatUint(rev, 10)},
		hdrOp:          {op},
	}}
	if value == nil {
		m.Header.Set(hdrKV, "DEL")
	}
	var ack pubAck
	unsure := false
	err := s.retry(ctx, func(ctx context.Context) (err error) {
		ack, err = s.publish(ctx, m)
		switch code := codeOf(err); {
		case code == codeWrongLastSeq, code == codeWrongLastSeq2 && !unsure:
			return errRace
		case code == codeWrongLastSeq2:
			return errBusy // a write is under way, and it may be ours
		}
		unsure = unsure || err != nil
		return err
	})
	if errors.Is(err, errRace) && unsure {
		if e, got := s.get(ctx, b, key); (got == nil || errors.Is(got, errGone)) && e.op == op {
			return e.rev, nil // it was ours
		}
	}
	return ack.Seq, err
}

// list gives all keys below a subject filter and their values.
func (s *Store) list(ctx context.Context, b bucket, filter string, each func(key string, e entry) error) error {
	var i *streamInfo
	err := s.retry(ctx, func(ctx context.Context) (err error) {
		i, err = s.info(ctx, b.stream)
		return err
	})
	if err != nil || i.State.Msgs == 0 {
		return err
	}
	r := scan{s: s, stream: b.stream, filter: b.subject + filter, lags: i.Config.Replicas > 1, last: i.State.LastSeq}
	return r.up(ctx, i.first(), math.MaxUint64, 0, func(seq uint64, m *nats.Msg) (bool, error) {
		if m.Header.Get(hdrKV) != "" {
			return true, nil
		}
		key := strings.TrimPrefix(m.Header.Get(hdrSubject), b.subject)
		return true, each(key, entry{value: m.Data, rev: seq, op: m.Header.Get(hdrOp)})
	})
}
