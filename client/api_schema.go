package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SchemaInfo is a topic that has a schema.
type SchemaInfo struct {
	Topic string `json:"topic"`
	// Latest is the number of its newest version, Versions are all of them.
	Latest   int   `json:"latest"`
	Versions []int `json:"versions"`
	// Compat is the mode that the newest version was registered with.
	Compat string `json:"compat"`
}

// SchemaVersion is one version of a topic's schema, as it was registered.
type SchemaVersion struct {
	Topic   string `json:"topic"`
	Version int    `json:"version"`
	Compat  string `json:"compat"`
	Lenient bool   `json:"lenient,omitempty"`
	// Unproved says that its upcaster could not be tried.
	Unproved bool `json:"unproved,omitempty"`
	// Function says that its upcaster is a Go function, which only processes
	// that were given it can run.
	Function bool `json:"function,omitempty"`
	// TS is when it was registered, in epoch ms.
	TS int64 `json:"ts"`
	// Upcast is the jq program that makes payloads of the version before into
	// payloads of this one, "" where there is none.
	Upcast string          `json:"upcast,omitempty"`
	Schema json.RawMessage `json:"schema"`
}

// SchemaDefinition is a version as somebody wants to register it. Only Schema is
// needed.
type SchemaDefinition struct {
	// Version is the number of the version. The default is the next one.
	Version int `json:"version,omitempty"`
	// Schema is a JSON Schema of 2020-12.
	Schema json.RawMessage `json:"schema"`
	// Compat is none, backward, forward or full, or one of the last three with
	// _transitive behind it. The default is backward.
	Compat string `json:"compat,omitempty"`
	// Lenient allows optional properties to come into open objects and to leave
	// closed ones. The default is to refuse that.
	Lenient bool `json:"lenient,omitempty"`
	// Upcast is a jq program that makes a payload of the version before into one
	// of this. The default is none.
	Upcast string `json:"upcast,omitempty"`
	// Unproved allows an upcaster that cannot be tried. The default is to refuse
	// that.
	Unproved bool `json:"unproved,omitempty"`
}

// FieldError is one thing that is wrong with a payload.
type FieldError struct {
	// Path is a JSON pointer to the value; "" is the whole payload.
	Path    string `json:"path"`
	Message string `json:"message"`
}

// SchemaProblem is one reason why a schema does not fit those before it.
type SchemaProblem struct {
	// Path is a JSON pointer into the schema; "" is the whole.
	Path string `json:"path"`
	// Rule is the name of what is broken.
	Rule string `json:"rule"`
	// Detail says it for people, and what to do.
	Detail string `json:"detail"`
	// Example is a document that is valid under one of the schemas only, where
	// one was found.
	Example json.RawMessage `json:"example,omitempty"`
}

// Validity is what a schema says about a payload.
type Validity struct {
	Valid bool `json:"valid"`
	// Version is the one that was looked at.
	Version int          `json:"version"`
	Errors  []FieldError `json:"errors"`
}

// Window is whether something is on, and until when. Its JSON is true, false or
// the time at which it ends.
type Window struct {
	On bool
	// Until is when it ends; zero where it does not.
	Until time.Time
}

// MarshalJSON implements [json.Marshaler].
func (w Window) MarshalJSON() ([]byte, error) {
	if w.On && !w.Until.IsZero() {
		return json.Marshal(w.Until)
	}
	return json.Marshal(w.On)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (w *Window) UnmarshalJSON(text []byte) error {
	var on *bool
	if json.Unmarshal(text, &on) == nil {
		*w = Window{On: on != nil && *on}
		return nil
	}
	var until time.Time
	if err := json.Unmarshal(text, &until); err != nil {
		return err
	}
	*w = Window{On: true, Until: until.UTC()}
	return nil
}

func schemaPath(topic string, more ...string) string {
	path := "/schemas/" + url.PathEscape(topic)
	for _, s := range more {
		path += "/" + url.PathEscape(s)
	}
	return path
}

// Schemas lists the topics that have a schema.
func (c *Client) Schemas(ctx context.Context) ([]SchemaInfo, error) {
	var got struct{ Topics []SchemaInfo }
	err := c.call(ctx, http.MethodGet, "/schemas", nil, nil, &got)
	return got.Topics, err
}

// SchemaVersions gives all versions of a topic's schema, the oldest first. A
// topic without one is not_found.
func (c *Client) SchemaVersions(ctx context.Context, topic string) ([]SchemaVersion, error) {
	var got struct{ Versions []SchemaVersion }
	err := c.call(ctx, http.MethodGet, schemaPath(topic), nil, nil, &got)
	return got.Versions, err
}

// Schema gives one version of a topic's schema; 0 is the latest.
func (c *Client) Schema(ctx context.Context, topic string, version int) (SchemaVersion, error) {
	name := "latest"
	if version != 0 {
		name = strconv.Itoa(version)
	}
	var got SchemaVersion
	err := c.call(ctx, http.MethodGet, schemaPath(topic, name), nil, nil, &got)
	return got, err
}

// RegisterSchema adds a version of a topic's schema, durably when it returns.
// What is there already, with the same schema and upcaster, is given back as it
// is, and fresh is false. A version that does not fit is schema_conflict, with
// the reasons in [Error.Problems].
func (c *Client) RegisterSchema(ctx context.Context, topic string, d SchemaDefinition) (v SchemaVersion, fresh bool, err error) {
	body, err := definitionBody(d)
	if err != nil {
		return v, false, err
	}
	r, err := c.request(ctx, http.MethodPost, schemaPath(topic), nil, body)
	if err != nil {
		return v, false, err
	}
	got, err := c.send(r)
	if err != nil {
		return v, false, err
	}
	err = readAnswer(r, got, &v)
	return v, got.StatusCode == http.StatusCreated, err
}

// definitionBody writes a definition with the bytes of the schema as they are
// but for white space: the hub tells versions apart by them.
func definitionBody(d SchemaDefinition) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return nil, fmt.Errorf("client: schema: %w", err)
	}
	return b.Bytes(), nil
}

