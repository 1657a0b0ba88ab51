package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"promethean/event"
	"promethean/store"
)

// contents is all that a store can be asked for.
type contents struct {
	topics  []store.Topic
	logs    map[string][]event.Event
	cursors []store.Cursor
}

// readContents reads everything, by every index, and checks that the answers
// agree with each other.
func readContents(e Engine) (*contents, error) {
	ctx := context.Background()
	c := &contents{logs: make(map[string][]event.Event)}
	for topic, err := range e.Topics(ctx) {
		if err != nil {
			return nil, fmt.Errorf("topics: %w", err)
		}
		c.topics = append(c.topics, topic)
	}
	for _, topic := range c.topics {
		log, err := readAll(ctx, e, store.Query{Topic: topic.Name})
		if err != nil {
			return nil, fmt.Errorf("read topic %s: %w", topic.Name, err)
		}
		c.logs[topic.Name] = log
		if err := agrees(ctx, e, topic, log); err != nil {
			return nil, err
		}
	}
	for cursor, err := range e.Cursors(ctx, "") {
		if err != nil {
			return nil, fmt.Errorf("cursors: %w", err)
		}
		c.cursors = append(c.cursors, cursor)
	}
	return c, nil
}

// agrees asks for the events of a topic in all other ways.
func agrees(ctx context.Context, e Engine, topic store.Topic, log []event.Event) error {
	b := topic.Bounds
	if b.Empty() != (len(log) == 0) || len(log) > 0 && (log[0].Seq != b.First || log[len(log)-1].Seq > b.Last) {
		return broken("topic %s: bounds say %d to %d, and there are %d events", topic.Name, b.First, b.Last, len(log))
	}
	ids, keys := make(map[event.ID]bool), make(map[string]bool)
	for i, ev := range log {
		if i > 0 && ev.Seq <= log[i-1].Seq {
			return broken("topic %s: seq %d behind %d", topic.Name, ev.Seq, log[i-1].Seq)
		}
		if ids[ev.ID] {
			return broken("topic %s: seq %d has the id of an earlier event", topic.Name, ev.Seq)
		}
		ids[ev.ID], keys[ev.Key] = true, true
		seq, err := e.LocateID(ctx, topic.Name, ev.ID)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("locate id in topic %s: %w", topic.Name, err)
		}
		if err != nil || seq != ev.Seq {
			return broken("topic %s: the id of seq %d is located at %d, %v", topic.Name, ev.Seq, seq, err)
		}
	}
	for key := range keys {
		for _, reverse := range []bool{false, true} {
			q := store.Query{Topic: topic.Name, Key: key, Reverse: reverse}
			got, err := readAll(ctx, e, q)
			if err != nil {
				return fmt.Errorf("read %s: %w", describe(q), err)
			}
			if diff := differ(got, pick(log, q)); diff != "" {
				return broken("read %s: %s", describe(q), diff)
			}
		}
	}
	return nil
}

// equals compares what two stores hold.
func (c *contents) equals(d *contents) error {
	if len(c.topics) != len(d.topics) || len(c.cursors) != len(d.cursors) {
		return broken("%d topics and %d groups, want %d and %d", len(c.topics), len(c.cursors), len(d.topics), len(d.cursors))
	}
	for i, topic := range c.topics {
		other := d.topics[i]
		if topic.Name != other.Name || topic.Bounds.First != other.Bounds.First || topic.Bounds.Last != other.Bounds.Last || !sameSettings(topic.Settings, other.Settings) {
			return broken("topic %+v, want %+v", topic, other)
		}
		if diff := differ(c.logs[topic.Name], d.logs[topic.Name]); diff != "" {
			return broken("topic %s: %s", topic.Name, diff)
		}
	}
	for i := range c.cursors {
		if !sameCursor(c.cursors[i], d.cursors[i]) {
			return broken("cursor %+v, want %+v", c.cursors[i], d.cursors[i])
		}
	}
	return nil
}

func sameSettings(a, b store.Settings) bool {
	return a.Retention == b.Retention && a.MaxBytes == b.MaxBytes && a.Async == b.Async &&
		max(a.Partitions, 1) == max(b.Partitions, 1) && bytes.Equal(a.Meta, b.Meta)
}

