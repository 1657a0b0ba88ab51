package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"promethean/event"
)

func TestReadFrame(t *testing.T) {
	var f frameReader
	var in incoming
	read := func(text string) {
		t.Helper()
		data := []byte(text)
		if err := f.read(data, &in); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for i := range data {
			data[i] = 'x' // nothing that it gave lies there
		}
	}
	const id = "0192f7c1-0000-7000-8000-000000000021"
	one := `"event":{"id":"` + id + `","seq":3,"ts":5,"topic":"t","key":"k","partition":2,"sid":"s","headers":{"x-a":"1"},"payload":{"a":1.0},"caused_by":["c"],"tags":["a","b"],"later":[{}]},` +
		`"ctx":{"attempt":2,"maxAttempts":5,"lease":"9223372036854775809","ack_deadline_ms":9,"cursor":1,"later":1}`
	for _, text := range []string{
		`{"op":"EVENT","topic":"t","group":"g\n",` + one + `,"later":null}`,
		`{"events":[{` + one + `,"later":null}],"group":"g\n","topic":"t","op":"EVENTS"}`,
	} {
		read(text)
		d := in.list[0]
		if in.topic != "t" || in.group != "g\n" || len(in.list) != 1 || d.attempt != 2 || d.maxAttempts != 5 || d.lease != 1<<63+1 || d.cursor != 1 || !d.deadline.Equal(time.UnixMilli(9)) || d.size < 50 {
			t.Errorf("%+v", in)
		}
		var want event.Event
		if err := event.DecodeJSON([]byte(`{"id":"`+id+`","seq":3,"ts":5,"topic":"t","key":"k","partition":2,"sid":"s","headers":{"x-a":"1"},"payload":{"a":1.0},"caused_by":["c"],"tags":["a","b"]}`), &want); err != nil {
			t.Fatal(err)
		}
		got, err := d.event.AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := want.AppendJSON(nil); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s, want %s", got, text)
		}
	}
	read(`{"op":"OK","corr":7,"ids":["` + id + `","` + id + `"],"seqs":[1,18446744073709551615],"duplicates":[1],"results":[{"id":"` + id + `","ok":true},{"ok":false,"err":"fenced"},{"ok":false}]}`)
	if a := in.answer; in.corr != 7 || a.refusal != nil || len(a.ids) != 2 || a.seqs[1] != 1<<64-1 || a.duplicates[0] != 1 ||
		a.results[0].code != "" || a.results[0].id != a.ids[0] || a.results[1].code != "fenced" || a.results[2].code != "internal" {
		t.Errorf("%+v", in)
	}
	read(`{"op":"ERR","corr":8,"code":"invalid_topic","msg":"no","index":3}`)
	if e := in.answer.refusal; e == nil || e.Code != "invalid_topic" || e.Message != "no" || *e.Index != 3 {
		t.Errorf("%+v", in)
	}
	for _, bad := range []string{``, `[]`, `{`, `{"op":"OK"`, `{"op":"OK"}x`, `{"op":"EVENTS","events":[}`} {
		if err := f.read([]byte(bad), &in); !errors.Is(err, errFrame) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// FuzzFrame reads whatever a hub may send.
func FuzzFrame(f *testing.F) {
	f.Add([]byte(`{"op":"OK","corr":1,"id":"0192f7c1-0000-7000-8000-000000000021","seq":1,"duplicate":true}`))
	f.Add([]byte(`{"op":"EVENT","topic":"t","group":"g","event":{"id":1,"seq":"x","headers":[],"payload":null},"ctx":[]}`))
	f.Add([]byte(`{"op":"EVENTS","events":[1,{"event":2},{"event":{"tags":"a"}}],"results":[0],"ids":{},"corr":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r frameReader
		var in incoming
		err := r.read(data, &in)
		if err == nil && !json.Valid(data) {
			t.Errorf("%q is no JSON and was taken", data)
		}
	})
}

func TestWriteFrames(t *testing.T) {
	id := event.ID{15: 1}
	p := publishing{Event: event.Event{ID: id, Topic: "a", Payload: []byte(` 1`), Key: "k\"\n", Tags: []string{"x", "é"}, TS: 5}, expect: 0, hasExpect: true}
	body, err := appendPublish(nil, &p)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"op":"PUBLISH","topic":"a","payload": 1,"opts":{"id":"00000000-0000-0000-0000-000000000001","key":"k\"\n","ts":5,"tags":["x","é"],"expect_seq":0},"corr":9}`
	if got := string(endFrame(body, 9)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	p.Event.Tags = []string{"\xff"}
	if _, err = appendPublish(nil, &p); !errors.Is(err, event.ErrInvalidArgument) {
		t.Errorf("%v", err)
	}
	if got, want := string(appendModAck("a", "g", []event.ID{id, id}, []uint64{1, 1 << 63}, 1500*time.Millisecond)),
		`{"op":"MODACK","topic":"a","group":"g","ids":["`+id.String()+`","`+id.String()+`"],"leases":["1","9223372036854775808"],"extend_ms":1500`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestReasonsAreCut(t *testing.T) {
	if got := nackOf(errors.New(strings.Repeat("é", maxReason))).reason; len(got) > maxReason+2 || !strings.HasPrefix(got, "éé") {
		t.Errorf("%d bytes", len(got))
	}
}

func TestBackoff(t *testing.T) {
	c, err := New("localhost", Options{MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for try, most := range []time.Duration{10, 20, 40, 80, 100, 100} {
		most *= time.Millisecond
		for range 100 {
			if d := c.link.backoff(try); d < most/2 || d > most {
				t.Fatalf("try %d: %v, want %v to %v", try, d, most/2, most)
			}
		}
	}
	if d := c.link.backoff(1 << 30); d > 100*time.Millisecond {
		t.Errorf("%v", d)
	}
}

func TestNew(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:7070": "http://127.0.0.1:7070", "https://hub.example.org/sub/?x=1": "https://hub.example.org/sub",
	} {
		if c, err := New(addr, Options{}); err != nil || c.base.String() != want {
			t.Errorf("%s: %v, %v", addr, c, err)
		}
	}
	for _, addr := range []string{"", "ftp://x", "http://", "http://user:secret@x", "http://a b"} {
		_, err := New(addr, Options{})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", addr, err)
		}
	}
}
