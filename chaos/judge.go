package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"promethean/event"
)

// slack is what two stamps of one clock may differ by: hubs tell milliseconds.
const slack = 5 * time.Millisecond

// finding is a promise that did not hold.
type finding struct {
	rule string
	text string
}

// verdict gathers findings.
type verdict struct {
	findings []finding
	counts   map[string]int // by rule
}

// shown is how many findings of one rule are told in full.
const shown = 10

func (v *verdict) add(rule, format string, args ...any) {
	if v.counts == nil {
		v.counts = make(map[string]int)
	}
	if v.counts[rule]++; v.counts[rule] <= shown {
		v.findings = append(v.findings, finding{rule, fmt.Sprintf(format, args...)})
	}
}

// stamp is a moment as findings show it.
func stamp(ns int64) string { return time.Unix(0, ns).UTC().Format("15:04:05.000") }

// history is what is judged.
type history struct {
	entries []entry                  // of all journals, by time
	logs    map[string][]event.Event // by topic, as they are at the end
}

// place is an event of a topic.
type place struct {
	topic string
	id    event.ID
}

// index gives where each event of the logs is, and finds fault with the logs
// themselves.
func (h *history) index(v *verdict) map[place]*event.Event {
	at := make(map[place]*event.Event)
	for topic, list := range h.logs {
		var before uint64
		for i := range list {
			e := &list[i]
			if e.Seq <= before {
				v.add("seq ascends", "%s: seq %d comes after %d", topic, e.Seq, before)
			}
			before = e.Seq
			p := place{topic, e.ID}
			if first, ok := at[p]; ok {
				v.add("stored once", "%s: event %v is stored as seq %d and as seq %d", topic, e.ID, first.Seq, e.Seq)
				continue
			}
			at[p] = e
		}
	}
	return at
}

// judgeLogs wants no process to have reported an error by itself, or a panic.
func judgeLogs(dir string, v *verdict) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "level=ERROR") || strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
				v.add("no process reports an error", "%s: %s", filepath.Base(name), strings.TrimSpace(line))
			}
		}
	}
	return nil
}

// judgePublishes compares what publishers were told with the logs.
func (h *history) judgePublishes(v *verdict) {
	at := h.index(v)
	sent := make(map[place]*entry)     // the first try
	batches := make(map[place][]place) // by its first event
	for i := range h.entries {
		e := &h.entries[i]
		p := place{e.Topic, e.ID}
		switch e.Do {
		case doPublish:
			if sent[p] == nil {
				sent[p] = e
				if len(e.Batch) > 0 && e.Batch[0] == e.ID {
					for _, id := range e.Batch {
						batches[p] = append(batches[p], place{e.Topic, id})
					}
				}
			}
		case doStored:
			switch x := at[p]; {
			case x == nil:
				v.add("no acknowledged publish is lost", "%s: event %v, acknowledged as seq %d to %s by hub %d at %s, is not in the log",
					e.Topic, e.ID, e.Seq, e.Who, e.Hub+1, stamp(e.T))
			case x.Seq != e.Seq:
				v.add("no acknowledged publish is lost", "%s: event %v, acknowledged as seq %d to %s by hub %d at %s, is seq %d in the log",
					e.Topic, e.ID, e.Seq, e.Who, e.Hub+1, stamp(e.T), x.Seq)
			}
		case doRefused:
			if e.Code != "seq_conflict" {
				v.add("no publish is refused", "%s: event %v of %s was refused by hub %d at %s: %s", e.Topic, e.ID, e.Who, e.Hub+1, stamp(e.T), e.Err)
			} else if x := at[p]; x != nil {
				v.add("a refused publish is not stored", "%s: event %v of %s was refused by hub %d at %s (%s), and is seq %d",
					e.Topic, e.ID, e.Who, e.Hub+1, stamp(e.T), e.Err, x.Seq)
			}
		}
	}
	for p, all := range batches {
		var there []event.ID
		for _, q := range all {
			if at[q] != nil {
				there = append(there, q.id)
			}
		}
		if len(there) != 0 && len(there) != len(all) {
			v.add("a batch is stored as a whole", "%s: of the batch of %d that %s sent at %s only %v are stored", p.topic, len(all), sent[p].Who, stamp(sent[p].T), there)
		}
	}
	for topic, list := range h.logs {
		before := make(map[string]*entry)
		for i := range list {
			e := &list[i]
			s := sent[place{topic, e.ID}]
			if s == nil {
				v.add("nothing is made up", "%s: event %v, seq %d, was published by nobody", topic, e.ID, e.Seq)
				continue
			}
			var b body
			if err := json.Unmarshal(e.Payload, &b); err != nil || b.N != s.N || e.Key != s.Key {
				v.add("content is kept", "%s: event %v, seq %d, has key %q and payload %s; it was published with key %q as number %d", topic, e.ID, e.Seq, e.Key, e.Payload, s.Key, s.N)
			}
			// What has a condition is published by rivals.
			if p := before[e.Key]; p != nil && s.Expect == nil && s.N < p.N {
				v.add("a key's events keep the order of their publisher", "%s: key %q: number %d (%v) is stored after number %d (%v)", topic, e.Key, s.N, s.ID, p.N, p.ID)
			}
			before[e.Key] = s
		}
	}
}

