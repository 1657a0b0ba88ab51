package partition

import (
	"math"
	"slices"
	"strings"
	"time"

	"promethean/group"
)

// roster is all that is known of who works on a partitioned group: its members,
// which partitions they are to have, and which they have. It knows no clock and
// no other process: whoever changes it says what time it is, calls balance, and
// puts it back as a whole.
//
// A partition has an owner, who is to have it, and a holder, who may have it.
// They differ while it moves: the holder lets go of it, and it passes to
// whoever is the owner then. A holder that is gone need not be waited for.
type roster struct {
	plan       group.Plan
	generation uint64 // grows whenever an owner changes
	members    []member
	owners     []string // by partition, "" for nobody
	holders    []string // by partition, "" for nobody
	// closing are members that may still have partitions of the plan before.
	// Nobody holds anything of the new one until they are through.
	closing []string
	bars    []bar
	flaps   []flap
	last    rebalance
	stale   bool // owners have to be found anew; not kept
}

// member is one of them.
type member struct {
	ID      string            `json:"id"`
	Static  bool              `json:"static,omitempty"` // it chose its id
	Hub     string            `json:"hub,omitempty"`
	Session uint64            `json:"session"` // of those with one id, only the newest counts
	Meta    map[string]string `json:"meta,omitempty"`
	Joined  int64             `json:"joined"`         // epoch ms, as all times here
	Seen    int64             `json:"seen"`           // about when it was heard of
	Away    int64             `json:"away,omitempty"` // since when it is dropped; its partitions wait for it
	// Leaving says that it gets no more and lets go of what it has.
	Leaving bool `json:"leaving,omitempty"`
	// Damped is until when it gets nothing, because it came and went too often.
	Damped int64 `json:"damped,omitempty"`
}

// bar keeps a partition from a member that could not take it.
type bar struct {
	Member    string `json:"member"`
	Partition int    `json:"partition"`
	Times     int    `json:"times"`
	Until     int64  `json:"until,omitempty"` // 0: no longer, but it is remembered how often
}

// flap remembers how often a member has come and gone.
type flap struct {
	Member  string  `json:"member"`
	Penalty float64 `json:"penalty"`
	At      int64   `json:"at"`
}

// rebalance is the last one.
type rebalance struct {
	At      int64 `json:"at,omitempty"`
	Moved   int   `json:"moved,omitempty"`
	TookMs  int64 `json:"tookMs,omitempty"`
	Pending []int `json:"pending,omitempty"` // partitions that do not run yet; sorted
}

// limits are what time means to a roster.
type limits struct {
	ttl time.Duration
}

const (
	// flapLimit is the penalty above which a member that comes again is damped:
	// every going adds one, and it halves every flapHalf TTLs.
	flapLimit = 3
	flapHalf  = 4
	// flapLongest is for how many TTLs a member is damped at most.
	flapLongest = 20
	// flapForget is the penalty below which it is forgotten.
	flapForget = 0.1
)

const (
	barFirst   = time.Second
	barLongest = 5 * time.Minute
)

// barFor is how long a partition is kept from a member that has failed to take
// it so often.
func barFor(times int) time.Duration {
	return min(barFirst<<min(times-1, 20), barLongest)
}

func (r *roster) find(id string) *member {
	i, ok := slices.BinarySearchFunc(r.members, id, func(m member, id string) int { return strings.Compare(m.ID, id) })
	if !ok {
		return nil
	}
	return &r.members[i]
}

// is says whether the member with that id is the one of that session.
func (r *roster) is(id string, session uint64) bool {
	m := r.find(id)
	return m != nil && m.Session == session
}

// join takes a member in, or puts it in the place of one with the same id,
// whose partitions it gets without a move.
func (r *roster) join(m member, now time.Time, l limits) {
	m.Joined, m.Seen = now.UnixMilli(), now.UnixMilli()
	if old := r.find(m.ID); old != nil {
		if old.Session == m.Session {
			return // it is a repetition
		}
		m.Damped = old.Damped
		*old = m
		r.stale = true
		return
	}
	if p := r.penalty(m.ID, now, l); p > flapLimit {
		wait := time.Duration(float64(l.ttl) * min(math.Exp2(p-flapLimit), flapLongest))
		m.Damped = now.Add(wait).UnixMilli()
	}
	i, _ := slices.BinarySearchFunc(r.members, m.ID, func(x member, id string) int { return strings.Compare(x.ID, id) })
	r.members = slices.Insert(r.members, i, m)
	r.stale = true
}

