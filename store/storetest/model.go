package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"promethean/event"
	"promethean/store"
)

// Model runs random operations on an engine and on a [Reference] at once and
// compares every answer. On a difference rapid looks for a shorter sequence
// that shows it. The flags of rapid apply, such as -rapid.checks and
// -rapid.seed.
func Model(t *testing.T, h Harness) {
	h = h.withDefaults()
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
		defer cancel()
		m := &model{t: rt, h: h, ctx: ctx, e: h.Open(t), ref: NewReference(event.Limits{Payload: h.Payload})}
		// Closed here and not by the cleanup of the test, which may be
		// thousands of stores away.
		defer func() { _ = m.e.Close() }()
		actions := map[string]func(*rapid.T){
			"":              func(*rapid.T) { m.compareBounds() },
			"append":        func(rt *rapid.T) { m.append(rt, false) },
			"append again":  func(rt *rapid.T) { m.append(rt, false) },
			"append async":  func(rt *rapid.T) { m.append(rt, true) },
			"read":          m.read,
			"read again":    m.read,
			"locate":        m.locate,
			"trim":          m.trim,
			"set topic":     m.setTopic,
			"list":          func(*rapid.T) { m.compareLists() },
			"settle":        m.settle,
			"put cursor":    m.putCursor,
			"delete cursor": m.deleteCursor,
		}
		if _, ok := m.e.(store.Compacts); ok {
			actions["compact"], actions["compact again"] = m.compact, m.compact
		}
		if h.Reopen != nil {
			actions["reopen"] = func(*rapid.T) { m.e = h.Reopen(t, m.e) }
		}
		rt.Repeat(actions)
		m.compareLists()
	})
}

type model struct {
	t     *rapid.T
	h     Harness
	ctx   context.Context
	e     Engine
	ref   *Reference
	count int
}

var (
	modelTopics = rapid.SampledFrom([]string{topicA, topicB, topicC})
	modelKeys   = rapid.SampledFrom([]string{"", "", "a", "ab", "b", "é"})
	modelGroups = rapid.SampledFrom([]string{"g", "h", "g:1"})
	modelParts  = rapid.Map(rapid.IntRange(-1, 2), func(n int) event.Partition {
		if n < 0 {
			return 0
		}
		return event.PartitionOf(n)
	})
)

