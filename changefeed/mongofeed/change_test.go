package mongofeed

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func raw(t testing.TB, x any) bson.RawValue {
	t.Helper()
	kind, b, err := bson.MarshalValue(x)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: kind, Value: b}
}

func TestKeys(t *testing.T) {
	oid := bson.NewObjectID()
	decimal, err := bson.ParseDecimal128("1.50")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id   any
		want string
	}{
		{oid, oid.Hex()},
		{"dev:stt:1", "dev:stt:1"},
		{"", `""`},
		{int32(7), "7"},
		{int64(-1 << 60), "-1152921504606846976"},
		{7.0, "7"}, // the same _id as the whole number
		{7.25, "7.25"},
		{1e300, "1e+300"},
		{decimal, "1.50"},
		{true, "true"},
		{bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: "x"}}, `{"a": {"$numberInt":"1"},"b": "x"}`},
		{bson.Binary{Subtype: 4, Data: make([]byte, 16)}, `{"$binary":{"base64":"AAAAAAAAAAAAAAAAAAAAAA==","subType":"04"}}`},
		{bson.NewDateTimeFromTime(time.UnixMilli(5)), `{"$date":{"$numberLong":"5"}}`},
	} {
		if got := keyOf(raw(t, c.id)); got != c.want {
			t.Errorf("the key of %v is %s, want %s", c.id, got, c.want)
		}
	}
}

// every is a document with all that BSON has.
func every() bson.D {
	decimal, _ := bson.ParseDecimal128("12345678901234567890.5")
	return bson.D{
		{Key: "text", Value: "a \"quoted\" \\ line\n\x01 ünï \u2028 <&>"}, {Key: "with \"quote", Value: ""},
		{Key: "bad", Value: "x\xffy"},
		{Key: "int", Value: int32(-5)}, {Key: "long", Value: int64(math.MaxInt64)},
		{Key: "doubles", Value: bson.A{0.0, 1.0, -1.5, 1e21, 1e-7, 123456789.0, math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64, math.Copysign(0, -1)}},
		{Key: "flags", Value: bson.A{true, false, nil}}, {Key: "empty", Value: bson.A{bson.A{}, bson.D{}}},
		{Key: "oid", Value: bson.NewObjectID()},
		{Key: "dates", Value: bson.A{
			bson.DateTime(0), bson.DateTime(-1), bson.DateTime(1500), bson.DateTime(1765700000123), bson.DateTime(253402300799999),
			bson.DateTime(253402300800000), bson.DateTime(math.MaxInt64 / 2), bson.DateTime(1765700000120),
		}},
		{Key: "decimal", Value: decimal}, {Key: "bin", Value: bson.Binary{Subtype: 0, Data: []byte{1, 2}}},
		{Key: "ts", Value: bson.Timestamp{T: 5, I: 6}}, {Key: "re", Value: bson.Regex{Pattern: "a/b\"", Options: "i"}},
		{Key: "js", Value: bson.JavaScript("f()")}, {Key: "scope", Value: bson.CodeWithScope{Code: "g", Scope: bson.D{{Key: "x", Value: int32(1)}}}},
		{Key: "min", Value: bson.MinKey{}}, {Key: "max", Value: bson.MaxKey{}}, {Key: "undef", Value: bson.Undefined{}},
		{Key: "sym", Value: bson.Symbol("s")}, {Key: "ptr", Value: bson.DBPointer{DB: "d", Pointer: bson.NewObjectID()}},
	}
}

// same demands that a document is written as the driver writes it.
func same(t testing.TB, d any) {
	t.Helper()
	doc, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := appendDocument(nil, doc)
	if err != nil {
		t.Fatal(err)
	}
	text, err := bson.MarshalExtJSON(bson.Raw(doc), false, false)
	if err != nil {
		t.Fatal(err)
	}
	number := func(b []byte) (x any) {
		dec := json.NewDecoder(strings.NewReader(string(b)))
		dec.UseNumber() // 1 and 1.0 are told apart
		if err := dec.Decode(&x); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		return x
	}
	if !reflect.DeepEqual(number(got), number(text)) {
		t.Errorf("got  %s\nwant %s", got, text)
	}
}

func TestDocumentsAreWrittenAsTheDriverDoes(t *testing.T) {
	same(t, bson.D{})
	all := every()
	same(t, all)
	random := rand.New(rand.NewPCG(3, 4))
	var make func(depth int) bson.D
	make = func(depth int) bson.D {
		var d bson.D
		for range random.IntN(6) {
			e := all[random.IntN(len(all))]
			if depth < 4 && random.IntN(3) == 0 {
				e.Value = bson.A{make(depth + 1), e.Value}
			}
			e.Key += string(rune('a' + random.IntN(26)))
			d = append(d, e)
		}
		if d == nil {
			d = bson.D{}
		}
		return d
	}
	for range 500 {
		same(t, make(0))
	}
}

// FuzzDocument: what is damaged is an error, never a crash or half a document.
func FuzzDocument(f *testing.F) {
	doc, err := bson.Marshal(every())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(doc)
	f.Add(doc[:40])
	f.Add([]byte{5, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if bson.Raw(b).Validate() != nil {
			return // the driver does not hand them on
		}
		text, err := appendDocument(nil, b)
		if err == nil && !json.Valid(text) {
			t.Errorf("not JSON: %s", text)
		}
		_, _ = parseEvent(b)
	})
}

func TestTokensAreChecked(t *testing.T) {
	good := place{Of: "d.c", Resume: mustMarshal(t, bson.D{{Key: "_data", Value: "82"}}), Snapshot: &snapshotPlace{
		Time: bson.Timestamp{T: 7, I: 8}, Last: mustMarshal(t, bson.D{{Key: "_id", Value: int64(1 << 60)}}),
	}}
	text, err := good.token()
	if err != nil {
		t.Fatal(err)
	}
	back, err := parsePlace(text, "d.c")
	if err != nil || !reflect.DeepEqual(back, good) {
		t.Errorf("%s reads as %+v, %v", text, back, err)
	}
	for _, bad := range []string{"", "{}", "x", `{"of":"d.c"}`, `{"of":5}`, strings.Replace(string(text), "d.c", "d.other", 1), string(text[:20])} {
		if p, err := parsePlace([]byte(bad), "d.c"); err == nil || !strings.Contains(err.Error(), "token") {
			t.Errorf("%q reads as %+v, %v", bad, p, err)
		}
	}
}

func mustMarshal(t testing.TB, x any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func BenchmarkDocument(b *testing.B) {
	doc := mustMarshal(b, bson.D{
		{Key: "_id", Value: bson.NewObjectID()}, {Key: "name", Value: "a process with a name"}, {Key: "n", Value: int32(5)},
		{Key: "at", Value: bson.DateTime(1765700000120)}, {Key: "in", Value: bson.D{{Key: "x", Value: 1.5}, {Key: "ok", Value: true}}},
	})
	b.Run("ours", func(b *testing.B) {
		var buf []byte
		for b.Loop() {
			buf, _ = appendDocument(buf[:0], doc)
		}
	})
	b.Run("driver", func(b *testing.B) {
		for b.Loop() {
			_, _ = bson.MarshalExtJSON(doc, false, false)
		}
	})
}
