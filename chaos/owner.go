package main

import (
	"slices"
	"sort"

	"promethean/event"
)

// judgeOwners wants every partition to be at one owner at a time: whoever hands
// out after somebody else did must have been given the partition since. It says
// how often one was given.
//
// An event counts for the partition of its key among parts. That is where a group
// has it, also if its hub had not heard yet of the topic's partitions when it was
// published, and stored it with another one.
func (h *history) judgeOwners(topic, group string, parts int, v *verdict) (taken int) {
	type tenure struct {
		who  string
		part int
	}
	takes := make(map[tenure][]int64)
	outs := make(map[int][]*entry) // by partition
	for i := range h.entries {
		e := &h.entries[i]
		if e.Topic != topic || e.Group != group {
			continue
		}
		switch e.Do {
		case doTake:
			taken++
			t := tenure{e.Who, *e.Part}
			takes[t] = append(takes[t], e.T)
		case doGot:
			part := event.PartitionFor(e.Key, e.ID, parts)
			outs[part] = append(outs[part], e)
		}
	}
	for part, list := range outs {
		slices.SortStableFunc(list, func(a, b *entry) int { return int(min(max(a.Out-b.Out, -1), 1)) })
		last := make(map[string]*entry) // the latest hand-out to each
		for _, e := range list {
			for who, o := range last {
				// What two were handed in the same moment has no order.
				if who == e.Who || o.Out+int64(slack) > e.Out {
					continue
				}
				t := takes[tenure{e.Who, part}]
				since := sort.Search(len(t), func(i int) bool { return t[i]+int64(slack) >= o.Out })
				if since == len(t) || t[since] > e.T {
					v.add("a partition has one owner", "%s of %s: partition %d: %s was handed seq %d (%v) at %s, though %s, handed seq %d (%v) at %s, had it by then",
						group, topic, part, e.Who, e.Seq, e.ID, stamp(e.Out), who, o.Seq, o.ID, stamp(o.Out))
				}
			}
			last[e.Who] = e
		}
	}
	return taken
}
