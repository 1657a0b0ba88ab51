package event

import (
	"encoding/json"
	"strings"

	"pgregory.net/rapid"
)

// anyText draws valid UTF-8 of at most most bytes, with the characters that
// encodings stumble over.
func anyText(most int) *rapid.Generator[string] {
	runes := rapid.OneOf(
		rapid.RuneFrom([]rune("abcxyz019 -_:/.#")),
		rapid.RuneFrom([]rune("\"\\\x00\x01\b\f\n\r\t\x1f\x7f<>&'\u00e9\u2028\u2029\ufeff\ufffd世😀")),
	)
	return rapid.OneOf(
		rapid.StringOfN(runes, 0, min(most, 40), most),
		rapid.SampledFrom([]string{strings.Repeat("k", min(most, 127)), strings.Repeat("k", min(most, 128)), strings.Repeat("é", most/2)}),
	)
}

var anyTopic = rapid.Custom(func(t *rapid.T) string {
	n := rapid.IntRange(1, 4).Draw(t, "segments")
	parts := make([]string, n)
	for i := range parts {
		parts[i] = rapid.StringMatching(`[a-z0-9]{1,12}`).Draw(t, "segment")
	}
	return strings.Join(parts, ".")
})

// anyJSON draws compact JSON.
func anyJSON(depth int) *rapid.Generator[string] {
	leaf := rapid.OneOf(
		rapid.SampledFrom([]string{"null", "true", "false", "0", "-0", "1e999", "-12.50E+7", "123456789012345678901234567890", `""`, `"\u0061\/\ud83d\ude00"`, `{}`, `[]`}),
		rapid.Map(anyText(60), quoted),
	)
	if depth == 0 {
		return leaf
	}
	return rapid.OneOf(leaf, rapid.Custom(func(t *rapid.T) string {
		items := rapid.SliceOfN(anyJSON(depth-1), 0, 4).Draw(t, "items")
		return "[" + strings.Join(items, ",") + "]"
	}), rapid.Custom(func(t *rapid.T) string {
		names := rapid.SliceOfNDistinct(anyText(20), 0, 40, rapid.ID[string]).Draw(t, "names")
		for i, name := range names {
			names[i] = quoted(name) + ":" + anyJSON(depth-1).Draw(t, "value")
		}
		return "{" + strings.Join(names, ",") + "}"
	}))
}

func quoted(s string) string {
	w := writer{}
	w.text("", s, nil)
	return string(w.buf)
}

// anyEvent draws events that keep all rules, with headers in order and empty
// lists as nil, as decoders return them.
var anyEvent = rapid.Custom(func(t *rapid.T) Event {
	e := Event{
		Seq:   rapid.Uint64().Draw(t, "seq"),
		TS:    rapid.Int64Range(0, MaxTS).Draw(t, "ts"),
		Topic: anyTopic.Draw(t, "topic"),
		Key:   anyText(MaxKey).Draw(t, "key"),
		SID:   anyText(MaxSID).Draw(t, "sid"),
	}
	copy(e.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	e.ID[15] |= 1
	if rapid.Bool().Draw(t, "partitioned") {
		e.Partition = PartitionOf(rapid.IntRange(0, MaxPartitions-1).Draw(t, "partition"))
	}
	names := rapid.SampledFrom([]string{"content-type", "traceparent", "tracestate", "x-a", "x-b-2", "x--", "x-schema-version"})
	for _, name := range rapid.SliceOfNDistinct(names, 0, 7, rapid.ID[string]).Draw(t, "headers") {
		e.Headers = e.Headers.Set(name, anyText(300).Draw(t, "value"))
	}
	e.Payload = json.RawMessage(anyJSON(3).Draw(t, "payload"))
	if list := rapid.SliceOfN(anyText(MaxCause), 0, 4).Draw(t, "caused_by"); len(list) > 0 {
		e.CausedBy = list
	}
	if list := rapid.SliceOfN(anyText(MaxTag), 0, 4).Draw(t, "tags"); len(list) > 0 {
		e.Tags = list
	}
	return e
})
