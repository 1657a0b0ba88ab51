package gateway

import (
	"errors"
	"net/http"

	"promethean/event"
	"promethean/gateway/auth"
	"promethean/group"
	"promethean/wire"
)

// groupOf is how a group is shown.
type groupOf struct {
	Topic    string        `json:"topic"`
	Group    string        `json:"group"`
	Cursor   uint64        `json:"cursor"`
	Tail     uint64        `json:"tail"`
	Lag      uint64        `json:"lag"`
	InFlight int           `json:"inflight"`
	Pending  int           `json:"pending"`
	Members  int           `json:"members"`
	Paused   bool          `json:"paused"`
	Settings groupSettings `json:"settings"`
}

type groupSettings struct {
	Ordering    group.Ordering `json:"ordering"`
	DeadLetter  group.Policy   `json:"deadLetter"`
	MaxAttempts int            `json:"maxAttempts"`
	AckTimeout  int64          `json:"ackTimeoutMs"`
	Filter      string         `json:"filter,omitempty"`
	Partitioned bool           `json:"partitioned,omitempty"`
}

func showGroup(i *group.Info) groupOf {
	s := i.Settings
	return groupOf{
		Topic: i.Topic, Group: i.Group, Cursor: i.Cursor, Tail: i.Tail, Lag: i.Lag,
		InFlight: i.InFlight, Pending: i.Pending, Members: i.Members, Paused: i.Paused,
		Settings: groupSettings{s.Ordering, s.DeadLetter, s.MaxAttempts, s.AckTimeout.Milliseconds(), s.Filter, s.Partitions != 0},
	}
}

// listGroups serves GET /groups: those of a topic, or all.
func listGroups(c *call) error {
	topic := c.r.URL.Query().Get("topic")
	if topic != "" {
		if err := event.CheckTopic(topic); err != nil {
			return err
		}
	}
	out := []groupOf{}
	for i, err := range c.g.hub.Groups(c.r.Context(), topic) {
		if err != nil {
			return err
		}
		out = append(out, showGroup(&i))
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "groups": out})
}

// putGroup serves PUT /groups/{topic}/{group}: it makes the group, or changes
// what can be changed of one that exists.
func putGroup(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	var in options
	if err := c.decode(&in, true); err != nil {
		return err
	}
	set, err := in.settings()
	if err != nil {
		return err
	}
	if in.Partitioned && c.g.o.Partitions == nil {
		return errNoPartitions
	}
	start, err := in.start(group.Latest)
	if err != nil {
		return err
	}
	if err := c.g.exists(c.r.Context(), topic); err != nil {
		return err
	}
	name := c.r.PathValue("group")
	if err := checkGroup(name); err != nil {
		return err
	}
	e := c.g.hub.Engine()
	err = e.Make(c.r.Context(), topic, name, set, start)
	if errors.Is(err, group.ErrConflict) {
		err = e.Change(c.r.Context(), topic, name, set)
	}
	if err != nil {
		return err
	}
	i, err := e.Info(c.r.Context(), topic, name)
	if err != nil {
		return err
	}
	return c.answerJSON(http.StatusOK, showGroup(&i))
}

// deleteGroup serves DELETE /groups/{topic}/{group}.
func deleteGroup(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	name := c.r.PathValue("group")
	if err := checkGroup(name); err != nil {
		return err
	}
	i, err := c.g.hub.Engine().Info(c.r.Context(), topic, name)
	if err != nil {
		return err
	}
	if i.Settings.Partitions != 0 && c.g.o.Partitions != nil {
		// A member may have no partition at this moment, or be at another hub.
		s, err := c.g.o.Partitions.Show(c.r.Context(), topic, name)
		if err == nil && len(s.Members) > 0 {
			return wire.Errorf(wire.InvalidArgument, "topic %s, group %s: %d members read", topic, clip(name), len(s.Members))
		}
	}
	c.g.pulls.drop(groupName{topic, name})
	if err := c.g.hub.Engine().Delete(c.r.Context(), topic, name); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// cursorOf is how a cursor is shown. LastID and LastTS are those of the event
// at Seq, if it is still there.
type cursorOf struct {
	Topic   string `json:"topic,omitempty"`
	Group   string `json:"group"`
	Seq     uint64 `json:"seq"`
	LastID  string `json:"lastId,omitempty"`
	LastTS  int64  `json:"lastTs,omitempty"`
	Pending int    `json:"pending"`
}

func (c *call) cursor(topic, name string) (cursorOf, error) {
	p, err := c.g.hub.Cursor(c.r.Context(), topic, name)
	out := cursorOf{Group: name, Seq: p.Seq, LastTS: p.LastTS, Pending: p.Pending}
	if !p.LastID.IsZero() {
		out.LastID = p.LastID.String()
	}
	return out, err
}

// listCursors serves GET /cursors.
func listCursors(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	out := []cursorOf{}
	for i, err := range c.g.hub.Groups(c.r.Context(), topic) {
		if err != nil {
			return err
		}
		at, err := c.cursor(topic, i.Group)
		if codeOf(err) == wire.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		out = append(out, at)
	}
	return c.answerJSON(http.StatusOK, map[string]any{"topic": topic, "cursors": out})
}

// moveRequest is the body of PUT /cursors.
type moveRequest struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	To    *place `json:"to"`
}

// putCursor serves PUT /cursors: it moves a group to another place.
func putCursor(c *call) error {
	var in moveRequest
	if err := c.decode(&in, false); err != nil {
		return err
	}
	if err := c.topic(auth.Admin, in.Topic); err != nil {
		return err
	}
	if in.To == nil || *in.To == (place{}) {
		return wire.Errorf(wire.InvalidArgument, `to: say where, such as {"from":"earliest"}`)
	}
	to, err := in.To.start("")
	if err != nil {
		return err
	}
	if err := checkGroup(in.Group); err != nil {
		return err
	}
	if err := c.g.hub.SetCursor(c.r.Context(), in.Topic, in.Group, to); err != nil {
		return err
	}
	out, err := c.cursor(in.Topic, in.Group)
	if err != nil {
		return err
	}
	out.Topic = in.Topic
	return c.answerJSON(http.StatusOK, out)
}

// lagOf is how far a group is behind.
type lagOf struct {
	Topic  string `json:"topic"`
	Group  string `json:"group"`
	Lag    uint64 `json:"lag"`
	LagMs  int64  `json:"lagMs"`
	Cursor uint64 `json:"cursor"`
	Tail   uint64 `json:"tail"`
}

// lag serves GET /lag.
func lag(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	name := c.r.URL.Query().Get("group")
	if name == "" {
		return wire.Errorf(wire.InvalidArgument, "group: name one")
	}
	l, err := c.g.hub.Lag(c.r.Context(), topic, name)
	if err != nil {
		return err
	}
	return c.answerJSON(http.StatusOK, lagOf{topic, name, l.Events, l.Age.Milliseconds(), l.Cursor, l.Tail})
}