// leave has a member let go of everything. It is gone once it has.
func (r *roster) leave(id string, session uint64) {
	if m := r.find(id); m != nil && m.Session == session && !m.Leaving {
		m.Leaving = true
		r.stale = true
	}
}

// drop is for a member whose connection is lost: one with an id of its own is
// away, another one is gone.
func (r *roster) drop(id string, session uint64, now time.Time, l limits) {
	m := r.find(id)
	switch {
	case m == nil || m.Session != session:
	case m.Static && !m.Leaving:
		if m.Away == 0 {
			m.Away = now.UnixMilli()
		}
		// It has nothing any more: what was on its way from it has arrived.
		for p := range r.holders {
			if r.holders[p] == id && r.owners[p] != id {
				r.holders[p] = ""
			}
		}
		r.closing = slices.DeleteFunc(r.closing, func(x string) bool { return x == id })
	default:
		r.remove(id, now, l)
	}
}

// remove takes a member out at once, whatever it holds.
func (r *roster) remove(id string, now time.Time, l limits) {
	m := r.find(id)
	if m == nil {
		return
	}
	if m.Static {
		r.flapped(id, now, l)
	}
	r.members = slices.DeleteFunc(r.members, func(m member) bool { return m.ID == id })
	r.closing = slices.DeleteFunc(r.closing, func(x string) bool { return x == id })
	r.bars = slices.DeleteFunc(r.bars, func(b bar) bool { return b.Member == id })
	for p := range r.owners {
		if r.owners[p] == id {
			r.owners[p] = ""
		}
		if r.holders[p] == id {
			r.holders[p] = ""
		}
	}
	r.stale = true
}

// hubGone is for a hub that is no more: its members have no connection.
func (r *roster) hubGone(hub string, now time.Time, l limits) {
	for _, m := range slices.Clone(r.members) {
		if m.Hub == hub {
			r.drop(m.ID, m.Session, now, l)
		}
	}
}

// sweep removes members that were away for too long, and lets those have their
// share that were kept from it long enough. since gives when it was seen that a
// member is away: clocks may differ.
func (r *roster) sweep(now time.Time, l limits, since func(m *member) time.Time) {
	ms := now.UnixMilli()
	for _, m := range slices.Clone(r.members) {
		if m.Away != 0 && now.Sub(since(&m)) >= l.ttl {
			r.remove(m.ID, now, l)
		}
	}
	for i := range r.members {
		if m := &r.members[i]; m.Damped != 0 && m.Damped <= ms {
			m.Damped = 0
			r.stale = true
		}
	}
	for i := range r.bars {
		if b := &r.bars[i]; b.Until != 0 && b.Until <= ms {
			b.Until = 0
			r.stale = true
		}
	}
	r.flaps = slices.DeleteFunc(r.flaps, func(f flap) bool { return f.now(now, l) < flapForget })
}

// release is a holder that has let go of a partition.
func (r *roster) release(id string, session uint64, p int) {
	if p < len(r.holders) && r.holders[p] == id && r.is(id, session) {
		r.holders[p] = ""
	}
}

// refuse is a holder that could not take a partition.
func (r *roster) refuse(id string, session uint64, p int, now time.Time) {
	if p >= len(r.holders) || !r.is(id, session) {
		return
	}
	i := slices.IndexFunc(r.bars, func(b bar) bool { return b.Member == id && b.Partition == p })
	if i < 0 {
		i = len(r.bars)
		r.bars = append(r.bars, bar{Member: id, Partition: p})
	}
	b := &r.bars[i]
	b.Times++
	b.Until = now.Add(barFor(b.Times)).UnixMilli()
	r.stale = true
	r.release(id, session, p)
}

// barred gives until when a partition is kept from a member; 0 if it is not.
func (r *roster) barred(id string, p int) int64 {
	for _, b := range r.bars {
		if b.Member == id && b.Partition == p {
			return b.Until
		}
	}
	return 0
}

// runs is a holder that has begun with a partition.
func (r *roster) runs(id string, session uint64, p int, now time.Time) {
	if p >= len(r.holders) || r.holders[p] != id || !r.is(id, session) {
		return
	}
	r.bars = slices.DeleteFunc(r.bars, func(b bar) bool { return b.Member == id && b.Partition == p })
	i, found := slices.BinarySearch(r.last.Pending, p)
	if !found || r.owners[p] != id {
		return
	}
	r.last.Pending = slices.Delete(r.last.Pending, i, i+1)
	r.done(now)
}

// done says how long a rebalance took that is through.
func (r *roster) done(now time.Time) {
	if len(r.last.Pending) == 0 && r.last.TookMs < 0 {
		r.last.TookMs = max(now.UnixMilli()-r.last.At, 0)
	}
}

