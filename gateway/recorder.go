package gateway

import (
	"net/http"
	"time"
)

// recorder knows whether an answer has begun, and with which status. It sees to
// it that no client holds a request for ever: one who says that a body comes
// and does not send it, or who does not take the answer.
type recorder struct {
	http.ResponseWriter
	rc     *http.ResponseController
	wait   time.Duration // for the client to take a block of the answer
	begun  bool
	status int
}

func newRecorder(w http.ResponseWriter, wait time.Duration) *recorder {
	return &recorder{ResponseWriter: w, rc: http.NewResponseController(w), wait: wait}
}

// expect gives the client so long for the body of a request, if it has one.
// That holds too where nobody reads it: then the server does, before it
// answers. How long the answer takes is not the client's fault, so it has its
// time only once it begins. Where deadlines cannot be had, the limits of the
// server hold.
func (w *recorder) expect(r *http.Request, wait time.Duration) {
	var write time.Time // what the request before has left does not hold
	if r.ContentLength != 0 {
		at := time.Now().Add(wait)
		_ = w.rc.SetReadDeadline(at)
		write = at // the client is told to go on
	}
	_ = w.rc.SetWriteDeadline(write)
}

// came says that the body is there: a deadline that passes while the answer is
// made would end the request.
func (w *recorder) came() {
	_ = w.rc.SetReadDeadline(time.Time{})
	_ = w.rc.SetWriteDeadline(time.Time{})
}

// allot gives the client its time to take what is written next. It holds until
// the next request: the server writes the last of an answer itself.
func (w *recorder) allot() { _ = w.rc.SetWriteDeadline(time.Now().Add(w.wait)) }

// WriteHeader implements [http.ResponseWriter].
func (w *recorder) WriteHeader(status int) {
	if !w.begun && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) { // others announce more
		w.begun, w.status = true, status
		w.allot()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter]. The client has its time for each
// block.
func (w *recorder) Write(b []byte) (n int, err error) {
	if !w.begun {
		w.begun, w.status = true, http.StatusOK
	}
	for {
		w.allot()
		part := b[n:min(len(b), n+block)]
		m, err := w.ResponseWriter.Write(part)
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

// Unwrap lets [http.ResponseController] reach what is below.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
