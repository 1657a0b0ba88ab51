package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

const fullText = `{"id":"0192f7c1-89ab-7cde-8f01-23456789abcd","seq":42,"ts":1765700000000,"topic":"process.state","key":"dev:stt:1","partition":3,` +
	`"sid":"s-1","headers":{"content-type":"application/json","x-schema-version":"2"},"payload":{"n":12345678901234567890},"caused_by":["a","b"],"tags":["#stt",""]}`

func TestAppendJSON(t *testing.T) {
	e := fullEvent()
	got, err := e.AppendJSON([]byte("x"))
	if err != nil || string(got) != "x"+fullText {
		t.Errorf("%v\n got %s\nwant %s", err, got[1:], fullText)
	}
	for _, c := range []struct {
		name string
		e    Event
		want string
	}{
		{"least", Event{Payload: json.RawMessage("null")}, `{"payload":null}`},
		{"partition 0", Event{Partition: PartitionOf(0), Payload: json.RawMessage("1")}, `{"partition":0,"payload":1}`},
		{"empty lists", Event{Headers: Headers{}, CausedBy: []string{}, Tags: []string{}, Payload: json.RawMessage("1")}, `{"payload":1}`},
		{"headers sorted", Event{Headers: Headers{{"x-b", "1"}, {"x-a", "2"}}, Payload: json.RawMessage("1")}, `{"headers":{"x-a":"2","x-b":"1"},"payload":1}`},
		{"escapes", Event{Key: "\"\\\b\f\n\r\t\x00\x1f\x7f<>&é\u2028", Payload: json.RawMessage("1")}, `{"key":"\"\\\b\f\n\r\t\u0000\u001f` + "\x7f<>&é\u2028" + `","payload":1}`},
		{"largest", Event{Seq: 1<<64 - 1, TS: -1 << 63, Payload: json.RawMessage("1")}, `{"seq":18446744073709551615,"ts":-9223372036854775808,"payload":1}`},
		{"payload kept", Event{Payload: json.RawMessage(` { "b" : 1.50e+07 , "a" : "\u003c\/ x" , "c" : [ 1 , 2 ] } `)}, `{"payload":{"b":1.50e+07,"a":"\u003c\/ x","c":[1,2]}}`},
		{"spaces in strings", Event{Payload: json.RawMessage(`{"a b":" c \" d \\","e": " \\\" f"}`)}, `{"payload":{"a b":" c \" d \\","e":" \\\" f"}}`},
	} {
		for _, f := range []func([]byte) ([]byte, error){c.e.AppendJSON, c.e.AppendStoredJSON} {
			if got, err := f(nil); err != nil || string(got) != c.want {
				t.Errorf("%s: %v\n got %s\nwant %s", c.name, err, got, c.want)
			}
		}
	}
}

func TestAppendJSONErrors(t *testing.T) {
	one := json.RawMessage("1")
	for _, c := range []struct {
		name string
		e    Event
		kind error
		want string
	}{
		{"no payload", Event{}, ErrBadJSON, `payload: a value must start here, found the end of the text at byte 0`},
		{"payload", Event{Payload: json.RawMessage(`1,"id":"x"`)}, ErrBadJSON, `payload: must be one value, nothing may follow it, found "," at byte 1`},
		{"topic", Event{Topic: "\xff", Payload: one}, ErrInvalidTopic, `topic: must be valid UTF-8, found "\xff"`},
		{"key", Event{Key: "12345678\xff", Payload: one}, ErrInvalidArgument, `key: must be valid UTF-8, found "12345678\xff"`},
		{"key split by an escape", Event{Key: "\xc3\n\xa9", Payload: one}, ErrInvalidArgument, `key: must be valid UTF-8, found "\xc3\n\xa9"`},
		{"header", Event{Headers: Headers{{"x-a", "\xff"}}, Payload: one}, ErrInvalidHeader, `headers: must be valid UTF-8, found "\xff"`},
		{"header twice", Event{Headers: Headers{{"x-a", "1"}, {"x-b", "1"}, {"x-a", "1"}}, Payload: one}, ErrInvalidHeader, `headers: a name must stand once, found "x-a"`},
		{"tag", Event{Tags: []string{"\xff"}, Payload: one}, ErrInvalidArgument, `tags: must be valid UTF-8, found "\xff"`},
		{"first of two", Event{Tags: []string{"\xff"}}, ErrBadJSON, `payload: a value must start here, found the end of the text at byte 0`},
	} {
		got, err := c.e.AppendJSON([]byte("x"))
		if err == nil || err.Error() != c.want || !errors.Is(err, c.kind) || string(got) != "x" {
			t.Errorf("%s: returned %q\n got %v\nwant %s", c.name, got, err, c.want)
		}
		if _, err := json.Marshal(c.e); err == nil {
			t.Errorf("%s: json.Marshal passes", c.name)
		}
	}
	if _, err := (&Event{}).AppendStoredJSON(nil); !errors.Is(err, ErrBadJSON) {
		t.Errorf("AppendStoredJSON without a payload: %v", err)
	}
}

