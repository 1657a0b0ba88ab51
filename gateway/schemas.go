package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
	"promethean/schema"
	"promethean/schema/compat"
	"promethean/wire"
)

// versionOf is how a version of a schema is shown.
type versionOf struct {
	Topic    string          `json:"topic"`
	Version  int             `json:"version"`
	Compat   compat.Mode     `json:"compat"`
	Lenient  bool            `json:"lenient,omitempty"`
	Unproved bool            `json:"unproved,omitempty"`
	Function bool            `json:"function,omitempty"`
	TS       int64           `json:"ts"`
	Upcast   string          `json:"upcast,omitempty"`
	Schema   json.RawMessage `json:"schema"`
}

func showVersion(v *schema.Version) versionOf {
	return versionOf{
		Topic: v.Topic, Version: v.Version, Compat: v.Compat, Lenient: v.Lenient, Unproved: v.Unproved, Function: v.Function,
		TS: v.At.UnixMilli(), Upcast: v.Upcast, Schema: v.Schema,
	}
}

// listSchemas serves GET /schemas.
func listSchemas(c *call) error {
	type row struct {
		Topic    string      `json:"topic"`
		Latest   int         `json:"latest"`
		Versions []int       `json:"versions"`
		Compat   compat.Mode `json:"compat"`
	}
	reg := c.g.o.Schemas
	out := []row{}
	for _, topic := range reg.Topics() {
		r := row{Topic: topic, Versions: []int{}}
		for _, v := range reg.Versions(topic) {
			r.Versions = append(r.Versions, v.Version)
			r.Latest, r.Compat = v.Version, v.Compat
		}
		out = append(out, r)
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "topics": out})
}

// showSchemas serves GET /schemas/{topic}.
func showSchemas(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	list := c.g.o.Schemas.Versions(topic)
	if len(list) == 0 {
		return noSchema(topic)
	}
	out := make([]versionOf, len(list))
	for i, v := range list {
		out[i] = showVersion(v)
	}
	return c.answerJSON(http.StatusOK, map[string]any{"topic": topic, "latest": out[len(out)-1].Version, "count": len(out), "versions": out})
}

func noSchema(topic string) error {
	return wire.Errorf(wire.NotFound, "topic %s has no schema: register one with POST /schemas/%s", topic, topic)
}

// showSchema serves GET /schemas/{topic}/{version}.
func showSchema(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	reg, name := c.g.o.Schemas, c.r.PathValue("version")
	v := reg.Latest(topic)
	if name != "latest" {
		n, err := parseVersion("version", name)
		if err != nil {
			return err
		}
		v = reg.Version(topic, n)
	}
	switch {
	case reg.Latest(topic) == nil:
		return noSchema(topic)
	case v == nil:
		return wire.Errorf(wire.NotFound, "the schema of topic %s has no version %s, the latest is %d", topic, clip(name), reg.Latest(topic).Version)
	}
	return c.answerJSON(http.StatusOK, showVersion(v))
}

func parseVersion(name, s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n < 1 || n > schema.MaxVersion {
		return 0, wire.Errorf(wire.InvalidArgument, "%s: %q is no version: they are counted from 1", name, clip(s))
	}
	return int(n), nil
}

// definitionRequest is the body of POST /schemas/{topic} and of its check.
type definitionRequest struct {
	Schema   jsontext.Value `json:"schema"`
	Compat   string         `json:"compat,omitempty"`
	Lenient  bool           `json:"lenient,omitempty"`
	Version  *number        `json:"version,omitempty"`
	Upcast   string         `json:"upcast,omitempty"`
	Unproved bool           `json:"unproved,omitempty"`
}

// definition reads a version that somebody wants to register.
func (c *call) definition() (schema.Definition, error) {
	var in definitionRequest
	topic, err := c.pathTopic()
	if err == nil {
		err = c.decode(&in, false)
	}
	switch {
	case err != nil:
		return schema.Definition{}, err
	case in.Schema == nil:
		return schema.Definition{}, wire.Errorf(wire.InvalidArgument, "schema: give one")
	case in.Version != nil && (*in.Version < 1 || *in.Version > schema.MaxVersion):
		return schema.Definition{}, wire.Errorf(wire.InvalidArgument, "version: versions are counted from 1 to %d; leave it out for the next one", schema.MaxVersion)
	}
	return schema.Definition{
		Topic: topic, Version: int(in.Version.or(0, schema.MaxVersion)), Schema: json.RawMessage(in.Schema),
		Compat: compat.Mode(in.Compat), Lenient: in.Lenient, Upcast: in.Upcast, Unproved: in.Unproved,
	}, nil
}