// settleUp judges a store that was opened after trouble: first what it holds,
// then that it takes the batches again of which nobody knew, and new ones.
// Afterwards the ledger says what is there.
func (l *ledger) settleUp(e Engine) error {
	if err := l.judge(e); err != nil {
		return err
	}
	if err := l.retry(e); err != nil {
		return fmt.Errorf("sent again: %w", err)
	}
	return l.judge(e)
}

// judge compares a store with the ledger, and notes which of the open
// questions it answers.
func (l *ledger) judge(e Engine) error {
	c, err := readContents(e)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	there := make(map[eventName]uint64)
	for _, topic := range c.topics {
		for i := range c.logs[topic.Name] {
			ev := &c.logs[topic.Name][i]
			there[eventName{ev.Topic, ev.ID}] = ev.Seq
			if err := l.show(ev); err != nil {
				return err
			}
		}
	}
	for name, n := range l.topics {
		if err := l.judgeTopic(c, name, n); err != nil {
			return err
		}
	}
	for _, a := range l.attempts {
		if err := l.judgeAttempt(c, a, there); err != nil {
			return err
		}
	}
	for name, p := range l.puts {
		if err := p.judge(c, name); err != nil {
			return err
		}
	}
	for _, s := range l.lost {
		if n := settledOf(c, &s); n != 0 {
			return broken("group %s of topic %s: a settlement of %v that was not there after a crash has come back", s.Group, s.Topic, s.Done)
		}
	}
	return nil
}

func (l *ledger) judgeTopic(c *contents, name string, n *topicNotes) error {
	i := slices.IndexFunc(c.topics, func(t store.Topic) bool { return t.Name == name })
	if i < 0 {
		if n.seenLast > 0 || n.sure > 0 || n.mustTrim > 0 {
			return broken("topic %s is gone", name)
		}
		n.accepted, n.settings = 0, nil
		return nil
	}
	b := c.topics[i].Bounds
	switch {
	case b.Last < n.seenLast:
		return broken("topic %s: the last seq is %d, and %d was visible", name, b.Last, n.seenLast)
	case b.First < min(n.mustTrim, b.Last+1):
		return broken("topic %s: the first seq is %d, and all below %d were trimmed", name, b.First, n.mustTrim)
	}
	there := make(map[uint64]bool)
	for _, e := range c.logs[name] {
		there[e.Seq] = true
	}
	for seq := max(n.mayTrim, 1); seq <= b.Last; seq++ {
		if _, may := n.compacted[seq]; !there[seq] && !may {
			return broken("topic %s: seq %d is missing between %d and %d, and was neither below %d, where events were to be trimmed, nor to be compacted", name, seq, b.First, b.Last, n.mayTrim)
		}
	}
	for seq, must := range n.compacted {
		if must && there[seq] {
			return broken("topic %s: seq %d is there, and was compacted", name, seq)
		}
		if there[seq] {
			delete(n.compacted, seq) // nobody goes on with what was cut off
		} else {
			n.compacted[seq] = true
		}
	}
	n.accepted, n.mustTrim = b.Last, b.First
	// Settings are the last that was answered, or one that was tried later.
	options := append([]store.Settings{{}}, n.settings...)[n.sure:]
	j := slices.IndexFunc(options, func(s store.Settings) bool { return sameSettings(s, c.topics[i].Settings) })
	if j < 0 {
		return broken("topic %s: settings %+v, want one of %+v", name, c.topics[i].Settings, options)
	}
	n.settings = []store.Settings{options[j]}
	n.sure = 1
	return nil
}

