package migrate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"promethean/event"
	"promethean/store"
)

// MismatchError names a difference. It is ErrMismatch.
type MismatchError struct {
	Topic string
	Group string // "" where it is not about a group
	Seq   uint64 // 0 where it is not about an event
	// Field is what differs.
	Field string
	// Detail says how.
	Detail string
}

func (e *MismatchError) Error() string {
	where := "topic " + e.Topic
	if e.Group != "" {
		where += ", group " + e.Group
	}
	if e.Seq != 0 {
		where += fmt.Sprintf(", seq %d", e.Seq)
	}
	return fmt.Sprintf("%s: %s: %s", where, e.Field, e.Detail)
}

// Unwrap makes errors.Is(err, ErrMismatch) true.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// verify compares topics, events and groups.
func (m *migration) verify(ctx context.Context) error {
	there, err := list(ctx, m.to)
	if err != nil {
		return fmt.Errorf("list the topics of the target: %w", err)
	}
	if err := sameNames(m.topics, there); err != nil {
		return err
	}
	if err := m.each(ctx, m.verifyTopic); err != nil {
		return err
	}
	return m.verifyGroups(ctx)
}

func sameNames(want, got []store.Topic) error {
	name := func(list []store.Topic, i int) string {
		if i < len(list) {
			return list[i].Name
		}
		return ""
	}
	for i := range max(len(want), len(got)) {
		w, g := name(want, i), name(got, i)
		switch {
		case w == g:
			continue
		case g == "" || w != "" && w < g:
			return &MismatchError{Topic: w, Field: "topic", Detail: "the target lacks it"}
		default:
			return &MismatchError{Topic: g, Field: "topic", Detail: "the source lacks it"}
		}
	}
	return nil
}

// expires says whether a topic loses events by itself.
func expires(s store.Settings) bool { return s.Retention > 0 || s.MaxBytes > 0 }

// side is one of the two engines while a topic is compared.
type side struct {
	name string
	log  store.Log
	// next gives the events one by one.
	next func() (*event.Event, error)
	at   *event.Event // nil at the end
}

