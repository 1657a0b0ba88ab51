package gateway

import (
	"strconv"

	"promethean/event"
	"promethean/group"
	"promethean/store"
	"promethean/timetravel"
	"promethean/wire"
)

// How many events one answer of /replay and /history has.
const (
	defaultLimit = 1000
	maxLimit     = 10_000
)

// maxKeys is how many keys may be asked for at once.
const maxKeys = 1000

// replay serves GET /replay.
func replay(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	p, err := c.queryPlace()
	if err != nil {
		return err
	}
	start, err := p.start(group.Earliest)
	if err != nil {
		return err
	}
	limit, err := c.queryNum("limit", defaultLimit, maxLimit)
	if err != nil {
		return err
	}
	norm, err := c.queryNormaliser()
	if err != nil {
		return err
	}
	floor, err := c.g.hub.Engine().Floor(c.r.Context(), topic, start)
	if err != nil {
		return err
	}
	s := c.stream("application/json")
	defer s.free()
	s.buf = append(s.buf, `{"topic":"`...)
	s.buf = append(append(s.buf, topic...), '"')
	return c.listEvents(s, store.Query{Topic: topic, After: floor}, int(limit), norm)
}

// history serves GET /history.
func history(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	key := c.r.URL.Query().Get("key")
	if err := checkKey(key); err != nil {
		return err
	}
	limit, err := c.queryNum("limit", defaultLimit, maxLimit)
	if err != nil {
		return err
	}
	after, err := c.queryNum("after", 0, 1<<63)
	if err != nil {
		return err
	}
	diff, err := c.queryFlag("diff", false)
	if err != nil {
		return err
	}
	if diff {
		return c.historySteps(timetravel.HistoryQuery{Topic: topic, Key: key, After: after, Limit: int(limit)})
	}
	s := c.stream("application/json")
	defer s.free()
	s.buf = append(s.buf, `{"topic":"`...)
	s.buf = append(append(s.buf, topic...), `","key":`...)
	s.buf = appendText(s.buf, key)
	return c.listEvents(s, store.Query{Topic: topic, Key: key, After: after}, int(limit), nil)
}

// listEvents writes events, how many they are, and the last seq, and ends the
// object. The events come first, since who streams does not know their number.
// If one cannot be normalised, the object ends with an error in place of next.
func (c *call) listEvents(s *stream, q store.Query, limit int, norm *normaliser) error {
	s.buf = append(s.buf, `,"events":[`...)
	n, next := 0, q.After
	if q.Limit = limit; limit > 0 && !c.isHead() {
		for e, err := range c.g.hub.Read(c.r.Context(), q) {
			if err == nil {
				e, err = norm.event(c.r.Context(), e)
			}
			if err != nil {
				return s.broken(err, `],"count":`+strconv.Itoa(n)+`,"error":`, "}\n")
			}
			if n > 0 {
				s.buf = append(s.buf, ',')
			}
			if s.buf, err = e.AppendStoredJSON(s.buf); err != nil {
				return err
			}
			n, next = n+1, e.Seq
			if err := s.room(); err != nil {
				return err
			}
		}
	}
	s.buf = append(s.buf, `],"count":`...)
	s.buf = strconv.AppendInt(s.buf, int64(n), 10)
	s.buf = append(s.buf, `,"next":`...)
	s.buf = strconv.AppendUint(s.buf, next, 10)
	s.buf = append(s.buf, "}\n"...)
	return s.finish()
}

// checkKey refuses what is no key: reading without one would read everything.
func checkKey(key string) error {
	if key == "" || len(key) > event.MaxKey {
		return wire.Errorf(wire.InvalidArgument, "key: a key has 1 to %d bytes, not %d", event.MaxKey, len(key))
	}
	return nil
}

// latestByKey serves GET /latest-by-key.
func latestByKey(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	keys := c.r.URL.Query()["key"]
	switch {
	case len(keys) == 0:
		return wire.Errorf(wire.InvalidArgument, "key: name at least one")
	case len(keys) > maxKeys:
		return wire.Errorf(wire.InvalidArgument, "key: %d keys, the limit is %d", len(keys), maxKeys)
	}
	for _, k := range keys {
		if err := checkKey(k); err != nil {
			return err
		}
	}
	s := c.stream("application/json")
	defer s.free()
	s.buf = append(s.buf, '{')
	done := make(map[string]bool, len(keys))
	for _, k := range keys {
		if done[k] || c.isHead() {
			continue
		}
		if len(done) > 0 {
			s.buf = append(s.buf, ',')
		}
		done[k] = true
		s.buf = append(appendText(s.buf, k), ':')
		found := false
		for e, err := range c.g.hub.Read(c.r.Context(), store.Query{Topic: topic, Key: k, Reverse: true, Limit: 1}) {
			if err == nil {
				s.buf, err = e.AppendStoredJSON(s.buf)
			}
			if err != nil {
				return err
			}
			found = true
		}
		if !found {
			s.buf = append(s.buf, "null"...)
		}
		if err := s.room(); err != nil {
			return err
		}
	}
	s.buf = append(s.buf, "}\n"...)
	return s.finish()
}
