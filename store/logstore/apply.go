package logstore

import (
	"encoding/binary"
	"fmt"

	"promethean/event"
	"promethean/store"
)

// applyEntry makes one durable entry part of the state. The writer calls it
// after the sync, under mu; recovery calls it for each entry found. Applying
// entries again, in order, to a state that holds some of them already leads
// to the same state: the manifest is written while the writer goes on, and
// may be ahead of the LSN that it names.
func (s *Store) applyEntry(m *mem, e entry, at int64) error {
	if e.kind == entryTopic {
		return s.applyTopic(m, e)
	}
	if e.topic == 0 || int(e.topic) > len(s.byNum) {
		return fmt.Errorf("%s entry names topic number %d, %d are known", e.kind, e.topic, len(s.byNum))
	}
	t := s.byNum[e.topic-1]
	if e.kind != entryEvent {
		m.touched = true
	}
	switch e.kind {
	case entryEvent:
		return s.applyEvent(m, t, e, at)
	case entryTrim:
		if len(e.data) != 8 {
			return fmt.Errorf("trim entry of %d bytes", len(e.data))
		}
		t.first = max(t.first, binary.LittleEndian.Uint64(e.data))
		t.changed = true
	case entryBegin:
		if len(e.data) != 8 {
			return fmt.Errorf("begin entry of %d bytes", len(e.data))
		}
		t.begin(binary.LittleEndian.Uint64(e.data))
	case entrySettings:
		set, err := decodeSettings(e.data)
		if err != nil {
			return err
		}
		t.settings, t.changed = set, true
	case entrySettle:
		st, err := decodeSettlement(e.data)
		if err != nil {
			return err
		}
		k := cursorKey{t.num, st.Group}
		if c := s.cursors[k]; c != nil {
			c.Settle(&st)
			s.dirty[k] = true
		}
	case entryCursor:
		c, err := decodeCursor(t.name, e.data)
		if err != nil {
			return err
		}
		k := cursorKey{t.num, c.Group}
		s.cursors[k], s.dirty[k] = &c, true
	case entryDropCursor:
		k := cursorKey{t.num, string(e.data)}
		delete(s.cursors, k)
		s.dirty[k] = true
	default:
		return fmt.Errorf("%w: journal entry of unknown %s", store.ErrFormat, e.kind)
	}
	return nil
}

func (s *Store) applyTopic(m *mem, e entry) error {
	name := string(e.data)
	t := s.topics[name]
	if t == nil {
		if int(e.topic) != len(s.byNum)+1 {
			return fmt.Errorf("topic %s has number %d, %d is due", name, e.topic, len(s.byNum)+1)
		}
		t = &topic{num: e.topic, name: name, first: 1, low: 1}
		s.topics[name] = t
		s.byNum = append(s.byNum, t)
	} else if t.num != e.topic {
		return fmt.Errorf("topic %s has the numbers %d and %d", name, t.num, e.topic)
	}
	t.known, t.changed, m.touched = true, true, true
	return nil
}

func (s *Store) applyEvent(m *mem, t *topic, e entry, at int64) error {
	r := event.Record(e.data)
	seq := r.Seq()
	if seq != t.last+1 {
		return fmt.Errorf("topic %s: seq %d follows %d", t.name, seq, t.last)
	}
	t.last = seq
	t.memBytes += int64(len(e.data))
	m.add(t.num, e.off, len(e.data), at, t.first)
	return nil
}