// Garbage in a payload that claims to be checked must not make us panic.
func TestAppendStoredJSONOfGarbage(t *testing.T) {
	for _, text := range jsonTexts {
		e := Event{Payload: json.RawMessage(text)}
		got, err := e.AppendStoredJSON(nil)
		if CheckJSON([]byte(text)) != nil {
			continue
		}
		want, wantErr := e.AppendJSON(nil)
		if err != nil || wantErr != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: got %s, %v; want %s, %v", text, got, err, want, wantErr)
		}
	}
}

func TestMarshalJSONOfAValue(t *testing.T) {
	e := fullEvent()
	for _, v := range []any{e, &e} {
		if got, err := json.Marshal(v); err != nil || string(got) != fullText {
			t.Errorf("%T: %s, %v", v, got, err)
		}
	}
	var list []Event
	if err := json.Unmarshal([]byte("["+fullText+`,{"payload":null}]`), &list); err != nil || len(list) != 2 || !reflect.DeepEqual(list[0], e) {
		t.Errorf("%v, %v", list, err)
	}
}

func TestDecodeJSON(t *testing.T) {
	e := fullEvent()
	var d Event
	if err := DecodeJSON([]byte(fullText), &d); err != nil || !reflect.DeepEqual(d, e) {
		t.Fatalf("%v\n got %#v\nwant %#v", err, d, e)
	}
	for _, c := range []struct {
		name, text string
		want       Event
	}{
		{"least", `{"payload":null}`, Event{Payload: json.RawMessage("null")}},
		{"other order and spaces", " { \"tags\" : [ \"a\" , \"b\" ] ,\n\"payload\" : { \"a\" : [ 1 , \" x \" ] } , \"topic\" : \"t\" , \"headers\" : { \"x-b\" : \"1\" , \"x-a\" : \"2\" } }\r\n\t",
			Event{Topic: "t", Headers: Headers{{"x-a", "2"}, {"x-b", "1"}}, Payload: json.RawMessage(`{"a":[1," x "]}`), Tags: []string{"a", "b"}}},
		{"empty", `{"key":"","sid":"","headers":{},"tags":[],"caused_by":[ ],"seq":0,"ts":0,"payload":""}`, Event{Payload: json.RawMessage(`""`)}},
		{"escapes", `{"\u006bey":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00","headers":{"x-\u0061":"\u0062"},"payload":"\u0041"}`,
			Event{Key: "\"\\/\b\f\n\r\té😀", Headers: Headers{{"x-a", "b"}}, Payload: json.RawMessage(`"\u0041"`)}},
		{"largest", `{"seq":18446744073709551615,"ts":-9223372036854775808,"partition":65535,"payload":1}`,
			Event{Seq: 1<<64 - 1, TS: -1 << 63, Partition: PartitionOf(65535), Payload: json.RawMessage(`1`)}},
		{"big numbers", `{"payload":[123456789012345678901234567890,1e400,-0.0]}`, Event{Payload: json.RawMessage(`[123456789012345678901234567890,1e400,-0.0]`)}},
		{"upper case id", `{"id":"0192F7C1-89AB-7CDE-8F01-23456789ABCD","payload":1}`, Event{ID: e.ID, Payload: json.RawMessage(`1`)}},
		{"payload at the depth limit", `{"payload":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`, Event{Payload: json.RawMessage(strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth))}},
	} {
		d := fullEvent()
		data := []byte(c.text)
		if err := DecodeJSON(data, &d); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if string(data) != c.text {
			t.Errorf("%s: the input was changed to %s", c.name, data)
		}
		for i := range data {
			data[i] = 0xee // nothing of it may show in the event
		}
		if !reflect.DeepEqual(d, c.want) {
			t.Errorf("%s:\n got %#v\nwant %#v", c.name, d, c.want)
		}
	}
}

