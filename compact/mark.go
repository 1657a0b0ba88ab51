package compact

import (
	"context"
	"encoding/json"
	"fmt"

	"promethean/store"
)

// Topic is where it is recorded what compactions remove. The key of a record is
// the topic that it is about; the newest one counts.
const Topic = "system.compactions"

// Mark says what may have been removed from a topic by compaction. It is stored
// before the removal begins.
type Mark struct {
	Topic string `json:"topic"`
	// Before and Tombstones are those of the [store.Compaction]: events at or
	// above Before are not touched.
	Before     uint64 `json:"before,omitempty"`
	Tombstones uint64 `json:"tombstones,omitempty"`
	// MaxTS is at least the TS of every tombstone that was removed as the last
	// event of its key. While Done is false it is a bound that was found before
	// the removal began.
	MaxTS int64 `json:"max_ts,omitempty"`
	// Trimmed says that events may have been removed in other ways too, by
	// retention for instance: then a key that has no event may have had one.
	Trimmed bool `json:"trimmed,omitempty"`
	// Done says that the compaction has ended, First where the topic began then,
	// and Kept how many events were left below Before.
	Done  bool   `json:"done,omitempty"`
	First uint64 `json:"first,omitempty"`
	Kept  uint64 `json:"kept,omitempty"`
	// At is when the last compaction began, in epoch ms.
	At int64 `json:"at,omitempty"`
	// Ticks are what the end of the topic was in the past, oldest first.
	Ticks []Tick `json:"ticks,omitempty"`

	seq uint64 // of the record; 0: there is none
}

// Tick says what the last seq of a topic was at a time. Its JSON is a pair.
type Tick struct {
	At   int64 // epoch ms
	Last uint64
}

// MarshalJSON implements [json.Marshaler].
func (t Tick) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d]", t.At, t.Last), nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Tick) UnmarshalJSON(text []byte) error {
	var pair [2]json.Number
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	_, err := fmt.Sscan(string(pair[0])+" "+string(pair[1]), &t.At, &t.Last)
	return err
}

// MarkOf gives the newest mark of a topic; the zero one if nothing of it was
// ever compacted.
func MarkOf(ctx context.Context, log store.Log, topic string) (Mark, error) {
	for e, err := range log.Read(ctx, store.Query{Topic: Topic, Key: topic, Reverse: true, Limit: 1}) {
		if err != nil {
			return Mark{}, fmt.Errorf("read topic %s: %w", Topic, err)
		}
		m := Mark{seq: e.Seq}
		if err := json.Unmarshal(e.Payload, &m); err != nil {
			return Mark{}, fmt.Errorf("topic %s, seq %d: %w", Topic, e.Seq, err)
		}
		return m, nil
	}
	return Mark{Topic: topic}, nil
}

// TrimmedBy says whether, beside what the mark is about, events were removed
// from a topic that begins at a seq and has these settings, or may have been.
func (m *Mark) TrimmedBy(first uint64, s store.Settings) bool {
	switch {
	case first <= 1:
		return false // the first event is there
	case m.Before == 0, m.Trimmed, first > m.Before:
		return true
	case s.Retention > 0 || s.MaxBytes > 0:
		return true
	}
	// Nothing but a trim moves the beginning while no compaction runs.
	return m.Done && first > m.First
}
