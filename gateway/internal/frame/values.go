package frame

import (
	"iter"
	"strconv"
	"time"
	"unicode/utf8"

	"promethean/event"
)

// str reads a string.
func (d *Decoder) str(field string) string { return string(d.text(field)) }

func (d *Decoder) text(field string) []byte {
	if d.r.Kind() != '"' {
		d.wrong(field, "must be a string")
		return nil
	}
	return d.r.Text()
}

// Bounds of the names that a decoder remembers.
const (
	maxNames = 256
	maxName  = 256
)

// name reads a string that comes again and again, which then costs nothing.
func (d *Decoder) name(field string) string {
	text := d.text(field)
	if s, ok := d.names[string(text)]; ok {
		return s
	}
	s := string(text)
	if len(s) <= maxName && len(d.names) < maxNames {
		if d.names == nil {
			d.names = make(map[string]string, 4)
		}
		d.names[s] = s
	}
	return s
}

func (d *Decoder) id(field string) event.ID {
	if d.r.Kind() != '"' {
		d.wrong(field, "must be a UUID")
		return event.ID{}
	}
	id, err := d.r.ID()
	if err != nil {
		d.broken(field, err)
	}
	return id
}

// lease reads a lease: the text of ctx.lease, or its number.
func (d *Decoder) lease(field string) uint64 {
	var raw []byte
	switch d.r.Kind() {
	case '"':
		raw = d.r.Text()
	case '0':
		raw = d.r.Value()
	default:
		d.wrong(field, "must be a lease as it came with the event")
		return 0
	}
	n, ok := digits(raw)
	if !ok || n == 0 {
		d.invalid(field, "must be a lease as it came with the event, found "+clip(raw))
	}
	return n
}

func (d *Decoder) boolean(field string) bool {
	k := d.r.Kind()
	if k != 't' && k != 'f' {
		d.wrong(field, "must be true or false")
		return false
	}
	d.r.Value()
	return k == 't'
}

// number reads an integer from 0 to most.
func (d *Decoder) number(field string, most uint64) uint64 {
	if d.r.Kind() != '0' {
		d.wrong(field, "must be a number")
		return 0
	}
	raw := d.r.Value()
	n, ok := digits(raw)
	if !ok || n > most {
		d.invalid(field, "must be an integer from 0 to "+strconv.FormatUint(most, 10)+", found "+clip(raw))
		return 0
	}
	return n
}

// clamped reads an integer from least on; above most it is most.
func (d *Decoder) clamped(field string, least, most int) int {
	if d.r.Kind() != '0' {
		d.wrong(field, "must be a number")
		return 0
	}
	raw := d.r.Value()
	n, ok := digits(raw)
	switch {
	case !ok && isInteger(raw):
		return most // more than 64 bits hold
	case !ok || n < uint64(least):
		d.invalid(field, "must be an integer from "+strconv.Itoa(least)+" on, found "+clip(raw))
		return 0
	}
	return int(min(n, uint64(most)))
}

// millis reads a number of milliseconds like clamped.
func (d *Decoder) millis(field string, least int, most time.Duration) time.Duration {
	return time.Duration(d.clamped(field, least, int(most/time.Millisecond))) * time.Millisecond
}

// time reads epoch milliseconds, or an RFC 3339 text.
func (d *Decoder) time(field string) int64 {
	if d.r.Kind() != '"' {
		return int64(d.number(field, event.MaxTS))
	}
	text := d.str(field)
	t, err := time.Parse(time.RFC3339Nano, text)
	if ms := t.UnixMilli(); err == nil && ms >= 0 && ms <= event.MaxTS {
		return ms
	}
	d.invalid(field, "must be epoch milliseconds or a time such as 2026-01-31T12:00:00Z, found "+clip([]byte(text)))
	return 0
}

// digits reads a number of nothing but digits.
func digits(raw []byte) (uint64, bool) {
	if len(raw) == 0 || len(raw) > 20 {
		return 0, false
	}
	var n uint64
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		v := uint64(c - '0')
		if n > (1<<64-1-v)/10 {
			return 0, false
		}
		n = n*10 + v
	}
	return n, true
}

func isInteger(raw []byte) bool {
	for _, c := range raw {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(raw) > 0
}

// list enters an array and yields once for each element, which is to be read.
func (d *Decoder) list(field, rule string) iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		if d.r.Kind() != '[' {
			d.wrong(field, rule)
			return
		}
		for more := d.r.Array(); more; more = d.r.More() {
			if !yield(struct{}{}) {
				return
			}
		}
	}
}

// object reads an object member by member.
func (d *Decoder) object(field string, member func([]byte)) {
	if d.r.Kind() != '{' {
		at := d.place
		d.place = at &^ 1 // that of the object itself
		d.wrong(field, "must be an object")
		d.place = at
		return
	}
	for more := d.r.Object(); more; more = d.r.More() {
		member(d.r.Name())
	}
}

func (d *Decoder) headers() {
	h := d.one.Headers
	if d.r.Kind() != '{' {
		d.wrong("headers", "must be an object of strings")
		return
	}
	for more := d.r.Object(); more; more = d.r.More() {
		name := string(d.r.Name())
		if len(h) > event.MaxHeaders { // enough for the error
			d.r.Value()
			continue
		}
		if d.r.Kind() != '"' {
			d.wrong("headers."+clip(name), "must be a string")
			continue
		}
		h = append(h, event.Header{Name: name, Value: string(d.r.Text())})
	}
	d.one.Headers = h
}

// clip shortens what somebody sent, for a message.
func clip[T string | []byte](s T) string {
	const most = 80
	if len(s) <= most {
		return string(s)
	}
	cut := most
	for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return string(s[:cut]) + "…"
}
