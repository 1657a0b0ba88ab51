package natsstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"promethean/event"
	"promethean/store"
)

const (
	// maxPage is how many messages one request brings, pageBytes about how
	// many bytes.
	maxPage   = 2000
	pageBytes = 4 << 20
	// fewHits: a window of a reverse read by key that finds fewer is followed
	// by a wider one.
	fewHits = 256
)

// Read implements [store.Log].
func (s *Store) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return func(yield func(event.Event, error) bool) {
		ctx, end, err := s.begin(ctx)
		if err != nil {
			yield(event.Event{}, err)
			return
		}
		defer end()
		if event.CheckTopic(q.Topic) != nil {
			return
		}
		left := q.Limit
		err = s.read(ctx, q, func(e *event.Event) bool {
			if q.Partition != 0 && e.Partition != q.Partition {
				return true
			}
			if !yield(*e, nil) {
				return false
			}
			left--
			return left != 0
		})
		if err != nil {
			yield(event.Event{}, fmt.Errorf("read topic %s: %w", q.Topic, s.outcome(ctx, err)))
		}
	}
}

// scan goes through messages of one stream.
type scan struct {
	s      *Store
	stream string
	filter string // a subject, with wildcards perhaps; "" for all
	// lags says that there are replicas, any of which may answer and may lag.
	lags bool
	// last is a seq that the answers must cover: everything that was
	// acknowledged before the scan began.
	last uint64
}

// read gives what q selects, but for its partition and limit, to each. The
// first answer is the leader's: without it a replica that lags behind could
// hide what was acknowledged, or show what was trimmed.
func (s *Store) read(ctx context.Context, q store.Query, each func(*event.Event) bool) error {
	if t := s.known(q.Topic); t != nil && t.there.Load() && t.replicas.Load() == 1 && q.Key == "" && !q.Reverse && q.Until == 0 && q.After < math.MaxUint64 {
		// There is nobody else to ask: what the one server shows is all.
		return s.readAlone(ctx, t, q, each)
	}
	i, err := s.inspect(ctx, q.Topic)
	if err != nil || i == nil {
		return err
	}
	b := s.extent(q.Topic, i)
	until := q.Until
	if until == 0 {
		until = math.MaxUint64
	}
	if q.After >= b.Last || until < b.First || until <= q.After {
		return nil
	}
	r := scan{s: s, stream: s.streamName(q.Topic), lags: i.Config.Replicas > 1, last: b.Last}
	if q.Key != "" {
		r.filter = s.subject(q.Topic, q.Key)
	}
	from := max(q.After+1, b.First)
	want := 0
	if q.Partition == 0 {
		want = q.Limit
	}
	if q.Reverse {
		return r.down(ctx, q.Topic, from, until, want, each)
	}
	if t := s.known(q.Topic); t != nil && q.Key == "" && q.Until == 0 {
		return s.readUp(ctx, t, &r, q, from, each)
	}
	return r.up(ctx, from, until, want, s.events(q.Topic, each))
}

// readAlone reads on from a seq to the end of a stream that one server keeps.
func (s *Store) readAlone(ctx context.Context, t *topic, q store.Query, each func(*event.Event) bool) error {
	r := scan{s: s, stream: t.stream}
	return s.readUp(ctx, t, &r, q, q.After+1, each)
}

// readUp reads on from a seq to the end.
func (s *Store) readUp(ctx context.Context, t *topic, r *scan, q store.Query, from uint64, each func(*event.Event) bool) error {
	want := 0
	if q.Partition == 0 {
		want = q.Limit
	}
	if want == 0 {
		return r.up(ctx, from, math.MaxUint64, want, s.events(t.name, each))
	}
	next, left, more, err := s.readOn(ctx, t, from, want, each)
	if err != nil || !more {
		return err
	}
	whole := left == want // without a reader
	err = r.up(ctx, next, math.MaxUint64, left, s.events(t.name, func(e *event.Event) bool {
		next = e.Seq + 1
		left--
		return each(e)
	}))
	if err == nil && left == 0 && whole {
		t.readers.ended(next, nil)
	}
	return err
}

// events decodes what a scan finds.
func (s *Store) events(topic string, each func(*event.Event) bool) func(uint64, *nats.Msg) (bool, error) {
	return func(seq uint64, m *nats.Msg) (bool, error) {
		e, err := s.decode(topic, m.Header.Get(hdrSubject), seq, m.Header, m.Data)
		return err == nil && each(&e), err
	}
}

// up goes from a seq up to another. It ends at the end of the stream, as a
// replica shows it that has at least r.last. Batches are never torn: a page is
// taken while nothing is written.
func (r *scan) up(ctx context.Context, from, until uint64, want int, each func(uint64, *nats.Msg) (bool, error)) error {
	size := max(256, min(want, maxPage)) // what is known to be wanted comes at once
	var wait time.Duration
	for from <= until {
		n := size
		size = min(2*size, maxPage)
		if want > 0 {
			n = min(n, want)
		}
		if r.filter == "" && until != math.MaxUint64 {
			n = int(min(uint64(n), until-from+1))
		}
		p, err := r.page(ctx, from, n)
		if err != nil {
			return err
		}
		for _, m := range p.msgs {
			seq, err := strconv.ParseUint(m.Header.Get(hdrSeq), 10, 64)
			if err != nil {
				return fmt.Errorf("a message without %s: %w", hdrSeq, err)
			}
			if seq > until {
				return nil
			}
			from = seq + 1
			if more, err := each(seq, m); err != nil || !more {
				return err
			}
			want--
		}
		if !p.end {
			continue
		}
		if !r.lags || from > r.last {
			return nil
		}
		if done, err := r.verify(ctx, from, until); done || err != nil {
			return err
		}
		pause(ctx, &wait) // the replica that answered lags behind
	}
	return nil
}

