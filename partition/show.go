package partition

import (
	"context"
	"fmt"
	"iter"
	"time"

	"promethean/group"
)

// State is how a partitioned group stands.
type State struct {
	Topic, Group string
	Plan         group.Plan
	// Generation grows whenever partitions are given to others.
	Generation uint64
	Members    []Member
	Partitions []Partition
	Rebalance  Rebalance
}

// Member is one of a group.
type Member struct {
	ID string
	// Static says that it chose its id.
	Static bool
	// Hub is the id of the hub that it is at; "" where there is only one.
	Hub    string
	Meta   map[string]string
	Joined time.Time
	// Seen is when it was heard of last: exact for members at this hub, and
	// for others up to a TTL old.
	Seen time.Time
	// Away is since when its partitions wait for it; zero if it is there.
	Away time.Time
	// Leaving says that it lets go of what it has.
	Leaving bool
	// Damped is until when it gets nothing because it came and went too often.
	Damped time.Time
	// Partitions are those that it is to have.
	Partitions []int
}

// Partition is one of a group.
type Partition struct {
	group.PartInfo
	// Owner is the member that is to have it, and Holder the one that has it;
	// they differ while it moves. "" is nobody.
	Owner, Holder string
}

// Rebalance is the last one.
type Rebalance struct {
	// At is when it began; zero if there was none.
	At time.Time
	// Moved is how many partitions were given to somebody else.
	Moved int
	// Took is how long it was until all of them ran again; Pending is how many
	// do not so far.
	Took    time.Duration
	Pending int
}

// Show tells how a partitioned group stands.
func (c *Coordinator) Show(ctx context.Context, topic, name string) (State, error) {
	s := State{Topic: topic, Group: name}
	var infos []group.PartInfo
	var err error
	if s.Plan, infos, err = c.hub.Engine().Parts(ctx, topic, name); err != nil {
		return s, err
	}
	doc, _, err := c.table.load(ctx, topic, name)
	if err != nil {
		return s, fmt.Errorf("topic %s, group %s: %w", topic, name, err)
	}
	r, err := decodeRoster(doc)
	if err != nil {
		return s, fmt.Errorf("topic %s, group %s: %w", topic, name, err)
	}
	s.Generation = r.generation
	s.Rebalance = Rebalance{At: moment(r.last.At), Moved: r.last.Moved, Pending: len(r.last.Pending), Took: max(time.Duration(r.last.TookMs)*time.Millisecond, 0)}
	has := make(map[string][]int)
	for i, info := range infos {
		p := Partition{PartInfo: info}
		if i < len(r.owners) {
			p.Owner, p.Holder = r.owners[i], r.holders[i]
			has[p.Owner] = append(has[p.Owner], i)
		}
		s.Partitions = append(s.Partitions, p)
	}
	heard := c.heard(groupName{topic, name})
	for _, m := range r.members {
		seen, here := heard[m.Session]
		if !here {
			seen = moment(m.Seen)
		}
		s.Members = append(s.Members, Member{
			ID: m.ID, Static: m.Static, Hub: m.Hub, Meta: m.Meta, Joined: moment(m.Joined), Seen: seen,
			Away: moment(m.Away), Leaving: m.Leaving, Damped: moment(m.Damped), Partitions: has[m.ID],
		})
	}
	return s, nil
}

// heard gives when the members at this hub were heard of.
func (c *Coordinator) heard(n groupName) map[uint64]time.Time {
	out := make(map[uint64]time.Time)
	c.mu.Lock()
	a := c.agents[n]
	c.mu.Unlock()
	if a == nil {
		return out
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, ms := range a.members {
		out[ms.session] = ms.heard(now)
	}
	return out
}

func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Groups yields the partitioned groups of a topic by name; "" means of all
// topics.
func (c *Coordinator) Groups(ctx context.Context, topic string) iter.Seq2[group.Info, error] {
	return func(yield func(group.Info, error) bool) {
		for i, err := range c.hub.Groups(ctx, topic) {
			if err == nil && i.Settings.Partitions == 0 {
				continue
			}
			if !yield(i, err) {
				return
			}
		}
	}
}
