package storetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"promethean/event"
	"promethean/store"
)

// Topics of the cases. Two of them are such that one is the other's prefix, so
// that an index over names without a separator would mix them up.
const (
	topicA = "storetest.a"
	topicB = "storetest.a.b"
	topicC = "storetest.ab"
)

// baseTS is the time of the first event that a case makes.
const baseTS = 1_700_000_000_000

// note makes an event that says n, with a time n milliseconds after baseTS.
func note(topic string, n int) event.Event {
	e := event.New(topic, json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
	e.TS = baseTS + int64(n)
	return e
}

// keyed makes an event with a key.
func keyed(topic, key string, n int) event.Event {
	e := note(topic, n)
	e.Key = key
	return e
}

// notes makes count events of a topic.
func notes(topic string, count int) []event.Event {
	out := make([]event.Event, count)
	for i := range out {
		out[i] = note(topic, i)
	}
	return out
}

// full makes an event that uses every field.
func full(topic string, n int) event.Event {
	e := keyed(topic, fmt.Sprintf("key %d é", n%7), n)
	e.Partition = event.PartitionOf(n % 5)
	e.SID = fmt.Sprintf("session-%d", n)
	e.Headers = event.Headers{{Name: "content-type", Value: "application/json"}, {Name: "x-n", Value: fmt.Sprint(n)}, {Name: "x-empty", Value: ""}}
	e.CausedBy = []string{event.NameID(event.ID{1}, fmt.Sprint(n)).String(), ""}
	e.Tags = []string{"#a", fmt.Sprintf("#%d", n)}
	e.Payload = json.RawMessage(fmt.Sprintf(`{"n":%d,"text":"\u00e9\/é","big":123456789012345678901234567890,"list":[null,true,-0.0,1e40]}`, n))
	return e
}

// sized makes an event whose payload has exactly size bytes, at least 2, of
// a text that does not compress.
func sized(topic string, size int) event.Event {
	e := event.New(topic, nil)
	e.TS = baseTS
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	rng := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(topic))))
	b := make([]byte, size)
	for i := range b {
		b[i] = letters[rng.IntN(len(letters))]
	}
	b[0], b[size-1] = '"', '"'
	e.Payload = b
	return e
}

// randomID makes a version 4 UUID: unlike those of event.NewID, two of them
// have no order in time.
func randomID() (id event.ID) {
	for i := 0; i < len(id); i += 8 {
		v := rand.Uint64()
		for j := range 8 {
			id[i+j] = byte(v >> (8 * j))
		}
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id
}

// at gives e as it stands at seq.
func at(e event.Event, seq uint64) event.Event {
	e.Seq = seq
	return e
}

// same says whether two events are equal in every field. The order of headers
// carries no meaning, and an absent list equals an empty one.
func same(a, b *event.Event) bool {
	return bytes.Equal(event.AppendBinary(nil, a, true), event.AppendBinary(nil, b, true))
}

// differ says where got is not want, or "".
func differ(got, want []event.Event) string {
	for i := range min(len(got), len(want)) {
		if !same(&got[i], &want[i]) {
			return fmt.Sprintf("event %d of %d is %s, want %s", i, len(want), show(&got[i]), show(&want[i]))
		}
	}
	switch {
	case len(got) < len(want):
		return fmt.Sprintf("%d events, want %d; missing from %s", len(got), len(want), show(&want[len(got)]))
	case len(got) > len(want):
		return fmt.Sprintf("%d events, want %d; too many from %s", len(got), len(want), show(&got[len(want)]))
	}
	return ""
}

// show prints an event for a message.
func show(e *event.Event) string {
	text, err := e.AppendStoredJSON(nil)
	if err != nil {
		text = fmt.Appendf(nil, "%+v", *e)
	}
	const most = 300
	if len(text) > most {
		return fmt.Sprintf("%s… (%d bytes)", text[:most], len(text))
	}
	return string(text)
}

// describe prints a query for a message.
func describe(q store.Query) string {
	var b strings.Builder
	fmt.Fprintf(&b, "topic %s", q.Topic)
	if q.After != 0 {
		fmt.Fprintf(&b, " after %d", q.After)
	}
	if q.Until != 0 {
		fmt.Fprintf(&b, " until %d", q.Until)
	}
	if q.Key != "" {
		fmt.Fprintf(&b, " key %q", q.Key)
	}
	if n, ok := q.Partition.Get(); ok {
		fmt.Fprintf(&b, " partition %d", n)
	}
	if q.Limit != 0 {
		fmt.Fprintf(&b, " limit %d", q.Limit)
	}
	if q.Reverse {
		b.WriteString(" in reverse")
	}
	return b.String()
}

// pick applies q to a whole log in seq order: what Read must give.
func pick(log []event.Event, q store.Query) []event.Event {
	var out []event.Event
	for i := range log {
		e := log[i]
		if q.Reverse {
			e = log[len(log)-1-i]
		}
		switch {
		case e.Topic != q.Topic,
			e.Seq <= q.After,
			q.Until != 0 && e.Seq > q.Until,
			q.Key != "" && e.Key != q.Key,
			q.Partition != 0 && e.Partition != q.Partition:
			continue
		}
		if out = append(out, e); q.Limit != 0 && len(out) == q.Limit {
			break
		}
	}
	return out
}
