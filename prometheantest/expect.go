package prometheantest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/group"
)

// How often a condition is looked at that nothing tells of.
const (
	firstPoll = time.Millisecond
	lastPoll  = 100 * time.Millisecond
)

// settle lets everybody in a bubble do what can be done without time going on.
// Elsewhere it does nothing: there nobody can know.
func (h *Hub) settle() {
	if h.bubbled {
		synctest.Wait()
	}
}

// Eventually ends the test unless check returns nil before [Patience] is over.
// The last error says what was missing.
func (h *Hub) Eventually(check func() error) {
	h.t.Helper()
	if err := h.eventually(check); err != nil {
		h.t.Fatalf("%s", report(fmt.Sprintf("Eventually: not within %v%s: %v", h.patience, h.clock(), err), h.hints("")))
	}
}

func (h *Hub) eventually(check func() error) error {
	over := time.NewTimer(h.patience)
	defer over.Stop()
	// Most conditions follow from an event.
	w := h.hub.Log().Watch()
	defer w.Stop()
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		h.settle()
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-w.C:
		case <-time.After(pause):
		case <-over.C:
			h.settle()
			return check()
		}
	}
}

// ExpectEvents ends the test unless the next events of a topic are these, in
// this order: the first ones, or those after the last that was expected. It
// waits for them as long as [Patience] allows, and gives them back.
//
// What is expected of one can be
//   - an [Event], which names fields and leaves others open,
//   - a func([event.Event]) error, which decides itself,
//   - what [Exactly] gives: a payload that must be equal,
//   - any other value: the payload must have what its JSON has. Members of
//     objects that it does not name may have any value, so that a map names
//     what matters, and a struct all that it encodes.
func (h *Hub) ExpectEvents(topic string, want ...any) []event.Event {
	h.t.Helper()
	list := make([]matcher, len(want))
	for i, w := range want {
		m, err := newMatcher(w)
		if err != nil {
			h.t.Fatalf("ExpectEvents %s: what is expected as event %d of %d: %v", topic, i+1, len(want), err)
		}
		list[i] = m
	}
	after := h.mark(topic)
	var got []event.Event
	enough := func() bool {
		var err error
		if got, err = h.read(topic, after); err != nil {
			h.t.Fatalf("ExpectEvents %s: %v", topic, err)
		}
		return len(got) >= len(list)
	}
	came := h.await(topic, h.patience, enough)
	for i := range min(len(got), len(list)) {
		if faults := list[i].faults(&got[i]); len(faults) > 0 {
			h.t.Fatalf("%s", report(fmt.Sprintf("ExpectEvents %s: event %d of %d is not as expected (seq %d)", topic, i+1, len(list), got[i].Seq),
				listed(faults), h.since(topic, got, i, true), h.hints(topic)))
		}
	}
	if !came {
		h.t.Fatalf("%s", report(fmt.Sprintf("ExpectEvents %s: %d of %d events came within %v%s", topic, len(got), len(list), h.patience, h.clock()),
			missing(list, len(got)), h.since(topic, got, len(got), false), h.hints(topic)))
	}
	got = got[:len(list)]
	if len(got) > 0 {
		h.seenUpTo(topic, got[len(got)-1].Seq)
	}
	return got
}

// ExpectNone ends the test if a topic gets an event within that time, or has one
// after the last that was expected. In a bubble it takes no time, and what could
// have happened by then has happened.
func (h *Hub) ExpectNone(topic string, within time.Duration) {
	h.t.Helper()
	began, after := time.Now(), h.mark(topic)
	var got []event.Event
	some := func() bool {
		var err error
		if got, err = h.read(topic, after); err != nil {
			h.t.Fatalf("ExpectNone %s: %v", topic, err)
		}
		return len(got) > 0
	}
	if h.await(topic, within, some) {
		h.t.Fatalf("%s", report(fmt.Sprintf("ExpectNone %s: there are %d after %v of %v%s", topic, len(got), time.Since(began).Round(time.Millisecond), within, h.clock()),
			h.since(topic, got, 0, false)))
	}
}