// judgeAttempt checks that a batch is there as a whole or not at all.
func (l *ledger) judgeAttempt(c *contents, a *attempt, there map[eventName]uint64) error {
	seqs := make([]uint64, len(a.events))
	present, absent := 0, 0
	for i, e := range a.events {
		seq, ok := there[eventName{e.Topic, e.ID}]
		switch n := l.topic(e.Topic); {
		case ok:
			present++
			seqs[i] = seq
		case a.seqs != nil && a.seqs[i] < n.mustTrim && (a.durable || n.seen[a.seqs[i]] == e.ID):
			seqs[i] = a.seqs[i] // it was there and is trimmed
			present++
		case a.seqs != nil && n.compacted[a.seqs[i]]:
			seqs[i] = a.seqs[i] // it was visible, and is superseded
			present++
		case a.seqs != nil && a.seqs[i] < n.mustTrim:
			seqs[i] = a.seqs[i] // trimmed or lost, and nobody can tell
		default:
			absent++
		}
	}
	settled, all := uint64(0), uint64(0)
	for i := range a.settle {
		settled += settledOf(c, &a.settle[i])
		all += (store.Ranges)(a.settle[i].Done).Len()
	}
	switch {
	case a.durable && (absent > 0 || settled < all):
		return broken("of a batch that was acknowledged %d of %d events and %d of %d settled seqs are missing: %s", absent, len(a.events), all-settled, all, a)
	case present > 0 && (absent > 0 || settled < all), absent > 0 && settled > 0, settled > 0 && settled < all:
		return broken("a batch is torn: %d of its %d events and %d of %d settled seqs are there: %s", present, len(a.events), settled, all, a)
	case a.gone:
		return nil
	case absent > 0, settled < all:
		a.gone, a.seqs = true, nil
		l.lost = append(l.lost, a.settle...)
		a.settle = nil
	default:
		a.durable = true // it is visible, so it must stay
		if len(seqs) > 0 {
			a.seqs = seqs
		}
	}
	return nil
}

func (a *attempt) String() string {
	if len(a.events) == 0 {
		return fmt.Sprintf("settlements %+v", a.settle)
	}
	return fmt.Sprintf("settlements %+v, seqs %v, first event %s", a.settle, a.seqs, show(&a.events[0]))
}

// settledOf counts the seqs of a settlement that its group has settled.
func settledOf(c *contents, s *store.Settlement) (n uint64) {
	for _, cursor := range c.cursors {
		if cursor.Topic != s.Topic || cursor.Group != s.Group {
			continue
		}
		for _, r := range s.Done {
			for seq := r.First; seq <= r.Last; seq++ {
				if seq <= cursor.Floor || cursor.Settled.Contains(seq) {
					n++
				}
			}
		}
		if n > 0 && cursor.Handed < s.Handed {
			return 0 // settled without its watermark is not whole
		}
	}
	return n
}

// judge checks a group that was put: it is in the last state that was
// answered, or in one that was tried after it.
func (p *putNotes) judge(c *contents, name groupName) error {
	i := slices.IndexFunc(c.cursors, func(x store.Cursor) bool { return x.Topic == name.topic && x.Group == name.group })
	if i < 0 {
		if p.sure > 0 {
			return broken("group %s of topic %s is gone", name.group, name.topic)
		}
		p.tried = nil
		return nil
	}
	got := c.cursors[i]
	j := slices.IndexFunc(p.tried, func(x store.Cursor) bool {
		return x.Version == got.Version && x.Epoch == got.Epoch && bytes.Equal(x.Meta, got.Meta)
	})
	if j < 0 || got.Version < p.sure {
		return broken("group %s of topic %s: version %d, epoch %d, meta %q; version %d was acknowledged", name.group, name.topic, got.Version, got.Epoch, got.Meta, p.sure)
	}
	p.tried, p.sure = p.tried[j:j+1], got.Version
	return nil
}

// retry sends batches again: those that did not survive are new, the others
// are known.
func (l *ledger) retry(e Engine) error {
	l.mu.Lock()
	var again []*attempt
	for i, a := range l.attempts {
		known := a.seqs != nil && !l.trimmed(a) && (i%5 == 0 || i > len(l.attempts)-5)
		if len(a.events) > 0 && (a.gone || known) {
			again = append(again, a)
		}
	}
	l.mu.Unlock()
	for _, a := range again {
		got, err := e.Append(context.Background(), store.Batch{Events: a.events})
		if err != nil {
			return err
		}
		for i := range got {
			switch {
			case got[i].Duplicate == a.gone:
				return broken("a batch that is there: %v; answer %+v: %s", !a.gone, got[i], a)
			case !a.gone && got[i].Seq != a.seqs[i]:
				return broken("answer %+v: %s", got[i], a)
			case !a.gone && got[i].Original != nil:
				if want := at(a.events[i], a.seqs[i]); !same(got[i].Original, &want) {
					return broken("the original is %s, want %s", show(got[i].Original), show(&want))
				}
			}
		}
		if a.gone {
			a.gone = false
		}
		if err := l.accept(a, got, true); err != nil {
			return err
		}
	}
	return nil
}
