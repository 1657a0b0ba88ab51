package mongostore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"promethean/event"
	"promethean/store"
)

func TestCommitCodec(t *testing.T) {
	full := event.New("a.b", json.RawMessage(`{"$set":{"a.b":-0.0}}`))
	full.Key, full.SID, full.Partition = "k\x00é", "s\x00", event.PartitionOf(event.MaxPartitions-1)
	full.Headers = event.Headers{{Name: "x-a.b", Value: "$"}, {Name: "x-z", Value: ""}}
	full.Tags, full.CausedBy = []string{"", "t"}, []string{"c"}
	bare := event.Event{ID: event.NewID(), Topic: "a.b", Payload: json.RawMessage("null")}
	events := []event.Event{full, bare}
	var items []*item
	for i := range events {
		items = append(items, &item{id: events[i].ID, ts: events[i].TS, doc: encodeEvent(&events[i])})
	}
	at := time.UnixMilli(time.Now().UnixMilli())
	d := encodeCommit("a.b", tail{first: 3, last: 7, top: 5, cum: 100}, at, newNonce(), items)
	if err := d.doc.Validate(); err != nil {
		t.Fatal(err)
	}
	c, err := parseCommit(d.doc)
	if err != nil {
		t.Fatal(err)
	}
	if c.topic != "a.b" || c.tail != d.next || c.first != 8 || c.last != 9 || c.top != full.TS || c.at != at.UnixMilli() || !bytes.Equal(c.nonce, d.nonce[:]) {
		t.Fatalf("parsed %+v of %+v", c, d.next)
	}
	for i := range c.events {
		e, err := c.events[i].decode("a.b")
		if err != nil {
			t.Fatal(err)
		}
		want := events[i]
		want.Seq = uint64(8 + i)
		if !bytes.Equal(event.AppendBinary(nil, &e, true), event.AppendBinary(nil, &want, true)) {
			t.Errorf("event %d: %+v, want %+v", i, e, want)
		}
		if c.events[i].id() != want.ID || c.events[i].key() != want.Key || c.events[i].partition() != want.Partition {
			t.Errorf("event %d: looked at without decoding it is another", i)
		}
	}
	// No damage makes it panic, and none of the shape goes unnoticed.
	for n := range d.doc {
		cut := slices.Clone(d.doc[:n])
		if c, err := parseCommit(cut); err == nil {
			t.Fatalf("%d of %d bytes are a commit: %+v", n, len(d.doc), c)
		}
		bad := slices.Clone(d.doc)
		bad[n] ^= 0xff
		if c, err := parseCommit(bad); err == nil {
			for i := range c.events {
				_, _ = c.events[i].decode("a.b")
			}
		} else if !errors.Is(err, store.ErrCorrupt) {
			t.Fatalf("byte %d: %v, want %q", n, err, store.ErrCorrupt)
		}
	}
}

func FuzzCursorCodec(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4}, []byte{5, 6})
	f.Add([]byte{0xff}, []byte{})
	f.Fuzz(func(t *testing.T, ranges, attempts []byte) {
		if rs, err := decodeRanges(ranges); err == nil {
			again, err := decodeRanges(encodeRanges(rs))
			if err != nil || !slices.Equal(rs, again) {
				t.Errorf("ranges %v come back as %v, %v", rs, again, err)
			}
		}
		if m, err := decodeAttempts(attempts); err == nil {
			again, err := decodeAttempts(encodeAttempts(m))
			if err != nil || !maps.Equal(m, again) {
				t.Errorf("attempts %v come back as %v, %v", m, again, err)
			}
		}
	})
}

func TestCursorCodec(t *testing.T) {
	c := store.Cursor{
		Topic: "a", Group: "g\xff", Version: 3, Epoch: math.MaxUint64, Generation: 1 << 63, Floor: 7, Handed: math.MaxUint64,
		Settled: store.Ranges{{First: 9, Last: 9}, {First: 11, Last: math.MaxUint64}}, Attempts: map[uint64]uint32{8: math.MaxUint32, 10: 1}, Meta: []byte{0},
	}
	d := encodeCursor(&c, 1, 2)
	got, err := d.decode()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(c) {
		t.Fatalf("%+v, %v; want %+v", got, err, c)
	}
	d.Settled = d.Settled[:len(d.Settled)-1]
	if _, err := d.decode(); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("cut short: %v, want %q", err, store.ErrCorrupt)
	}
}

func TestTransient(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.EOF, false},
		{context.DeadlineExceeded, true},
		{mongo.CommandError{Code: 16908292, Message: "deadlock detected"}, true},
		{mongo.CommandError{Code: 1, Name: "InternalError", Message: "deadlock detected"}, true},
		{mongo.CommandError{Code: 10107, Message: "not primary"}, true},
		{mongo.CommandError{Code: 1, Labels: []string{"RetryableWriteError"}}, true},
		{mongo.CommandError{Labels: []string{"NetworkError"}}, true},
		{mongo.CommandError{Code: 13, Message: "not authorized"}, false},
		{mongo.WriteException{WriteConcernError: &mongo.WriteConcernError{Code: 64}}, true},
		{mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: 11000}}}, false},
		{topology.ServerSelectionError{Wrapped: errors.New("auth error: AuthenticationFailed")}, false},
		{fmt.Errorf("wrapped: %w", topology.ServerSelectionError{Wrapped: io.EOF}), true},
	} {
		if got := transient(c.err); got != c.want {
			t.Errorf("transient(%v) is %v", c.err, got)
		}
	}
}

func TestFullDisk(t *testing.T) {
	s := &Store{o: Options{}.withDefaults()}
	for _, full := range []error{
		mongo.CommandError{Code: 14031, Message: "too little is left"},
		mongo.WriteException{WriteErrors: mongo.WriteErrors{{Message: `could not extend file "base/5/1": No space left on device`}}},
	} {
		calls := 0
		err := s.do(context.Background(), func(context.Context) error { calls++; return full })
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "disk of the server is full") || calls != 1 {
			t.Errorf("%v is told as %v after %d calls", full, err, calls)
		}
	}
}

func TestExplain(t *testing.T) {
	s := &Store{o: Options{Database: "d"}.withDefaults()}
	for _, c := range []struct {
		err  error
		says string
	}{
		{mongo.CommandError{Code: 13, Message: "not authorized"}, "role readWrite on database d"},
		{mongo.CommandError{Code: 18, Message: "no"}, "refuses the login"},
		{errors.New("server at x reports wire version 6, but this version of the Go driver requires at least 9"), "too old"},
		{context.DeadlineExceeded, "is it running"},
		{io.EOF, "try it: EOF"},
	} {
		if got := s.explain(c.err, "try it"); !strings.Contains(got.Error(), c.says) || !strings.Contains(got.Error(), c.err.Error()) {
			t.Errorf("%v is explained as %v; it should say %q", c.err, got, c.says)
		}
	}
}
