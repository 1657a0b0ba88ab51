package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"promethean/event"
)

// The raw writer keeps a history of rawSegments segments and then overwrites
// the oldest: enough that it never works in a few cached megabytes only.
const (
	rawSegments    = 10
	rawSegmentSize = 64 << 20
)

// rawTarget is the limit that the disk and the kernel set: group commit into
// preallocated segments. Publishers put their records into one buffer; one
// goroutine takes what has gathered, writes it, syncs it and wakes all of
// them. There is no checksum, no index, and nothing can be read back.
//
// Fresh segments are zeroed in the background while the clock runs, each once
// the one before is a quarter full: a slow load must not pay for segments that
// it never reaches, or the limit would look lower than it is. The first one
// belongs to opening.
//
// The variant recycled has all its segments zeroed before the clock starts,
// and so only ever overwrites: what a log reaches that keeps no history.
type rawTarget struct {
	name     string
	recycled bool
	w        *rawWriter
}

func (t *rawTarget) Name() string     { return t.name }
func (*rawTarget) Durability() string { return durable }
func (*rawTarget) Available() error   { return nil }

func (t *rawTarget) Open(_ context.Context, dir string) (err error) {
	zeroed := 1
	if t.recycled {
		zeroed = rawSegments
	}
	t.w, err = openRaw(dir, rawSegmentSize, rawSegments, zeroed)
	return err
}

func (t *rawTarget) Publisher(_ context.Context, i int) (publisher, error) {
	return &rawPublisher{w: t.w, answer: make(chan error, 1), writer: byte(i)}, nil
}

func (t *rawTarget) Close() error {
	if t.w == nil {
		return nil
	}
	err := t.w.close()
	t.w = nil
	return err
}

// rawPublisher hands over records of eventBytes that carry the id and are
// otherwise as they were: encoding an event is no part of the limit.
type rawPublisher struct {
	w      *rawWriter
	recs   []byte
	answer chan error
	writer byte
}

func (p *rawPublisher) Publish(_ context.Context, evs []event.Event) error {
	if n := len(evs) * eventBytes; cap(p.recs) < n {
		p.recs = make([]byte, n)
		for i := range p.recs {
			p.recs[i] = p.writer
		}
	}
	recs := p.recs[:len(evs)*eventBytes]
	for i := range evs {
		copy(recs[i*eventBytes:], evs[i].ID[:])
	}
	return p.w.write(recs, p.answer)
}

func (*rawPublisher) Close() error { return nil }

var errRawClosed = errors.New("raw writer is closed")

type rawWriter struct {
	size int64
	mu   sync.Mutex
	// gathering: bytes and waiters since the last commit took them.
	bytes   []byte
	waiters []chan error
	closed  bool
	wake    chan struct{}

	want   chan struct{} // asks for one more segment
	ready  chan *os.File // segments to write to next, in order
	retire chan *os.File // segments that are full
	stop   chan struct{}
	wg     sync.WaitGroup
	fail   error // of the segment maker; set before it closes ready
	files  []*os.File
}

// openRaw makes a writer over so many segments, the first zeroed of which are
// ready when it returns.
func openRaw(dir string, size int64, segments, zeroed int) (*rawWriter, error) {
	w := &rawWriter{
		size: size, wake: make(chan struct{}, 1), stop: make(chan struct{}),
		want: make(chan struct{}, 1), ready: make(chan *os.File, 1), retire: make(chan *os.File, segments),
	}
	for n := range zeroed {
		f, err := w.newSegment(dir, n)
		if err != nil {
			return nil, errors.Join(err, w.closeFiles())
		}
		w.retire <- f // as if it had been used before
	}
	first := <-w.retire
	w.wg.Go(func() { w.makeSegments(dir, zeroed, segments) })
	w.wg.Go(func() { w.commit(first) })
	return w, nil
}

// newSegment makes a file whose blocks are all written and synced, so that a
// later sync of data in it moves no metadata.
func (w *rawWriter) newSegment(dir string, n int) (*os.File, error) {
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%06d.raw", n)))
	if err != nil {
		return nil, err
	}
	w.files = append(w.files, f)
	zero := make([]byte, min(w.size, 1<<20))
	for at := int64(0); at < w.size; at += int64(len(zero)) {
		if _, err := f.WriteAt(zero[:min(int64(len(zero)), w.size-at)], at); err != nil {
			return nil, err
		}
	}
	return f, f.Sync()
}

// makeSegments supplies, on demand, fresh segments until there are enough of
// them, then the oldest ones again.
func (w *rawWriter) makeSegments(dir string, made, segments int) {
	defer close(w.ready)
	for n := made; ; n++ {
		select {
		case <-w.want:
		case <-w.stop:
			return
		}
		var f *os.File
		if n < segments {
			if f, w.fail = w.newSegment(dir, n); w.fail != nil {
				return
			}
		} else {
			select {
			case f = <-w.retire:
			case <-w.stop:
				return
			}
		}
		select {
		case w.ready <- f:
		case <-w.stop:
			return
		}
	}
}

// write hands recs over and waits until they are synced.
func (w *rawWriter) write(recs []byte, answer chan error) error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return errRawClosed
	}
	w.bytes = append(w.bytes, recs...)
	w.waiters = append(w.waiters, answer)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is under way and will find these records too
	}
	return <-answer
}

// commit is the writer: gather, write, sync, wake.
func (w *rawWriter) commit(f *os.File) {
	var bytes []byte
	var waiters []chan error
	var at int64
	for {
		w.mu.Lock()
		bytes, w.bytes = w.bytes, bytes[:0]
		waiters, w.waiters = w.waiters, waiters[:0]
		closed := w.closed
		w.mu.Unlock()
		if len(waiters) == 0 {
			if closed {
				return
			}
			<-w.wake
			continue
		}
		var err error
		f, at, err = w.flush(f, at, bytes)
		for _, c := range waiters {
			c <- err
		}
		if err != nil {
			w.refuse(err)
			return
		}
	}
}

// flush writes b at the offset at of f and syncs it, going on in the next
// segment where one is full.
func (w *rawWriter) flush(f *os.File, at int64, b []byte) (*os.File, int64, error) {
	for {
		n := min(int64(len(b)), w.size-at)
		if n > 0 {
			if _, err := f.WriteAt(b[:n], at); err != nil {
				return f, at, err
			}
			if err := syncData(f); err != nil {
				return f, at, err
			}
		}
		if quarter := w.size / 4; at <= quarter && at+n > quarter {
			w.want <- struct{}{} // once a segment, so there is always room
		}
		at, b = at+n, b[n:]
		if len(b) == 0 {
			return f, at, nil
		}
		w.retire <- f
		next, ok := <-w.ready
		if !ok {
			return f, at, errors.Join(errRawClosed, w.fail)
		}
		f, at = next, 0
	}
}

// refuse answers whoever came after the writer failed.
func (w *rawWriter) refuse(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, c := range w.waiters {
		c <- err
	}
}

func (w *rawWriter) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	close(w.stop)
	w.wg.Wait()
	return w.closeFiles()
}

func (w *rawWriter) closeFiles() (err error) {
	for _, f := range w.files {
		err = errors.Join(err, f.Close())
	}
	return err
}
