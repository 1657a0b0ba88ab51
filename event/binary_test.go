package event

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func fullEvent() Event {
	id, _ := ParseID("0192f7c1-89ab-7cde-8f01-23456789abcd")
	return Event{
		ID: id, Seq: 42, TS: 1765700000000, Topic: "process.state", Key: "dev:stt:1", Partition: PartitionOf(3), SID: "s-1",
		Headers:  Headers{{"content-type", "application/json"}, {"x-schema-version", "2"}},
		Payload:  json.RawMessage(`{"n":12345678901234567890}`),
		CausedBy: []string{"a", "b"}, Tags: []string{"#stt", ""},
	}
}

// roundTrip is the property of both codecs for every event that passes Check.
func roundTrip(t *rapid.T) {
	e := anyEvent.Draw(t, "event")
	if err := e.Check(Limits{}); err != nil {
		t.Fatalf("Check: %v", err)
	}
	given := e.Clone()
	if !reflect.DeepEqual(given, e) {
		t.Fatalf("the clone differs:\n%#v\n%#v", given, e)
	}

	long := AppendBinary([]byte("before"), &e, true)[6:]
	short := AppendBinary(nil, &e, false)
	var d Event
	if err := DecodeBinary(long, &d, "other"); err != nil || !reflect.DeepEqual(d, e) {
		t.Fatalf("binary: %v\n got %#v\nwant %#v", err, d, e)
	}
	if err := DecodeBinary(short, &d, e.Topic); err != nil || !reflect.DeepEqual(d, e) {
		t.Fatalf("binary without the topic: %v\n got %#v\nwant %#v", err, d, e)
	}
	if cap(d.Payload) != len(d.Payload) {
		t.Fatalf("appending to the payload would write behind the record")
	}

	text, err := e.AppendJSON([]byte("before"))
	if err != nil {
		t.Fatalf("AppendJSON: %v", err)
	}
	text = text[6:]
	if err := CheckJSON(text); err != nil {
		t.Fatalf("AppendJSON gave %s: %v", text, err)
	}
	if err := DecodeJSON(text, &d); err != nil || !reflect.DeepEqual(d, e) {
		t.Fatalf("JSON: %v\n got %#v\nwant %#v\ntext %s", err, d, e, text)
	}
	if stored, err := e.AppendStoredJSON(nil); err != nil || !bytes.Equal(stored, text) {
		t.Fatalf("AppendStoredJSON: %v\n got %s\nwant %s", err, stored, text)
	}
	if !reflect.DeepEqual(given, e) {
		t.Fatalf("encoding changed the event:\n%#v\n%#v", given, e)
	}

	r := Record(short)
	if r.Valid() != nil || r.Topic() != "" || Record(long).Topic() != e.Topic || r.Seq() != e.Seq || r.TS() != e.TS || r.ID() != e.ID ||
		r.Partition() != e.Partition || r.Key() != e.Key || r.SID() != e.SID || !bytes.Equal(r.Payload(), e.Payload) {
		t.Fatalf("Record disagrees with %#v", e)
	}
	for _, h := range e.Headers {
		if v, ok := r.Header(h.Name); !ok || v != h.Value {
			t.Fatalf("Record.Header(%q) = %q, %v", h.Name, v, ok)
		}
	}
	if v, ok := r.Header("x-none"); ok {
		t.Fatalf("Record.Header finds %q under a name that is not there", v)
	}
}

