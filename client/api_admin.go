package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"promethean/event"
)

// TopicInfo is a topic: what it holds and how it is set.
type TopicInfo struct {
	Topic string `json:"topic"`
	// Events is how many seqs are retained, First and Last where they are.
	Events   uint64        `json:"events"`
	First    uint64        `json:"first"`
	Last     uint64        `json:"last"`
	Bytes    int64         `json:"bytes"`
	Settings TopicSettings `json:"settings"`
}

// TopicSettings are the settings of a topic.
type TopicSettings struct {
	Partitions int `json:"partitions"`
	// Retention is an age such as "72h", "" where events are kept for ever.
	Retention string `json:"retention,omitempty"`
	// MaxBytes is 0 where the size does not matter.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// Durability is sync or async.
	Durability string `json:"durability"`
	// Schemas is a directory on the hub's machine that schemas are loaded from,
	// "" where there is none.
	Schemas string `json:"schemas,omitempty"`
	// StrictSchema refuses events while the topic has no schema.
	StrictSchema bool `json:"strict_schema,omitempty"`
	// LegacyVersion is what a stored event without a stamp is of; 0 is the
	// latest version.
	LegacyVersion int `json:"legacy_version,omitempty"`
	// DualWrite writes events to topic.vN too. DualWriteTo is where they go at
	// the moment, "" where they do not; it cannot be set.
	DualWrite   Window `json:"dual_write,omitzero"`
	DualWriteTo string `json:"dual_write_to,omitempty"`
	// Compaction keeps the latest event of each key only. History is how long
	// superseded events stay, Tombstones how long the last event of a deleted key
	// does, both as an age such as "24h".
	Compaction bool   `json:"compaction,omitempty"`
	History    string `json:"history,omitempty"`
	Tombstones string `json:"tombstones,omitempty"`
	// Snapshot is where snapshots go, nil where there are none.
	Snapshot *SnapshotSetting `json:"snapshot,omitempty"`
}

// SnapshotSetting says where the snapshots of a compaction topic go.
type SnapshotSetting struct {
	// Topic is <topic>.snapshot where it is "".
	Topic string `json:"topic,omitempty"`
	// Every is how often they are written, 30s where it is "".
	Every string `json:"every,omitempty"`
}

// TopicInfos lists all topics, the hub's own included.
func (c *Client) TopicInfos(ctx context.Context) ([]TopicInfo, error) {
	var got struct{ Topics []TopicInfo }
	err := c.call(ctx, http.MethodGet, "/topics", nil, nil, &got)
	return got.Topics, err
}

// TopicInfo gives one topic.
func (c *Client) TopicInfo(ctx context.Context, topic string) (TopicInfo, error) {
	var got TopicInfo
	err := c.call(ctx, http.MethodGet, "/topics/"+url.PathEscape(topic), nil, nil, &got)
	return got, err
}

// SetTopic changes settings of a topic and makes it if need be. Change is a
// JSON object of settings by the names of TopicSettings: what it leaves out
// stays, null is the default.
func (c *Client) SetTopic(ctx context.Context, topic string, change map[string]any) (TopicInfo, error) {
	var got TopicInfo
	err := c.call(ctx, http.MethodPut, "/topics/"+url.PathEscape(topic), nil, change, &got)
	return got, err
}

// GroupInfo is a group: where it is, who reads, how it is set.
type GroupInfo struct {
	Topic  string `json:"topic"`
	Group  string `json:"group"`
	Cursor uint64 `json:"cursor"`
	Tail   uint64 `json:"tail"`
	// Lag is how many events are not settled.
	Lag uint64 `json:"lag"`
	// InFlight is how many are leased, Pending how many were delivered and are
	// not settled.
	InFlight int           `json:"inflight"`
	Pending  int           `json:"pending"`
	Members  int           `json:"members"`
	Paused   bool          `json:"paused"`
	Settings GroupSettings `json:"settings"`
}

// GroupSettings are the settings that are kept with a group. Where they are
// asked for, a field with its zero value is left out and contradicts nothing.
type GroupSettings struct {
	Ordering     string `json:"ordering,omitempty"`   // key, topic or none
	DeadLetter   string `json:"deadLetter,omitempty"` // event, key or block
	MaxAttempts  int    `json:"maxAttempts,omitempty"`
	AckTimeoutMs int64  `json:"ackTimeoutMs,omitempty"`
	Filter       string `json:"filter,omitempty"` // a CEL expression
	Partitioned  bool   `json:"partitioned,omitempty"`
}

// options is the body of a call that makes a group.
func (s GroupSettings) options(from Place) (map[string]any, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	m := make(map[string]any)
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	from.fields(m)
	return m, nil
}

// Groups lists the groups of a topic, or all where topic is "".
func (c *Client) Groups(ctx context.Context, topic string) ([]GroupInfo, error) {
	q := url.Values{}
	if topic != "" {
		q.Set("topic", topic)
	}
	var got struct{ Groups []GroupInfo }
	err := c.call(ctx, http.MethodGet, "/groups", q, nil, &got)
	return got.Groups, err
}