// handling is what a group did with one event.
type handling struct {
	got      int
	firstAck int64 // when the first ack was sent; 0: none was
	answered int64 // when the first ack was answered; 0: none was
	ackedBy  string
}

// tally is what a group did, in numbers.
type tally struct {
	delivered, redelivered, acked int
	longest                       time.Duration // without a delivery
	longestAt                     int64         // when that ended
}

// judgeGroup compares what a group was handed with the log of its topic.
func (h *history) judgeGroup(topic, group string, v *verdict) tally {
	var t tally
	name := group + " of " + topic
	all := make(map[event.ID]*handling)
	seqs := make(map[string][]uint64) // of each key, by log order
	ids := make(map[uint64]event.ID)
	for i := range h.logs[topic] {
		e := &h.logs[topic][i]
		seqs[e.Key] = append(seqs[e.Key], e.Seq)
		ids[e.Seq] = e.ID
		all[e.ID] = &handling{}
	}
	var outs []*entry
	var last int64
	for i := range h.entries {
		e := &h.entries[i]
		if e.Topic != topic || e.Group != group {
			continue
		}
		x := all[e.ID]
		switch e.Do {
		case doGot:
			if x == nil || ids[e.Seq] != e.ID {
				v.add("what is handed out is in the log", "%s: %s got event %v as seq %d at %s from hub %d; the log has %v there",
					name, e.Who, e.ID, e.Seq, stamp(e.T), e.Hub+1, ids[e.Seq])
				continue
			}
			outs = append(outs, e)
			t.delivered++
			if x.got++; x.got > 1 {
				t.redelivered++
			}
			if last != 0 && time.Duration(e.T-last) > t.longest {
				t.longest, t.longestAt = time.Duration(e.T-last), e.T
			}
			last = e.T
		case doAck:
			if x != nil && x.firstAck == 0 {
				x.firstAck = e.T
			}
		case doAcked:
			if x != nil && x.answered == 0 {
				x.answered, x.ackedBy = e.T, fmt.Sprintf("%s at hub %d", e.Who, e.Hub+1)
				t.acked++
			}
		}
	}
	for _, e := range outs {
		x := all[e.ID]
		if x.answered != 0 && e.Out > x.answered+int64(slack) {
			v.add("what was acked never comes back", "%s: event %v (key %q, seq %d), acked by %s, answered at %s, was handed to %s by hub %d at %s (attempt %d)",
				name, e.ID, e.Key, e.Seq, x.ackedBy, stamp(x.answered), e.Who, e.Hub+1, stamp(e.Out), e.Try)
		}
		list := seqs[e.Key]
		i, _ := slices.BinarySearch(list, e.Seq)
		if e.Key == "" || i == 0 {
			continue
		}
		// The one before suffices: it was handed out under the same rule.
		b := all[ids[list[i-1]]]
		if b.firstAck == 0 || b.firstAck > e.Out+int64(slack) {
			sent := "never"
			if b.firstAck != 0 {
				sent = "at " + stamp(b.firstAck)
			}
			v.add("a key's events are handed out in order", "%s: event %v (key %q, seq %d) was handed to %s by hub %d at %s, but for seq %d (%v) before it an ack was sent %s",
				name, e.ID, e.Key, e.Seq, e.Who, e.Hub+1, stamp(e.Out), list[i-1], ids[list[i-1]], sent)
		}
	}
	for i := range h.logs[topic] {
		e := &h.logs[topic][i]
		if all[e.ID].got == 0 {
			v.add("everything is handed out", "%s: event %v (key %q, seq %d) was handed to nobody", name, e.ID, e.Key, e.Seq)
		}
	}
	return t
}
