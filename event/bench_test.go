package event

import (
	"encoding/json"
	"strings"
	"testing"
)

// benchPayload is an object of about 200 bytes, like those of process.state.
const benchPayload = `{"processId":"dev:stt:1","host":"box-17.example.org","name":"speech-to-text","pid":48213,"status":"running","cpu":12.75,"mem":734003200,"startedAt":1765700000000,"tags":["gpu","audio"],"ok":true}`

// benchEvent has a key and two headers; its record takes about 300 bytes.
func benchEvent() Event {
	e := New("process.state", json.RawMessage(benchPayload))
	e.Seq = 42
	e.Key = "dev:stt:1"
	e.Partition = PartitionOf(3)
	e.Headers = Headers{{"content-type", "application/json"}, {"x-schema-version", "2"}}
	return e
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		NewID()
	}
}

func BenchmarkNewIDParallel(b *testing.B) {
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			NewID()
		}
	})
}

func BenchmarkParseID(b *testing.B) {
	text := NewID().String()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseID(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPartitionFor(b *testing.B) {
	id := NewID()
	b.ReportAllocs()
	for b.Loop() {
		PartitionFor("dev:stt:1", id, 64)
	}
}

func BenchmarkCheck(b *testing.B) {
	e := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Check(Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckJSON(b *testing.B) {
	names := func(n int) string {
		var s strings.Builder
		for i := range n {
			s.WriteString(`,"member_` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676)) + `":1`)
		}
		return "{" + s.String()[1:] + "}"
	}
	for _, c := range []struct{ name, text string }{
		{"object200", benchPayload},
		{"spaces", strings.NewReplacer(",", ",\n  ", ":", ": ").Replace(benchPayload)},
		{"text4k", `"` + strings.Repeat("plain text, ", 340) + `"`},
		{"unicode4k", `"` + strings.Repeat("grüße, мир ", 240) + `"`},
		{"numbers4k", "[" + strings.Repeat("12345.678,", 400) + "0]"},
		{"names30", names(30)},
		{"names1000", names(1000)},
	} {
		b.Run(c.name, func(b *testing.B) {
			data := []byte(c.text)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := CheckJSON(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendBinary(b *testing.B) {
	e := benchEvent()
	buf := AppendBinary(nil, &e, true)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendBinary(buf[:0], &e, true)
	}
}

func BenchmarkDecodeBinary(b *testing.B) {
	e := benchEvent()
	buf := AppendBinary(nil, &e, true)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	var d Event
	for b.Loop() {
		if err := DecodeBinary(buf, &d, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	e := benchEvent()
	r := Record(AppendBinary(nil, &e, false))
	b.Run("Key", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if r.Key() == "" {
				b.Fatal("no key")
			}
		}
	})
	b.Run("Header", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := r.Header("x-schema-version"); !ok {
				b.Fatal("no header")
			}
		}
	})
	b.Run("Valid", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := r.Valid(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAppendJSON(b *testing.B) {
	e := benchEvent()
	for _, c := range []struct {
		name   string
		append func([]byte) ([]byte, error)
	}{{"checked", e.AppendJSON}, {"stored", e.AppendStoredJSON}} {
		b.Run(c.name, func(b *testing.B) {
			buf, err := c.append(nil)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				if buf, err = c.append(buf[:0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeJSON(b *testing.B) {
	e := benchEvent()
	text, err := e.AppendJSON(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	var d Event
	for b.Loop() {
		if err := DecodeJSON(text, &d); err != nil {
			b.Fatal(err)
		}
	}
}
