package natsstore

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"promethean/event"
)

// TestToken: every key has one token, and the token gives back the key.
func TestToken(t *testing.T) {
	for _, c := range []struct{ key, want string }{
		{"", "="}, {"dev:stt:1", "dev:stt:1"}, {"a.b", "a=2Eb"}, {"a b", "a=20b"}, {"=", "=3D"}, {"é", "é"}, {"....", "==Li4uLg"},
	} {
		if got := token(c.key, &subjectSafe); got != c.want {
			t.Errorf("token of %q: %q, want %q", c.key, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.OneOf(rapid.String(), rapid.StringMatching(`[.*>= \n\x00a]*`)).Draw(t, "key")
		for _, safe := range []*[256]bool{&subjectSafe, &kvSafe} {
			tok := token(key, safe)
			if strings.ContainsAny(tok, ".*> \t\r\n\x00") || len(tok) > 2+(len(key)*4+2)/3 {
				t.Fatalf("token %q of key %q", tok, key)
			}
			if back, err := untoken(tok); err != nil || back != key {
				t.Fatalf("token %q of key %q gives %q, %v", tok, key, back, err)
			}
		}
	})
}

// TestSubjectFits holds the longest subject to the server's control line.
func TestSubjectFits(t *testing.T) {
	s := Store{o: Options{Prefix: strings.Repeat("p", maxPrefix)}}
	name := "dlq." + strings.Repeat("t", event.MaxTopic)
	subject := s.subject(name, strings.Repeat(".", event.MaxKey))
	if len(subject) > maxSubject {
		t.Fatalf("a subject of %d bytes, the most are %d", len(subject), maxSubject)
	}
	line := fmt.Sprintf("HPUB %s _INBOX.0123456789012345678901.0123456789012345678901.1000 65535 10000000\r\n", subject)
	if len(line) > maxControlLine {
		t.Fatalf("a control line of %d bytes", len(line))
	}
	if stream := s.streamName(name); len(stream) > 255 {
		t.Fatalf("a stream's name of %d bytes", len(stream))
	}
	if got, ok := s.topicOf(s.streamName(name)); !ok || got != name {
		t.Fatalf("%q is the stream of %q", s.streamName(name), got)
	}
}

func TestMetaRoundTrip(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[%\x00-\x20\x7f]*`))
	rapid.Check(t, func(t *rapid.T) {
		e := event.Event{
			Partition: event.Partition(rapid.Uint32Range(0, event.MaxPartitions).Draw(t, "partition")),
			SID:       text.Draw(t, "sid"),
			CausedBy:  rapid.SliceOfN(text, 0, 3).Draw(t, "caused by"),
			Tags:      rapid.SliceOfN(text, 0, 3).Draw(t, "tags"),
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "headers") {
			e.Headers = append(e.Headers, event.Header{Name: fmt.Sprint("x-", i), Value: text.Draw(t, "value")})
		}
		var got event.Event
		if meta := encodeMeta(&e); meta != "" {
			if strings.ContainsAny(meta, "\r\n\x00") || strings.TrimSpace(meta) != meta {
				t.Fatalf("header %q", meta)
			}
			if err := decodeMeta(meta, &got); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := event.AppendBinary(nil, &e, false), event.AppendBinary(nil, &got, false); string(a) != string(b) {
			t.Fatalf("%+v became %+v", e, got)
		}
	})
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add("E.")
	f.Add("E%@%@%@%@%@.")
	f.Add("A!!!")
	f.Fuzz(func(_ *testing.T, text string) {
		if text == "" {
			return
		}
		var e event.Event
		_ = decodeMeta(text, &e)
	})
}

// TestIndex compares the index with a map while ids come, are trimmed and come
// again.
func TestIndex(t *testing.T) {
	x, want := newIndex(), make(map[event.ID]uint64)
	id := func(n uint64) (id event.ID) {
		binary.BigEndian.PutUint64(id[8:], n*2654435761%70_000+1)
		return id
	}
	first := uint64(1)
	for seq := uint64(1); seq <= 100_000; seq++ {
		x.put(id(seq), seq, int64(seq))
		want[id(seq)] = seq
		if seq%9973 == 0 {
			first = seq / 2
			x.trim(first)
		}
		if seq%7919 == 0 {
			x.forget(id(seq), seq)
			delete(want, id(seq))
		}
	}
	for n := range uint64(70_000) {
		seq := want[id(n)]
		if seq < first {
			seq = 0
		}
		if got := x.get(id(n)); got != seq {
			t.Fatalf("id %d has seq %d, want %d", n, got, seq)
		}
	}
	slots := 0
	for i := range x.tables {
		slots += len(x.tables[i].slots)
	}
	t.Logf("%d slots", slots)
	if from, to, ok := x.blockAfter(first, 90_000, 100_000); !ok || from > 90_000 || to < 90_000 {
		t.Fatalf("time 90000 is looked for from %d to %d, %v", from, to, ok)
	}
	if _, _, ok := x.blockAfter(first, 100_001, 100_000); ok {
		t.Fatal("a block is found for a time that no event has")
	}
}
