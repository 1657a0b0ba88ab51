package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"promethean/event"
	"promethean/store"
)

// Engine is what is copied from and to.
type Engine interface {
	store.Log
	store.Cursors
}

// Options configure a migration. The zero value works.
type Options struct {
	// Source names the source, for a target to know whose copy it is. Default:
	// "", which is a name as any other.
	Source string
	// Parallel is how many topics are copied at a time. Default: 4.
	Parallel int
	// Progress hears how much is done of how much, in seqs; copying and
	// comparing count alike. It may be called from several goroutines. Default:
	// nobody hears.
	Progress func(done, total int64)
}

// Summary says what was done.
type Summary struct {
	// Topics and Groups are how many there are.
	Topics, Groups int
	// Copied is how many events were appended this time, Filled how many seqs
	// of gaps were.
	Copied, Filled int64
	// Compared is how many events were found equal, Expired how many one side
	// alone has, because retention has removed them from the other meanwhile.
	Compared, Expired int64
	// Resumed says that an unfinished migration was gone on with.
	Resumed bool
}

// Conditions that callers tell apart with errors.Is.
var (
	// ErrOccupied: the target holds something else; see [OccupiedError].
	ErrOccupied = errors.New("the target is not empty")
	// ErrUnfinished: the source is itself the target of a migration that has
	// not come to its end.
	ErrUnfinished = errors.New("the source is the target of a migration that has not come to its end")
	// ErrMismatch: source and target differ; see [MismatchError].
	ErrMismatch = errors.New("source and target differ")
)

// OccupiedError says what the target holds. It is ErrOccupied.
type OccupiedError struct {
	// Topics are names of topics that are there.
	Topics []string
	// Source is whose unfinished copy it is, if Copy is set.
	Source string
	Copy   bool
}

func (e *OccupiedError) Error() string {
	if e.Copy {
		return fmt.Sprintf("the target holds an unfinished migration from %s", e.Source)
	}
	const most = 5
	shown, more := e.Topics, ""
	if len(shown) > most {
		shown, more = shown[:most], fmt.Sprintf(" and %d more", len(e.Topics)-most)
	}
	return fmt.Sprintf("%v: it holds the topics %s%s", ErrOccupied, join(shown), more)
}

// Unwrap makes errors.Is(err, ErrOccupied) true.
func (e *OccupiedError) Unwrap() error { return ErrOccupied }

const (
	// markGroup is the group that marks an unfinished target.
	markGroup = "system.migration"
	// gapKey begins the key of what fills gaps; the migration's id follows.
	gapKey = "system.migration:"
)

// mark is what the marking group's Meta holds.
type mark struct {
	ID     event.ID `json:"id"`
	Source string   `json:"source"`
}

type migration struct {
	from, to Engine
	o        Options
	topics   []store.Topic // of the source
	id       event.ID
	marked   store.Cursor // in the target
	sum      Summary

	copied, filled, compared, expired atomic.Int64
	done, total                       atomic.Int64
	complete                          bool // the target was a copy before
}

// Run copies what from keeps to to, and compares it. Neither may be in use by
// anybody else.
func Run(ctx context.Context, from, to Engine, o Options) (Summary, error) {
	m, err := prepare(ctx, from, to, o)
	if err != nil {
		return Summary{}, err
	}
	err = m.run(ctx)
	return m.summary(), err
}

// Verify compares what two engines keep and changes nothing. What retention has
// removed from one of them is no difference.
func Verify(ctx context.Context, from, to Engine, o Options) (Summary, error) {
	m, err := prepare(ctx, from, to, o)
	if err != nil {
		return Summary{}, err
	}
	mark, err := m.findMark(ctx, to)
	if err == nil && mark != nil {
		err = fmt.Errorf("the target holds a migration that has not come to its end: %w", ErrMismatch)
	}
	if err == nil {
		m.total.Store(m.span())
		err = errors.Join(m.verify(ctx), m.verifySettings(ctx))
	}
	return m.summary(), err
}

func prepare(ctx context.Context, from, to Engine, o Options) (*migration, error) {
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	m := &migration{from: from, to: to, o: o}
	var err error
	if m.topics, err = list(ctx, from); err != nil {
		return nil, fmt.Errorf("list the topics of the source: %w", err)
	}
	switch mark, err := m.findMark(ctx, from); {
	case err != nil:
		return nil, fmt.Errorf("list the groups of the source: %w", err)
	case mark != nil:
		return nil, fmt.Errorf("%w: group %s of topic %s says so", ErrUnfinished, markGroup, mark.Topic)
	}
	m.sum.Topics = len(m.topics)
	return m, nil
}

