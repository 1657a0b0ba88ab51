package storetest

import (
	"encoding/json"
	"errors"
	"strings"

	"promethean/event"
	"promethean/store"
)

var inputCases = []Case{
	{Name: "input/malformed events", run: malformedEvents},
	{Name: "input/payload limit", run: payloadLimit},
	{Name: "input/an empty batch", run: emptyBatch},
}

// malformed lists what breaks each rule of an event.
func (t *trial) malformed() []struct {
	name  string
	spoil func(e *event.Event)
	want  error
} {
	long := func(n int) string { return strings.Repeat("x", n) }
	return []struct {
		name  string
		spoil func(e *event.Event)
		want  error
	}{
		{"no id", func(e *event.Event) { e.ID = event.ID{} }, event.ErrInvalidArgument},
		{"no topic", func(e *event.Event) { e.Topic = "" }, event.ErrInvalidTopic},
		{"capitals in the topic", func(e *event.Event) { e.Topic = "Storetest" }, event.ErrInvalidTopic},
		{"an empty segment", func(e *event.Event) { e.Topic = "a..b" }, event.ErrInvalidTopic},
		{"a line break after the topic", func(e *event.Event) { e.Topic = topicA + "\n" }, event.ErrInvalidTopic},
		{"a path as topic", func(e *event.Event) { e.Topic = "../a" }, event.ErrInvalidTopic},
		{"a long topic", func(e *event.Event) { e.Topic = long(event.MaxTopic + 1) }, event.ErrInvalidTopic},
		{"a long key", func(e *event.Event) { e.Key = long(event.MaxKey + 1) }, event.ErrInvalidArgument},
		{"a key of bad UTF-8", func(e *event.Event) { e.Key = "a\xff" }, event.ErrInvalidArgument},
		{"a negative time", func(e *event.Event) { e.TS = -1 }, event.ErrInvalidArgument},
		{"a time beyond all calendars", func(e *event.Event) { e.TS = event.MaxTS + 1 }, event.ErrInvalidArgument},
		{"a partition out of range", func(e *event.Event) { e.Partition = event.PartitionOf(event.MaxPartitions) }, event.ErrInvalidArgument},
		{"a long sid", func(e *event.Event) { e.SID = long(event.MaxSID + 1) }, event.ErrInvalidArgument},
		{"a header without x-", func(e *event.Event) { e.Headers = event.Headers{{Name: "authorization", Value: "s"}} }, event.ErrInvalidHeader},
		{"a header in capitals", func(e *event.Event) { e.Headers = event.Headers{{Name: "X-A", Value: "s"}} }, event.ErrInvalidHeader},
		{"a header of bad UTF-8", func(e *event.Event) { e.Headers = event.Headers{{Name: "x-a", Value: "\xc3"}} }, event.ErrInvalidHeader},
		{"a header twice", func(e *event.Event) { e.Headers = event.Headers{{Name: "x-a", Value: "1"}, {Name: "x-a", Value: "2"}} }, event.ErrInvalidHeader},
		{"large headers", func(e *event.Event) {
			e.Headers = event.Headers{{Name: "x-a", Value: long(event.MaxHeaderBytes)}}
		}, event.ErrInvalidHeader},
		{"many headers", func(e *event.Event) {
			for i := range event.MaxHeaders + 1 {
				e.Headers = e.Headers.Set("x-"+long(i+1), "")
			}
		}, event.ErrInvalidHeader},
		{"many tags", func(e *event.Event) { e.Tags = make([]string, event.MaxTags+1) }, event.ErrInvalidArgument},
		{"a long cause", func(e *event.Event) { e.CausedBy = []string{long(event.MaxCause + 1)} }, event.ErrInvalidArgument},
		{"no payload", func(e *event.Event) { e.Payload = nil }, event.ErrBadJSON},
		{"a payload cut short", func(e *event.Event) { e.Payload = json.RawMessage(`{"a":[1,2`) }, event.ErrBadJSON},
		{"two payloads", func(e *event.Event) { e.Payload = json.RawMessage(`{}{}`) }, event.ErrBadJSON},
		{"a payload with a name twice", func(e *event.Event) { e.Payload = json.RawMessage(`{"a":1,"a":2}`) }, event.ErrBadJSON},
		{"a payload of bad UTF-8", func(e *event.Event) { e.Payload = json.RawMessage("\"\xff\"") }, event.ErrBadJSON},
		{"a payload nested too deeply", func(e *event.Event) {
			e.Payload = json.RawMessage(strings.Repeat("[", event.MaxDepth+1) + strings.Repeat("]", event.MaxDepth+1))
		}, event.ErrBadJSON},
		{"a large payload", func(e *event.Event) { e.Payload = sized(topicA, t.h.Payload+1).Payload }, event.ErrPayloadTooLarge},
	}
}

