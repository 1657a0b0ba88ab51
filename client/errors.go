package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// Error is a refusal by the hub. Go by Code, which never changes its meaning;
// docs/api.md lists all of them.
type Error struct {
	// Code is the stable name of what is wrong, such as "seq_conflict". It is
	// "" where the answer came from something that is no hub.
	Code string
	// Status is the HTTP status, 0 where the refusal came over a WebSocket.
	Status int
	// Message says it for people.
	Message string
	// Index is the row of a batch that is wrong, counted from 0; nil where the
	// refusal is not about a row.
	Index *int
	// RetryAfter is how long the hub asks to wait, 0 where it does not.
	RetryAfter time.Duration
	// Seq is that of an event that cannot be normalised, 0 where the refusal is
	// not about one.
	Seq uint64
	// Errors are what is wrong with a payload that is schema_invalid.
	Errors []FieldError
	// Problems are why a schema that is schema_conflict does not fit.
	Problems []SchemaProblem
	// Oldest is the oldest ts that can be answered where the history that was
	// asked for is gone, OldestSeq the smallest seq; nil and 0 where that is not
	// known.
	Oldest    *int64
	OldestSeq uint64
}

// Error implements error.
func (e *Error) Error() string {
	switch {
	case e.Code == "" && e.Message == "":
		return fmt.Sprintf("HTTP status %d", e.Status)
	case e.Code == "":
		return fmt.Sprintf("%s (HTTP status %d)", e.Message, e.Status)
	case e.Message == "":
		return e.Code
	}
	return e.Code + ": " + e.Message
}

// Is lets errors.Is(err, &Error{Code: "not_found"}) find a refusal by its code
// alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code != "" && t.Code == e.Code && t.Status == 0 && t.Message == ""
}

// ErrorCode is Code, for packages that do not know this one.
func (e *Error) ErrorCode() string { return e.Code }

// EventIndex is Index, for packages that do not know this one.
func (e *Error) EventIndex() (i int, ok bool) {
	if e.Index == nil {
		return 0, false
	}
	return *e.Index, true
}

// Temporary says whether the same request may succeed later.
func (e *Error) Temporary() bool {
	switch e.Code {
	case "rate_limited", "draining", "unavailable", "publish_failed", "ack_failed", "slow_consumer", "internal":
		return true
	case "":
		// A proxy before a hub that is not there.
		return e.Status == http.StatusBadGateway || e.Status == http.StatusServiceUnavailable || e.Status == http.StatusGatewayTimeout
	}
	return false
}

// CodeOf is the code of the refusal that err is or wraps, "" where it is none.
func CodeOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Temporary says whether the same call may succeed later: the hub cannot be
// reached, the connection was lost, or the hub says so. Whoever publishes again
// after such an error uses the same ids.
func Temporary(err error) bool {
	var refused *Error
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &refused):
		return refused.Temporary()
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &invalid), errors.As(err, &record):
		return false // the same certificate will be shown again
	case errors.As(err, &dns):
		return !dns.IsNotFound
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	}
	var network net.Error
	var call *url.Error
	if errors.As(err, &call) && !call.Timeout() && errors.Is(call.Err, http.ErrSchemeMismatch) {
		return false
	}
	var op *net.OpError
	return errors.As(err, &op) || errors.As(err, &network) && network.Timeout() || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &call) && strings.Contains(call.Err.Error(), "server closed idle connection")
}

// maxProblem bounds how much of a refusal is read. That of a schema holds
// documents.
const maxProblem = 4 << 20

// refusal reads an answer that is none of the wanted ones.
func refusal(r *http.Response) error {
	e := &Error{Status: r.StatusCode}
	if s, err := strconv.Atoi(r.Header.Get("Retry-After")); err == nil && s >= 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxProblem))
	if err != nil {
		return errors.Join(e, err)
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case kind == "application/problem+json" && e.read(data) == nil:
	case kind == "text/plain" || kind == "" && utf8.Valid(data):
		// The first line says it; the rest may be a page of something else.
		line, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
		if len(line) > 200 {
			line = line[:200] + "…"
		}
		e.Message = strings.ToValidUTF8(line, "")
	}
	return e
}

// read fills in what a problem of the hub says.
func (e *Error) read(data []byte) error {
	var problem struct {
		Title, Detail, Code string
		Status              int
		Index               *int
		Seq                 uint64
		Errors              []FieldError
		Problems            []SchemaProblem
		Oldest              *int64
		OldestSeq           uint64 `json:"oldest_seq"`
	}
	if err := json.Unmarshal(data, &problem); err != nil {
		return err
	}
	e.Code, e.Message, e.Index = problem.Code, problem.Detail, problem.Index
	e.Seq, e.Errors, e.Problems = problem.Seq, problem.Errors, problem.Problems
	e.Oldest, e.OldestSeq = problem.Oldest, problem.OldestSeq
	if e.Message == "" {
		e.Message = problem.Title
	}
	if e.Status == 0 {
		e.Status = problem.Status
	}
	return nil
}