// MakeGroup makes a group that begins at a place, by default at the end. One
// that is there stays where it is; MaxAttempts and AckTimeoutMs change, other
// values of the rest are group_conflict.
func (c *Client) MakeGroup(ctx context.Context, topic, group string, s GroupSettings, from Place) (GroupInfo, error) {
	var got GroupInfo
	body, err := s.options(from)
	if err != nil {
		return got, err
	}
	err = c.call(ctx, http.MethodPut, groupPath(topic, group), nil, body, &got)
	return got, err
}

// DeleteGroup removes a group that nobody reads.
func (c *Client) DeleteGroup(ctx context.Context, topic, group string) error {
	return c.call(ctx, http.MethodDelete, groupPath(topic, group), nil, nil, nil)
}

func groupPath(topic, group string) string {
	return "/groups/" + url.PathEscape(topic) + "/" + url.PathEscape(group)
}

// CursorInfo is where a group is: the seq up to which all is settled. LastID and
// LastTS are those of the event there, if it is retained.
type CursorInfo struct {
	Topic   string `json:"topic,omitempty"`
	Group   string `json:"group"`
	Seq     uint64 `json:"seq"`
	LastID  string `json:"lastId,omitempty"`
	LastTS  int64  `json:"lastTs,omitempty"`
	Pending int    `json:"pending"`
}

// Cursors tells where the groups of a topic are.
func (c *Client) Cursors(ctx context.Context, topic string) ([]CursorInfo, error) {
	var got struct{ Cursors []CursorInfo }
	err := c.call(ctx, http.MethodGet, "/cursors", url.Values{"topic": {topic}}, nil, &got)
	for i := range got.Cursors {
		got.Cursors[i].Topic = topic
	}
	return got.Cursors, err
}

// MoveCursor moves a group to another place: its leases end, and settlements
// after the place are forgotten.
func (c *Client) MoveCursor(ctx context.Context, topic, group string, to Place) (CursorInfo, error) {
	place := make(map[string]any)
	to.fields(place)
	var got CursorInfo
	err := c.call(ctx, http.MethodPut, "/cursors", nil, map[string]any{"topic": topic, "group": group, "to": place}, &got)
	return got, err
}

// LagInfo is how far a group is behind.
type LagInfo struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	// Lag is how many events are not settled, LagMs how old the oldest of them
	// is.
	Lag    uint64 `json:"lag"`
	LagMs  int64  `json:"lagMs"`
	Cursor uint64 `json:"cursor"`
	Tail   uint64 `json:"tail"`
}

// GroupLag tells how far a group is behind.
func (c *Client) GroupLag(ctx context.Context, topic, group string) (LagInfo, error) {
	var got LagInfo
	err := c.call(ctx, http.MethodGet, "/lag", url.Values{"topic": {topic}, "group": {group}}, nil, &got)
	return got, err
}

// LetterCount is how many dead letters of a topic a group has.
type LetterCount struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	Count int    `json:"count"`
}

// LetterCounts counts the dead letters that were not replayed.
func (c *Client) LetterCounts(ctx context.Context) ([]LetterCount, error) {
	var got struct{ Topics []LetterCount }
	err := c.call(ctx, http.MethodGet, "/dlq", nil, nil, &got)
	return got.Topics, err
}

// Letter is an event that failed for good, and why.
type Letter struct {
	ID       event.ID    `json:"id"`
	Seq      uint64      `json:"seq"`
	Topic    string      `json:"topic"`
	Group    string      `json:"group"`
	Original event.Event `json:"original"`
	Err      string      `json:"err"`
	TS       int64       `json:"ts"`
	Attempts int         `json:"attempts"`
	// Parked says that the key of the event waits for it.
	Parked bool `json:"parked,omitempty"`
}

// Letters gives the dead letters of a topic that were not replayed, oldest
// first, those of one group unless that is "". Limit is 1,000 where it is 0, and
// at most MaxPage.
func (c *Client) Letters(ctx context.Context, topic, group string, limit int) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		q := url.Values{}
		if group != "" {
			q.Set("group", group)
		}
		if limit > 0 {
			q.Set("limit", strconv.Itoa(limit))
		}
		for row, err := range c.list(ctx, "/dlq/"+url.PathEscape(topic), q, "records") {
			var l Letter
			if err == nil {
				err = json.Unmarshal(row, &l)
			}
			if !yield(l, err) || err != nil {
				return
			}
		}
	}
}

// LetterReplay says which dead letters are replayed, and to whom. The zero value
// takes the oldest 1,000.
type LetterReplay struct {
	// IDs are those of the letters. The default is the oldest ones.
	IDs []event.ID `json:"ids,omitempty"`
	// Group takes those of one group. The default is all.
	Group string `json:"group,omitempty"`
	// To is "topic", which publishes them again for all groups, or "group",
	// which hands the originals to the group that failed. The default is what
	// the group's settings ask for.
	To string `json:"to,omitempty"`
	// Limit is how many at most. The default is 1,000.
	Limit int `json:"limit,omitempty"`
}

// Replayed is what came of a replay of dead letters.
type Replayed struct {
	Replayed  int `json:"replayed"`
	Remaining int `json:"remaining"`
}

// ReplayLetters replays dead letters of a topic. Their attempts start again.
func (c *Client) ReplayLetters(ctx context.Context, topic string, o LetterReplay) (Replayed, error) {
	var got Replayed
	err := c.call(ctx, http.MethodPost, "/dlq/"+url.PathEscape(topic)+"/replay", nil, o, &got)
	return got, err
}
