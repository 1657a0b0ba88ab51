package partition

import (
	"encoding/json"
	"fmt"

	"promethean/group"
)

// rosterDoc is how a roster is written down. Members go by their place in the
// list, nobody is -1.
type rosterDoc struct {
	Version    int         `json:"v"`
	Plan       string      `json:"plan"`
	Generation uint64      `json:"generation"`
	Members    []member    `json:"members"`
	Owners     []int       `json:"owners"`
	Moving     map[int]int `json:"moving,omitempty"` // holders that are not the owners
	Closing    []string    `json:"closing,omitempty"`
	Bars       []bar       `json:"bars,omitempty"`
	Flaps      []flap      `json:"flaps,omitempty"`
	Last       rebalance   `json:"last"`
}

const rosterVersion = 1

func (r *roster) encode() []byte {
	d := rosterDoc{
		Version: rosterVersion, Plan: r.plan.ID, Generation: r.generation, Members: r.members,
		Owners: make([]int, len(r.owners)), Closing: r.closing, Bars: r.bars, Flaps: r.flaps, Last: r.last,
	}
	index := map[string]int{"": -1}
	for i, m := range r.members {
		index[m.ID] = i
	}
	for p := range r.owners {
		d.Owners[p] = index[r.owners[p]]
		if r.holders[p] != r.owners[p] {
			if d.Moving == nil {
				d.Moving = make(map[int]int)
			}
			d.Moving[p] = index[r.holders[p]]
		}
	}
	b, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("a roster does not encode: %v", err)) // plain fields
	}
	return b
}

func decodeRoster(b []byte) (*roster, error) {
	if len(b) == 0 {
		return new(roster), nil
	}
	var d rosterDoc
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("the list of members cannot be read: %w", err)
	}
	if d.Version != rosterVersion {
		return nil, fmt.Errorf("the list of members has format %d, and this program knows %d", d.Version, rosterVersion)
	}
	r := &roster{
		plan: group.Plan{ID: d.Plan, Count: len(d.Owners)}, generation: d.Generation, members: d.Members,
		owners: make([]string, len(d.Owners)), holders: make([]string, len(d.Owners)),
		closing: d.Closing, bars: d.Bars, flaps: d.Flaps, last: d.Last,
	}
	name := func(i int) (string, error) {
		if i < -1 || i >= len(r.members) {
			return "", fmt.Errorf("the list of members has no place %d", i)
		}
		if i == -1 {
			return "", nil
		}
		return r.members[i].ID, nil
	}
	for p, i := range d.Owners {
		id, err := name(i)
		if err != nil {
			return nil, err
		}
		r.owners[p], r.holders[p] = id, id
	}
	for p, i := range d.Moving {
		id, err := name(i)
		if err != nil {
			return nil, err
		}
		if p < 0 || p >= len(r.holders) {
			return nil, fmt.Errorf("the list of members has no partition %d", p)
		}
		r.holders[p] = id
	}
	return r, nil
}
