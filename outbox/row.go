package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/event"
)

// Row is an event in an outbox. Topic and Payload are required.
type Row struct {
	// ID is that of the event. Default: a new one. It is unique in the outbox.
	ID event.ID
	// TS is the time of the event in epoch milliseconds. Default: now, in Add.
	TS int64
	// Topic is where it is published. Only the hub writes under dlq. and system.
	Topic string
	// Key is what the event is about; "" for none. Rows of one topic and key
	// are published in order.
	Key string
	// Payload is one JSON value.
	Payload json.RawMessage
	Headers event.Headers
	// SID, CausedBy, Tags and Partition are put on the event as they are.
	SID       string
	CausedBy  []string
	Tags      []string
	Partition event.Partition

	// What the store knows of it; Add does not look at these.

	// Attempts is how often the row was refused.
	Attempts int
	// Damage says what of a stored row could not be read, where somebody wrote
	// it by hand. The drainer treats the row as one that was refused.
	Damage error
}

// NewRow makes a row with a new id and v as JSON for its payload; a
// [json.RawMessage] is taken as it is.
func NewRow(topic, key string, v any) (Row, error) {
	payload, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if payload, err = json.Marshal(v); err != nil {
			return Row{}, fmt.Errorf("outbox row of topic %s: payload: %w", topic, err)
		}
	}
	r := Row{Topic: topic, Key: key, Payload: payload}
	return r, r.Check(event.Limits{})
}

// Check gives the row an id and a time if it has none, and tells whether it
// keeps the rules of events. The error is an [*event.RuleError].
func (r *Row) Check(l event.Limits) error {
	if r.Damage != nil {
		return r.Damage
	}
	if r.ID.IsZero() {
		r.ID = event.NewID()
	}
	if r.TS == 0 {
		r.TS = time.Now().UnixMilli()
	}
	if event.ReservedTopic(r.Topic) {
		return &event.RuleError{Field: "topic", Rule: "must not be under dlq. or system., where only the hub writes", Kind: event.ErrInvalidTopic}
	}
	e := r.Event()
	return e.Check(l)
}

// Event is what is published of the row.
func (r *Row) Event() event.Event {
	return event.Event{
		ID: r.ID, TS: r.TS, Topic: r.Topic, Key: r.Key, Payload: r.Payload, Headers: r.Headers,
		SID: r.SID, CausedBy: r.CausedBy, Tags: r.Tags, Partition: r.Partition,
	}
}

// CheckRows is Check for what was given to an Add of a driver. It returns a copy,
// since the rows are the caller's. The error is a [*RowError] that names the
// first bad row.
func CheckRows(rows []Row, l event.Limits) ([]Row, error) {
	out := make([]Row, len(rows))
	for i, r := range rows {
		r.Attempts, r.Damage = 0, nil
		if err := r.Check(l); err != nil {
			return nil, &RowError{Index: i, Err: err}
		}
		out[i] = r
	}
	return out, nil
}

// RowError names the row of an Add that an error is about.
type RowError struct {
	Index int
	Err   error
}

func (e *RowError) Error() string { return fmt.Sprintf("row %d: %v", e.Index, e.Err) }

// Unwrap gives the rule that was broken.
func (e *RowError) Unwrap() error { return e.Err }

// meta is what drivers keep of a row in one column.
type meta struct {
	Headers   map[string]string `json:"headers,omitempty"`
	SID       string            `json:"sid,omitempty"`
	CausedBy  []string          `json:"caused_by,omitempty"`
	Tags      []string          `json:"tags,omitempty"`
	Partition *int              `json:"partition,omitempty"`
}

// Meta is all of the row but id, time, topic, key and payload, as a JSON object,
// for drivers that keep it in one column: headers, sid, caused_by, tags,
// partition. It is nil if the row has none of them.
func (r *Row) Meta() (json.RawMessage, error) {
	m := meta{SID: r.SID, CausedBy: r.CausedBy, Tags: r.Tags}
	if p, ok := r.Partition.Get(); ok {
		m.Partition = &p
	}
	if len(r.Headers) == 0 && m.SID == "" && len(m.CausedBy) == 0 && len(m.Tags) == 0 && m.Partition == nil {
		return nil, nil
	}
	if len(r.Headers) > 0 {
		m.Headers = make(map[string]string, len(r.Headers))
		for _, h := range r.Headers {
			m.Headers[h.Name] = h.Value
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("meta: %w", err)
	}
	return data, nil
}

// SetMeta takes over what [Row.Meta] gave. If it cannot be read the row has
// Damage, which holds up nothing but its key.
func (r *Row) SetMeta(data []byte) {
	if len(data) == 0 {
		return
	}
	var m meta
	if err := json.Unmarshal(data, &m); err != nil {
		r.Damaged(fmt.Errorf("meta: %w", err))
		return
	}
	for name, value := range m.Headers {
		r.Headers = r.Headers.Set(name, value)
	}
	r.SID, r.CausedBy, r.Tags = m.SID, m.CausedBy, m.Tags
	if m.Partition != nil {
		r.Partition = event.PartitionOf(*m.Partition)
	}
}

// Damaged notes what could not be read of a stored row.
func (r *Row) Damaged(err error) { r.Damage = errors.Join(r.Damage, err) }
