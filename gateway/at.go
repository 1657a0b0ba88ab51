package gateway

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"promethean/gateway/auth"
	"promethean/timetravel"
	"promethean/wire"
)

// Parameters of what is about the past.
var (
	keyParam    = param{name: "key", kind: "string", about: "The key.", required: true}
	reduceParam = param{name: "reduce", kind: "string", about: "How events become a state: replace or merge (RFC 7386)."}
)

// atRoute is the row of GET /at.
var atRoute = route{method: "GET", path: "/at", action: auth.Read, topic: "query", handle: stateAt, doc: operation{
	summary: "What a key was: of its events those with ts at or before a time, or with a seq up to asOf, in log order. Without either it is what it is now.",
	params: []param{
		topicParam, keyParam,
		{name: "ts", kind: "string", about: "The moment, epoch ms or RFC 3339."},
		{name: "asOf", kind: "integer", about: "What was known when the log had come to this seq."},
		reduceParam,
	},
	answer:  "State",
	codes:   []wire.Code{wire.InvalidTopic, wire.NotFound, wire.HistoryGone},
	example: example{path: "/at?topic=orders.placed&key=a&asOf=1"},
}}

// queryReducer reads how events of a topic become a state.
func (c *call) queryReducer(topic string) (timetravel.Reducer, error) {
	name := c.r.URL.Query().Get("reduce")
	if name == "" && c.g.o.Reduce != nil {
		name = c.g.o.Reduce(topic)
	}
	r, err := timetravel.ParseReducer(name)
	if err != nil {
		return "", wire.Errorf(wire.InvalidArgument, "reduce: %q is neither replace nor merge", clip(name))
	}
	return r, nil
}

// stateAt serves GET /at.
func stateAt(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	values := c.r.URL.Query()
	q := timetravel.Query{Topic: topic, Key: values.Get("key")}
	if err := checkKey(q.Key); err != nil {
		return err
	}
	if s := values.Get("ts"); s != "" {
		ms, err := parseTime("ts", s)
		if err != nil {
			return err
		}
		q.TS = &ms
	}
	if values.Get("asOf") != "" {
		n, err := c.queryNum("asOf", 0, math.MaxUint64)
		if err != nil {
			return err
		}
		q.AsOf = &n
	}
	reduce, err := c.queryReducer(topic)
	if err != nil {
		return err
	}
	s, err := timetravel.At(c.r.Context(), c.g.hub, q, timetravel.Options{Reduce: reduce})
	if err != nil {
		return err
	}
	b := make([]byte, 0, 128+len(topic)+len(q.Key)+len(s.State))
	b = append(append(append(b, `{"topic":"`...), topic...), `","key":`...)
	b = append(append(appendText(b, q.Key), `,"state":`...), s.State...)
	b = strconv.AppendInt(append(b, `,"ts":`...), s.TS, 10)
	b = strconv.AppendUint(append(b, `,"seq":`...), s.Seq, 10)
	b = strconv.AppendInt(append(b, `,"events":`...), int64(s.Events), 10)
	return c.answer(http.StatusOK, append(b, "}\n"...))
}

// historySteps serves GET /history with diff=1: each event with the state that
// it led to, and what changed. Both are left out where events before are gone.
func (c *call) historySteps(q timetravel.HistoryQuery) error {
	reduce, err := c.queryReducer(q.Topic)
	if err != nil {
		return err
	}
	s := c.stream("application/json")
	defer s.free()
	s.buf = append(append(append(s.buf, `{"topic":"`...), q.Topic...), `","key":`...)
	s.buf = append(appendText(s.buf, q.Key), `,"reduce":"`...)
	s.buf = append(append(s.buf, reduce...), `","steps":[`...)
	n, next := 0, q.After
	if q.Limit > 0 && !c.isHead() {
		for step, err := range timetravel.History(c.r.Context(), c.g.hub, q, timetravel.Options{Reduce: reduce}) {
			if err == nil && n > 0 {
				s.buf = append(s.buf, ',')
			}
			if err == nil {
				s.buf, err = appendStep(s.buf, &step)
			}
			if err != nil {
				return err
			}
			n, next = n+1, step.Event.Seq
			if err := s.room(); err != nil {
				return err
			}
		}
	}
	s.buf = strconv.AppendInt(append(s.buf, `],"count":`...), int64(n), 10)
	s.buf = strconv.AppendUint(append(s.buf, `,"next":`...), next, 10)
	s.buf = append(s.buf, "}\n"...)
	return s.finish()
}

func appendStep(b []byte, s *timetravel.Step) ([]byte, error) {
	b, err := s.Event.AppendStoredJSON(append(b, `{"event":`...))
	if err != nil {
		return b, err
	}
	if s.State != nil {
		b = append(append(b, `,"state":`...), s.State...)
	}
	if s.Known {
		b = append(b, `,"changes":[`...)
		for i, c := range s.Changes {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendChange(b, &c)
		}
		b = append(b, ']')
	}
	return append(b, '}'), nil
}

func appendChange(b []byte, c *timetravel.Change) []byte {
	b = append(append(append(b, `{"op":"`...), c.Op...), `","path":`...)
	b = appendText(b, c.Path)
	for _, v := range []struct {
		name  string
		value json.RawMessage
	}{{"from", c.From}, {"to", c.To}} {
		if v.value != nil {
			b = append(append(append(b, `,"`...), v.name...), `":`...)
			b = append(b, v.value...)
		}
	}
	return append(b, '}')
}
