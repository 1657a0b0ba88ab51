package process

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"promethean/event"
)

const (
	// HeartbeatTopic is where processes say that they live.
	HeartbeatTopic = "heartbeat.received"
	// StateTopic is where their states are, by process id.
	StateTopic = "process.state"
	// Group is that of the projector on HeartbeatTopic.
	Group = "process-projector"
	// HeartbeatRetention is how long heartbeats are worth keeping. The
	// projector sets nothing: it is for who sets up the topic.
	HeartbeatRetention = 3 * 24 * time.Hour
)

// Schemas are the JSON Schemas of both topics, as schemas/<topic>/v<N>.json.
//
//go:embed schemas
var Schemas embed.FS

// Heartbeat is the payload of [HeartbeatTopic].
type Heartbeat struct {
	PID    int64   `json:"pid"`
	Name   string  `json:"name"`
	Host   string  `json:"host"`
	CPUPct float64 `json:"cpu_pct"`
	MemMB  float64 `json:"mem_mb"`
	SID    string  `json:"sid,omitempty"`
}

// ProcessID is the key of the process in [StateTopic]. It is for people to read;
// a colon within a name is not escaped.
func (h Heartbeat) ProcessID() string {
	return h.Host + ":" + h.Name + ":" + strconv.FormatInt(h.PID, 10)
}

// Status says whether a process is heard of.
type Status string

const (
	// Alive is a process whose heartbeats come.
	Alive Status = "alive"
	// Stale is one that was silent for [Options.StaleAfter].
	Stale Status = "stale"
)

// State is the payload of [StateTopic].
type State struct {
	ProcessID string  `json:"processId"`
	Name      string  `json:"name"`
	Host      string  `json:"host"`
	PID       int64   `json:"pid"`
	SID       string  `json:"sid,omitempty"`
	CPUPct    float64 `json:"cpu_pct"`
	MemMB     float64 `json:"mem_mb"`
	// LastSeenTS is the time of the last heartbeat in epoch milliseconds.
	LastSeenTS int64  `json:"last_seen_ts"`
	Status     Status `json:"status"`
}

// space is the namespace of the ids of states.
var space = event.NameID(event.ID{}, "promethean example process state")

// aliveID is the id of the state that a heartbeat leads to.
func aliveID(heartbeat event.ID) event.ID { return event.NameID(space, heartbeat.String()) }

// staleID is the id of the state that a silence leads to. A process that is
// stale comes back only by a later heartbeat, so that no other silence has it.
func staleID(s *State) event.ID {
	return event.NameID(space, s.ProcessID+"\nstale\n"+strconv.FormatInt(s.LastSeenTS, 10))
}

// maxPID is the largest whole number that every reader of JSON has exactly.
const maxPID = 1<<53 - 1

// ParseHeartbeat reads a payload of [HeartbeatTopic] as its schema has it:
// fields that it does not name are let pass. The error names all fields that are
// wrong.
//
// It is stricter than decoding into the struct would be: that takes "PID" for
// pid, null for 0, and a field that is missing too.
func ParseHeartbeat(payload []byte) (Heartbeat, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(payload, &fields); err != nil || fields == nil {
		return Heartbeat{}, fmt.Errorf("heartbeat: want an object, got %s", shown(payload))
	}
	r := reader{fields: fields}
	h := Heartbeat{
		PID: r.whole("pid"), Name: r.text("name", true), Host: r.text("host", true),
		CPUPct: r.number("cpu_pct"), MemMB: r.number("mem_mb"), SID: r.text("sid", false),
	}
	if len(r.wrong) > 0 {
		return Heartbeat{}, fmt.Errorf("heartbeat: %w", errors.Join(r.wrong...))
	}
	return h, nil
}

// reader takes fields of an object and notes what is wrong with them.
type reader struct {
	fields map[string]json.RawMessage
	wrong  []error
}

func (r *reader) fault(name, want string) {
	if raw, given := r.fields[name]; given {
		r.wrong = append(r.wrong, fmt.Errorf("%s: want %s, got %s", name, want, shown(raw)))
		return
	}
	r.wrong = append(r.wrong, fmt.Errorf("%s: want %s, there is none", name, want))
}

func (r *reader) number(name string) (v float64) {
	if raw := r.fields[name]; isNull(raw) || json.Unmarshal(raw, &v) != nil {
		r.fault(name, "a number")
	}
	return v
}

func (r *reader) whole(name string) int64 {
	const want = "a whole number that is not negative"
	var v float64 // 1.0 and 1e0 are whole numbers too
	if raw := r.fields[name]; isNull(raw) || json.Unmarshal(raw, &v) != nil || v != math.Trunc(v) || v < 0 || v > maxPID {
		r.fault(name, want)
		return 0
	}
	return int64(v)
}

func (r *reader) text(name string, needed bool) (v string) {
	raw, given := r.fields[name]
	if !given && !needed {
		return ""
	}
	if isNull(raw) || json.Unmarshal(raw, &v) != nil || needed && v == "" {
		want := "a text"
		if needed {
			want += " that is not empty"
		}
		r.fault(name, want)
	}
	return v
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }

// shown is a value as a message has it: not too long.
func shown(raw []byte) string {
	const most = 60
	if len(raw) <= most {
		return string(raw)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(raw[cut]) {
		cut--
	}
	return string(raw[:cut]) + "…"
}
