package gateway

import (
	"net/http"

	"promethean/event"
	"promethean/store"
)

// export serves GET /export.
func export(c *call) error {
	topic, err := c.queryTopic()
	if err != nil {
		return err
	}
	from, to := int64(0), int64(event.MaxTS)
	q := c.r.URL.Query()
	if s := q.Get("fromTs"); s != "" {
		if from, err = parseTime("fromTs", s); err != nil {
			return err
		}
	}
	if s := q.Get("toTs"); s != "" {
		if to, err = parseTime("toTs", s); err != nil {
			return err
		}
	}
	lines, err := c.queryFlag("ndjson", true)
	if err != nil {
		return err
	}
	norm, err := c.queryNormaliser()
	if err != nil {
		return err
	}
	query := store.Query{Topic: topic}
	if from > 0 {
		first, err := c.g.hub.Log().LocateTime(c.r.Context(), topic, from)
		if err != nil {
			return err
		}
		query.After = max(first, 1) - 1
	}
	kind := "application/x-ndjson"
	if !lines {
		kind = "application/json"
	}
	s := c.stream(kind)
	defer s.free()
	if c.isHead() {
		c.w.WriteHeader(http.StatusOK)
		return nil
	}
	if !lines {
		s.buf = append(s.buf, '[')
	}
	first := true
	for e, err := range c.g.hub.Read(c.r.Context(), query) {
		if err != nil {
			return err
		}
		if e.TS < from || e.TS > to {
			continue // times may run backwards: all that follows has to be looked at
		}
		if e, err = norm.event(c.r.Context(), e); err != nil {
			return s.broken(err, map[bool]string{true: `{"error":`, false: `,{"error":`}[lines || first], "}\n")
		}
		if !lines && !first {
			s.buf = append(s.buf, ",\n"...)
		}
		first = false
		if s.buf, err = e.AppendStoredJSON(s.buf); err != nil {
			return err
		}
		if lines {
			s.buf = append(s.buf, '\n')
		}
		if err := s.room(); err != nil {
			return err
		}
	}
	if !lines {
		s.buf = append(s.buf, "]\n"...)
	}
	return s.finish()
}
