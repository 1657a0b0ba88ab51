package logstore

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore/internal/journal"
)

// DumpOptions select what Dump writes. The zero value writes every retained
// event.
type DumpOptions struct {
	// Topic keeps what belongs to one topic. Default: everything.
	Topic string
	// From leaves out smaller seqs or, with Journal, smaller LSNs. Default:
	// nothing is left out.
	From uint64
	// Journal writes the frames and entries of the journal that are not
	// sealed yet, in place of events. Default: false.
	Journal bool
	// Damage hears of each part that cannot be read, as it is met. Default:
	// nobody does, and only the error at the end counts them.
	Damage func(Problem)
}

// Dump writes what is in a store's directory as JSON lines: the retained
// events by topic and seq, each as its JSON form with the commit time as
// "_at"; or the journal, each frame and each of its entries. What is damaged
// is left out and makes the error at the end a [store.ErrCorrupt]. As for
// [Check], the directory must not be in use and is not changed.
func Dump(ctx context.Context, dir string, o Options, d DumpOptions, w io.Writer) error {
	if err := dump(ctx, dir, o, d, w); err != nil {
		return fmt.Errorf("dump store %s: %w", dir, err)
	}
	return nil
}

func dump(ctx context.Context, dir string, o Options, d DumpOptions, w io.Writer) (err error) {
	if d.Topic != "" {
		if err := event.CheckTopic(d.Topic); err != nil {
			return err
		}
	}
	damaged := 0
	r, err := openReader(ctx, dir, o, func(p Problem) {
		if p.Note {
			return
		}
		damaged++
		if d.Damage != nil {
			d.Damage(p)
		}
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	out := bufio.NewWriterSize(w, 64<<10)
	if r.db != nil {
		if d.Journal {
			err = r.dumpJournal(d, out)
		} else {
			err = r.dumpEvents(d, out)
		}
	}
	if err = errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if d.Topic != "" && r.topics[d.Topic] == nil && damaged == 0 {
		return fmt.Errorf("topic %s: %w", d.Topic, store.ErrNotFound)
	}
	if damaged > 0 {
		return fmt.Errorf("%w: %d parts are left out", store.ErrCorrupt, damaged)
	}
	return nil
}

func (r *reader) dumpEvents(d DumpOptions, out *bufio.Writer) error {
	if err := r.walk(true, nil); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.topics)) {
		if d.Topic != "" && name != d.Topic {
			continue
		}
		if err := r.dumpTopic(r.topics[name], d.From, out); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) dumpTopic(t *topic, from uint64, out *bufio.Writer) error {
	from = max(from, t.first)
	var line []byte
	var failed error
	write := func(path string, off, at int64, rec event.Record) {
		if rec.Seq() < from || failed != nil {
			return
		}
		var e event.Event
		err := event.DecodeBinary(rec, &e, t.name)
		if err == nil {
			line, err = e.AppendStoredJSON(line[:0])
		}
		if err != nil {
			r.problem(path, off, "topic %s, seq %d: %v", t.name, rec.Seq(), err)
			return
		}
		line = append(line[:len(line)-1], `,"_at":`...)
		line = append(strconv.AppendInt(line, at, 10), "}\n"...)
		_, failed = out.Write(line)
	}
	var rows []section
	err := r.scanManifest(sectionKey(t.num, 0), sectionKey(t.num+1, 0), func(k, v []byte) error {
		x, err := decodeSection(k, v)
		if err != nil {
			r.damage(r.statePath(), err)
		} else if x.last >= from {
			rows = append(rows, x)
		}
		return nil
	})
	if err != nil {
		r.damage(r.statePath(), err)
	}
	for _, x := range rows {
		path := r.chunkPath(x.chunk)
		err := r.sectionEvents(x, r.report, func(off, at int64, rec event.Record) { write(path, off, at, rec) })
		if err = errors.Join(err, failed); err != nil {
			return err
		}
	}
	for _, s := range r.tail {
		if mt := s.m.topics[t.num]; mt != nil {
			for _, i := range mt.recs {
				write(s.path, int64(s.m.recs[i].off), s.m.recs[i].at, s.m.record(i))
			}
		}
	}
	return failed
}

// journalLine is a frame of the journal, or one of its entries.
type journalLine struct {
	LSN     uint64 `json:"lsn"`
	Durable uint64 `json:"durable"`
	At      int64  `json:"at"`
	File    string `json:"file"`
	// Offset is where the frame or the entry begins, Size the length of its
	// body or data.
	Offset int    `json:"offset"`
	Size   int    `json:"size"`
	Kind   string `json:"kind"`
	// Entries is a frame's number of entries. The rest is an entry's content.
	Entries  *int            `json:"entries,omitempty"`
	Topic    string          `json:"topic,omitempty"`
	Number   uint32          `json:"number,omitempty"`
	Event    json.RawMessage `json:"event,omitempty"`
	Settle   *settleLine     `json:"settle,omitempty"`
	Cursor   *cursorLine     `json:"cursor,omitempty"`
	Group    string          `json:"group,omitempty"`
	Before   uint64          `json:"before,omitempty"`
	First    uint64          `json:"first,omitempty"`
	Settings *store.Settings `json:"settings,omitempty"`
}

// settleLine is a settlement, cursorLine a group's state; topic and group
// stand beside them.
type settleLine struct {
	Epoch    uint64            `json:"epoch"`
	Done     [][2]uint64       `json:"done"`
	Attempts map[uint64]uint32 `json:"attempts,omitempty"`
	Handed   uint64            `json:"handed"`
}

type cursorLine struct {
	Version    uint64            `json:"version"`
	Epoch      uint64            `json:"epoch"`
	Generation uint64            `json:"generation"`
	Floor      uint64            `json:"floor"`
	Settled    [][2]uint64       `json:"settled"`
	Attempts   map[uint64]uint32 `json:"attempts,omitempty"`
	Handed     uint64            `json:"handed"`
	Meta       []byte            `json:"meta,omitempty"`
}

func pairs(rs []store.Range) [][2]uint64 {
	out := make([][2]uint64, len(rs))
	for i, r := range rs {
		out[i] = [2]uint64{r.First, r.Last}
	}
	return out
}

// dumpJournal writes the frames, each followed by its entries. With a topic
// only its entries are written.
func (r *reader) dumpJournal(d DumpOptions, out *bufio.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false) // payloads keep their bytes
	return r.walk(false, func(path string, f journal.Frame) error {
		if f.LSN < d.From {
			return nil
		}
		var lines []journalLine
		head := journalLine{LSN: f.LSN, Durable: f.Durable, At: f.At, File: path}
		// What does not decode has been reported by walk, which went first.
		_ = eachEntry(f.Body, f.Off, func(e entry) error {
			l := head
			l.Offset, l.Size, l.Kind = e.off-entryHead, len(e.data), e.kind.String()
			r.fill(&l, e)
			if d.Topic == "" || l.Topic == d.Topic {
				lines = append(lines, l)
			}
			return nil
		})
		if d.Topic == "" {
			n := len(lines)
			head.Offset, head.Size, head.Kind, head.Entries = f.Off-journal.HeadSize, len(f.Body), "frame", &n
			lines = slices.Insert(lines, 0, head)
		}
		for i := range lines {
			if err := enc.Encode(&lines[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// fill gives l the content of an entry, as far as it decodes.
func (r *reader) fill(l *journalLine, e entry) {
	l.Number = e.topic
	if e.topic > 0 && int(e.topic) <= len(r.byNum) {
		l.Topic = r.byNum[e.topic-1].name
	}
	switch e.kind {
	case entryEvent:
		var ev event.Event
		if event.DecodeBinary(e.data, &ev, l.Topic) == nil {
			if text, err := ev.AppendStoredJSON(nil); err == nil && json.Valid(text) {
				l.Event = text
			}
		}
	case entrySettle:
		if s, err := decodeSettlement(e.data); err == nil {
			l.Group = s.Group
			l.Settle = &settleLine{Epoch: s.Epoch, Done: pairs(s.Done), Handed: s.Handed, Attempts: make(map[uint64]uint32)}
			for _, a := range s.Attempts {
				l.Settle.Attempts[a.Seq] = a.Count
			}
		}
	case entryCursor:
		if c, err := decodeCursor(l.Topic, e.data); err == nil {
			l.Group = c.Group
			l.Cursor = &cursorLine{c.Version, c.Epoch, c.Generation, c.Floor, pairs(c.Settled), c.Attempts, c.Handed, c.Meta}
		}
	case entryDropCursor:
		l.Group = string(e.data)
	case entryTrim:
		if len(e.data) == 8 {
			l.Before = binary.LittleEndian.Uint64(e.data)
		}
	case entryBegin:
		if len(e.data) == 8 {
			l.First = binary.LittleEndian.Uint64(e.data)
		}
	case entrySettings:
		if s, err := decodeSettings(e.data); err == nil {
			l.Settings = &s
		}
	}
}