func TestDecodeJSONErrors(t *testing.T) {
	for _, c := range []struct {
		name, text string
		kind       error
		want       string
	}{
		{"empty", ``, ErrBadJSON, `a value must start here, found the end of the text at byte 0`},
		{"array", `[1]`, ErrInvalidArgument, `an event must be an object, found [1]`},
		{"null", `null`, ErrInvalidArgument, `an event must be an object, found null`},
		{"open", `{"payload":1`, ErrBadJSON, `a comma or the end of the object must stand here, found the end of the text at byte 12`},
		{"comma", `{"payload":1,}`, ErrBadJSON, `a name in quotes must stand here, found "}" at byte 13`},
		{"colon", `{"payload" 1}`, ErrBadJSON, `a colon must stand here, found "1" at byte 11`},
		{"trailing", `{"payload":1}{}`, ErrBadJSON, `must be one value, nothing may follow it, found "{" at byte 13`},
		{"no payload", `{"topic":"a"}`, ErrInvalidArgument, `payload: must be there; null is a payload`},
		{"nothing", `{}`, ErrInvalidArgument, `payload: must be there; null is a payload`},
		{"unknown", `{"payload":1,"Topic":"a"}`, ErrInvalidArgument, `Topic: is not a field of an event`},
		{"unknown and odd", `{"pay\nload":1}`, ErrInvalidArgument, `pay\nload: is not a field of an event`},
		{"twice", `{"payload":1,"payload":1}`, ErrBadJSON, `a name must stand once in an object, found "payload" at byte 13`},
		{"twice by escape", `{"payload":1,"p\u0061yload":1}`, ErrBadJSON, `a name must stand once in an object, found "payload" at byte 13`},
		{"twice in the payload", `{"payload":{"a":{"b":1,"\u0062":2}}}`, ErrBadJSON, `payload: a name must stand once in an object, found "\\u0062" at byte 23`},
		{"payload", `{"payload":[1,}`, ErrBadJSON, `payload: a value must start here, found "}" at byte 14`},
		{"payload surrogate", `{"payload":"\ud800"}`, ErrBadJSON, `payload: an escape must not be half of a surrogate pair, found "\\ud800" at byte 12`},
		{"payload UTF-8", "{\"payload\":\"\xff\"}", ErrBadJSON, `payload: must be valid UTF-8, found "\xff" at byte 12`},
		{"payload depth", `{"payload":` + strings.Repeat("[", 1001), ErrBadJSON, `payload: is nested too deeply (limit 1000, got 1001) at byte 1011`},
		{"id type", `{"id":7,"payload":1}`, ErrInvalidArgument, `id: must be a string, found 7`},
		{"id", `{"id":"x","payload":1}`, ErrInvalidArgument, `id: must be a UUID of 36 characters (limit 36, got 1), found "x"`},
		{"id zero", `{"id":"00000000-0000-0000-0000-000000000000","payload":1}`, ErrInvalidArgument, `id: must not be the zero UUID, found "00000000-0000-0000-0000-000000000000"`},
		{"id null", `{"id":null,"payload":1}`, ErrInvalidArgument, `id: must be left out where there is none, never null, found null`},
		{"seq type", `{"seq":"1","payload":1}`, ErrInvalidArgument, `seq: must be an integer, found "1"`},
		{"seq negative", `{"seq":-1,"payload":1}`, ErrInvalidArgument, `seq: must be an integer from 0 to 18446744073709551615, found -1`},
		{"seq fraction", `{"seq":1.0,"payload":1}`, ErrInvalidArgument, `seq: must be an integer from 0 to 18446744073709551615, found 1.0`},
		{"seq exponent", `{"seq":1e3,"payload":1}`, ErrInvalidArgument, `seq: must be an integer from 0 to 18446744073709551615, found 1e3`},
		{"seq large", `{"seq":18446744073709551616,"payload":1}`, ErrInvalidArgument, `seq: must be an integer from 0 to 18446744073709551615, found 18446744073709551616`},
		{"seq bad", `{"seq":-,"payload":1}`, ErrBadJSON, `seq: a digit must stand here, found "," at byte 8`},
		{"seq null", `{"seq":null,"payload":1}`, ErrInvalidArgument, `seq: must be left out where there is none, never null, found null`},
		{"ts large", `{"ts":9223372036854775808,"payload":1}`, ErrInvalidArgument, `ts: must be an integer, epoch milliseconds, found 9223372036854775808`},
		{"ts fraction", `{"ts":1.5,"payload":1}`, ErrInvalidArgument, `ts: must be an integer, epoch milliseconds, found 1.5`},
		{"ts true", `{"ts":true,"payload":1}`, ErrInvalidArgument, `ts: must be an integer, found true`},
		{"topic type", `{"topic":{"a":1},"payload":1}`, ErrInvalidTopic, `topic: must be a string, found {"a":1}`},
		{"topic null", `{"topic":null,"payload":1}`, ErrInvalidTopic, `topic: must be left out where there is none, never null, found null`},
		{"key type", `{"key":["` + strings.Repeat("k", 60) + `"],"payload":1}`, ErrInvalidArgument, `key: must be a string, found ["` + strings.Repeat("k", 46) + `…`},
		{"key control", "{\"key\":\"a\x01\",\"payload\":1}", ErrBadJSON, `key: a control character must be escaped in a string, found "\x01" at byte 9`},
		{"sid", `{"sid":false,"payload":1}`, ErrInvalidArgument, `sid: must be a string, found false`},
		{"partition", `{"partition":65536,"payload":1}`, ErrInvalidArgument, `partition: must be an integer from 0 to 65535, found 65536`},
		{"partition negative", `{"partition":-1,"payload":1}`, ErrInvalidArgument, `partition: must be an integer from 0 to 65535, found -1`},
		{"headers type", `{"headers":[],"payload":1}`, ErrInvalidHeader, `headers: must be an object of strings, found []`},
		{"headers null", `{"headers":null,"payload":1}`, ErrInvalidHeader, `headers: must be left out where there is none, never null, found null`},
		{"header type", `{"headers":{"x-a":1},"payload":1}`, ErrInvalidHeader, `headers.x-a: must be a string, found 1`},
		{"header twice", `{"headers":{"x-a":"1","x-\u0061":"1"},"payload":1}`, ErrBadJSON, `headers: a name must stand once in an object, found "x-\\u0061" at byte 22`},
		{"headers open", `{"headers":{"x-a":"1"`, ErrBadJSON, `headers: a comma or the end of the object must stand here, found the end of the text at byte 21`},
		{"headers comma", `{"headers":{"x-a":"1",},"payload":1}`, ErrBadJSON, `headers: a name in quotes must stand here, found "}" at byte 22`},
		{"tags type", `{"tags":"a","payload":1}`, ErrInvalidArgument, `tags: must be an array of strings, found "a"`},
		{"tag type", `{"tags":["a",2],"payload":1}`, ErrInvalidArgument, `tags[1]: must be a string, found 2`},
		{"tag null", `{"tags":[null],"payload":1}`, ErrInvalidArgument, `tags[0]: must be left out where there is none, never null, found null`},
		{"tags comma", `{"tags":["a",],"payload":1}`, ErrBadJSON, `tags: a value must start here, found "]" at byte 13`},
		{"tags open", `{"tags":["a"`, ErrBadJSON, `tags: a comma or the end of the array must stand here, found the end of the text at byte 12`},
		{"caused_by", `{"caused_by":{},"payload":1}`, ErrInvalidArgument, `caused_by: must be an array of strings, found {}`},
	} {
		d := fullEvent()
		err := DecodeJSON([]byte(c.text), &d)
		var rule *RuleError
		if err == nil || err.Error() != c.want || !errors.Is(err, c.kind) || !errors.As(err, &rule) {
			t.Errorf("%s:\n got %v\nwant %s (%v)", c.name, err, c.want, c.kind)
		}
		if !reflect.DeepEqual(d, Event{}) {
			t.Errorf("%s: the event is %#v", c.name, d)
		}
	}
}

