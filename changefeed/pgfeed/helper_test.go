package pgfeed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/changefeed"
	"promethean/changefeed/pgfeed"
	"promethean/event"
	"promethean/internal/pgtest"
)

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		runChild(child)
	}
	goleak.VerifyTestMain(m)
}

// patience bounds how long a test waits for what must come.
const patience = 2 * time.Minute

// topic keeps what a feed publishes as a hub does: an id that is known is not
// stored again. It keeps the token too.
type topic struct {
	mu      sync.Mutex
	changes []changefeed.Change
	batches []changefeed.Batch
	known   map[event.ID]bool
	again   int // how many were known
	token   []byte
	changed chan struct{} // closed at every batch
	// fail may end a batch: before anything of it is stored, after some of its
	// changes, or before the token is saved.
	fail func(changefeed.Batch) failure
}

type failure int

const (
	fine failure = iota
	before
	halfway
	noToken
)

var errSink = errors.New("the sink fails")

func newTopic() *topic {
	return &topic{known: map[event.ID]bool{}, changed: make(chan struct{})}
}

func (l *topic) sink(_ context.Context, b changefeed.Batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	how := fine
	if l.fail != nil {
		how = l.fail(b)
	}
	if how == before {
		return errSink
	}
	for i, c := range b.Changes {
		if how == halfway && i >= len(b.Changes)/2 {
			return errSink
		}
		if l.known[c.ID] {
			l.again++
			continue
		}
		l.known[c.ID] = true
		l.changes = append(l.changes, c)
	}
	if how == noToken {
		return errSink
	}
	l.batches = append(l.batches, b)
	l.token = b.Token
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// get gives what is stored.
func (l *topic) get() []changefeed.Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes[:len(l.changes):len(l.changes)]
}

func (l *topic) place() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// await waits until a condition holds, which is looked at after every batch.
func (l *topic) await(t testing.TB, what string, holds func([]changefeed.Change) bool) {
	t.Helper()
	late := time.After(patience)
	for {
		l.mu.Lock()
		changed, changes := l.changed, l.changes[:len(l.changes):len(l.changes)]
		l.mu.Unlock()
		if holds(changes) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%s did not come: there are %d changes: %s", what, len(changes), list(changes, 20))
		}
	}
}

// has waits for so many changes.
func (l *topic) has(t testing.TB, n int) []changefeed.Change {
	t.Helper()
	l.await(t, fmt.Sprintf("change %d", n), func(c []changefeed.Change) bool { return len(c) >= n })
	return l.get()
}

// list shows changes, each as op key doc.
func list(changes []changefeed.Change, most int) (s string) {
	for _, c := range changes[:min(len(changes), most)] {
		s += line(c) + "\n"
	}
	return s
}

func line(c changefeed.Change) string {
	s := string(c.Op)
	if c.Key != "" {
		s += " " + c.Key
	}
	if c.Doc != nil {
		s += " " + string(c.Doc)
	}
	return s
}

// state is what a reader of the topic has at the end: a document per key.
func state(changes []changefeed.Change) map[string]string {
	s := map[string]string{}
	for _, c := range changes {
		switch {
		case c.Op == changefeed.OpTruncate:
			clear(s)
		case c.Doc == nil:
			delete(s, c.Key)
		default:
			s[c.Key] = string(c.Doc)
		}
	}
	return s
}

// same compares what came with lines of op key doc.
func same(t *testing.T, got []changefeed.Change, want ...string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want):
			t.Errorf("change %d is one too many: %s", i, line(got[i]))
		case i >= len(got):
			t.Errorf("change %d is missing: %s", i, want[i])
		case line(got[i]) != want[i]:
			t.Errorf("change %d is\n\t%s\nwant\n\t%s", i, line(got[i]), want[i])
		}
	}
}

func newSource(t testing.TB, uri, table string, o pgfeed.Options) *pgfeed.Source {
	t.Helper()
	s, err := pgfeed.New(uri, table, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// streaming is a Stream that is under way.
type streaming struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func stream(t testing.TB, s *pgfeed.Source, l *topic) *streaming {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &streaming{t: t, cancel: cancel, done: make(chan struct{})}
	token := l.place()
	go func() {
		defer close(r.done)
		r.err = s.Stream(ctx, token, l.sink)
		if r.err != nil && ctx.Err() == nil {
			t.Logf("a stream has ended: %v", r.err)
		}
	}()
	t.Cleanup(r.stop)
	return r
}

// stop ends it, if it has not ended by itself.
func (r *streaming) stop() {
	select {
	case <-r.done:
		r.cancel()
		return
	default:
	}
	r.cancel()
	if <-r.done; !errors.Is(r.err, context.Canceled) {
		r.t.Logf("a stream that was stopped has ended with %v", r.err)
	}
}

// ends waits until it ends by itself.
func (r *streaming) ends(t testing.TB) error {
	t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(patience):
		t.Fatal("the stream does not end")
		return nil
	}
}

// once streams from the place that is saved until an error.
func once(t testing.TB, s *pgfeed.Source, l *topic) error {
	t.Helper()
	return stream(t, s, l).ends(t)
}

// begun waits until a feed without changes has a place beyond its snapshot.
func (l *topic) begun(t testing.TB) {
	t.Helper()
	l.await(t, "the beginning", func([]changefeed.Change) bool {
		return l.position().LSN != "" && !l.position().Snapshot
	})
}

type position struct {
	LSN      string
	Commit   string
	Done     int
	Slot     string
	Snapshot bool
}

func (l *topic) position() (p position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = json.Unmarshal(l.token, &p)
	return p
}

// refuses wants an error of a kind with words in it.
func refuses(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("the error is %v, want one that is %q", err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error lacks %q: %v", w, err)
		}
	}
}

// database gives one with a table things (id, n).
func database(t testing.TB) (uri string) {
	t.Helper()
	uri = pgtest.Database(t)
	pgtest.Exec(t, uri, "CREATE TABLE things (id int PRIMARY KEY, n int)")
	return uri
}