func TestRoundTrip(t *testing.T) { rapid.Check(t, roundTrip) }
func FuzzRoundTrip(f *testing.F) { f.Fuzz(rapid.MakeFuzz(roundTrip)) }
func TestRecordLayout(t *testing.T) {
	e := fullEvent()
	meta := "\x0dprocess.state" + "\x09dev:stt:1" + "\x03s-1" +
		"\x02\x0ccontent-type\x10application/json\x10x-schema-version\x012" +
		"\x02\x01a\x01b" + "\x02\x04#stt\x00"
	want := []byte{1, 0x7f, 0, 0}
	want = binary.LittleEndian.AppendUint32(want, uint32(len(meta)))
	want = binary.LittleEndian.AppendUint64(want, 42)
	want = binary.LittleEndian.AppendUint64(want, 1765700000000)
	want = append(want, e.ID[:]...)
	want = binary.LittleEndian.AppendUint32(want, 4)
	want = binary.LittleEndian.AppendUint32(want, uint32(len(e.Payload)))
	want = append(want, meta...)
	want = append(want, e.Payload...)
	if got := AppendBinary(nil, &e, true); !bytes.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
	none := AppendBinary(nil, &Event{}, true)
	if len(none) != headSize || none[offFlags] != 0 {
		t.Errorf("an empty event takes %d bytes, flags %#x", len(none), none[offFlags])
	}
	var d Event
	if err := DecodeBinary(none, &d, ""); err != nil || !reflect.DeepEqual(d, Event{}) {
		t.Errorf("it comes back as %#v, %v", d, err)
	}
}

func TestAppendBinarySortsHeaders(t *testing.T) {
	e := Event{Headers: Headers{{"x-b", "1"}, {"x-a", "2"}, {"traceparent", "3"}}}
	r := AppendBinary(nil, &e, true)
	if e.Headers[0].Name != "x-b" {
		t.Error("the event was changed")
	}
	var d Event
	if err := DecodeBinary(r, &d, ""); err != nil {
		t.Fatal(err)
	}
	if want := (Headers{{"traceparent", "3"}, {"x-a", "2"}, {"x-b", "1"}}); !reflect.DeepEqual(d.Headers, want) {
		t.Errorf("got %v", d.Headers)
	}
}

