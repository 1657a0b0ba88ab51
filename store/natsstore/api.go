package natsstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/store"
)

const apiPrefix = "$JS.API."

// Error codes of the server.
const (
	codeNoPeers         = 10005
	codeClusterNotAvail = 10008
	codeNotLeader       = 10009
	codeNoRoom          = 10023
	codeNoMessage       = 10037
	codeNotEnabledAcc   = 10039
	codeStorageExceeded = 10047
	codeNameInUse       = 10058
	codeStoreCreate     = 10049 // also when the last stream of an account is being removed
	codeStreamNotFound  = 10059
	codeWrongLastSeq    = 10071
	codeNoReplicas      = 10074
	codeNotEnabled      = 10076
	codeDuplicatePend   = 10158
	codeWrongLastSeq2   = 10164
	codeBatchDisabled   = 10174
	codeBatchIncomplete = 10176
	codeBatchDuplicate  = 10201
	codeBatchInflight   = 10210
)

// errGone is an event that is not in the stream (any more).
var errGone = errors.New("no such message")

// codeOf gives the server's error code, 0 if err is none of the server's.
func codeOf(err error) int {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return int(api.ErrorCode)
	}
	return 0
}

// transient says whether trying again may help.
func transient(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch int(api.ErrorCode) {
		case codeClusterNotAvail, codeNotLeader, codeBatchIncomplete, codeBatchInflight, codeDuplicatePend, codeStoreCreate:
			return true
		case codeNotEnabledAcc, codeNoRoom:
			return false
		}
		return api.Code == 503 || api.Code == 429 || api.Code == 408
	}
	var op *net.OpError
	for _, kind := range []error{
		nats.ErrTimeout, context.DeadlineExceeded, nats.ErrNoResponders, nats.ErrReconnectBufExceeded,
		nats.ErrConnectionReconnecting, nats.ErrDisconnected, nats.ErrConnectionClosed, nats.ErrStaleConnection, nats.ErrNoServers, errBusy,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return errors.As(err, &op)
}

// begin ties a call to the life of the store.
func (s *Store) begin(ctx context.Context) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if s.closing.Load() {
		return nil, nil, store.ErrClosed
	}
	both, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return both, func() { stop(); cancel() }, nil
}

// outcome is what a caller is told: that the store was closed, that its context
// ended, or the error itself.
func (s *Store) outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return store.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return err
}