// addSchema serves POST /schemas/{topic}.
func addSchema(c *call) error {
	d, err := c.definition()
	if err != nil {
		return err
	}
	v, fresh, err := c.g.o.Schemas.Register(c.r.Context(), d)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if fresh {
		status = http.StatusCreated
	}
	return c.answerJSON(status, showVersion(v))
}

// checkSchema serves POST /schemas/{topic}/check.
func checkSchema(c *call) error {
	d, err := c.definition()
	if err != nil {
		return err
	}
	problems, err := c.g.o.Schemas.Check(c.r.Context(), d)
	var conflict *schema.ConflictError
	if errors.As(err, &conflict) {
		problems, err = conflict.Problems, nil
		if len(problems) == 0 {
			problems = []compat.Problem{{Rule: "version", Detail: conflict.Reason}}
		}
	}
	if err != nil {
		return err
	}
	if problems == nil {
		problems = []compat.Problem{}
	}
	return c.answerJSON(http.StatusOK, map[string]any{"compatible": len(problems) == 0, "problems": problems})
}

// validatePayload serves POST /schemas/{topic}/validate. The body is
// {"payload":…,"version":…}, or the payload itself with the version in the
// query.
func validatePayload(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	payload, err := c.body(c.g.payloadLimit()+maxBody, wire.PayloadTooLarge)
	if err != nil {
		return err
	}
	if err := event.CheckJSON(payload); err != nil {
		return err
	}
	version := 0
	if s := c.r.URL.Query().Get("version"); s != "" && s != "latest" {
		if version, err = parseVersion("version", s); err != nil {
			return err
		}
	}
	var in struct {
		Payload jsontext.Value `json:"payload"`
		Version *number        `json:"version,omitempty"`
	}
	if err := decodeJSON(payload, &in); err == nil && in.Payload != nil {
		payload = in.Payload
		if in.Version != nil {
			if version, err = parseVersion("version", strconv.FormatUint(uint64(*in.Version), 10)); err != nil {
				return err
			}
		}
	}
	reg := c.g.o.Schemas
	if reg.Latest(topic) == nil {
		return noSchema(topic)
	}
	if version != 0 && reg.Version(topic, version) == nil {
		return wire.Errorf(wire.NotFound, "the schema of topic %s has no version %d, the latest is %d", topic, version, reg.Latest(topic).Version)
	}
	version, err = reg.Validate(c.r.Context(), topic, payload, version)
	var bad *schema.InvalidError
	errs := []schema.FieldError{}
	if errors.As(err, &bad) {
		errs, version, err = bad.Errors, bad.Version, nil
	}
	if err != nil {
		return err
	}
	return c.answerJSON(http.StatusOK, map[string]any{"valid": len(errs) == 0, "version": version, "errors": errs})
}

// cutover serves POST /schemas/{topic}/cutover: a line of progress at a time,
// the last one with done, or with an error. It ends with the request, and goes
// on where it was with the next.
func cutover(c *call) error {
	topic, err := c.pathTopic()
	if err != nil {
		return err
	}
	var in struct {
		To string `json:"to"`
	}
	if err := c.decode(&in, false); err != nil {
		return err
	}
	if !c.g.enter() {
		return errDraining
	}
	defer c.g.open.Done()
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	defer context.AfterFunc(c.g.ctx, cancel)()
	s := c.stream("application/x-ndjson")
	defer s.free()
	_, err = c.g.o.Schemas.Cutover(ctx, topic, in.To, func(now schema.Cutover) {
		text, err := json.Marshal(now)
		if err == nil {
			s.buf = append(append(s.buf, text...), '\n')
			err = s.flush()
		}
		if err != nil {
			cancel() // nobody is there
		}
	})
	if err != nil {
		if !s.sent {
			return err
		}
		text, bad := json.Marshal(map[string]any{"error": problemOf(err)})
		if bad != nil {
			return errors.Join(err, bad)
		}
		s.buf = append(append(s.buf, text...), '\n')
		return errors.Join(s.flush(), err)
	}
	return nil
}
