package frame_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"promethean/event"
	"promethean/gateway/internal/frame"
	"promethean/group"
	"promethean/wire"
)

// codeOf is the code of what a decoder says, "" if that is nothing.
func codeOf(err error) wire.Code {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// decode reads a frame with a decoder of its own.
func decode(text string) (*frame.Frame, error) {
	var d frame.Decoder
	f := new(frame.Frame)
	return f, d.Decode([]byte(text), f)
}

func TestDecodeOrder(t *testing.T) {
	// op may stand last, and the options mean what it says.
	f, err := decode(`{"opts":{"ts":5,"from":"ts","ackTimeoutMs":99999999999999999999,"maxInFlight":7,"batch":3,"member":"m","ordering":"none"},"group":"g\n","topic":"t","corr":-1.5e3,"op":"SUBSCRIBE"}`)
	if err != nil {
		t.Fatal(err)
	}
	if f.Op != wire.OpSubscribe || string(f.Corr) != "-1.5e3" || f.Start != (group.Start{From: group.FromTS, TS: 5}) || f.Group != "g\n" ||
		f.Settings.AckTimeout != 24*time.Hour || f.MaxInFlight != 7 || f.PerFrame != 3 || f.Member != "m" || f.Settings.Ordering != group.Unordered || f.Topics[0] != "t" {
		t.Errorf("%+v", f)
	}
	f, err = decode(`{"leases":["18446744073709551615",2],"ids":["0192f7c1-0000-7000-8000-000000000001","0192f7c1-0000-7000-8000-000000000002"],"op":"NACK","topic":"t","group":"g","delay_ms":0,"dead":true,"reason":"r"}`)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.IDs) != 2 || f.IDs[0].Lease != 1<<64-1 || f.IDs[1].Lease != 2 || !f.Many || !f.Nack.HasDelay || !f.Nack.Dead || f.Nack.Reason != "r" {
		t.Errorf("%+v", f)
	}
}

// What HTTP takes in its options, frames take too.
func TestDecodeLikeHTTP(t *testing.T) {
	f, err := decode(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"ts","ts":"2026-01-31T12:00:00.25Z","batchSize":0,"maxInFlight":0,"batch":0}}`)
	if err != nil {
		t.Fatal(err)
	}
	if f.Start.TS != time.Date(2026, 1, 31, 12, 0, 0, 25e7, time.UTC).UnixMilli() || f.Settings != (group.Settings{}) || f.BatchSize != 0 || f.MaxInFlight != 0 || f.PerFrame != 0 {
		t.Errorf("%+v", f)
	}
	f, err = decode(`{"op":"NACK","topic":"t","group":"g","id":"0192f7c1-0000-7000-8000-000000000001","delay_ms":99999999999}`)
	if err != nil || f.Nack.Delay != wire.MaxDelay {
		t.Errorf("%+v, %v", f, err)
	}
	for _, ts := range []string{`"yesterday"`, `""`, `"1969-12-31T23:59:59Z"`, `-1`, `1.5`, `true`} {
		if _, err := decode(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"ts":` + ts + `}}`); err == nil || !strings.Contains(err.Error(), "ts") {
			t.Errorf("ts %s: %v", ts, err)
		}
	}
}

func TestDecodeShares(t *testing.T) {
	var d frame.Decoder
	var f frame.Frame
	text := []byte(`{"op":"PUBLISH","topic":"t","payload":{ "a" : 1 },"corr":"c"}`)
	if err := d.Decode(text, &f); err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, f.Events[0].Payload)
	text[at+3] = 'b'
	if string(f.Events[0].Payload) != `{ "b" : 1 }` {
		t.Errorf("the payload was copied: %s", f.Events[0].Payload)
	}
	// The next frame has nothing of the one before.
	if err := d.Decode([]byte(`{"op":"ACK","topic":"t","group":"g","id":"0192f7c1-0000-7000-8000-000000000001"}`), &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Events) != 0 || f.Corr != nil || f.IDs[0].Lease != 0 {
		t.Errorf("%+v", f)
	}
	n := testing.AllocsPerRun(100, func() {
		if err := d.Decode(text, &f); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations for a PUBLISH", n)
	}
}

