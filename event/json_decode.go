package event

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
)

// DecodeJSON reads one event from its JSON form into e and overwrites all
// fields. It is strict: unknown fields, fields that stand twice, wrong types,
// null anywhere but in the payload, numbers that are no integers of the
// field's range and everything that CheckJSON refuses are errors. The payload
// must be there; all other fields may be left out. Depth is counted from the
// payload, so that a payload at the limit survives being wrapped in an event.
// The rules of Check are not applied. On error e is the zero Event.
//
// The event shares no memory with data: DecodeJSON copies data once, and the
// strings and the payload of e point into that copy. Who keeps one short
// string of a large event for long should clone it.
//
// Errors are *RuleError: ErrBadJSON for a text that is no JSON, otherwise
// ErrInvalidTopic, ErrInvalidHeader or ErrInvalidArgument, after the field.
func DecodeJSON(data []byte, e *Event) error {
	*e = Event{}
	s := newScanner(bytes.Clone(data))
	defer s.free()
	d := decoder{scanner: s, e: e}
	i, err := d.event(s.space(0))
	if err == nil {
		if i = s.space(i); i < len(s.data) {
			err = s.unexpected(i, "must be one value, nothing may follow it")
		}
	}
	if err != nil {
		*e = Event{}
		return err
	}
	return nil
}

// UnmarshalJSON is DecodeJSON.
func (e *Event) UnmarshalJSON(data []byte) error {
	return DecodeJSON(data, e)
}

// decoder reads the fields of an event with a scanner over memory that the
// event may keep.
type decoder struct {
	*scanner
	e *Event
}

const (
	fieldID = 1 << iota
	fieldSeq
	fieldTS
	fieldTopic
	fieldKey
	fieldPartition
	fieldSID
	fieldHeaders
	fieldPayload
	fieldCausedBy
	fieldTags
)

// event reads the event at i and returns the offset after it.
func (d *decoder) event(i int) (int, *RuleError) {
	if i >= len(d.data) || d.data[i] != '{' {
		return i, d.wrongType(i, "", "an event must be an object")
	}
	seen := 0
	i = d.space(i + 1)
	for first := true; ; first = false {
		if first && i < len(d.data) && d.data[i] == '}' {
			break
		}
		start := i
		if i >= len(d.data) || d.data[i] != '"' {
			return i, d.unexpected(i, "a name in quotes must stand here")
		}
		end, escaped, err := d.text(i)
		if err != nil {
			return end, err
		}
		field := d.str(start, end, escaped)
		if i = d.space(end); i >= len(d.data) || d.data[i] != ':' {
			return i, d.unexpected(i, "a colon must stand here")
		}
		bit, i2, err := d.field(field, d.space(i+1))
		if err != nil {
			if err.Field == "" && errors.Is(err.Kind, ErrBadJSON) {
				err.Field = field
			}
			return i2, err
		}
		if seen&bit != 0 {
			return start, d.fail(start, "a name must stand once in an object", quote(field))
		}
		seen |= bit
		i = d.space(i2)
		if i < len(d.data) && d.data[i] == ',' {
			i = d.space(i + 1)
			continue
		}
		if i < len(d.data) && d.data[i] == '}' {
			break
		}
		return i, d.unexpected(i, "a comma or the end of the object must stand here")
	}
	if seen&fieldPayload == 0 {
		return i, &RuleError{Field: "payload", Rule: "must be there; null is a payload", Kind: ErrInvalidArgument}
	}
	return i + 1, nil
}

// field reads the value of one field at i. It returns the field's bit and the
// offset after the value.
func (d *decoder) field(name string, i int) (bit, end int, err *RuleError) {
	e := d.e
	switch name {
	case "id":
		var text string
		if text, end, err = d.textValue(name, i); err == nil {
			e.ID, err = parseEventID(text)
		}
		return fieldID, end, err
	case "seq":
		var raw string
		if raw, end, err = d.integer(name, i); err == nil {
			v, bad := strconv.ParseUint(raw, 10, 64)
			if e.Seq = v; bad != nil {
				err = notInRange(name, "must be an integer from 0 to 18446744073709551615", raw)
			}
		}
		return fieldSeq, end, err
	case "ts":
		var raw string
		if raw, end, err = d.integer(name, i); err == nil {
			v, bad := strconv.ParseInt(raw, 10, 64)
			if e.TS = v; bad != nil {
				err = notInRange(name, "must be an integer, epoch milliseconds", raw)
			}
		}
		return fieldTS, end, err
	case "topic":
		e.Topic, end, err = d.textValue(name, i)
		return fieldTopic, end, err
	case "key":
		e.Key, end, err = d.textValue(name, i)
		return fieldKey, end, err
	case "partition":
		var raw string
		if raw, end, err = d.integer(name, i); err == nil {
			v, bad := strconv.ParseUint(raw, 10, 32)
			if bad != nil || v >= MaxPartitions {
				err = notInRange(name, "must be an integer from 0 to "+strconv.Itoa(MaxPartitions-1), raw)
			} else {
				e.Partition = PartitionOf(int(v))
			}
		}
		return fieldPartition, end, err
	case "sid":
		e.SID, end, err = d.textValue(name, i)
		return fieldSID, end, err
	case "headers":
		end, err = d.headers(i)
		return fieldHeaders, end, err
	case "payload":
		end, err = d.payload(i)
		return fieldPayload, end, err
	case "caused_by":
		e.CausedBy, end, err = d.list(name, i)
		return fieldCausedBy, end, err
	case "tags":
		e.Tags, end, err = d.list(name, i)
		return fieldTags, end, err
	}
	return 0, i, &RuleError{Field: plainName(name), Rule: "is not a field of an event", Kind: ErrInvalidArgument}
}