// AppendBinary into memory that held something else must not leave it there.
func TestAppendBinaryIntoDirtyMemory(t *testing.T) {
	e := fullEvent()
	want := AppendBinary(nil, &e, true)
	dirty := bytes.Repeat([]byte{0xff}, 4096)
	if got := AppendBinary(dirty[:0], &e, true); !bytes.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

func TestRecordSetSeq(t *testing.T) {
	e := fullEvent()
	r := Record(AppendBinary(nil, &e, true))
	r.SetSeq(1 << 60)
	e.Seq = 1 << 60
	if !bytes.Equal(r, AppendBinary(nil, &e, true)) || r.Seq() != 1<<60 {
		t.Errorf("seq %d", r.Seq())
	}
}

func TestDecodeBinaryErrors(t *testing.T) {
	e := fullEvent()
	good := AppendBinary(nil, &e, true)
	// plain gives a record with these flags and this meta.
	plain := func(flags byte, meta string) []byte {
		b := make([]byte, headSize, headSize+len(meta))
		b[0], b[offFlags] = recordVersion, flags
		binary.LittleEndian.PutUint32(b[offMetaLen:], uint32(len(meta)))
		return append(b, meta...)
	}
	edit := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "bad record at byte 0: ends inside the head of 48 bytes"},
		{"short", good[:47], "bad record at byte 47: ends inside the head of 48 bytes"},
		{"version", edit(0, 2), "bad record at byte 0: version 2, want 1"},
		{"flags", edit(1, 0xff), "bad record at byte 1: unknown flags 0x80"},
		{"reserved", edit(3, 9), "bad record at byte 2: reserved bytes 0x00 0x09, want zero"},
		{"cut", good[:len(good)-1], "bad record at byte 4: head 48 + meta 90 + payload 26 bytes, but the record has 163"},
		{"longer", append(bytes.Clone(good), 0), "bad record at byte 4: head 48 + meta 90 + payload 26 bytes, but the record has 165"},
		{"lengths", edit(7, 0xff), "bad record at byte 4: head 48 + meta 4278190170 + payload 26 bytes, but the record has 164"},
		{"partition missing", edit(40, 0), "bad record at byte 40: partition field 0 contradicts flags 0x7f"},
		{"partition extra", edit(1, 0x7b), "bad record at byte 40: partition field 4 contradicts flags 0x7b"},
		{"left over", plain(hasKey, "\x01kx"), "bad record at byte 50: 1 bytes left over in meta"},
		{"no meta", plain(hasKey, ""), "bad record at byte 48: key: bad length, or it passes the end of meta at byte 48"},
		{"topic too long", plain(hasTopic, "\x05abc"), "bad record at byte 48: topic: bad length, or it passes the end of meta at byte 52"},
		{"long form", plain(hasKey, "\x81\x00k"), "bad record at byte 48: key: bad length, or it passes the end of meta at byte 51"},
		{"huge", plain(hasSID, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "bad record at byte 48: sid: bad length, or it passes the end of meta at byte 58"},
		{"overflow", plain(hasSID, strings.Repeat("\xff", 11)), "bad record at byte 48: sid: bad length, or it passes the end of meta at byte 59"},
		{"empty topic", plain(hasTopic, "\x00"), "bad record at byte 48: topic: flagged but empty"},
		{"empty key", plain(hasKey, "\x00"), "bad record at byte 48: key: flagged but empty"},
		{"empty sid", plain(hasSID, "\x00"), "bad record at byte 48: sid: flagged but empty"},
		{"no headers", plain(hasHeaders, "\x00"), "bad record at byte 48: headers: bad count"},
		{"many headers", plain(hasHeaders, "\xff\xff\xff\xff\x0f"), "bad record at byte 48: headers: bad count"},
		{"header name", plain(hasHeaders, "\x01\x05xyz"), "bad record at byte 49: headers: name: bad length, or it passes the end of meta at byte 53"},
		{"header value", plain(hasHeaders, "\x01\x01x\x05yz"), "bad record at byte 51: headers: value: bad length, or it passes the end of meta at byte 54"},
		{"header order", plain(hasHeaders, "\x02\x01b\x00\x01a\x00"), `bad record at byte 52: headers: "a" stands after "b"`},
		{"no causes", plain(hasCausedBy, "\x00"), "bad record at byte 48: caused_by: bad count"},
		{"many tags", plain(hasTags, "\x05\x00\x00"), "bad record at byte 48: tags: bad count"},
		{"tag", plain(hasTags, "\x02\x00\x01"), "bad record at byte 50: tags: bad length, or it passes the end of meta at byte 51"},
	} {
		d := Event{Key: "old", Tags: []string{"old"}}
		err := DecodeBinary(c.data, &d, "t")
		var at *RecordError
		if err == nil || err.Error() != c.want || !errors.Is(err, ErrBadRecord) || !errors.As(err, &at) {
			t.Errorf("%s:\n got %v\nwant %s", c.name, err, c.want)
		}
		if !reflect.DeepEqual(d, Event{}) {
			t.Errorf("%s: the event is %#v", c.name, d)
		}
		if valid := Record(c.data).Valid(); valid == nil || err == nil || valid.Error() != err.Error() {
			t.Errorf("%s: Valid says %v", c.name, valid)
		}
	}
}

// tryRecord is what must hold for any bytes.
func tryRecord(t *testing.T, data []byte) {
	given := bytes.Clone(data)
	var e Event
	err := DecodeBinary(data, &e, "")
	r := Record(data)
	if valid := r.Valid(); (valid == nil) != (err == nil) {
		t.Fatalf("DecodeBinary says %v, Valid says %v", err, valid)
	}
	// The peeks take anything.
	r.Seq()
	r.TS()
	r.ID()
	r.Partition()
	key, topic, sid, payload := r.Key(), r.Topic(), r.SID(), r.Payload()
	r.Header("x-a")
	r.Header("")
	if !bytes.Equal(data, given) {
		t.Fatal("the record was changed")
	}
	if err != nil {
		if !errors.Is(err, ErrBadRecord) {
			t.Fatalf("error %v", err)
		}
		return
	}
	if again := AppendBinary(nil, &e, true); !bytes.Equal(again, data) {
		t.Fatalf("the record came back as another:\n got %q\nwant %q", again, data)
	}
	if key != e.Key || topic != e.Topic || sid != e.SID || !bytes.Equal(payload, e.Payload) || r.Seq() != e.Seq || r.TS() != e.TS || r.ID() != e.ID || r.Partition() != e.Partition {
		t.Fatalf("Record disagrees with %#v", e)
	}
	for _, h := range e.Headers {
		want, _ := e.Headers.Get(h.Name)
		if v, ok := r.Header(h.Name); !ok || v != want {
			t.Fatalf("Header(%q) = %q, %v", h.Name, v, ok)
		}
	}
}

