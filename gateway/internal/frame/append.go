package frame

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
	"promethean/group"
	"promethean/wire"
)

// The functions of this file append frames of the hub to dst. They splice what
// is JSON already and escape the rest; nothing is reflected upon.

// AppendOK begins an answer to a frame with corr, which may be nil. It is to be
// ended by a brace, with more fields before it or not.
func AppendOK(dst, corr []byte) []byte {
	return appendCorr(append(dst, `{"op":"OK"`...), corr)
}

// AppendErr begins an answer that refuses: as AppendOK.
func AppendErr(dst, corr []byte, c wire.Code, msg string) []byte {
	dst = appendCorr(append(dst, `{"op":"ERR"`...), corr)
	dst = append(dst, `,"code":"`...)
	dst = append(dst, c...)
	dst = append(dst, `","msg":`...)
	return appendText(dst, msg)
}

func appendCorr(dst, corr []byte) []byte {
	if corr == nil {
		return dst
	}
	return append(append(dst, `,"corr":`...), corr...)
}

// AppendNumber appends a field that is a number.
func AppendNumber(dst []byte, name string, n uint64) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return AppendUint(dst, n)
}

// AppendUint appends a number.
func AppendUint(dst []byte, n uint64) []byte { return strconv.AppendUint(dst, n, 10) }

// AppendID appends an id in quotes.
func AppendID(dst []byte, id event.ID) []byte {
	dst, _ = id.AppendText(append(dst, '"')) // never fails
	return append(dst, '"')
}

// AppendPlace appends the fields that say where a published event is.
func AppendPlace(dst []byte, id event.ID, seq uint64, duplicate bool) []byte {
	dst = AppendID(append(dst, `,"id":`...), id)
	dst = append(dst, `,"seq":`...)
	dst = strconv.AppendUint(dst, seq, 10)
	if duplicate {
		dst = append(dst, `,"duplicate":true`...)
	}
	return dst
}

// AppendResults appends what became of each id; codeOf finds the codes of errors.
func AppendResults(dst []byte, list []group.Result, codeOf func(error) wire.Code) []byte {
	dst = append(dst, `,"results":[`...)
	for i := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendID(append(dst, `{"id":`...), list[i].ID)
		if list[i].Err == nil {
			dst = append(dst, `,"ok":true}`...)
			continue
		}
		dst = append(dst, `,"ok":false,"err":"`...)
		dst = append(dst, codeOf(list[i].Err)...)
		dst = append(dst, `"}`...)
	}
	return append(dst, ']')
}

// AppendEvent appends a whole EVENT.
func AppendEvent(dst []byte, topic, group string, d *group.Delivery) ([]byte, error) {
	dst = AppendSource(append(dst, `{"op":"EVENT"`...), topic, group)
	dst, err := appendDelivery(append(dst, ','), d)
	return append(dst, '}'), err
}

// AppendEvents begins EVENTS. Each delivery follows by AppendDelivery, and at
// the end "]}".
func AppendEvents(dst []byte, topic, group string) []byte {
	dst = AppendSource(append(dst, `{"op":"EVENTS"`...), topic, group)
	return append(dst, `,"events":[`...)
}

// AppendDelivery appends one event of EVENTS; all but the first begin with a
// comma.
func AppendDelivery(dst []byte, first bool, d *group.Delivery) ([]byte, error) {
	if !first {
		dst = append(dst, ',')
	}
	dst, err := appendDelivery(append(dst, '{'), d)
	return append(dst, '}'), err
}

// AppendSource appends the fields that say what events are of. The topic is one
// that was checked.
func AppendSource(dst []byte, topic, group string) []byte {
	dst = append(dst, `,"topic":"`...)
	dst = append(dst, topic...) // checked: nothing to escape
	dst = append(dst, `","group":`...)
	return appendText(dst, group)
}

func appendDelivery(dst []byte, d *group.Delivery) ([]byte, error) {
	dst, err := d.Event.AppendStoredJSON(append(dst, `"event":`...))
	dst = append(dst, `,"ctx":{"attempt":`...)
	dst = strconv.AppendInt(dst, int64(d.Attempt), 10)
	dst = append(dst, `,"maxAttempts":`...)
	dst = strconv.AppendInt(dst, int64(d.MaxAttempts), 10)
	dst = append(dst, `,"lease":`...)
	dst = AppendLease(dst, d.Lease)
	dst = append(dst, `,"ack_deadline_ms":`...)
	dst = strconv.AppendInt(dst, d.Deadline.UnixMilli(), 10)
	dst = append(dst, `,"cursor":`...)
	dst = strconv.AppendUint(dst, d.Cursor, 10)
	return append(dst, '}'), err
}

// Source reads what the events of an EVENT or EVENTS of a hub are of: what
// AppendSource wrote. It is false for all else.
func Source(msg []byte) (topic, group string, ok bool) {
	msg, ok = bytes.CutPrefix(msg, []byte(`{"op":"EVENT`))
	if !ok {
		return "", "", false
	}
	msg, ok = bytes.CutPrefix(bytes.TrimPrefix(msg, []byte("S")), []byte(`","topic":"`))
	end := bytes.IndexByte(msg, '"')
	if !ok || end < 0 {
		return "", "", false
	}
	topic = string(msg[:end])
	if msg, ok = bytes.CutPrefix(msg[end:], []byte(`","group":`)); !ok {
		return "", "", false
	}
	if i := bytes.IndexAny(msg[min(1, len(msg)):], `\"`); i >= 0 && msg[0] == '"' && msg[i+1] == '"' {
		return topic, string(msg[1 : i+1]), true // nothing is escaped
	}
	t, err := jsontext.NewDecoder(bytes.NewReader(msg)).ReadToken()
	if err != nil || t.Kind() != '"' {
		return "", "", false
	}
	return topic, t.String(), true
}

// AppendAssign appends a whole ASSIGN: all partitions that a member owns.
func AppendAssign(dst []byte, topic, group string, generation uint64, partitions []int) []byte {
	dst = AppendSource(append(dst, `{"op":"ASSIGN"`...), topic, group)
	dst = AppendNumber(dst, "generation", generation)
	dst = append(dst, `,"partitions":[`...)
	for i, n := range partitions {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(n), 10)
	}
	return append(dst, "]}"...)
}

// AppendField appends a field that is a text.
func AppendField(dst []byte, name, value string) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return appendText(dst, value)
}

// AppendLease appends a lease. It is a text: a number as large would not
// survive in JavaScript.
func AppendLease(dst []byte, lease uint64) []byte {
	return append(strconv.AppendUint(append(dst, '"'), lease, 10), '"')
}

// appendText appends a JSON string.
func appendText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			text, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always encodes
			}
			return append(dst, text...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
