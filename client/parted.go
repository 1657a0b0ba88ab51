package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"

	"promethean/wire"
)

// assigned takes an ASSIGN.
func (s *Subscription) assigned(on *session, generation uint64, partitions []int) {
	s.mu.Lock()
	mine := s.session == on && !s.ended
	s.mu.Unlock()
	if !mine || s.o.OnAssign == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			s.c.o.Logger.Error("OnAssign has panicked", "topics", s.topics, "group", s.group, "panic", fmt.Sprintf("%v\n%s", p, debug.Stack()))
		}
	}()
	if partitions == nil {
		partitions = []int{}
	}
	s.o.OnAssign(generation, partitions)
}

// dismissed takes an ERR that says that a subscription is over, and says whether it
// was about one.
func (l *link) dismissed(on *session, in *incoming) bool {
	sub := l.find(in.topic, in.group)
	if sub == nil || in.answer.refusal == nil {
		return false
	}
	sub.over(on, in.answer.refusal)
	return true
}

// over ends the subscription, or makes it again where that may help.
func (s *Subscription) over(on *session, why *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != on {
		return
	}
	s.session, s.live, s.held = nil, false, false
	if !wire.Code(why.Code).Entry().Retry {
		s.finishLocked(why)
		return
	}
	for _, w := range s.works {
		if w.session == on {
			s.lose(w)
		}
	}
	s.c.o.Logger.Warn("a subscription was ended by the hub, and is made again", "topics", s.topics, "group", s.group, "err", why)
	time.AfterFunc(s.l.backoff(0), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.subscribe(1)
	})
}

// GroupPartitions is how a group is divided among its members. Times are epoch
// ms.
type GroupPartitions struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	// Partitioned is false for a group that is not; there is nothing more to
	// tell then.
	Partitioned bool `json:"partitioned"`
	// Generation grows whenever partitions are given to others.
	Generation uint64            `json:"generation"`
	Members    []PartitionMember `json:"members"`
	Partitions []PartitionInfo   `json:"partitions"`
	// LastRebalance is nil where there was none.
	LastRebalance *Rebalance `json:"last_rebalance,omitempty"`
}

// PartitionMember is a member of a partitioned group.
type PartitionMember struct {
	ID            string            `json:"id"`
	Static        bool              `json:"static"` // it chose its id
	Hub           string            `json:"hub,omitempty"`
	Meta          map[string]string `json:"meta,omitempty"`
	Joined        int64             `json:"joined"`
	LastHeartbeat int64             `json:"last_heartbeat"`
	AwaySince     int64             `json:"away_since,omitempty"` // its partitions wait for it
	Leaving       bool              `json:"leaving,omitempty"`
	DampedUntil   int64             `json:"damped_until,omitempty"` // it came and went too often
	Partitions    []int             `json:"partitions"`             // that it is to have
}

// PartitionInfo is how one partition stands.
type PartitionInfo struct {
	Partition int    `json:"partition"`
	Owner     string `json:"owner"`          // "" is nobody
	From      string `json:"from,omitempty"` // who has it still, while it moves
	Epoch     uint64 `json:"epoch"`
	Cursor    uint64 `json:"cursor"`
	Lag       uint64 `json:"lag"`
	About     bool   `json:"about,omitempty"`    // the lag is an estimate
	InFlight  *int   `json:"inflight,omitempty"` // known where the hub serves the partition
}

// Rebalance is the last one of a group.
type Rebalance struct {
	At int64 `json:"at"`
	// TookMs is how long it was until all partitions ran again, nil while
	// Pending of them do not.
	TookMs  *int64 `json:"took_ms,omitempty"`
	Moved   int    `json:"moved"`
	Pending int    `json:"pending,omitempty"`
}

// GroupPartitions tells how groups of a name are divided, on one topic, or on all
// where topic is "". Where group is "" too it tells of all partitioned groups.
func (c *Client) GroupPartitions(ctx context.Context, topic, group string) ([]GroupPartitions, error) {
	q := url.Values{}
	for name, value := range map[string]string{"topic": topic, "group": group} {
		if value != "" {
			q.Set(name, value)
		}
	}
	var got struct{ Groups []GroupPartitions }
	err := c.call(ctx, http.MethodGet, "/ops/partitions", q, nil, &got)
	return got.Groups, err
}
