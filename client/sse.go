package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"promethean/event"
)

// TailOptions change a tail. The zero value works.
type TailOptions struct {
	// From is where the tail begins. The default is the end of the topic.
	From Place
	// MinWait and MaxWait bound the pauses before a lost connection is made
	// again: they grow from one to the other, with some chance in them. The
	// defaults are 100 ms and 10 s.
	MinWait, MaxWait time.Duration
	// GiveUp is how long in a row the hub may be away before the tail ends with
	// the error. The default is to try as long as the context lasts; less than
	// 0 gives up at once.
	GiveUp time.Duration
	// Lost is told why the connection was lost, each time. The default is
	// nobody.
	Lost func(error)
	// Normalise gives events in the latest version of their schema. One that
	// cannot be brought up to it ends the tail with an error that names it. The
	// default is to give them as they were stored.
	Normalise bool
	// Silence is after how long without a sign of life a connection counts as
	// lost. The hub sends one every 15 s. The default is 45 s.
	Silence time.Duration
}

// Tail gives the events of a topic from a place on and then those that are
// published, until the context ends, by Server-Sent Events. A lost connection is
// made again and goes on after the last event, so that nothing is left out or
// comes twice. A hub that cannot be reached at the beginning, and one that
// refuses, is an error at once. Nothing is leased or remembered.
//
// A tail from the end whose connection is lost before its first event begins
// again at the end as it was at first.
func (c *Client) Tail(ctx context.Context, topic string, o TailOptions) iter.Seq2[event.Event, error] {
	setDefault(&o.MinWait, 100*time.Millisecond)
	setDefault(&o.MaxWait, 10*time.Second)
	setDefault(&o.Silence, 45*time.Second)
	return func(yield func(event.Event, error) bool) {
		t := tail{c: c, topic: topic, o: o, wait: o.MinWait}
		if o.From.From == "" || o.From.From == Latest {
			// The end is found once: a later connection must not skip what was
			// published while there was none.
			seq, err := c.Locate(ctx, topic, Place{From: Latest})
			if CodeOf(err) == "forbidden" {
				// Who may subscribe but not read: the hub finds the end.
			} else if err != nil {
				yield(event.Event{}, err)
				return
			} else {
				t.o.From = afterSeq(seq)
			}
		}
		for {
			stop, err := t.stream(ctx, yield)
			if stop {
				return
			}
			if ctx.Err() != nil {
				yield(event.Event{}, ctx.Err())
				return
			}
			if err = t.pause(ctx, err); err != nil {
				yield(event.Event{}, err)
				return
			}
		}
	}
}

// tail is one that is under way.
type tail struct {
	c     *Client
	topic string
	o     TailOptions

	last   uint64 // the seq of the last event, 0 before the first
	opened bool   // there was a connection once
	wait   time.Duration
	away   time.Time // since when the hub is away, zero while it is there
}

// pause waits before the next connection, or gives the error that ends the
// tail.
func (t *tail) pause(ctx context.Context, err error) error {
	if !t.opened || !Temporary(err) || t.o.GiveUp < 0 {
		return err
	}
	if t.away.IsZero() {
		t.away = time.Now()
	} else if t.o.GiveUp > 0 && time.Since(t.away) > t.o.GiveUp {
		return err
	}
	if t.o.Lost != nil {
		t.o.Lost(err)
	}
	timer := time.NewTimer(t.wait/2 + rand.N(t.wait/2+1))
	defer timer.Stop()
	t.wait = min(2*t.wait, t.o.MaxWait)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errQuiet = fmt.Errorf("client: the hub sends no sign of life: %w", io.ErrUnexpectedEOF)

// stream is one connection. It says whether the caller has enough.
func (t *tail) stream(ctx context.Context, yield func(event.Event, error) bool) (stop bool, err error) {
	q := url.Values{"topic": {t.topic}}
	t.o.From.query(q)
	setNormalise(q, t.o.Normalise)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, err := t.c.request(ctx, http.MethodGet, "/subscribe", q, nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("Accept", "text/event-stream")
	if t.last > 0 {
		r.Header.Set("Last-Event-ID", strconv.FormatUint(t.last, 10))
	}
	// Also a connection that is never answered is silent.
	watch := time.AfterFunc(t.o.Silence, func() { cancel(errQuiet) })
	defer watch.Stop()
	got, err := t.c.send(r)
	if err != nil {
		return false, causeOf(ctx, err)
	}
	defer got.Body.Close()
	t.opened, t.away, t.wait = true, time.Time{}, t.o.MinWait
	lines := bufio.NewReaderSize(got.Body, 64<<10)
	var data, kind []byte
	for {
		line, err := readLine(lines)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // a tail has no end: the hub stops, or the token has ended
			}
			return false, causeOf(ctx, err)
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case len(line) > 0:
			switch value = bytes.TrimPrefix(value, []byte(" ")); string(name) {
			case "data":
				data = append(data, value...)
			case "event":
				kind = append(kind[:0], value...)
			}
			continue
		case len(data) == 0:
			kind = kind[:0]
			watch.Reset(t.o.Silence)
			continue // the end of a comment
		case string(kind) == "error":
			return false, brokenOff(data)
		}
		kind = kind[:0]
		var e event.Event
		if err := event.DecodeJSON(data, &e); err != nil {
			return false, err
		}
		data = data[:0]
		// The handler may take its time: silence is the hub's.
		watch.Stop()
		if e.Seq > t.last {
			t.last = e.Seq
			if !yield(e, nil) {
				return true, nil
			}
		}
		watch.Reset(t.o.Silence)
	}
}

// causeOf gives the cause that a context was ended for.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func setDefault(d *time.Duration, to time.Duration) {
	if *d <= 0 {
		*d = to
	}
}
