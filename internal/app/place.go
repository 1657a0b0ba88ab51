package app

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"promethean/client"
	"promethean/event"
)

// placeHelp explains the values of --from; all commands that have it say so.
const placeHelp = `A place is "earliest" or "latest", a seq (what comes after it), the id of an
event (what comes after that), a time (RFC 3339, or @ and epoch ms: the first
event with that time or a later one, and then all), or a duration such as 15m:
so long ago.`

// place is the value of a flag that names a place in a topic.
type place struct{ client.Place }

// String implements pflag.Value.
func (p *place) String() string {
	switch p.From {
	case client.ByTime:
		return "@" + strconv.FormatInt(p.Time.UnixMilli(), 10)
	case client.ByID:
		return p.ID.String()
	case client.BySeq:
		return strconv.FormatUint(p.Seq, 10)
	}
	return p.From
}

// Set implements pflag.Value.
func (p *place) Set(s string) error {
	*p = place{}
	if s == client.Earliest || s == client.Latest {
		p.From = s
		return nil
	}
	if seq, err := strconv.ParseUint(s, 10, 64); err == nil {
		p.From, p.Seq = client.BySeq, seq
		return nil
	}
	if id, err := event.ParseID(s); err == nil {
		p.From, p.ID = client.ByID, id
		return nil
	}
	t, err := parseInstant(s)
	if err != nil {
		return fmt.Errorf("must be earliest, latest, a seq, an id, a time or a duration")
	}
	p.From, p.Time = client.ByTime, t
	return nil
}

// Type implements pflag.Value.
func (p *place) Type() string { return "place" }

// instant is the value of a flag that names a time.
type instant struct{ time.Time }

// String implements pflag.Value.
func (t *instant) String() string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}

// Set implements pflag.Value.
func (t *instant) Set(s string) error {
	at, err := parseInstant(s)
	if ms, wrong := strconv.ParseInt(s, 10, 64); err != nil && wrong == nil && ms >= 0 {
		at, err = time.UnixMilli(ms), nil
	}
	if err != nil {
		return fmt.Errorf("must be RFC 3339, epoch ms, or a duration: so long ago")
	}
	t.Time = at
	return nil
}

// Type implements pflag.Value.
func (t *instant) Type() string { return "time" }

// parseInstant reads a time: RFC 3339, @ and epoch ms, or a duration that lies
// between it and now.
func parseInstant(s string) (time.Time, error) {
	if ms, ok := strings.CutPrefix(s, "@"); ok {
		n, err := strconv.ParseInt(ms, 10, 64)
		if err == nil && (n < 0 || n > event.MaxTS) {
			err = strconv.ErrRange
		}
		return time.UnixMilli(n), err
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err == nil && (t.UnixMilli() < 0 || t.UnixMilli() > event.MaxTS) {
		err = strconv.ErrRange
	}
	return t, err
}
