// Package event holds the event of Promethean: its fields and their rules, its
// identity, the hash that gives it a partition, and its JSON and binary forms.
// It is the vocabulary of all other packages and imports none of them.
//
//	e := event.New("process.state", json.RawMessage(`{"pid":7,"status":"up"}`))
//	e.Key = "dev:stt:1"
//	e.Headers = e.Headers.Set("x-schema-version", "2")
//	if err := e.Check(event.Limits{}); err != nil {
//		return err // for example: topic: is too long (limit 200, got 240), found "…"
//	}
//	text, err := e.AppendJSON(nil)
//
// # Guarantees
//
// Identity: NewID gives strictly increasing version 7 UUIDs within a process,
// whatever the wall clock does. An ID is never a position; Seq is.
//
// Bytes: a payload comes back with the bytes it was given, but for white space
// between tokens. Numbers keep all their digits, objects the order of their
// names, strings their escapes. A payload that two parsers could read in two
// ways (a name that stands twice, half of a surrogate pair, bad UTF-8) is
// refused.
//
// Errors: a broken rule is a *RuleError that names the field, the rule, the
// limit and what was found, and unwraps to ErrInvalidTopic, ErrInvalidHeader,
// ErrInvalidArgument, ErrPayloadTooLarge or ErrBadJSON. A damaged record is a
// *RecordError with the offset and unwraps to ErrBadRecord. No input makes a
// decoder panic, or hold more memory than a small multiple of its own length.
//
// Concurrency: NewID and all functions are safe for concurrent use. An Event is
// a plain value; who changes one that others can see needs a lock of their own.
//
// # JSON
//
// The fields are, in this order: id, seq, ts, topic, key, partition, sid,
// headers, payload, caused_by, tags. A field with its zero value is left out,
// never null; payload always stands there, and null is a payload. Headers are
// sorted by name. DecodeJSON takes the fields in any order and refuses names
// that it does not know.
//
// # Binary records
//
// A record holds one event, little endian. Framing and checksums belong to
// whoever stores it.
//
//	 0  u8   version, 1
//	 1  u8   flags: 1 topic, 2 key, 4 partition, 8 sid, 16 headers, 32 caused_by, 64 tags
//	 2  u16  zero
//	 4  u32  length of meta
//	 8  u64  seq
//	16  i64  ts
//	24  16   id
//	40  u32  partition: the number plus one, 0 where none is set
//	44  u32  length of the payload
//	48       meta: topic, key, sid, headers, caused_by, tags, each if flagged
//	 …       payload
//
// A text in meta is its length as an unsigned varint and its bytes. Headers are
// their count, then name and value of each, sorted by name; caused_by and tags
// are their count, then each text. What is flagged is not empty, varints are
// in their shortest form and no byte is left over, so that equal events have
// equal records. The head has a fixed size so that a log can fill in seq after
// encoding, and the payload comes last so that key, time and headers can be
// tested without touching it.
package event