// tryJSON is what must hold for any text.
func tryJSON(t *testing.T, data []byte) {
	given := bytes.Clone(data)
	var e Event
	err := DecodeJSON(data, &e)
	if !bytes.Equal(data, given) {
		t.Fatal("the input was changed")
	}
	if err != nil {
		var rule *RuleError
		if !errors.As(err, &rule) || rule.Offset < 0 || rule.Offset > len(data) {
			t.Fatalf("error %#v", err)
		}
		if errors.Is(err, ErrBadJSON) {
			// Only what the oracle refuses too is bad JSON, but for the depth.
			if _, depth, oracleErr := oracle(data); oracleErr == nil && depth <= MaxDepth {
				t.Fatalf("%v, but %q is JSON", err, data)
			}
		}
		return
	}
	if _, _, err := oracle(data); err != nil {
		t.Fatalf("%q was decoded, but is no JSON: %v", data, err)
	}
	text, err := e.AppendJSON(nil)
	if err != nil {
		t.Fatalf("%q was decoded to %#v, which does not encode: %v", data, e, err)
	}
	var again Event
	if err := DecodeJSON(text, &again); err != nil || !reflect.DeepEqual(e, again) {
		t.Fatalf("%v\n got %#v\nwant %#v", err, again, e)
	}
	if stable, err := again.AppendJSON(nil); err != nil || !bytes.Equal(stable, text) {
		t.Fatalf("%v\n got %s\nwant %s", err, stable, text)
	}
	var back Event
	if err := DecodeBinary(AppendBinary(nil, &e, true), &back, ""); err != nil || !reflect.DeepEqual(e, back) {
		t.Fatalf("binary: %v\n got %#v\nwant %#v", err, back, e)
	}
}

func TestDecodeJSONOfDamage(t *testing.T) {
	text := []byte(`{"id":"0192f7c1-89ab-7cde-8f01-23456789abcd","seq":42,"ts":-7,"key":"\u00e9é","partition":3, "headers":{"x-b":"1","x-a":"2"},"payload":{"a": [1,"\ud83d\ude00"]},"tags":["#"]}`)
	for i := range text {
		tryJSON(t, text[:i])
		for c := range 256 {
			b := bytes.Clone(text)
			b[i] = byte(c)
			tryJSON(t, b)
		}
	}
}

func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(fullText))
	f.Add([]byte(`{"payload":null}`))
	f.Add([]byte(" {\"headers\" : {\"x-b\":\"\\u0000\" , \"x-a\":\"\"}, \"\\u0070ayload\": [ 1 ] , \"tags\":[\"\\ud83d\\ude00\"],\"ts\":-5}\n"))
	for _, text := range jsonTexts {
		f.Add([]byte(`{"payload":` + text + `}`))
		f.Add([]byte(`{"payload":1,"key":` + text + `}`))
	}
	f.Fuzz(tryJSON)
}