// divide begins with a plan. Whoever holds something of the one before has to
// be through with it first.
func (r *roster) divide(p group.Plan) {
	if r.plan == p {
		return
	}
	for _, m := range r.members {
		if m.Away == 0 && slices.Contains(r.holders, m.ID) && !slices.Contains(r.closing, m.ID) {
			r.closing = append(r.closing, m.ID)
		}
	}
	owners := make([]string, p.Count)
	copy(owners, r.owners)
	if r.plan.ID != "" {
		r.generation++
	}
	r.plan, r.owners, r.holders = p, owners, make([]string, p.Count)
	r.bars = nil
	r.last.Pending = nil
	r.stale = true
}

// closed is a member that has nothing of the plan before.
func (r *roster) closed(id string, session uint64) {
	if r.is(id, session) {
		r.closing = slices.DeleteFunc(r.closing, func(x string) bool { return x == id })
	}
}

// balance finds the owners anew if need be, and passes on what is free.
func (r *roster) balance(now time.Time, l limits) {
	if r.stale {
		r.stale = false
		r.assign(now)
	}
	if len(r.closing) == 0 {
		for p := range r.holders {
			if r.holders[p] == "" {
				r.holders[p] = r.owners[p]
			}
		}
	}
	var through []string
	for _, m := range r.members {
		if m.Leaving && !slices.Contains(r.holders, m.ID) && !slices.Contains(r.closing, m.ID) {
			through = append(through, m.ID)
		}
	}
	for _, id := range through {
		r.remove(id, now, l)
		r.stale = false // it had nothing
	}
}

// assign finds the owners.
func (r *roster) assign(now time.Time) {
	var eligible, damped []string
	away, serves := make(map[string]bool), make(map[string]bool)
	for _, m := range r.members {
		switch {
		case m.Leaving:
		case m.Away != 0:
			away[m.ID] = true
		case m.Damped != 0:
			damped = append(damped, m.ID)
		default:
			eligible = append(eligible, m.ID)
		}
	}
	if len(eligible) == 0 {
		eligible = damped
	}
	for _, id := range eligible {
		serves[id] = true
	}
	// What waits for somebody is not shared out.
	var free []int
	var previous []string
	for p, id := range r.owners {
		if away[id] {
			continue
		}
		if !serves[id] {
			id = r.holders[p] // it may have it still
		}
		free, previous = append(free, p), append(previous, id)
	}
	bars := make(map[bar]bool, len(r.bars))
	for _, b := range r.bars {
		if b.Until != 0 {
			bars[bar{Member: b.Member, Partition: b.Partition}] = true
		}
	}
	var barred func(string, int) bool
	if len(bars) > 0 {
		barred = func(id string, i int) bool { return bars[bar{Member: id, Partition: free[i]}] }
	}
	moved := 0
	for i, id := range assign(eligible, previous, barred) {
		p := free[i]
		if r.owners[p] == id {
			continue
		}
		r.owners[p] = id
		moved++
		at, found := slices.BinarySearch(r.last.Pending, p)
		switch {
		case id != "" && !found:
			r.last.Pending = slices.Insert(r.last.Pending, at, p)
		case id == "" && found:
			r.last.Pending = slices.Delete(r.last.Pending, at, at+1)
		}
	}
	if moved > 0 {
		r.generation++
		r.last.At, r.last.Moved, r.last.TookMs = now.UnixMilli(), moved, -1
		r.done(now)
	}
}

// flapped adds to the penalty of a member that goes.
func (r *roster) flapped(id string, now time.Time, l limits) {
	i := slices.IndexFunc(r.flaps, func(f flap) bool { return f.Member == id })
	if i < 0 {
		i = len(r.flaps)
		r.flaps = append(r.flaps, flap{Member: id})
	}
	f := &r.flaps[i]
	f.Penalty, f.At = f.now(now, l)+1, now.UnixMilli()
}

func (r *roster) penalty(id string, now time.Time, l limits) float64 {
	for _, f := range r.flaps {
		if f.Member == id {
			return f.now(now, l)
		}
	}
	return 0
}

// now is what is left of the penalty.
func (f flap) now(now time.Time, l limits) float64 {
	age := max(now.UnixMilli()-f.At, 0)
	return f.Penalty * math.Exp2(-float64(age)/float64(flapHalf*max(l.ttl.Milliseconds(), 1)))
}

// hubs gives the hubs that members are at.
func (r *roster) hubs() (list []string) {
	for _, m := range r.members {
		if !slices.Contains(list, m.Hub) {
			list = append(list, m.Hub)
		}
	}
	return list
}