func TestAppend(t *testing.T) {
	b := append(frame.AppendErr(nil, []byte(`"c"`), wire.BadJSON, "a \"quote\" and é\n"), '}')
	if want := `{"op":"ERR","corr":"c","code":"bad_json","msg":"a \"quote\" and é\n"}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	id := event.ID{15: 1}
	d := &group.Delivery{Event: event.Event{ID: id, Seq: 3, TS: 1, Topic: "t", Payload: []byte(`{"a":1.0}`)}, Attempt: 1, MaxAttempts: 5, Lease: 1<<63 + 1, Deadline: time.UnixMilli(9), Cursor: 2}
	b, err := frame.AppendEvent(nil, "t", `g"`, d)
	if err != nil {
		t.Fatal(err)
	}
	one := `"event":{"id":"00000000-0000-0000-0000-000000000001","seq":3,"ts":1,"topic":"t","payload":{"a":1.0}},"ctx":{"attempt":1,"maxAttempts":5,"lease":"9223372036854775809","ack_deadline_ms":9,"cursor":2}`
	if want := `{"op":"EVENT","topic":"t","group":"g\"",` + one + `}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	b = frame.AppendEvents(nil, "t", "g")
	for i := range 2 {
		if b, err = frame.AppendDelivery(b, i == 0, d); err != nil {
			t.Fatal(err)
		}
	}
	if want := `{"op":"EVENTS","topic":"t","group":"g","events":[{` + one + `},{` + one + `}]}`; string(b)+"]}" != want {
		t.Errorf("%s, want %s", b, want)
	}
	b = frame.AppendResults(nil, []group.Result{{ID: id}, {ID: id, Err: group.ErrFenced}}, func(err error) wire.Code {
		if err != group.ErrFenced { //nolint:errorlint // the very one
			t.Errorf("asked for the code of %v", err)
		}
		return wire.Fenced
	})
	if want := `,"results":[{"id":"00000000-0000-0000-0000-000000000001","ok":true},{"id":"00000000-0000-0000-0000-000000000001","ok":false,"err":"fenced"}]`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
}

// FuzzFrame compares the decoder with encoding/json, and with the rules of
// package event for what JSON is.
func FuzzFrame(f *testing.F) {
	for _, s := range []string{
		`{"op":"AUTH","token":"x","corr":1}`,
		`{"op":"PUBLISH","topic":"a","payload":{"a":[1,2,{"b":null}]},"opts":{"key":"k","id":"0192f7c1-0000-7000-8000-000000000001","ts":5,"headers":{"x-a":"b"},"tags":["t"],"caused_by":[],"expect_seq":0}}`,
		`{"op":"PUBLISH","corr":"\u00e9","events":[{"topic":"a","payload":1},{"topic":"b","payload":"\ud83d\ude00","partition":3}]}`,
		`{"op":"SUBSCRIBE","topics":["a.*"],"group":"g","opts":{"from":"seq","seq":3,"ordering":"none","maxAttempts":2,"batch":5}}`,
		`{"op":"NACK","topic":"a","group":"g","ids":["0192f7c1-0000-7000-8000-000000000001"],"leases":[5],"delay_ms":1,"dead":false}`,
		`{"op":"MODACK","topic":"a","group":"g","id":"0192f7c1-0000-7000-8000-000000000001","lease":"1","extend_ms":9}`,
		`{"op":"PAUSE","topic":"a","group":"g"}`, `{"op":"JUMP"}`, `{"op":"ACK","op":"ACK"}`, `[1]`, `{`, "\xff", `{"\u006fp":"PAUSE","topic":"a","group":""}`,
	} {
		f.Add([]byte(s))
	}
	var d frame.Decoder // kept, so that nothing is left of the frame before
	f.Fuzz(func(t *testing.T, data []byte) {
		text := bytes.Clone(data)
		var got frame.Frame
		err := d.Decode(text, &got)
		if !bytes.Equal(text, data) {
			t.Fatal("the text was changed")
		}
		var own *wire.Error
		if err != nil && !errors.As(err, &own) {
			t.Fatalf("an error without a code: %v", err)
		}
		bad := own != nil && own.Code == wire.BadJSON
		var want map[string]json.RawMessage
		object := json.Unmarshal(data, &want) == nil && want != nil
		if rule := event.CheckJSON(data); (rule != nil || !object) != bad {
			// Depth is counted from each value, so a frame may be a little deeper.
			if !strings.Contains(errString(rule), "nested too deeply") {
				t.Fatalf("decoder %v, rules %v, object %v", err, rule, object)
			}
		}
		if bad {
			return
		}
		compare(t, &got, want, err)
	})
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// compare holds what was decoded against what encoding/json finds.
func compare(t *testing.T, got *frame.Frame, want map[string]json.RawMessage, err error) {
	t.Helper()
	var op string
	known := json.Unmarshal(want["op"], &op) == nil && got.Op != wire.OpNone
	if known != (codeOf(err) != wire.UnknownOp) || known && got.Op.String() != op {
		t.Fatalf("op %q is %v: %v", op, got.Op, err)
	}
	if got.Corr != nil && !bytes.Equal(got.Corr, want["corr"]) {
		t.Fatalf("corr %s, want %s", got.Corr, want["corr"])
	}
	if err != nil {
		return
	}
	if (got.Corr == nil) != (want["corr"] == nil) {
		t.Fatalf("corr %s, want %s", got.Corr, want["corr"])
	}
	text := func(name string) (s string) {
		if raw := want[name]; raw != nil {
			if err := json.Unmarshal(raw, &s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return s
	}
	if got.Topic != text("topic") || got.Group != text("group") || got.Token != text("token") || got.Nack.Reason != text("reason") {
		t.Fatalf("%+v", got)
	}
	switch {
	case got.Op == wire.OpPublish && got.Batch:
		var rows []map[string]json.RawMessage
		if err := json.Unmarshal(want["events"], &rows); err != nil || len(rows) != len(got.Events) {
			t.Fatalf("%d events of %d: %v", len(got.Events), len(rows), err)
		}
		for i := range rows {
			if !bytes.Equal(rows[i]["payload"], got.Events[i].Payload) {
				t.Fatalf("payload %d: %s, want %s", i, got.Events[i].Payload, rows[i]["payload"])
			}
		}
	case got.Op == wire.OpPublish:
		if len(got.Events) != 1 || !bytes.Equal(want["payload"], got.Events[0].Payload) || got.Events[0].Topic != got.Topic {
			t.Fatalf("%+v", got.Events)
		}
		var opts struct {
			Key     string            `json:"key"`
			SID     string            `json:"sid"`
			TS      int64             `json:"ts"`
			Headers map[string]string `json:"headers"`
			Tags    []string          `json:"tags"`
		}
		if raw := want["opts"]; raw != nil {
			if err := json.Unmarshal(raw, &opts); err != nil {
				t.Fatalf("opts: %v", err)
			}
		}
		e := &got.Events[0]
		if e.TS != opts.TS || e.Key != opts.Key || e.SID != opts.SID || len(e.Tags) != len(opts.Tags) || len(opts.Headers) <= event.MaxHeaders && len(e.Headers) != len(opts.Headers) {
			t.Fatalf("%+v, want %+v", e, opts)
		}
	}
}

// A list of topics is bounded: each of them is a group to be made.
func TestTooManyTopics(t *testing.T) {
	text := func(n int) string {
		return `{"op":"SUBSCRIBE","group":"g","topics":["a"` + strings.Repeat(`,"a"`, n-1) + `]}`
	}
	var d frame.Decoder
	var f frame.Frame
	if err := d.Decode([]byte(text(wire.MaxTopics)), &f); err != nil || len(f.Topics) != wire.MaxTopics {
		t.Errorf("%d topics: %v", len(f.Topics), err)
	}
	if err := d.Decode([]byte(text(1_000_000)), &f); codeOf(err) != wire.BatchTooLarge || len(f.Topics) > wire.MaxTopics {
		t.Errorf("%d topics: %v", len(f.Topics), err)
	}
}

// A place is named by what it has; from may be left out, and needs its value.
func TestStart(t *testing.T) {
	const id = "0192f7c1-0000-7000-8000-000000000001"
	for opts, want := range map[string]group.From{
		`{}`:                        "",
		`{"seq":5}`:                 group.FromSeq,
		`{"seq":0}`:                 group.FromSeq,
		`{"ts":7}`:                  group.FromTS,
		`{"afterId":"` + id + `"}`:  group.AfterID,
		`{"from":"latest","seq":5}`: group.Latest,
	} {
		var d frame.Decoder
		var f frame.Frame
		if err := d.Decode([]byte(`{"op":"SUBSCRIBE","topic":"a","group":"g","opts":`+opts+`}`), &f); err != nil || f.Start.From != want {
			t.Errorf("%s: from %q, %v; want %q", opts, f.Start.From, err, want)
		}
	}
	for _, opts := range []string{`{"from":"seq"}`, `{"from":"ts"}`, `{"from":"afterId"}`, `{"from":"ts","seq":1}`} {
		var d frame.Decoder
		var f frame.Frame
		if err := d.Decode([]byte(`{"op":"SUBSCRIBE","topic":"a","group":"g","opts":`+opts+`}`), &f); codeOf(err) != wire.InvalidArgument {
			t.Errorf("%s: %v", opts, err)
		}
	}
}
