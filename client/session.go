package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"promethean/wire"
)

// session is one WebSocket: a goroutine that reads, one that writes, and one
// that looks whether the hub is still there.
type session struct {
	l    *link
	ws   *websocket.Conn
	pipe *pipe

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	kick   chan struct{} // there is something to write
	useful atomic.Bool   // the hub has answered: connecting again need not wait
	held   atomic.Bool   // the reader waits for handlers
}

// dial makes a connection. An *Error is a refusal for good.
func (l *link) dial() (*session, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.c.o.DialTimeout)
	defer cancel()
	token, err := l.c.token(ctx)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	tap := &tap{base: l.c.o.HTTP.Transport}
	dialer := *l.c.o.HTTP
	dialer.Transport = tap
	ws, response, err := websocket.Dial(ctx, l.c.base.JoinPath("ws").String(), &websocket.DialOptions{
		HTTPClient: &dialer, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if response != nil {
			defer func() { _ = response.Body.Close() }()
			return nil, l.refusalOf(response, err)
		}
		return nil, err
	}
	ws.SetReadLimit(l.c.o.MaxMessage)
	s := &session{l: l, ws: ws, pipe: tap.pipe, kick: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancelCause(l.ctx)
	s.refresh(token)
	return s, nil
}

// refusalOf reads why there was no upgrade. What may pass is not an *Error.
func (l *link) refusalOf(r *http.Response, err error) error {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 64<<10)) // what cannot be read is not needed
	var problem struct{ Code, Title, Detail string }
	if json.Unmarshal(body, &problem) != nil || problem.Code == "" {
		problem.Code = string(wire.Unsupported)
		problem.Detail = fmt.Sprintf("%s answers %q to an upgrade: is there a hub at this address?", l.c.base, r.Status)
		for _, e := range wire.Table() {
			if e.Status == r.StatusCode && r.StatusCode != http.StatusBadRequest {
				problem.Code = string(e.Code)
				break
			}
		}
	}
	if problem.Detail == "" {
		problem.Detail = problem.Title
	}
	switch r.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return fmt.Errorf("%s: %s", problem.Code, problem.Detail)
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		return fmt.Errorf("connect to %s: %w", l.c.base, err)
	}
	return &Error{Code: problem.Code, Status: r.StatusCode, Message: problem.Detail}
}

// closeOf is the code with which a connection was closed, 0 if it just ended.
func closeOf(err error) wire.Close {
	var e websocket.CloseError
	if errors.As(err, &e) {
		return wire.Close(e.Code)
	}
	return 0
}

// serve works until the connection ends, and says why it did.
func (s *session) serve() error {
	var all sync.WaitGroup
	all.Go(func() { s.end(s.write()) })
	all.Go(func() { s.end(s.watch()) })
	s.end(s.read())
	all.Wait()
	return context.Cause(s.ctx)
}

// end ends the session; the first reason counts.
func (s *session) end(why error) {
	s.cancel(why)
	_ = s.ws.CloseNow() // it may be closed already
}

// leave closes the connection, with a word to the hub while ctx lasts.
func (s *session) leave(ctx context.Context) {
	if ctx.Err() == nil {
		undo := context.AfterFunc(ctx, func() { s.end(ErrClosed) })
		_ = s.ws.Close(websocket.StatusNormalClosure, "") // the hub may be gone
		undo()
	}
	s.end(ErrClosed)
}

// poke wakes the writer.
func (s *session) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// write sends what is queued. Frames that have gathered go in one write.
func (s *session) write() error {
	var batch []*request
	var buf []byte
	for {
		select {
		case <-s.kick:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		if batch = s.l.take(s, batch[:0]); len(batch) == 0 {
			continue
		}
		s.pipe.cork()
		for _, r := range batch {
			if r.prepare != nil {
				r.body, r.prepare = r.prepare(), nil
			}
			buf = endFrame(append(buf[:0], r.body...), r.corr)
			if err := s.ws.Write(s.ctx, websocket.MessageText, buf); err != nil {
				return err
			}
		}
		if err := s.pipe.uncork(); err != nil {
			return err
		}
		clear(batch)
		if cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

// read takes what the hub sends.
func (s *session) read() error {
	var frames frameReader
	var in incoming
	var buf bytes.Buffer
	var refusal *Error // the last one that answers nothing: why the hub will close
	for {
		_, r, err := s.ws.Reader(s.ctx)
		if err == nil {
			buf.Reset()
			_, err = buf.ReadFrom(r)
		}
		if err != nil {
			if refusal != nil {
				return fmt.Errorf("%w (%w)", err, refusal)
			}
			return err
		}
		if err := frames.read(buf.Bytes(), &in); err != nil {
			return err
		}
		switch in.op {
		case "OK", "ERR":
			if in.hasCorr {
				s.useful.Store(true)
				a := in.answer
				s.l.answered(in.corr, &a)
			} else if in.group == "" || !s.l.dismissed(s, &in) {
				refusal = in.answer.refusal
			}
		case "ASSIGN":
			if sub := s.l.find(in.topic, in.group); sub != nil {
				sub.assigned(s, in.generation, in.partitions)
			}
		case "EVENT", "EVENTS":
			if sub := s.l.find(in.topic, in.group); sub != nil {
				if err := sub.push(s, in.topic, in.list); err != nil {
					return err
				}
			}
		}
		if buf.Cap() > 1<<20 {
			buf = bytes.Buffer{}
		}
	}
}

// errSilent says that the hub gives no sign of life.
var errSilent = errors.New("the hub does not answer")

// watch asks a silent hub whether it is there.
func (s *session) watch() error {
	every := s.l.c.o.Ping
	for {
		if !s.l.pause(s.ctx, every-min(s.pipe.silent(), every-every/8)) {
			return context.Cause(s.ctx)
		}
		if s.pipe.silent() < every || s.held.Load() {
			continue // a reader that waits would not see the answer
		}
		ctx, cancel := context.WithTimeout(s.ctx, every)
		err := s.ws.Ping(ctx)
		cancel()
		if err != nil && s.pipe.silent() >= every {
			if s.ctx.Err() != nil {
				return context.Cause(s.ctx)
			}
			return fmt.Errorf("%w for %v: %w", errSilent, s.pipe.silent().Round(time.Millisecond), err)
		}
	}
}

// refresh sees to it that a new token is sent before a JWT ends, because the
// connection would end with it.
func (s *session) refresh(token string) {
	left, ok := lifeOf(token)
	if s.l.c.o.TokenSource == nil || !ok {
		return
	}
	timer := time.AfterFunc(max(left*3/4, time.Second), func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.l.c.o.DialTimeout)
		defer cancel()
		next, err := s.l.c.token(ctx)
		if err == nil {
			w := textWriter{buf: beginFrame(nil, wire.OpAuth)}
			w.field("token", next)
			_, err = s.l.exchange(ctx, w.buf, s)
		}
		if err != nil {
			s.l.c.o.Logger.Warn("the token was not renewed", "hub", s.l.c.base.Host, "err", err)
			return // the hub closes the connection, and the next one begins with a token
		}
		s.refresh(next)
	})
	context.AfterFunc(s.ctx, func() { timer.Stop() })
}

// lifeOf is for how long a token is valid, if it is one that says so. Whether
// it is genuine is for the hub to judge.
func lifeOf(token string) (time.Duration, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return 0, false
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return 0, false
	}
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if json.Unmarshal(data, &claims) != nil || claims.Exp == 0 {
		return 0, false
	}
	return time.Until(time.Unix(int64(claims.Exp), 0)), true
}