func list(ctx context.Context, e Engine) (out []store.Topic, err error) {
	for t, err := range e.Topics(ctx) {
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func (m *migration) findMark(ctx context.Context, e Engine) (*store.Cursor, error) {
	for c, err := range e.Cursors(ctx, "") {
		if err != nil {
			return nil, err
		}
		if c.Group == markGroup {
			return &c, nil
		}
	}
	return nil, nil
}

func (m *migration) summary() Summary {
	s := m.sum
	s.Copied, s.Filled, s.Compared, s.Expired = m.copied.Load(), m.filled.Load(), m.compared.Load(), m.expired.Load()
	return s
}

func (m *migration) run(ctx context.Context) error {
	if err := m.claim(ctx); err != nil || len(m.topics) == 0 || m.complete {
		return err
	}
	if err := m.plan(ctx); err != nil {
		return err
	}
	if err := m.each(ctx, m.copyTopic); err != nil {
		return err
	}
	if err := m.copyGroups(ctx); err != nil {
		return err
	}
	if err := m.verify(ctx); err != nil {
		return err
	}
	for _, t := range m.topics {
		if err := m.to.SetTopic(ctx, t.Name, t.Settings); err != nil {
			return fmt.Errorf("settings of topic %s: %w", t.Name, err)
		}
	}
	if err := m.verifySettings(ctx); err != nil {
		return err
	}
	if err := m.to.DeleteCursor(ctx, m.marked.Topic, markGroup, m.marked.Version); err != nil {
		return fmt.Errorf("end the migration: %w", err)
	}
	return nil
}

// claim marks the target as ours, or finds that it is.
func (m *migration) claim(ctx context.Context) error {
	there, err := list(ctx, m.to)
	if err != nil {
		return fmt.Errorf("list the topics of the target: %w", err)
	}
	old, err := m.findMark(ctx, m.to)
	if err != nil {
		return fmt.Errorf("list the groups of the target: %w", err)
	}
	if old != nil {
		var k mark
		if err := json.Unmarshal(old.Meta, &k); err != nil {
			return fmt.Errorf("group %s of the target's topic %s: %w", markGroup, old.Topic, err)
		}
		if k.Source != m.o.Source {
			return &OccupiedError{Copy: true, Source: k.Source}
		}
		m.id, m.marked, m.sum.Resumed = k.ID, *old, true
		return nil
	}
	begun, err := m.justBegun(ctx, there)
	if err != nil {
		return fmt.Errorf("list the groups of the target: %w", err)
	}
	if len(there) > 0 && !begun {
		if m.complete = m.isCopy(ctx, there); m.complete {
			return nil
		}
		e := &OccupiedError{}
		for _, t := range there {
			e.Topics = append(e.Topics, t.Name)
		}
		return e
	}
	if len(m.topics) == 0 {
		return nil
	}
	m.id = event.NewID()
	meta, err := json.Marshal(mark{m.id, m.o.Source})
	if err != nil {
		return err
	}
	m.marked = store.Cursor{Topic: m.topics[0].Name, Group: markGroup, Meta: meta}
	if m.marked.Version, err = m.to.PutCursor(ctx, m.marked); err != nil {
		return fmt.Errorf("mark the target: %w", err)
	}
	return nil
}

// justBegun says that the target holds nothing but the topic of the mark, and
// that empty: on some engines it is made in a step before the mark is.
func (m *migration) justBegun(ctx context.Context, there []store.Topic) (bool, error) {
	if len(there) != 1 || len(m.topics) == 0 || there[0].Name != m.topics[0].Name || there[0].Bounds.Last > 0 {
		return false, nil
	}
	for _, err := range m.to.Cursors(ctx, "") {
		return false, err // it has a group
	}
	return true, nil
}

// isCopy says that the target is a copy already: somebody has made it and ended
// before it could be told.
func (m *migration) isCopy(ctx context.Context, there []store.Topic) bool {
	if m.from == m.to || sameNames(m.topics, there) != nil {
		return false
	}
	m.total.Store(m.span())
	return m.verify(ctx) == nil && m.verifySettings(ctx) == nil
}

// span is how many seqs there are to be read from the source.
func (m *migration) span() (n int64) {
	for _, t := range m.topics {
		n += int64(t.Bounds.Last + 1 - t.Bounds.First)
	}
	return n
}

// plan finds out how much there is to do.
func (m *migration) plan(ctx context.Context) error {
	total := m.span()
	for _, t := range m.topics {
		b, err := m.to.Bounds(ctx, t.Name)
		if err != nil {
			return fmt.Errorf("target: %w", err)
		}
		if b.Last > t.Bounds.Last {
			return &MismatchError{Topic: t.Name, Seq: b.Last, Field: "seq", Detail: fmt.Sprintf("the source ends at seq %d, and the target is beyond it", t.Bounds.Last)}
		}
		total += int64(t.Bounds.Last + 1 - max(t.Bounds.First, b.Last+1))
	}
	m.total.Store(total)
	return nil
}

// advance says that n more seqs are done.
func (m *migration) advance(n int64) {
	if done := m.done.Add(n); m.o.Progress != nil {
		m.o.Progress(done, m.total.Load())
	}
}

// each calls fn with every topic, some at a time, and gives all errors. The
// first that is no mismatch ends it.
func (m *migration) each(ctx context.Context, fn func(context.Context, store.Topic) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	room := make(chan struct{}, m.o.Parallel)
	errs := make([]error, len(m.topics))
	for i, t := range m.topics {
		room <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-room }()
			if errs[i] = fn(ctx, t); errs[i] != nil && !errors.Is(errs[i], ErrMismatch) {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.Join(errs...)
}

// limits is how large a batch for an engine may be.
func limits(e Engine) (events, size int) {
	const mostEvents, mostBytes = 4000, 1 << 20
	events, size = math.MaxInt, math.MaxInt
	if b, ok := e.(store.Bounded); ok {
		events, size = b.MaxBatch()
	}
	return min(events, mostEvents), min(size, mostBytes)
}

func sameSettings(a, b store.Settings) string {
	switch {
	case a.Retention != b.Retention:
		return "retention"
	case a.MaxBytes != b.MaxBytes:
		return "max_bytes"
	case max(a.Partitions, 1) != max(b.Partitions, 1):
		return "partitions"
	case a.Async != b.Async:
		return "durability"
	case !bytes.Equal(a.Meta, b.Meta):
		return "meta"
	}
	return ""
}
