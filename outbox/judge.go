package outbox

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"promethean/event"
	"promethean/store"
)

// verdict is what an error of a publisher is about.
type verdict int

const (
	// unknown: it cannot be told. The batch is taken apart, and a row that meets
	// it alone is refused. When several rows in turn meet nothing else, it is
	// taken for an outage.
	unknown verdict = iota
	// outage: the hub, or the way to it. No attempt of a row is counted.
	outage
	// tooLarge: the batch as a whole. It is divided.
	tooLarge
	// refused: one of the rows.
	refused
)

// coded is an error with a code of package wire, such as the client's.
type coded interface {
	error
	ErrorCode() string
}

// codes are those that are not about a row. unauthorized is about who publishes
// at all, where forbidden is about a topic.
var codes = map[string]verdict{
	"batch_too_large": tooLarge,
	"unauthorized":    outage, "rate_limited": outage, "draining": outage, "unavailable": outage,
	"publish_failed": outage, "internal": outage, "fenced": outage, "slow_consumer": outage,
	"unknown_op": outage, "unsupported": outage, "not_found": outage,
}

// away are errors of a hub that is not there, and of the way to one.
var away = []error{
	context.Canceled, context.DeadlineExceeded,
	store.ErrUnavailable, store.ErrClosed, store.ErrFailed, store.ErrCorrupt,
	io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE,
}

// judge says what an error is about.
func judge(err error) verdict {
	var c coded
	if errors.As(err, &c) {
		if v, ok := codes[c.ErrorCode()]; ok {
			return v
		}
		if c.ErrorCode() == "" {
			return outage // the answer is from something that is no hub
		}
		return refused
	}
	for _, e := range away {
		if errors.Is(err, e) {
			return outage
		}
	}
	var network net.Error
	var rule *event.RuleError
	var at *store.EventError
	switch {
	case errors.As(err, &network):
		return outage
	case errors.Is(err, store.ErrTooLarge):
		return tooLarge
	case errors.As(err, &rule), errors.As(err, &at), errors.Is(err, store.ErrInvalid):
		return refused
	}
	return unknown
}

// indexed is an error that names the event of a batch that it is about.
type indexed interface {
	error
	EventIndex() (int, bool)
}

// indexOf gives the place in the batch of the event that an error is about.
func indexOf(err error) (int, bool) {
	var at *store.EventError
	if errors.As(err, &at) {
		return at.Index, true
	}
	var x indexed
	if errors.As(err, &x) {
		return x.EventIndex()
	}
	return 0, false
}
