package view

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/store"
	"promethean/wire"
)

// watch serves the changes of a collection as Server-Sent Events: change with
// the document, delete with its key. The id is the seq, so that Last-Event-ID
// or ?after= resumes. Where changes are not remembered there is one event
// reset, and it goes on from what is there then.
func (h *handler) watch(w http.ResponseWriter, r *http.Request) error {
	watcher, all, err := h.from(r)
	if err != nil {
		return err
	}
	header := w.Header()
	header["Content-Type"] = []string{"text/event-stream"}
	header["Cache-Control"] = noStore
	header["X-Accel-Buffering"] = []string{"no"} // a proxy shall not wait for more
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	s := &stream{h: h, w: w, out: http.NewResponseController(w), buf: []byte(": open\n\n")}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.c.v.ctx, cancel)()
	if err := s.run(ctx, watcher, all); err != nil && ctx.Err() == nil && !errors.Is(err, errSent) {
		h.c.v.o.Logger.Warn("a watch has ended", "view", h.c.v.name, "collection", h.c.c.Name, "err", err)
	}
	return nil
}

// from finds out where a watch begins, and whether all documents come first.
func (h *handler) from(r *http.Request) (w *watcher, all bool, err error) {
	params, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, false, wire.Errorf(wire.InvalidArgument, "the query cannot be read: %s", clip(err.Error()))
	}
	for name, list := range params {
		if name != "after" && name != "snapshot" || len(list) > 1 {
			return nil, false, wire.Errorf(wire.InvalidArgument, "%q: a watch takes after and snapshot, each once", clip(name))
		}
	}
	switch params.Get("snapshot") {
	case "", "0", "false":
	case "1", "true":
		all = true
	default:
		return nil, false, wire.Errorf(wire.InvalidArgument, "snapshot: %q is neither 1 nor 0", clip(params.Get("snapshot")))
	}
	name, after := "Last-Event-ID", r.Header.Get("Last-Event-ID")
	if after == "" {
		name, after = "after", params.Get("after")
	}
	if after == "" {
		return h.c.latest(), all, nil
	}
	seq, err := strconv.ParseUint(after, 10, 64)
	if err != nil {
		return nil, false, wire.Errorf(wire.InvalidArgument, "%s: %q is no seq", name, clip(after))
	}
	return h.c.newWatcher(seq), false, nil // he has what came before
}

// stream writes Server-Sent Events.
type stream struct {
	h   *handler
	w   http.ResponseWriter
	out *http.ResponseController
	buf []byte
}

// errSent says that the client does not take anything any more.
var errSent = errors.New("the client has gone")

// streamBuffer is how much is gathered before it is sent.
const streamBuffer = 64 << 10

func (s *stream) run(ctx context.Context, w *watcher, all bool) error {
	beat := time.NewTicker(s.h.o.Heartbeat)
	defer beat.Stop()
	if all {
		if err := s.all(ctx, w); err != nil {
			return err
		}
	}
	for {
		list, wait, err := w.next(ctx)
		if errors.Is(err, store.ErrGone) {
			w = s.h.c.latest()
			s.reset(w.place)
			continue
		}
		if err != nil {
			return err
		}
		for i := range list {
			last := i+1 == len(list) || list[i+1].Seq != list[i].Seq
			if err := s.add(&list[i], last); err != nil {
				return err
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
		for waiting := wait != nil; waiting; {
			select {
			case <-wait:
				waiting = false
			case <-beat.C:
				s.buf = append(s.buf, ":\n\n"...)
				if err := s.flush(); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// all writes all documents. What changes meanwhile comes after them.
func (s *stream) all(ctx context.Context, w *watcher) error {
	for d, err := range s.h.c.List(ctx, store.DocQuery{}) {
		if err != nil {
			return err
		}
		if err := s.add(&d, false); err != nil {
			return err
		}
	}
	s.buf = append(s.buf, "id: "...)
	s.buf = strconv.AppendUint(s.buf, w.place, 10)
	s.buf = append(s.buf, "\nevent: live\ndata: {}\n\n"...)
	return s.flush()
}

// add writes a change. An id stands only with the last one of its seq: who
// comes again after another gets all of them.
func (s *stream) add(d *store.Doc, last bool) error {
	if last {
		s.buf = append(s.buf, "id: "...)
		s.buf = strconv.AppendUint(s.buf, d.Seq, 10)
		s.buf = append(s.buf, '\n')
	}
	if d.Body != nil {
		s.buf = append(s.buf, "event: change\ndata: "...)
		s.buf = append(s.buf, d.Body...)
	} else {
		s.buf = append(s.buf, `event: delete`+"\n"+`data: {"_key":`...)
		var err error
		if s.buf, err = jsontext.AppendQuote(s.buf, d.Key); err != nil {
			return err
		}
		s.buf = append(s.buf, '}')
	}
	s.buf = append(s.buf, "\n\n"...)
	if len(s.buf) < streamBuffer {
		return nil
	}
	return s.flush()
}

func (s *stream) reset(place uint64) {
	s.buf = append(s.buf, "id: "...)
	s.buf = strconv.AppendUint(s.buf, place, 10)
	s.buf = append(s.buf, "\nevent: reset\ndata: {}\n\n"...)
}

func (s *stream) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	if err == nil {
		err = s.out.Flush()
	}
	if err != nil {
		return errors.Join(errSent, err)
	}
	return nil
}
