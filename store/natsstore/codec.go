package natsstore

import (
	"encoding/ascii85"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"promethean/event"
	"promethean/store"
)

// Headers of a stored message. The server knows those that begin with Nats-.
const (
	hdrID       = nats.MsgIdHdr
	hdrTS       = "Ts"
	hdrMeta     = "Ev"
	hdrCall     = "By" // which call of Append it was, by a random number
	hdrBatch    = "Nats-Batch-Id"
	hdrBatchSeq = "Nats-Batch-Sequence"
	hdrCommit   = "Nats-Batch-Commit"

	hdrLastSeq     = nats.ExpectedLastSeqHdr
	hdrLastSubjSeq = nats.ExpectedLastSubjSeqHdr
	hdrLastSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

	hdrSeq     = "Nats-Sequence"
	hdrSubject = "Nats-Subject"
	hdrTime    = "Nats-Time-Stamp"
	hdrPending = "Nats-Num-Pending"
	hdrStatus  = "Status"
)

// maxHeaderBytes bounds what the headers of a message take beside its payload:
// the server stores at most 64 KiB of them.
const maxHeaderBytes = 64<<10 - 1

// maxMetaText is how long the header for the rest may become. What remains is
// for the id, the time, batch headers and one expected subject.
const maxMetaText = 62_500

// message makes the message that stores e.
func (s *Store) message(e *event.Event, msgID string, call []string) *nats.Msg {
	m := &nats.Msg{Subject: s.subject(e.Topic, e.Key), Data: e.Payload, Header: make(nats.Header, 7)}
	m.Header[hdrCall] = call
	m.Header[hdrID] = []string{msgID}
	m.Header[hdrTS] = []string{strconv.FormatInt(e.TS, 10)}
	if text := encodeMeta(e); text != "" {
		m.Header[hdrMeta] = []string{text}
	}
	return m
}

// msgID is the header Nats-Msg-Id: the id, and behind a # what tells a second
// life of an id from its first: the server may still know a trimmed one.
func msgID(id event.ID, life uint64) string {
	if life == 0 {
		return id.String()
	}
	return id.String() + "#" + strconv.FormatUint(life, 10)
}

func parseMsgID(text string) (event.ID, error) {
	text, _, _ = strings.Cut(text, "#")
	return event.ParseID(text)
}

// decode reads a stored message of a topic.
func (s *Store) decode(topic, subject string, seq uint64, h nats.Header, data []byte) (event.Event, error) {
	e := event.Event{Topic: topic, Seq: seq, Payload: json.RawMessage(data)}
	bad := func(err error) (event.Event, error) {
		return event.Event{}, &store.CorruptError{File: "stream " + s.streamName(topic), Offset: int64(seq), Detail: fmt.Sprintf("not an event of ours: %v", err)}
	}
	var err error
	if e.ID, err = parseMsgID(h.Get(hdrID)); err != nil {
		return bad(err)
	}
	if e.TS, err = strconv.ParseInt(h.Get(hdrTS), 10, 64); err != nil {
		return bad(err)
	}
	tok := strings.TrimPrefix(subject, s.o.Prefix+"."+topic+".")
	if e.Key, err = untoken(tok); err != nil {
		return bad(err)
	}
	if text := h.Get(hdrMeta); text != "" {
		if err := decodeMeta(text, &e); err != nil {
			return bad(err)
		}
	}
	return e, nil
}

// The rest of an event is one header: a byte for the form, then partition, sid,
// headers, caused_by and tags, each text behind its length as a varint. Form E
// escapes control bytes and ends in a dot, so that no blank stands at its end;
// texts stay readable. Form A is ascii85 and bounded, for what would grow too
// long otherwise.

// encodeMeta gives the header for the rest, or "" if there is nothing.
func encodeMeta(e *event.Event) string {
	if e.Partition == 0 && e.SID == "" && len(e.Headers) == 0 && len(e.CausedBy) == 0 && len(e.Tags) == 0 {
		return ""
	}
	var b []byte
	b = binary.AppendUvarint(b, uint64(e.Partition))
	b = appendText(b, e.SID)
	b = binary.AppendUvarint(b, uint64(len(e.Headers)))
	for _, h := range e.Headers {
		b = appendText(b, h.Name)
		b = appendText(b, h.Value)
	}
	for _, list := range [][]string{e.CausedBy, e.Tags} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, s := range list {
			b = appendText(b, s)
		}
	}
	text := make([]byte, 0, len(b)+len(b)/4+16)
	text = append(text, 'E')
	for _, c := range b {
		if c < ' ' || c == 0x7f || c == '%' {
			text = append(text, '%', c^0x40)
		} else {
			text = append(text, c)
		}
	}
	text = append(text, '.')
	if len(text) <= maxMetaText {
		return string(text)
	}
	text = make([]byte, 1+ascii85.MaxEncodedLen(len(b)))
	text[0] = 'A'
	return string(text[:1+ascii85.Encode(text[1:], b)])
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errMeta = errors.New("the header for the rest is cut short")

func decodeMeta(text string, e *event.Event) error {
	var b []byte
	switch text[0] {
	case 'E':
		if len(text) < 2 {
			return errMeta
		}
		text = text[1 : len(text)-1]
		b = make([]byte, 0, len(text))
		for i := 0; i < len(text); i++ {
			c := text[i]
			if c == '%' {
				if i++; i == len(text) {
					return errMeta
				}
				c = text[i] ^ 0x40
			}
			b = append(b, c)
		}
	case 'A':
		b = make([]byte, len(text)*4) // a z stands for four bytes
		n, _, err := ascii85.Decode(b, []byte(text[1:]), true)
		if err != nil {
			return err
		}
		b = b[:n]
	default:
		return fmt.Errorf("%w: form %q of an event", store.ErrFormat, text[:1])
	}
	r := reader{s: string(b)}
	e.Partition = event.Partition(r.num())
	e.SID = r.text()
	if n := r.count(2); n > 0 {
		e.Headers = make(event.Headers, n)
		for i := range e.Headers {
			e.Headers[i] = event.Header{Name: r.text(), Value: r.text()}
		}
	}
	e.CausedBy = r.list()
	e.Tags = r.list()
	if r.bad || r.s != "" {
		return errMeta
	}
	return nil
}

// reader takes varints and texts from s, and remembers if one was missing.
type reader struct {
	s   string
	bad bool
}

func (r *reader) num() uint64 {
	var v uint64
	for i := 0; i < len(r.s) && i < binary.MaxVarintLen64; i++ {
		v |= uint64(r.s[i]&0x7f) << (7 * i)
		if r.s[i] < 0x80 {
			r.s = r.s[i+1:]
			return v
		}
	}
	r.bad, r.s = true, ""
	return 0
}

// count is the number of things that follow, each of at least size bytes.
func (r *reader) count(size int) int {
	n := r.num()
	if n > uint64(len(r.s)/size) {
		r.bad, r.s = true, ""
		return 0
	}
	return int(n)
}

func (r *reader) text() string {
	n := r.count(1)
	s := r.s[:n]
	r.s = r.s[n:]
	return s
}

func (r *reader) list() []string {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	out := make([]string, n)
	for i := range out {
		out[i] = r.text()
	}
	return out
}
