package gateway

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
	"promethean/store"
	"promethean/wire"
)

// Media types of CloudEvents 1.0 over HTTP.
const (
	structuredType = "application/cloudevents+json"
	batchedType    = "application/cloudevents-batch+json"
)

// attributeRoom is how much a structured event may have beside its data.
const attributeRoom = 64 << 10

// publishCloud serves POST /cloudevents, in all three modes of the HTTP binding.
func publishCloud(c *call) error {
	kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil && c.r.Header.Get("Content-Type") != "" {
		return wire.Errorf(wire.InvalidArgument, "Content-Type: %w", err)
	}
	switch {
	case kind == batchedType:
		return c.publishBatch(readCloudBatch)
	case kind == structuredType:
		data, err := c.body(c.g.payloadLimit()+attributeRoom, wire.PayloadTooLarge)
		if err != nil {
			return err
		}
		ce, err := readCloud(data)
		if err != nil {
			return err
		}
		return c.publishCloudOne(ce)
	case strings.HasPrefix(kind, "application/cloudevents"):
		return wire.Errorf(wire.InvalidArgument, "Content-Type: of the structured forms only JSON is understood, not %q", clip(kind))
	}
	data, err := c.body(c.g.payloadLimit(), wire.PayloadTooLarge)
	if err != nil {
		return err
	}
	ce, err := c.binaryCloud(kind, data)
	if err != nil {
		return err
	}
	return c.publishCloudOne(ce)
}

func (c *call) publishCloudOne(ce *cloud) error {
	e, err := ce.event()
	if err != nil {
		return err
	}
	got, err := c.publish([]event.Event{e})
	var row *store.EventError
	if errors.As(err, &row) {
		return row.Err // there are no rows to tell apart
	}
	if err != nil {
		return err
	}
	return c.answer(statusOf(&got[0]), append(appendReceipt(nil, &got[0], true), '\n'))
}

// cloud is a CloudEvent: attributes by name, and its data as JSON.
type cloud struct {
	attributes map[string]string
	data       []byte // nil: none
	base64     bool   // data is a text of base64
}

// urls is the namespace of UUIDs that are made of URLs, by RFC 9562.
var urls = event.ID{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}

// cloudID gives the id of an event: a UUID stays, any other follows from source
// and id, so that sending it again is safe too. The source's own namespace is
// the version 5 UUID of its text among URLs.
func cloudID(source, id string) event.ID {
	if u, err := event.ParseID(id); err == nil && !u.IsZero() {
		return u
	}
	return event.NameID(event.NameID(urls, source), id)
}

// event makes ours of it: type is the topic, partitionkey or else subject the
// key, time the ts. All other attributes are headers.
func (ce *cloud) event() (e event.Event, err error) {
	at := ce.attributes
	if v := at["specversion"]; v != "1.0" {
		return e, wire.Errorf(wire.InvalidArgument, "specversion: %q is not 1.0", clip(v))
	}
	for _, name := range []string{"id", "source", "type"} {
		if at[name] == "" {
			return e, wire.Errorf(wire.InvalidArgument, "%s: a CloudEvent must have one", name)
		}
	}
	e = event.Event{Topic: at["type"], ID: cloudID(at["source"], at["id"]), Payload: ce.data}
	if e.Payload == nil {
		e.Payload = []byte("null")
	}
	used := map[string]bool{"type": true}
	if e.Key = at["partitionkey"]; e.Key != "" {
		used["partitionkey"] = true
	} else {
		e.Key = at["subject"]
		used["subject"] = true
	}
	if e.ID.String() == strings.ToLower(at["id"]) {
		used["id"] = true
	}
	if t := at["time"]; t != "" {
		if e.TS, err = parseTime("time", t); err != nil {
			return e, err
		}
	}
	if ce.base64 {
		at["datacontentencoding"] = "base64"
	}
	for name, value := range at {
		switch {
		case used[name]:
		case name == "traceparent" || name == "tracestate":
			e.Headers = e.Headers.Set(name, value)
		default:
			e.Headers = e.Headers.Set("x-ce-"+name, value)
		}
	}
	return e, nil
}

// checkAttribute refuses a name that CloudEvents does not have.
func checkAttribute(name string) error {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return wire.Errorf(wire.InvalidArgument, "%s: the name of an attribute has only a-z and 0-9", clip(name))
		}
	}
	if name == "" || name == "data" {
		return wire.Errorf(wire.InvalidArgument, "%q is not the name of an attribute", name)
	}
	return nil
}