func (s *side) step() (err error) {
	if s.at, err = s.next(); err != nil {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return err
}

// verifyTopic compares the events of a topic.
func (m *migration) verifyTopic(ctx context.Context, t store.Topic) error {
	want, err := m.from.Bounds(ctx, t.Name)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	got, err := m.to.Bounds(ctx, t.Name)
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	if want.Last != got.Last {
		return &MismatchError{Topic: t.Name, Field: "last seq", Detail: fmt.Sprintf("%d in the source, %d in the target", want.Last, got.Last)}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := store.Query{Topic: t.Name, Until: want.Last}
	a, b := &side{name: "source", log: m.from}, &side{name: "target", log: m.to}
	var stop [2]func()
	a.next, stop[0] = pull(ctx, m.from, q)
	defer stop[0]()
	b.next, stop[1] = pull(ctx, m.to, q)
	defer stop[1]()
	if err := cmp.Or(a.step(), b.step()); err != nil {
		return fmt.Errorf("compare topic %s: %w", t.Name, err)
	}
	var seen uint64
	for n := 1; a.at != nil || b.at != nil; n++ {
		var err error
		switch {
		case b.at == nil || a.at != nil && a.at.Seq < b.at.Seq:
			seen = a.at.Seq
			err = m.lone(ctx, t.Name, a, b)
		case a.at == nil || b.at.Seq < a.at.Seq:
			seen = b.at.Seq
			err = m.lone(ctx, t.Name, b, a)
		default:
			if field, detail := differ(a.at, b.at); field != "" {
				return &MismatchError{Topic: t.Name, Seq: a.at.Seq, Field: field, Detail: detail}
			}
			m.compared.Add(1)
			seen = a.at.Seq
			err = cmp.Or(a.step(), b.step())
		}
		if err != nil {
			return fmt.Errorf("compare topic %s: %w", t.Name, err)
		}
		if n%1024 == 0 && seen >= want.First {
			m.advance(int64(seen + 1 - want.First))
			want.First = seen + 1
		}
	}
	m.advance(int64(want.Last + 1 - want.First))
	return nil
}

// lone judges an event that one side has and the other has not: retention may
// have removed it there, and then what follows up to where the other begins.
func (m *migration) lone(ctx context.Context, topic string, has, lacks *side) error {
	b, err := lacks.log.Bounds(ctx, topic)
	if err != nil {
		return fmt.Errorf("%s: %w", lacks.name, err)
	}
	if has.at.Seq < b.First {
		for t, err := range lacks.log.Topics(ctx) {
			if err != nil {
				return fmt.Errorf("%s: %w", lacks.name, err)
			}
			if t.Name != topic || !expires(t.Settings) {
				continue
			}
			for err == nil && has.at != nil && has.at.Seq < b.First {
				m.expired.Add(1)
				err = has.step()
			}
			return err
		}
	}
	return &MismatchError{Topic: topic, Seq: has.at.Seq, Field: "event", Detail: fmt.Sprintf("%s has it as id %s, the %s lacks it", has.name, has.at.ID, lacks.name)}
}

// differ names the first field in which two events differ.
func differ(a, b *event.Event) (field, detail string) {
	pa, oka := a.Partition.Get()
	pb, okb := b.Partition.Get()
	switch {
	case a.ID != b.ID:
		return "id", texts(a.ID, b.ID)
	case a.TS != b.TS:
		return "ts", texts(a.TS, b.TS)
	case a.Topic != b.Topic:
		return "topic", texts(a.Topic, b.Topic)
	case a.Key != b.Key:
		return "key", texts(a.Key, b.Key)
	case oka != okb || pa != pb:
		return "partition", texts(pa, pb)
	case a.SID != b.SID:
		return "sid", texts(a.SID, b.SID)
	case !slices.Equal(a.Headers, b.Headers) && !slices.Equal(byName(a.Headers), byName(b.Headers)):
		return "headers", texts(a.Headers, b.Headers)
	case !slices.Equal(a.CausedBy, b.CausedBy):
		return "caused_by", texts(a.CausedBy, b.CausedBy)
	case !slices.Equal(a.Tags, b.Tags):
		return "tags", texts(a.Tags, b.Tags)
	case !bytes.Equal(a.Payload, b.Payload):
		return "payload", texts(string(a.Payload), string(b.Payload))
	}
	return "", ""
}

// byName sorts headers, whose order means nothing.
func byName(h event.Headers) event.Headers {
	return slices.SortedFunc(slices.Values(h), func(a, b event.Header) int { return cmp.Compare(a.Name, b.Name) })
}

// texts shows two values.
func texts(a, b any) string {
	show := func(v any) string {
		s := fmt.Sprintf("%v", v)
		if len(s) > 80 {
			s = fmt.Sprintf("%.80s… (%d bytes)", s, len(s))
		}
		return fmt.Sprintf("%q", s)
	}
	return show(a) + " in the source, " + show(b) + " in the target"
}

func join(names []string) string { return strings.Join(names, ", ") }

// verifySettings compares the settings of topics.
func (m *migration) verifySettings(ctx context.Context) error {
	want := make(map[string]store.Settings)
	for _, t := range m.topics {
		want[t.Name] = t.Settings
	}
	got, err := list(ctx, m.to)
	if err != nil {
		return fmt.Errorf("list the topics of the target: %w", err)
	}
	for _, t := range got {
		if field := sameSettings(want[t.Name], t.Settings); field != "" {
			return &MismatchError{Topic: t.Name, Field: "setting " + field, Detail: texts(want[t.Name], t.Settings)}
		}
	}
	return nil
}

// verifyGroups compares the groups.
func (m *migration) verifyGroups(ctx context.Context) error {
	all := make(map[[2]string]store.Cursor)
	for c, err := range m.from.Cursors(ctx, "") {
		if err != nil {
			return fmt.Errorf("groups of the source: %w", err)
		}
		all[[2]string{c.Topic, c.Group}] = c
	}
	m.sum.Groups = len(all)
	for c, err := range m.to.Cursors(ctx, "") {
		if err != nil {
			return fmt.Errorf("groups of the target: %w", err)
		}
		if c.Group == markGroup {
			continue
		}
		want, ok := all[[2]string{c.Topic, c.Group}]
		if !ok {
			return &MismatchError{Topic: c.Topic, Group: c.Group, Field: "group", Detail: "the source lacks it"}
		}
		if field := differsIn(&want, &c); field != "" {
			return &MismatchError{Topic: c.Topic, Group: c.Group, Field: field, Detail: "it differs"}
		}
		delete(all, [2]string{c.Topic, c.Group})
	}
	for k := range all {
		return &MismatchError{Topic: k[0], Group: k[1], Field: "group", Detail: "the target lacks it"}
	}
	return nil
}

// differsIn names the first field in which two states of a group differ. The
// version counts the changes in one engine and is not looked at.
func differsIn(a, b *store.Cursor) string {
	switch {
	case a.Floor != b.Floor:
		return "floor"
	case !slices.Equal(a.Settled, b.Settled):
		return "settled"
	case !maps.Equal(a.Attempts, b.Attempts):
		return "attempts"
	case a.Handed != b.Handed:
		return "handed"
	case a.Generation != b.Generation:
		return "generation"
	case a.Epoch != b.Epoch:
		return "epoch"
	case !bytes.Equal(a.Meta, b.Meta):
		return "meta"
	}
	return ""
}

const (
	// blockEvents is how many events go from one goroutine to another at once,
	// and aheadBlocks how many such blocks a reader is ahead.
	blockEvents = 512
	aheadBlocks = 4
)

// ahead reads in a goroutine of its own, which ends with the iteration.
func ahead(ctx context.Context, log store.Log, q store.Query) iter.Seq2[[]event.Event, error] {
	type part struct {
		events []event.Event
		err    error
	}
	return func(yield func([]event.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		parts := make(chan part, aheadBlocks)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		send := func(p part) bool {
			select {
			case parts <- p:
				return true
			case <-ctx.Done():
				return false
			}
		}
		wg.Go(func() {
			defer close(parts)
			block := make([]event.Event, 0, blockEvents)
			for e, err := range log.Read(ctx, q) {
				if err != nil {
					send(part{err: err})
					return
				}
				if block = append(block, e); len(block) == blockEvents {
					if !send(part{events: block}) {
						return
					}
					block = make([]event.Event, 0, blockEvents)
				}
			}
			send(part{events: block})
		})
		for p := range parts {
			if !yield(p.events, p.err) || p.err != nil {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// pull gives the events of a query one by one, nil at the end.
func pull(ctx context.Context, log store.Log, q store.Query) (next func() (*event.Event, error), stop func()) {
	blocks, stop := iter.Pull2(ahead(ctx, log, q))
	var block []event.Event
	return func() (*event.Event, error) {
		for len(block) == 0 {
			var err error
			var ok bool
			if block, err, ok = blocks(); !ok || err != nil {
				return nil, err
			}
		}
		e := &block[0]
		block = block[1:]
		return e, nil
	}, stop
}
