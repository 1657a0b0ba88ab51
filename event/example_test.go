package event_test

import (
	"encoding/json"
	"errors"
	"fmt"

	"promethean/event"
)

func Example() {
	e := event.New("process.state", json.RawMessage(`{"pid": 7, "status": "up"}`))
	e.ID, _ = event.ParseID("0192f7c1-89ab-7cde-8f01-23456789abcd")
	e.TS = 1765700000000
	e.Key = "dev:stt:1"
	e.Headers = e.Headers.Set("x-schema-version", "2")
	if err := e.Check(event.Limits{}); err != nil {
		fmt.Println(err)
		return
	}
	text, err := e.AppendJSON(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(text))
	// Output:
	// {"id":"0192f7c1-89ab-7cde-8f01-23456789abcd","ts":1765700000000,"topic":"process.state","key":"dev:stt:1","headers":{"x-schema-version":"2"},"payload":{"pid":7,"status":"up"}}
}

func ExampleEvent_Check() {
	e := event.New("process.state", json.RawMessage(`{"pid":7,"pid":8}`))
	err := e.Check(event.Limits{})
	fmt.Println(err)
	fmt.Println(errors.Is(err, event.ErrBadJSON))
	// Output:
	// payload: a name must stand once in an object, found "pid" at byte 9
	// true
}

func ExampleDecodeJSON() {
	var e event.Event
	err := event.DecodeJSON([]byte(`{"topic":"kv.set","key":"a/b","payload":12345678901234567890}`), &e)
	fmt.Println(e.Topic, e.Key, string(e.Payload), err)

	err = event.DecodeJSON([]byte(`{"topic":"kv.set","payload":1,"colour":"red"}`), &e)
	fmt.Println(err)
	// Output:
	// kv.set a/b 12345678901234567890 <nil>
	// colour: is not a field of an event
}

func ExampleRecord() {
	e := event.New("kv.set", json.RawMessage(`{"v":1}`))
	e.Key = "a/b"
	// A log stores the topic once for many records, and knows seq at commit.
	r := event.Record(event.AppendBinary(nil, &e, false))
	r.SetSeq(42)
	fmt.Println(r.Seq(), r.Key(), string(r.Payload()))

	var back event.Event
	err := event.DecodeBinary(r, &back, "kv.set")
	fmt.Println(back.Topic, back.Seq, back.ID == e.ID, err)
	// Output:
	// 42 a/b {"v":1}
	// kv.set 42 true <nil>
}

func ExampleNameID() {
	space, _ := event.ParseID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	fmt.Println(event.NameID(space, "www.example.com"))
	// Output:
	// 2ed6657d-e927-568b-95e1-2665a8aea6a2
}

func ExamplePartitionFor() {
	fmt.Println(event.PartitionFor("dev:stt:1", event.ID{}, 8))
	fmt.Println(event.PartitionFor("dev:stt:1", event.ID{}, 9))
	// Output:
	// 1
	// 1
}

func ExampleTopicVersion() {
	base, v, ok := event.TopicVersion("process.state.v2")
	fmt.Println(base, v, ok)
	// Output:
	// process.state 2 true
}

func ExampleCompactJSON() {
	out, err := event.CompactJSON(nil, []byte(`{ "n": 1.50e+07, "s": "a b" }`))
	fmt.Println(string(out), err)
	// Output:
	// {"n":1.50e+07,"s":"a b"} <nil>
}