func TestDecodeBinaryOfDamage(t *testing.T) {
	e := fullEvent()
	good := AppendBinary(nil, &e, true)
	for i := range good {
		tryRecord(t, good[:i])
		for c := range 256 {
			b := bytes.Clone(good)
			b[i] = byte(c)
			tryRecord(t, b)
		}
	}
}

func FuzzDecodeBinary(f *testing.F) {
	e := fullEvent()
	f.Add(AppendBinary(nil, &e, true))
	f.Add(AppendBinary(nil, &e, false))
	f.Add(AppendBinary(nil, &Event{}, true))
	f.Add(AppendBinary(nil, &Event{Headers: Headers{{"", ""}}, Tags: []string{strings.Repeat("t", 300)}}, true))
	f.Fuzz(tryRecord)
}

// A count that promises more than the record can hold must not be believed.
func TestDecodeBinaryAllocatesLittle(t *testing.T) {
	meta := append([]byte{0xff, 0xff, 0xff, 0xff, 0x07}, make([]byte, 1000)...)
	b := make([]byte, headSize)
	b[0], b[offFlags] = recordVersion, hasTags
	binary.LittleEndian.PutUint32(b[offMetaLen:], uint32(len(meta)))
	b = append(b, meta...)
	const runs = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		var e Event
		if DecodeBinary(b, &e, "") == nil {
			t.Fatal("accepted")
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / runs; n > 2048 {
		t.Errorf("%d bytes for a damaged count", n)
	}
}

func TestDecodeBinaryKeepsOldSlices(t *testing.T) {
	a, b := fullEvent(), fullEvent()
	b.Headers = Headers{{"x-other", "1"}}
	b.Tags, b.CausedBy = []string{"other"}, []string{"other"}
	var d Event
	if err := DecodeBinary(AppendBinary(nil, &a, true), &d, ""); err != nil {
		t.Fatal(err)
	}
	kept := d
	if err := DecodeBinary(AppendBinary(nil, &b, true), &d, ""); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(kept, a) || !reflect.DeepEqual(d, b) {
		t.Errorf("kept %#v\nnow %#v", kept, d)
	}
}

func TestRecordPeeksDoNotAllocate(t *testing.T) {
	e := fullEvent()
	r := Record(AppendBinary(nil, &e, true))
	if n := testing.AllocsPerRun(100, func() {
		_, ok := r.Header("x-schema-version")
		if !ok || r.Key() == "" || r.Topic() == "" || r.SID() == "" || len(r.Payload()) == 0 || r.Valid() != nil {
			t.Fatal("the record is broken")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	e := fullEvent()
	src := AppendBinary(nil, &e, true)
	var d Event
	if err := DecodeBinary(src, &d, ""); err != nil {
		t.Fatal(err)
	}
	c := d.Clone()
	for i := range src {
		src[i] = 0xee
	}
	if !reflect.DeepEqual(c, e) {
		t.Errorf("the clone changed with its source: %#v", c)
	}
	none := (&Event{}).Clone()
	if !reflect.DeepEqual(none, Event{}) {
		t.Errorf("an empty event clones to %#v", none)
	}
}