// binaryCloud reads the binary mode: attributes are headers, the body is the
// data.
func (c *call) binaryCloud(kind string, data []byte) (*cloud, error) {
	ce := &cloud{attributes: make(map[string]string)}
	for name, values := range c.r.Header {
		name, ok := strings.CutPrefix(strings.ToLower(name), "ce-")
		if !ok {
			continue
		}
		if err := checkAttribute(name); err != nil {
			return nil, err
		}
		ce.attributes[name] = unescapeHeader(strings.Join(values, ", "))
	}
	if len(ce.attributes) == 0 {
		return nil, wire.Errorf(wire.InvalidArgument, "this is no CloudEvent: it has neither headers ce-* nor the Content-Type %s", structuredType)
	}
	if t := c.r.Header.Get("Content-Type"); t != "" {
		ce.attributes["datacontenttype"] = t
	}
	switch {
	case len(data) == 0:
	case kind == "" || isJSON(kind):
		if err := event.CheckJSON(data); err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		ce.data = data
	case strings.HasPrefix(kind, "text/") && utf8.Valid(data):
		ce.data = appendText(nil, string(data))
	default:
		ce.data, ce.base64 = appendText(nil, base64.StdEncoding.EncodeToString(data)), true
	}
	return ce, nil
}

func isJSON(kind string) bool {
	return kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json")
}

// unescapeHeader undoes the percent encoding of the HTTP binding. What is none
// stays as it is.
func unescapeHeader(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	if !strings.Contains(s, "%") {
		return s
	}
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

// readCloud reads the structured mode.
func readCloud(data []byte) (*cloud, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(data))
	ce, err := decodeCloud(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, wire.Errorf(wire.BadJSON, "the body must be one CloudEvent, nothing may follow it")
	}
	return ce, nil
}

// readCloudBatch reads the batched mode.
func readCloudBatch(data []byte) ([]event.Event, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(data))
	if t, err := d.ReadToken(); err != nil {
		return nil, badCloud(err)
	} else if t.Kind() != '[' {
		return nil, wire.Errorf(wire.InvalidArgument, "a batch must be an array of CloudEvents")
	}
	var events []event.Event
	for d.PeekKind() != ']' {
		if len(events) == maxBatch {
			return nil, wire.Errorf(wire.BatchTooLarge, "the batch has more than %d events", maxBatch)
		}
		ce, err := decodeCloud(d)
		if err != nil {
			return nil, &store.EventError{Index: len(events), Err: err}
		}
		e, err := ce.event()
		if err != nil {
			return nil, &store.EventError{Index: len(events), Err: err}
		}
		events = append(events, e)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, badCloud(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, wire.Errorf(wire.BadJSON, "the body must be one array, nothing may follow it")
	}
	if len(events) == 0 {
		return nil, wire.Errorf(wire.InvalidArgument, "the batch holds no event")
	}
	return events, nil
}

func badCloud(err error) error { return wire.Errorf(wire.BadJSON, "%w", err) }

// decodeCloud reads one event in JSON. Names that stand twice are refused by
// the decoder.
func decodeCloud(d *jsontext.Decoder) (*cloud, error) {
	if d.PeekKind() != '{' {
		v, err := d.ReadValue()
		if err != nil {
			return nil, badCloud(err)
		}
		return nil, wire.Errorf(wire.InvalidArgument, "a CloudEvent must be an object, not %s", clip(string(v)))
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, badCloud(err)
	}
	ce := &cloud{attributes: make(map[string]string)}
	for d.PeekKind() == '"' {
		t, err := d.ReadToken()
		if err != nil {
			return nil, badCloud(err)
		}
		name := t.String()
		v, err := d.ReadValue()
		if err != nil {
			return nil, badCloud(err)
		}
		if err := ce.member(name, v); err != nil {
			return nil, err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, badCloud(err)
	}
	return ce, nil
}

// member takes one member of an event in JSON.
func (ce *cloud) member(name string, v jsontext.Value) error {
	switch name {
	case "data", "data_base64":
		if ce.data != nil {
			return wire.Errorf(wire.InvalidArgument, "data and data_base64: an event has one of them")
		}
		ce.data = bytes.Clone(v) // the decoder's memory is its own
		if name == "data" {
			return nil
		}
		text, ok := textOf(v)
		if _, err := base64.StdEncoding.DecodeString(text); !ok || err != nil {
			return wire.Errorf(wire.InvalidArgument, "data_base64: that is no base64")
		}
		ce.base64 = true
		return nil
	}
	if err := checkAttribute(name); err != nil {
		return err
	}
	switch v.Kind() {
	case 'n': // as if it was left out
	case '"':
		ce.attributes[name], _ = textOf(v)
	case '0', 't', 'f':
		ce.attributes[name] = string(v)
	default:
		return wire.Errorf(wire.InvalidArgument, "%s: an attribute must be a string, a number or a truth value", clip(name))
	}
	return nil
}
