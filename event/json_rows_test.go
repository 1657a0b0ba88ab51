package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func readRows(text string) (events []Event, err error) {
	rows := NewRows([]byte(text))
	defer rows.Close()
	for {
		var e Event
		ok, err := rows.Next(&e)
		if !ok {
			return events, err
		}
		events = append(events, e)
	}
}

func TestRows(t *testing.T) {
	one := `{"topic":"a","payload": {"n" : 12345678901234567890, "s":"<\u003c> x"}}`
	two := `{"topic":"b.c","payload":null,"key":"k\"\n","headers":{"x-b":"1","x-a":"2"},"tags":["t"],"caused_by":["u"],"ts":7,"partition":2,"sid":"s"}`
	want := []Event{
		{Topic: "a", Payload: json.RawMessage(`{"n":12345678901234567890,"s":"<\u003c> x"}`)},
		{
			Topic: "b.c", Payload: json.RawMessage(`null`), Key: "k\"\n", Headers: Headers{{"x-a", "2"}, {"x-b", "1"}},
			Tags: []string{"t"}, CausedBy: []string{"u"}, TS: 7, Partition: PartitionOf(2), SID: "s",
		},
	}
	for _, text := range []string{
		one + "\n" + two, one + "\r\n\r\n \n" + two + "\n", "\n" + one + " \n" + two,
		"[" + one + "," + two + "]", " [\n" + one + " ,\n\n" + two + "\n] \n",
	} {
		if got, err := readRows(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v\n got %+v\nwant %+v", text, err, got, want)
		}
	}
	for _, text := range []string{"", " \n ", "[]", " [ ] "} {
		if got, err := readRows(text); err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestRowsRefused(t *testing.T) {
	const row = `{"topic":"a","payload":1}`
	for _, c := range []struct {
		text  string
		index int
		kind  error
	}{
		{row + row, 1, ErrBadJSON},
		{row + " " + row, 1, ErrBadJSON},
		{row + "\n" + `{"topic":"a"}`, 1, ErrInvalidArgument},
		{row + "\n" + row + "\n" + `{"topic":"a","payload":1,"payload":2}`, 2, ErrBadJSON},
		{row + "\n[]", 1, ErrInvalidArgument},
		{row + "\n1", 1, ErrInvalidArgument},
		{row + ",\n" + row, 1, ErrBadJSON},
		{"[" + row + "," + row, 2, ErrBadJSON},
		{"[" + row + ",]", 1, ErrBadJSON},
		{"[" + row + row + "]", 1, ErrBadJSON},
		{"[" + row + "]x", 1, ErrBadJSON},
		{"[,]", 0, ErrBadJSON},
		{"[", 0, ErrBadJSON},
		{`{"topic":"a","payload":1,"more":1}`, 0, ErrInvalidArgument},
		{`{"topic":"a","payload":"` + "\xff" + `"}`, 0, ErrBadJSON},
		{`{"topic":"a","payload":` + strings.Repeat("[", MaxDepth+1), 0, ErrBadJSON},
	} {
		if got, err := readRows(c.text); len(got) != c.index || !errors.Is(err, c.kind) {
			t.Errorf("%.60q: row %d: %v, want row %d: %v", c.text, len(got), err, c.index, c.kind)
		}
	}
}

// Reading rows agrees with decoding each by itself.
func FuzzRows(f *testing.F) {
	f.Add([]byte(`{"topic":"a","payload":1}` + "\n" + `{"topic":"a","payload":{"b":[1, 2]},"key":"k"}`))
	f.Add([]byte(`[{"topic":"a","payload":1},{"payload":"x"}]`))
	f.Add([]byte(`[{"headers":{"x-a":""},"payload":1} , {}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readRows(string(data))
		if err != nil || !json.Valid(data) && bytes.IndexByte(data, '\n') < 0 {
			return
		}
		var lone []json.RawMessage
		if json.Unmarshal(data, &lone) == nil {
			if len(lone) != len(got) {
				t.Fatalf("%d events of an array of %d", len(got), len(lone))
			}
			for i := range lone {
				var e Event
				if err := DecodeJSON(lone[i], &e); err != nil || !reflect.DeepEqual(e, got[i]) {
					t.Fatalf("row %d: %+v, decoded alone %+v, %v", i, got[i], e, err)
				}
			}
			return
		}
		// What was read can be written and read again.
		var text []byte
		for i := range got {
			if text, err = got[i].AppendJSON(text); err != nil {
				t.Fatal(err)
			}
			text = append(text, '\n')
		}
		if again, err := readRows(string(text)); err != nil || len(again) != len(got) {
			t.Fatalf("%d of %d rows again: %v", len(again), len(got), err)
		}
	})
}

func BenchmarkRows(b *testing.B) {
	row := `{"topic":"orders.placed","key":"dev:stt:1","id":"0192f7c1-89ab-7cde-8f01-23456789abcd","payload":{"order":123456,"items":[{"sku":"a-1","n":2},{"sku":"b-2","n":1}],"note":"` + strings.Repeat("x", 150) + `"}}` + "\n"
	text := []byte(strings.Repeat(row, 1000))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		rows := NewRows(text)
		var e Event
		for {
			ok, err := rows.Next(&e)
			if err != nil {
				b.Fatal(err)
			}
			if !ok {
				break
			}
		}
		rows.Close()
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "events/s")
}