// parseEventID refuses the zero UUID, which would read as no id at all.
func parseEventID(text string) (ID, *RuleError) {
	id, err := parseID(text)
	if err == nil && id.IsZero() {
		return ID{}, &RuleError{Field: "id", Rule: "must not be the zero UUID", Found: quote(text), Kind: ErrInvalidArgument}
	}
	return id, err
}

func (d *decoder) payload(i int) (int, *RuleError) {
	before := d.spaces
	end, err := d.value(i)
	if err != nil {
		return end, err
	}
	p := d.data[i:end:end]
	if d.spaces > before {
		// The copy of the input is ours, so the payload shrinks in place.
		p = appendCompact(p[:0], p)
		p = p[:len(p):len(p)]
	}
	d.e.Payload = json.RawMessage(p)
	return end, nil
}

func (d *decoder) headers(i int) (int, *RuleError) {
	if i >= len(d.data) || d.data[i] != '{' {
		return i, d.wrongType(i, "headers", "must be an object of strings")
	}
	if i = d.space(i + 1); i < len(d.data) && d.data[i] == '}' {
		return i + 1, nil
	}
	h := make(Headers, 0, 4)
	d.openObject()
	for {
		start := i
		next, err := d.member(i)
		if err != nil {
			return next, err
		}
		k := d.names[len(d.names)-1]
		name := d.str(start, k.end+1, bytes.IndexByte(d.data[k.start:k.end], '\\') >= 0)
		value, end, err := d.textValue("headers", next)
		if err != nil {
			if errors.Is(err.Kind, ErrInvalidHeader) {
				err.Field = "headers." + plainName(name)
			}
			return end, err
		}
		h = append(h, Header{Name: name, Value: value})
		i = d.space(end)
		if i < len(d.data) && d.data[i] == ',' {
			i = d.space(i + 1)
			continue
		}
		if i < len(d.data) && d.data[i] == '}' {
			break
		}
		return i, d.unexpected(i, "a comma or the end of the object must stand here")
	}
	d.closeObject()
	byName := func(a, b Header) int { return cmp.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(h, byName) {
		slices.SortFunc(h, byName)
	}
	d.e.Headers = h
	return i + 1, nil
}

func (d *decoder) list(field string, i int) ([]string, int, *RuleError) {
	if i >= len(d.data) || d.data[i] != '[' {
		return nil, i, d.wrongType(i, field, "must be an array of strings")
	}
	if i = d.space(i + 1); i < len(d.data) && d.data[i] == ']' {
		return nil, i + 1, nil
	}
	list := make([]string, 0, 4)
	for {
		text, end, err := d.textValue(field, i)
		if err != nil {
			if errors.Is(err.Kind, ErrInvalidArgument) {
				err.Field = field + "[" + strconv.Itoa(len(list)) + "]"
			}
			return nil, end, err
		}
		list = append(list, text)
		i = d.space(end)
		if i < len(d.data) && d.data[i] == ',' {
			i = d.space(i + 1)
			continue
		}
		if i < len(d.data) && d.data[i] == ']' {
			return list, i + 1, nil
		}
		return nil, i, d.unexpected(i, "a comma or the end of the array must stand here")
	}
}

// textValue reads the string at i.
func (d *decoder) textValue(field string, i int) (string, int, *RuleError) {
	if i >= len(d.data) || d.data[i] != '"' {
		return "", i, d.wrongType(i, field, "must be a string")
	}
	end, escaped, err := d.text(i)
	if err != nil {
		return "", end, err
	}
	return d.str(i, end, escaped), end, nil
}

// str returns the text of the checked string data[start:end], quotes included.
func (d *decoder) str(start, end int, escaped bool) string {
	raw := d.data[start+1 : end-1]
	if escaped {
		raw = unescape(make([]byte, 0, len(raw)), raw)
	}
	return alias(raw)
}

// integer returns the text of the number at i, as it stands there.
func (d *decoder) integer(field string, i int) (string, int, *RuleError) {
	if i >= len(d.data) || d.data[i] != '-' && d.data[i]-'0' > 9 {
		return "", i, d.wrongType(i, field, "must be an integer")
	}
	end, err := d.number(i)
	if err != nil {
		return "", end, err
	}
	return alias(d.data[i:end]), end, nil
}

func notInRange(field, rule, raw string) *RuleError {
	return &RuleError{Field: field, Rule: rule, Found: shorten(raw), Kind: ErrInvalidArgument}
}

// wrongType reports the value at i, which is of another type than the field
// takes, or what is wrong with it as JSON.
func (d *decoder) wrongType(i int, field, rule string) *RuleError {
	end, err := d.value(i)
	if err != nil {
		return err
	}
	found := string(d.data[i:end])
	if found == "null" && field != "" {
		rule = "must be left out where there is none, never null"
	}
	kind := ErrInvalidArgument
	switch field {
	case "topic":
		kind = ErrInvalidTopic
	case "headers":
		kind = ErrInvalidHeader
	}
	return &RuleError{Field: field, Rule: rule, Found: shorten(found), Kind: kind}
}