// CheckSchema says why a version could not be registered, without registering
// it; no problems mean that it could.
func (c *Client) CheckSchema(ctx context.Context, topic string, d SchemaDefinition) ([]SchemaProblem, error) {
	body, err := definitionBody(d)
	if err != nil {
		return nil, err
	}
	var got struct{ Problems []SchemaProblem }
	err = c.call(ctx, http.MethodPost, schemaPath(topic, "check"), nil, body, &got)
	return got.Problems, err
}

// ValidatePayload says what a version of a topic's schema says about a payload;
// version 0 is the latest. Nothing is stored.
func (c *Client) ValidatePayload(ctx context.Context, topic string, payload json.RawMessage, version int) (Validity, error) {
	in := map[string]any{"payload": payload}
	if version != 0 {
		in["version"] = version
	}
	var got Validity
	err := c.call(ctx, http.MethodPost, schemaPath(topic, "validate"), nil, in, &got)
	return got, err
}

// Cutover is how far a cutover is.
type Cutover struct {
	Topic string `json:"topic"`
	To    string `json:"to"`
	// Seq is the one of Topic up to which everything is in To; Tail is where the
	// topic ended when the run began.
	Seq  uint64 `json:"seq"`
	Tail uint64 `json:"tail"`
	// Read, Copied and Duplicates are those of this run: events that were looked
	// at, those that were new to To, and those that were there already.
	Read       int `json:"read"`
	Copied     int `json:"copied"`
	Duplicates int `json:"duplicates"`
	// Verified is how many events of Topic were found in To at the end.
	Verified int `json:"verified"`
	// Behind is how many events stood in To before the history came.
	Behind uint64 `json:"behind,omitempty"`
	Done   bool   `json:"done"`
}

// Cutover has the hub copy the history of a topic to topic.vN, where N is the
// latest version of its schema: every event up to the end of the topic, in
// order, upcast, with its id. It returns when all is there. tell may be nil; it
// hears how far it is, from time to time.
//
// The hub stops when ctx ends or the connection is lost. Called again, it goes
// on where it was and copies nothing twice. An event that cannot be normalised
// is schema_invalid, with its seq in [Error.Seq]; what comes before it is copied.
func (c *Client) Cutover(ctx context.Context, topic, to string, tell func(Cutover)) (Cutover, error) {
	var now Cutover
	body, err := json.Marshal(map[string]string{"to": to})
	if err != nil {
		return now, err
	}
	r, err := c.request(ctx, http.MethodPost, schemaPath(topic, "cutover"), nil, body)
	if err != nil {
		return now, err
	}
	got, err := c.send(r)
	if err != nil {
		return now, err
	}
	defer got.Body.Close()
	lines := bufio.NewReader(got.Body)
	for {
		line, err := readLine(lines)
		if err != nil {
			// Without a last line that says so it is not done.
			return now, interrupted(ctx, err)
		}
		if err := streamError(line); err != nil {
			return now, err
		}
		var next Cutover
		if err := json.Unmarshal(line, &next); err != nil {
			return now, fmt.Errorf("client: cutover: the answer is not that of a hub: %w", err)
		}
		now = next
		if tell != nil {
			tell(now)
		}
		if now.Done {
			return now, nil
		}
	}
}

// errorLine is how a line begins that ends a stream in the place of an event. No
// event begins so: its first field is the id.
var errorLine = []byte(`{"error":`)

// streamError is the error that a line of a stream holds, nil if it holds none.
func streamError(line []byte) error {
	if !bytes.HasPrefix(line, errorLine) {
		return nil
	}
	var got struct{ Error json.RawMessage }
	if err := json.Unmarshal(line, &got); err != nil {
		return fmt.Errorf("client: a stream ends with an error that cannot be read: %w", err)
	}
	return brokenOff(got.Error)
}

// brokenOff is the error that a stream ends with instead of going on.
func brokenOff(problem []byte) error {
	e := &Error{}
	if err := e.read(problem); err != nil {
		return fmt.Errorf("client: a stream ends with an error that cannot be read: %w", err)
	}
	return e
}