// agree compares two errors by what callers tell apart.
func (m *model) agree(what string, got, want error) bool {
	m.t.Helper()
	if (got == nil) != (want == nil) {
		m.t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for _, kind := range []error{store.ErrConflict, store.ErrFenced, store.ErrNotFound, store.ErrSeqConflict, store.ErrInvalid, event.ErrBadJSON, event.ErrInvalidHeader} {
		if errors.Is(want, kind) && !errors.Is(got, kind) {
			m.t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
	return got == nil
}

// seq draws a position around what the topic holds.
func (m *model) seq(rt *rapid.T, topic, label string) uint64 {
	b, _ := m.ref.Bounds(m.ctx, topic)
	return rapid.OneOf(rapid.Uint64Range(0, b.Last+2), rapid.Just(b.Last), rapid.Just(b.First)).Draw(rt, label)
}

func (m *model) last(topic string) uint64 {
	b, _ := m.ref.Bounds(m.ctx, topic)
	return b.Last
}

// id draws one of few ids, so that many are known.
func (m *model) id(rt *rapid.T) event.ID {
	n := rapid.IntRange(0, 60).Draw(rt, "id")
	return event.NameID(event.ID{9}, fmt.Sprint(n))
}

func (m *model) event(rt *rapid.T, topic string) event.Event {
	m.count++
	e := event.Event{
		ID: m.id(rt), Topic: topic, Key: modelKeys.Draw(rt, "key"), Partition: modelParts.Draw(rt, "partition"),
		TS:      rapid.Int64Range(0, 50).Draw(rt, "ts"),
		SID:     fmt.Sprint(m.count),
		Payload: json.RawMessage(rapid.SampledFrom(exactPayloads).Draw(rt, "payload")),
	}
	switch rapid.IntRange(0, 60).Draw(rt, "spoilt") {
	case 0:
		e.Payload = json.RawMessage(`{"cut`)
	case 1:
		e.Headers = event.Headers{{Name: "Bad", Value: ""}}
	case 2:
		e.Headers = event.Headers{{Name: "x-a", Value: "v"}}
		e.Tags, e.CausedBy = []string{"t"}, []string{"c", "d"}
	case 4, 5, 6, 7, 8, 9, 10, 11:
		e.Payload = json.RawMessage(rapid.SampledFrom([]string{`null`, `{"_deleted":true}`, `{"_deleted":false}`, `{"a":{"_deleted":true}}`}).Draw(rt, "tombstone"))
	case 3:
		e.Payload = sized(topic, rapid.IntRange(2, min(m.h.Payload, 9000)).Draw(rt, "size")).Payload
	}
	return e
}

func (m *model) append(rt *rapid.T, async bool) {
	b := store.Batch{Async: async}
	topic := modelTopics.Draw(rt, "topic")
	_, spans := m.e.(store.AtomicTopics)
	for range rapid.IntRange(1, 5).Draw(rt, "events") {
		if spans {
			topic = modelTopics.Draw(rt, "topic")
		}
		b.Events = append(b.Events, m.event(rt, topic))
	}
	if rapid.IntRange(0, 3).Draw(rt, "expects") == 0 {
		x := store.Expect{Topic: topic, Key: modelKeys.Draw(rt, "expected key")}
		x.Seq = m.seq(rt, topic, "expected seq")
		b.Expect = append(b.Expect, x)
	}
	m.compareAppend(b)
	if async { // until it is visible, the two cannot be compared
		for _, e := range b.Events {
			m.await(e.Topic)
		}
	}
}

func (m *model) compareAppend(b store.Batch) {
	m.t.Helper()
	want, wantErr := m.ref.Append(m.ctx, b)
	got, err := m.e.Append(m.ctx, b)
	if !m.agree(fmt.Sprintf("append %+v", b), err, wantErr) {
		var a, c *store.SeqConflictError
		if errors.As(wantErr, &a) && (!errors.As(err, &c) || *a != *c) {
			m.t.Fatalf("append: %v, want %v", err, wantErr)
		}
		return
	}
	if err := answersFit(b, got); err != nil {
		m.t.Fatal(err)
	}
	for i := range want {
		if got[i].Seq != want[i].Seq || got[i].Duplicate != want[i].Duplicate {
			m.t.Fatalf("append: answer %d is %+v, want %+v", i, got[i], want[i])
		}
		// An answer that does not wait may come before the original is
		// visible, and must not show it then.
		if !want[i].Duplicate || b.Async && got[i].Original == nil {
			continue
		}
		if got[i].Original == nil || !same(got[i].Original, want[i].Original) {
			m.t.Fatalf("append: the original of answer %d is %v, want %s", i, got[i].Original, show(want[i].Original))
		}
	}
}

// await waits until the engine shows as much of a topic as the reference.
func (m *model) await(topic string) {
	w := m.e.Watch(topic)
	defer w.Stop()
	want, _ := m.ref.Bounds(m.ctx, topic)
	for {
		got, err := m.e.Bounds(m.ctx, topic)
		if err != nil {
			m.t.Fatalf("bounds: %v", err)
		}
		if got.Last >= want.Last {
			return
		}
		select {
		case <-w.C:
		case <-m.ctx.Done():
			m.t.Fatalf("topic %s: waited in vain for seq %d", topic, want.Last)
		}
	}
}

func (m *model) settle(rt *rapid.T) {
	s := store.Settlement{Topic: modelTopics.Draw(rt, "topic"), Group: modelGroups.Draw(rt, "group"), Epoch: rapid.Uint64Range(0, 2).Draw(rt, "epoch")}
	for range rapid.IntRange(0, 3).Draw(rt, "ranges") {
		first := max(m.seq(rt, s.Topic, "first"), 1)
		s.Done = append(s.Done, store.Range{First: first, Last: first + rapid.Uint64Range(0, 4).Draw(rt, "length")})
	}
	for range rapid.IntRange(0, 2).Draw(rt, "attempts") {
		if last := m.last(s.Topic); last > 0 {
			s.Attempts = append(s.Attempts, store.Attempt{Seq: rapid.Uint64Range(1, last).Draw(rt, "attempted"), Count: rapid.Uint32Range(1, 9).Draw(rt, "count")})
		}
	}
	s.Handed = rapid.Uint64Range(0, 20).Draw(rt, "handed")
	b := store.Batch{Settle: []store.Settlement{s}}
	_, spans := m.e.(store.AtomicTopics)
	if _, beside := m.e.(store.Settles); beside && rapid.Bool().Draw(rt, "with an event") {
		topic := s.Topic
		if spans {
			topic = modelTopics.Draw(rt, "event's topic")
		}
		// Whether the settlement may name the events beside it is left open,
		// so the event goes where that cannot make a difference.
		if b, _ := m.ref.Bounds(m.ctx, s.Topic); topic == s.Topic {
			for i := range s.Done {
				if s.Done[i].Last == b.Last+1 {
					return
				}
			}
		}
		b.Events = append(b.Events, m.event(rt, topic))
	}
	m.compareAppend(b)
}

func (m *model) read(rt *rapid.T) {
	q := store.Query{
		Topic: modelTopics.Draw(rt, "topic"), Key: modelKeys.Draw(rt, "key"), Partition: modelParts.Draw(rt, "partition"),
		Reverse: rapid.Bool().Draw(rt, "reverse"), Limit: rapid.IntRange(0, 5).Draw(rt, "limit"),
	}
	q.After = rapid.OneOf(rapid.Just(uint64(0)), rapid.Custom(func(rt *rapid.T) uint64 { return m.seq(rt, q.Topic, "after") })).Draw(rt, "after")
	q.Until = rapid.OneOf(rapid.Just(uint64(0)), rapid.Just(uint64(math.MaxUint64)), rapid.Custom(func(rt *rapid.T) uint64 { return m.seq(rt, q.Topic, "until") })).Draw(rt, "until")
	got, err := readAll(m.ctx, m.e, q)
	want, _ := readAll(m.ctx, m.ref, q)
	if err != nil {
		m.t.Fatalf("read %s: %v", describe(q), err)
	}
	if diff := differ(got, want); diff != "" {
		m.t.Fatalf("read %s: %s", describe(q), diff)
	}
}

func (m *model) locate(rt *rapid.T) {
	topic, id, ts := modelTopics.Draw(rt, "topic"), m.id(rt), rapid.Int64Range(-1, 51).Draw(rt, "ts")
	got, err := m.e.LocateID(m.ctx, topic, id)
	want, wantErr := m.ref.LocateID(m.ctx, topic, id)
	if m.agree("locate id", err, wantErr) && got != want {
		m.t.Fatalf("topic %s: id %s is located at %d, want %d", topic, id, got, want)
	}
	got, err = m.e.LocateTime(m.ctx, topic, ts)
	want, wantErr = m.ref.LocateTime(m.ctx, topic, ts)
	if m.agree("locate time", err, wantErr) && got != want {
		m.t.Fatalf("topic %s: time %d is located at %d, want %d", topic, ts, got, want)
	}
}

func (m *model) trim(rt *rapid.T) {
	topic := modelTopics.Draw(rt, "topic")
	before := m.seq(rt, topic, "before")
	m.agree("trim", m.e.Trim(m.ctx, topic, before), m.ref.Trim(m.ctx, topic, before))
}

func (m *model) compact(rt *rapid.T) {
	topic := modelTopics.Draw(rt, "topic")
	c := store.Compaction{Before: m.seq(rt, topic, "before"), Tombstones: m.seq(rt, topic, "tombstones")}
	if rapid.IntRange(0, 3).Draw(rt, "of one key") == 0 {
		c.Key = modelKeys.Draw(rt, "key")
	}
	got, err := m.e.(store.Compacts).Compact(m.ctx, topic, c)
	want, wantErr := m.ref.Compact(m.ctx, topic, c)
	if !m.agree(fmt.Sprintf("compact %+v", c), err, wantErr) {
		return
	}
	got.Bytes, want.Bytes = 0, 0 // about
	if got != want {
		m.t.Fatalf("compact %+v: %+v, want %+v", c, got, want)
	}
}

func (m *model) setTopic(rt *rapid.T) {
	topic := modelTopics.Draw(rt, "topic")
	s := store.Settings{Partitions: rapid.IntRange(1, 9).Draw(rt, "partitions"), Meta: []byte(rapid.StringN(0, 5, -1).Draw(rt, "meta"))}
	m.agree("set topic", m.e.SetTopic(m.ctx, topic, s), m.ref.SetTopic(m.ctx, topic, s))
}

func (m *model) putCursor(rt *rapid.T) {
	c := store.Cursor{Topic: modelTopics.Draw(rt, "topic"), Group: modelGroups.Draw(rt, "group")}
	if old, err := m.ref.Cursor(m.ctx, c.Topic, c.Group); err == nil {
		c = old
	}
	switch rapid.IntRange(0, 9).Draw(rt, "what") {
	case 0:
		c.Version++
	case 1:
		c.Version = 0
	case 2:
		if c.Epoch > 0 {
			c.Epoch--
		}
	case 3:
		c.Epoch++
	case 4:
		c.Floor, c.Settled, c.Attempts = min(m.seq(rt, c.Topic, "floor"), m.last(c.Topic)), nil, nil
	case 5:
		c.Meta = []byte(rapid.StringN(0, 20, -1).Draw(rt, "meta"))
	case 6:
		c.Generation++
	}
	got, err := m.e.PutCursor(m.ctx, c)
	want, wantErr := m.ref.PutCursor(m.ctx, c)
	if !m.agree("put cursor", err, wantErr) || got == want {
		return
	}
	if c.Version != 0 || got == 0 {
		m.t.Fatalf("put cursor: version %d, want %d", got, want)
	}
	// A group that was deleted and made again may count on: the reference
	// follows.
	c = m.ref.cursors[groupName{c.Topic, c.Group}]
	c.Version = got
	m.ref.cursors[groupName{c.Topic, c.Group}] = c
}

func (m *model) deleteCursor(rt *rapid.T) {
	topic, group := modelTopics.Draw(rt, "topic"), modelGroups.Draw(rt, "group")
	version := uint64(1)
	if c, err := m.ref.Cursor(m.ctx, topic, group); err == nil && rapid.Bool().Draw(rt, "right version") {
		version = c.Version
	}
	m.agree("delete cursor", m.e.DeleteCursor(m.ctx, topic, group, version), m.ref.DeleteCursor(m.ctx, topic, group, version))
}

func (m *model) compareBounds() {
	for _, topic := range []string{topicA, topicB, topicC} {
		got, err := m.e.Bounds(m.ctx, topic)
		want, _ := m.ref.Bounds(m.ctx, topic)
		if err != nil || got.First != want.First || got.Last != want.Last || got.Bytes == 0 && want.Bytes > 0 {
			m.t.Fatalf("bounds of topic %s: %+v, %v; want %+v", topic, got, err, want)
		}
	}
}

// compareLists compares everything that can be listed.
func (m *model) compareLists() {
	got, err := readContents(m.e)
	if err != nil {
		m.t.Fatal(err)
	}
	want, err := readContents(m.ref)
	if err != nil {
		m.t.Fatal(err)
	}
	// Whether a group or a trim makes a topic is left open.
	for _, c := range []*contents{got, want} {
		c.topics = slices.DeleteFunc(c.topics, func(t store.Topic) bool {
			return t.Bounds.Last == 0 && sameSettings(t.Settings, store.Settings{})
		})
	}
	if err := got.equals(want); err != nil {
		m.t.Fatal(err)
	}
}