// pause waits a little longer each time, or until ctx ends.
func pause(ctx context.Context, wait *time.Duration) {
	*wait = min(max(2**wait, 5*time.Millisecond), 500*time.Millisecond)
	timer := time.NewTimer(*wait/2 + rand.N(*wait/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// retry calls try until it works, fails for good, or the store's patience or
// ctx ends. Each attempt has a time of its own, short at first: a request that
// comes while a leader changes is never answered.
func (s *Store) retry(ctx context.Context, try func(ctx context.Context) error) error {
	began := time.Now()
	end := began.Add(s.o.RetryFor)
	limit := s.o.AttemptTimeout / 8
	for wait := time.Duration(0); ; {
		limit = min(2*limit, s.o.AttemptTimeout)
		one, cancel := context.WithTimeout(ctx, limit)
		err := try(one)
		cancel()
		if err == nil || ctx.Err() != nil || !transient(err) {
			return s.outcome(ctx, explain(err))
		}
		if err := s.denied(began); err != nil {
			return err
		}
		if time.Now().After(end) {
			return unavailable(err)
		}
		pause(ctx, &wait)
	}
}

// denial is what the server said about a message that the user may not send. It
// says so beside the answers: the request itself is never answered.
type denial struct {
	at  time.Time
	err error
}

// complained hears what the server says beside the answers.
func (s *Store) complained(_ *nats.Conn, _ *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		s.denial.Store(&denial{time.Now(), err})
	}
	s.o.Logger.Warn("the NATS server complains", "err", err)
}

// denied is the error of a call that began then and was not answered, if the
// server has said since that the user may not do something.
func (s *Store) denied(began time.Time) error {
	if d := s.denial.Load(); d != nil && !d.at.Before(began) {
		return fmt.Errorf("the user lacks a permission: %s", d.err.Error()) // not wrapped: trying again is no use
	}
	return nil
}

// explain says what to do about an error that trying again does not help.
func explain(err error) error {
	if codeOf(err) == codeNoRoom {
		return unavailable(fmt.Errorf("the server may keep no more, raise max_file_store or remove events: %w", err))
	}
	return err
}

func unavailable(err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// ask sends one request to the server's interface and reads the answer.
func (s *Store) ask(ctx context.Context, verb string, req any, answer interface {
	failed() *jetstream.APIError
}) error {
	var body []byte
	if req != nil {
		var err error
		if body, err = json.Marshal(req); err != nil {
			return err
		}
	}
	m, err := s.nc.RequestWithContext(ctx, apiPrefix+verb, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return fmt.Errorf("answer to %s: %w", verb, err)
	}
	if failed := answer.failed(); failed != nil {
		return failed
	}
	return nil
}

// answer is what every answer has: an error, perhaps.
type answer struct {
	Error *jetstream.APIError `json:"error"`
}

// failed takes the error out, so that the next attempt begins without it.
func (a *answer) failed() *jetstream.APIError {
	err := a.Error
	a.Error = nil
	return err
}

// streamInfo is what the leader of a stream says about it.
type streamInfo struct {
	answer
	Config jetstream.StreamConfig `json:"config"`
	State  struct {
		Msgs     uint64 `json:"messages"`
		Bytes    uint64 `json:"bytes"`
		FirstSeq uint64 `json:"first_seq"`
		LastSeq  uint64 `json:"last_seq"`
	} `json:"state"`
	Created   time.Time `json:"created"`
	Now       time.Time `json:"ts"`
	DidCreate bool      `json:"did_create"`
}

// first is the smallest retained seq, one past the last if there is none.
func (i *streamInfo) first() uint64 {
	if i.State.Msgs == 0 {
		return i.State.LastSeq + 1
	}
	return max(i.State.FirstSeq, 1)
}

// info asks a stream's leader about it, once.
func (s *Store) info(ctx context.Context, stream string) (*streamInfo, error) {
	var i streamInfo
	if err := s.ask(ctx, "STREAM.INFO."+stream, nil, &i); err != nil {
		return nil, err
	}
	return &i, nil
}

// getRequest asks for messages; see the server's JSApiMsgGetRequest.
type getRequest struct {
	Seq      uint64 `json:"seq,omitempty"`
	Last     string `json:"last_by_subj,omitempty"`
	Next     string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// stored is a message as the leader gives it.
type stored struct {
	Subject string    `json:"subject"`
	Seq     uint64    `json:"seq"`
	Header  []byte    `json:"hdrs"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`
}

func (m *stored) header() (nats.Header, error) {
	if len(m.Header) == 0 {
		return nil, nil
	}
	return nats.DecodeHeadersMsg(m.Header)
}

// fromLeader gets one message from a stream's leader, or errGone. Unlike a
// direct get it never comes from a replica that lags behind.
func (s *Store) fromLeader(ctx context.Context, stream string, req getRequest) (*stored, error) {
	var a struct {
		answer
		Message stored `json:"message"`
	}
	err := s.ask(ctx, "STREAM.MSG.GET."+stream, req, &a)
	if codeOf(err) == codeNoMessage {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	return &a.Message, nil
}

// pubAck is the server's answer to a published message.
type pubAck struct {
	Stream    string              `json:"stream"`
	Seq       uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
	Count     int                 `json:"count"`
	Error     *jetstream.APIError `json:"error"`
}

func readAck(m *nats.Msg) (pubAck, error) {
	var a pubAck
	if len(m.Data) == 0 && m.Header.Get(hdrStatus) == "503" {
		return a, nats.ErrNoResponders
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return a, fmt.Errorf("answer to a publish: %w", err)
	}
	if a.Error != nil {
		return a, a.Error
	}
	return a, nil
}

// publish sends one message and waits for the stream's answer.
func (s *Store) publish(ctx context.Context, m *nats.Msg) (pubAck, error) {
	answer, err := s.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return pubAck{}, err
	}
	return readAck(answer)
}