// verify asks the leader whether something is left to read.
func (r *scan) verify(ctx context.Context, from, until uint64) (done bool, err error) {
	req := getRequest{Seq: from, Next: r.filter}
	if req.Next == "" {
		req.Next = ">"
	}
	err = r.s.retry(ctx, func(ctx context.Context) error {
		m, err := r.s.fromLeader(ctx, r.stream, req)
		done = errors.Is(err, errGone) || err == nil && m.Seq > min(until, r.last)
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	})
	return done, err
}

// down goes backwards in windows, each of which is read upwards.
func (r *scan) down(ctx context.Context, topic string, from, until uint64, want int, each func(*event.Event) bool) error {
	width := uint64(512)
	if r.filter == "" && want > 0 {
		width = min(width, uint64(want))
	}
	top := min(until, r.last)
	if until > r.last {
		until = math.MaxUint64 // whatever came meanwhile: last may be in the middle of a batch
	}
	for top >= from {
		low := from
		if top-from >= width {
			low = top - width + 1
		}
		var found []event.Event
		if err := r.up(ctx, low, until, 0, r.s.events(topic, func(e *event.Event) bool {
			found = append(found, *e)
			return true
		})); err != nil {
			return err
		}
		for _, e := range slices.Backward(found) {
			if !each(&e) {
				return nil
			}
		}
		if len(found) < fewHits {
			width *= 4
		} else if len(found) > 4*maxPage {
			width = max(width/4, 1)
		}
		if low == from {
			return nil
		}
		top = low - 1
		until = top
	}
	return nil
}

// page is what one request brings: messages in order, and whether the replica
// had no more.
type page struct {
	msgs []*nats.Msg
	end  bool
}

func (r *scan) page(ctx context.Context, from uint64, n int) (p page, err error) {
	err = r.s.retry(ctx, func(ctx context.Context) (err error) {
		p, err = r.s.page(ctx, r.stream, getRequest{Seq: from, Next: r.filter, Batch: n, MaxBytes: pageBytes})
		return err
	})
	return p, err
}

// page gets a batch of messages from any replica.
func (s *Store) page(ctx context.Context, stream string, req getRequest) (page, error) {
	var p page
	body, err := json.Marshal(req)
	if err != nil {
		return p, err
	}
	inbox := s.bulk.NewInbox()
	answers := make(chan *nats.Msg, req.Batch+2)
	sub, err := s.bulk.ChanSubscribe(inbox, answers)
	if err != nil {
		return p, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := s.bulk.PublishRequest(apiPrefix+"DIRECT.GET."+stream, inbox, body); err != nil {
		return p, err
	}
	for {
		select {
		case m := <-answers:
			switch status := m.Header.Get(hdrStatus); status {
			case "":
				p.msgs = append(p.msgs, m)
			case "204":
				p.end = m.Header.Get(hdrPending) == "0"
				return p, nil
			case "404":
				p.end = true
				return p, nil
			case "503":
				return p, nats.ErrNoResponders
			default:
				return p, fmt.Errorf("direct get from stream %s: status %s %s", stream, status, m.Header.Get("Description"))
			}
		case <-ctx.Done():
			return page{}, ctx.Err()
		}
	}
}

// originals reads single events by their seq. Those that are gone are missing.
func (s *Store) originals(ctx context.Context, t *topic, seqs []uint64) (map[uint64]event.Event, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	out := make(map[uint64]event.Event, len(seqs))
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	if err := s.fetch(ctx, t, seqs, out); err != nil {
		return nil, err
	}
	missing := slices.DeleteFunc(seqs, func(seq uint64) bool { _, ok := out[seq]; return ok })
	if len(missing) == 0 || t.replicas.Load() == 1 {
		return out, nil
	}
	// The tail may bring an event from a replica that is ahead of the leader:
	// it is gone only if the leader, having come as far, says so.
	if _, err := s.inspect(ctx, t.name); err != nil {
		return nil, err
	}
	return out, s.fetch(ctx, t, missing, out)
}

// fetch reads events by their seqs, which ascend.
func (s *Store) fetch(ctx context.Context, t *topic, seqs []uint64, out map[uint64]event.Event) error {
	r := scan{s: s, stream: t.stream, lags: t.replicas.Load() != 1, last: seqs[len(seqs)-1]}
	for len(seqs) > 0 {
		n := 1 // neighbours come with one request
		for n < len(seqs) && seqs[n]-seqs[n-1] <= 8 {
			n++
		}
		err := r.up(ctx, seqs[0], seqs[n-1], 0, s.events(t.name, func(e *event.Event) bool {
			out[e.Seq] = *e
			return true
		}))
		if err != nil {
			return err
		}
		seqs = seqs[n:]
	}
	return nil
}