func malformedEvents(t *trial) {
	t.put(notes(topicA, 3)...)
	before := t.bounds(topicA)
	for _, c := range t.malformed() {
		for _, async := range []bool{false, true} {
			batch := notes(topicA, 3)
			c.spoil(&batch[1])
			_, err := t.e.Append(t.ctx, store.Batch{Events: batch, Async: async})
			var rule *event.RuleError
			var where *store.EventError
			if !errors.Is(err, c.want) || !errors.As(err, &rule) || !errors.As(err, &where) || where.Index != 1 {
				t.Fatalf("append with %s: %v; want a RuleError %q in an EventError with index 1", c.name, err, c.want)
			}
			if after := t.bounds(topicA); after != before {
				t.Fatalf("append with %s: bounds were %+v and are %+v", c.name, before, after)
			}
		}
	}
	t.reopens(func(when string) {
		t.wantBounds(topicA, 1, 3)
		if all := t.topics(); len(all) != 1 {
			t.Fatalf("%s: refused events have made %d topics", when, len(all)-1)
		}
	})
	if got := t.put(note(topicA, 4)); got[0].Seq != 4 {
		t.Fatalf("refused events used up seqs: the next is %d, want 4", got[0].Seq)
	}
}

func payloadLimit(t *trial) {
	limits := event.Limits{Payload: t.h.Payload}
	log := t.put(sized(topicA, limits.Payload))
	for _, c := range []struct {
		size     int
		internal bool
		ok       bool
	}{
		{limits.Payload + 1, false, false},
		{limits.Payload + 1, true, true},
		{limits.Internal().Payload, true, true},
		{limits.Internal().Payload + 1, true, false},
		{limits.Internal().Payload, false, false},
	} {
		e := sized(topicA, c.size)
		got, err := t.e.Append(t.ctx, store.Batch{Events: []event.Event{e}, Internal: c.internal})
		switch {
		case c.ok:
			t.ok(err, "append of %d bytes, internal %v", c.size, c.internal)
			log = append(log, at(e, got[0].Seq))
		case !errors.Is(err, event.ErrPayloadTooLarge):
			t.Fatalf("append of %d bytes, internal %v: %v, want %q", c.size, c.internal, err, event.ErrPayloadTooLarge)
		}
	}
	t.reopens(func(string) { t.wantLog(topicA, log) })
}

// emptyBatch: an engine may answer it with nothing or call it invalid.
func emptyBatch(t *trial) {
	for _, b := range []store.Batch{{}, {Async: true}, {Events: []event.Event{}}} {
		got, err := t.e.Append(t.ctx, b)
		if len(got) != 0 || err != nil && !errors.Is(err, store.ErrInvalid) {
			t.Fatalf("append of an empty batch: %+v, %v", got, err)
		}
	}
	if got := t.topics(); len(got) != 0 {
		t.Fatalf("an empty batch has made %d topics", len(got))
	}
	if got := t.put(note(topicA, 1)); got[0].Seq != 1 {
		t.Fatalf("the first seq is %d, want 1", got[0].Seq)
	}
}