// await waits until enough is true; it is asked again whenever the topic has
// grown. It gives the last answer.
func (h *Hub) await(topic string, within time.Duration, enough func() bool) bool {
	w := h.hub.Log().Watch(topic)
	defer w.Stop()
	over := time.NewTimer(within)
	defer over.Stop()
	for !enough() {
		select {
		case <-w.C:
		case <-over.C:
			h.settle() // what happens at this very moment counts
			return enough()
		}
	}
	return true
}

// mark is the last seq that was expected.
func (h *Hub) mark(topic string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[topic]
}

func (h *Hub) seenUpTo(topic string, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[topic] = seq
}

// clock says which time is meant, where it is not the usual one.
func (h *Hub) clock() string {
	if h.bubbled {
		return " (virtual time)"
	}
	return ""
}

// shownEvents bounds the list of events in a message.
const shownEvents = 20

// report puts a message together: a line, and blocks that say more.
func report(line string, blocks ...string) string {
	return strings.TrimRight(line+"\n"+strings.Join(blocks, ""), "\n")
}

// since lists events. The first good ones are as expected; with bad, the one
// after them is not.
func (h *Hub) since(topic string, got []event.Event, good int, bad bool) string {
	var b strings.Builder
	what := "events of " + topic
	if h.mark(topic) > 0 {
		what += " since the last expectation"
	}
	if len(got) == 0 {
		return "  there are no " + what + "\n"
	}
	fmt.Fprintf(&b, "  %s:\n", what)
	from := max(min(good, len(got)-1)-shownEvents/2, 0)
	if from > 0 {
		fmt.Fprintf(&b, "    … %d as expected\n", from)
	}
	for i := from; i < len(got); i++ {
		if i == from+shownEvents {
			fmt.Fprintf(&b, "    … %d more\n", len(got)-i)
			break
		}
		sign := " "
		switch {
		case i < good:
			sign = "="
		case i == good && bad:
			sign = "≠"
		}
		fmt.Fprintf(&b, "  %s %s  %s\n", sign, label(&got[i]), short(got[i].Payload))
	}
	return b.String()
}

// missing lists what was expected and did not come.
func missing(want []matcher, from int) string {
	var b strings.Builder
	for i := from; i < len(want); i++ {
		if i == from+shownEvents {
			fmt.Fprintf(&b, "    … and %d more\n", len(want)-i)
			break
		}
		fmt.Fprintf(&b, "    missing %d: %s\n", i+1, want[i])
	}
	return b.String()
}

// hints says what else is in the hub, for who looks in the wrong topic; and
// above all what died.
func (h *Hub) hints(topic string) string {
	var b strings.Builder
	for t, err := range h.hub.Topics(context.Background()) {
		if err != nil {
			return fmt.Sprintf("  the topics cannot be read: %v\n", err)
		}
		if t.Name == topic || t.Bounds.Empty() {
			continue
		}
		fmt.Fprintf(&b, "  %s has %d\n", t.Name, t.Bounds.Last-t.Bounds.First+1)
		if strings.HasPrefix(t.Name, group.LetterPrefix) {
			b.WriteString(h.letters(t.Name))
		}
	}
	if b.Len() == 0 {
		return "  no other topic has events\n"
	}
	return b.String()
}

// letters says why the first dead letters of a topic are there.
func (h *Hub) letters(topic string) string {
	const most = 3
	list, err := h.read(topic, 0)
	if err != nil {
		return fmt.Sprintf("    %v\n", err)
	}
	var b strings.Builder
	for i := range list[:min(len(list), most)] {
		var l group.Letter
		if err := json.Unmarshal(list[i].Payload, &l); err != nil {
			continue // it is counted above
		}
		fmt.Fprintf(&b, "    dead after %d in %s: %s: %s\n", l.Attempts, l.Group, short(l.Original.Payload), strings.ReplaceAll(l.Err, "\n", "; "))
	}
	return b.String()
}
