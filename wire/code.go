package wire

import (
	"net/http"
)

// Code names a condition for programs. It never changes its meaning.
type Code string

// The codes.
const (
	BadJSON           Code = "bad_json"
	UnknownOp         Code = "unknown_op"
	Unsupported       Code = "unsupported"
	Unauthorized      Code = "unauthorized"
	Forbidden         Code = "forbidden"
	InvalidTopic      Code = "invalid_topic"
	InvalidHeader     Code = "invalid_header"
	InvalidArgument   Code = "invalid_argument"
	PayloadTooLarge   Code = "payload_too_large"
	BatchTooLarge     Code = "batch_too_large"
	SchemaInvalid     Code = "schema_invalid"
	RateLimited       Code = "rate_limited"
	AlreadySubscribed Code = "already_subscribed"
	NotSubscribed     Code = "not_subscribed"
	UnknownID         Code = "unknown_id"
	GroupConflict     Code = "group_conflict"
	SchemaConflict    Code = "schema_conflict"
	SeqConflict       Code = "seq_conflict"
	CursorUnknown     Code = "cursor_unknown"
	NotFound          Code = "not_found"
	HistoryGone       Code = "history_gone"
	PublishFailed     Code = "publish_failed"
	AckFailed         Code = "ack_failed"
	SlowConsumer      Code = "slow_consumer"
	Fenced            Code = "fenced"
	Draining          Code = "draining"
	Unavailable       Code = "unavailable"
	Internal          Code = "internal"
)

// Entry is one row of the table of codes.
type Entry struct {
	Code   Code
	Status int    // of an HTTP answer
	Title  string // the same for every answer with this code
	Retry  bool   // the same request may succeed later
}

// table is in the order of the documentation.
var table = []Entry{
	{BadJSON, http.StatusBadRequest, "The JSON is malformed.", false},
	{UnknownOp, http.StatusBadRequest, "There is no such operation.", false},
	{Unsupported, http.StatusNotImplemented, "This hub does not have that feature.", false},
	{Unauthorized, http.StatusUnauthorized, "A valid token is needed.", false},
	{Forbidden, http.StatusForbidden, "The caller may not do that.", false},
	{InvalidTopic, http.StatusBadRequest, "The topic's name breaks a rule.", false},
	{InvalidHeader, http.StatusBadRequest, "A header of the event breaks a rule.", false},
	{InvalidArgument, http.StatusBadRequest, "An argument is wrong.", false},
	{PayloadTooLarge, http.StatusRequestEntityTooLarge, "The payload is too large.", false},
	{BatchTooLarge, http.StatusRequestEntityTooLarge, "The batch is too large.", false},
	{SchemaInvalid, http.StatusUnprocessableEntity, "The payload does not match its schema.", false},
	{RateLimited, http.StatusTooManyRequests, "Too many requests.", true},
	{AlreadySubscribed, http.StatusConflict, "The connection has that subscription.", false},
	{NotSubscribed, http.StatusConflict, "The connection has no such subscription.", false},
	{UnknownID, http.StatusNotFound, "The event was never delivered to the group.", false},
	{GroupConflict, http.StatusConflict, "The group exists with other settings.", false},
	{SchemaConflict, http.StatusConflict, "The schema does not fit those before it.", false},
	{SeqConflict, http.StatusConflict, "The topic has moved on.", false},
	{CursorUnknown, http.StatusBadRequest, "There is no such place in the topic.", false},
	{NotFound, http.StatusNotFound, "There is no such thing.", false},
	{HistoryGone, http.StatusGone, "The history that is needed is gone.", false},
	{PublishFailed, http.StatusInternalServerError, "The event was not stored.", true},
	{AckFailed, http.StatusInternalServerError, "The settlement was not stored.", true},
	{SlowConsumer, http.StatusServiceUnavailable, "The client does not read fast enough.", true},
	{Fenced, http.StatusConflict, "The lease is over.", false},
	{Draining, http.StatusServiceUnavailable, "The hub is shutting down.", true},
	{Unavailable, http.StatusServiceUnavailable, "The hub cannot serve that now.", true},
	{Internal, http.StatusInternalServerError, "Something is wrong inside the hub.", true},
}

var entries = func() map[Code]*Entry {
	m := make(map[Code]*Entry, len(table))
	for i := range table {
		m[table[i].Code] = &table[i]
	}
	return m
}()

// Table gives all codes, in the order of the documentation.
func Table() []Entry { return append([]Entry(nil), table...) }

// Entry gives a code's row. A code that is none is that of Internal.
func (c Code) Entry() Entry {
	if e := entries[c]; e != nil {
		return *e
	}
	return *entries[Internal]
}

// Status is the HTTP status of an answer with the code.
func (c Code) Status() int { return c.Entry().Status }
