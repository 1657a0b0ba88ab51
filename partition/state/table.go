package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"promethean"
	"promethean/event"
)

// ErrNotAssigned says that the partition of a key is not here.
var ErrNotAssigned = errors.New("the partition is not assigned to this table")

// Delete and Keep are what a function given to [Table.Update] returns, in place
// of an error, to delete the key and to leave it as it is.
var (
	Delete = errors.New("delete the key") //nolint:staticcheck // it is no failure, as fs.SkipDir is none
	Keep   = errors.New("keep the value") //nolint:staticcheck // nor is this
)

// SourceHeader is the header of a changelog record that says which event made
// it: its seq in the source topic.
const SourceHeader = "x-source-seq"

// Options configure a table. The zero value is for a source of one partition.
type Options struct {
	// Source is the topic whose events are applied. Default: that of the first
	// event that is.
	Source string
	// Group is the partitioned group whose members the table is for. It tells
	// how many partitions there are while their number changes. Default: as
	// many as the topic has now.
	Group string
	// Partitions is the number of partitions of a group that has one of its
	// own. Default 0: keys are divided as the source is.
	Partitions int
	// KeyOf gives the key of an event; "" means the event's own. It must be that
	// of the subscription, which orders events by it, and needs Partitions.
	// Default: the event's own key.
	KeyOf func(*event.Event) string
	// Changelog is the topic of the records. Default: <name>.changelog.
	Changelog string
	// Tombstones is how long deleted keys are remembered. Default 0: for ever.
	Tombstones time.Duration
	// Logger hears of restores that take long, and of records that are not the
	// table's. Default: that nobody does.
	Logger *slog.Logger
}

// Table is the state of keys. Every partition of it is in the memory of the
// process that has it assigned, and durable in the changelog.
//
// All methods may be called concurrently.
type Table[K ~string, V any] struct{ t *table }

// New makes a table; nothing of it is here before Assigned is called. Tables
// with one name share their changelog.
func New[K ~string, V any](hub *promethean.Hub, name string, o Options) (*Table[K, V], error) {
	t, err := newTable(hub, name, o)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", name, err)
	}
	return &Table[K, V]{t}, nil
}

// Changelog is the topic of the table's records.
func (t *Table[K, V]) Changelog() string { return t.t.o.Changelog }

// Get gives the value of a key; false if it has none. It is the one of the last
// change that this process knows of: one that has lost the partition without
// knowing does not see what its successor does. The error is [ErrNotAssigned] if
// the key's partition is not here.
func (t *Table[K, V]) Get(key K) (v V, ok bool, err error) {
	p, err := t.t.home(string(key))
	if err != nil {
		return v, false, err
	}
	r, ok := p.get(string(key))
	if !ok {
		return v, false, nil
	}
	v, err = decode[V](t.t, p, string(key), r)
	return v, err == nil, err
}

// Entry is a key with its value.
type Entry[K ~string, V any] struct {
	Key   K
	Value V
	// Source is the seq of the event that was applied last.
	Source uint64
}

// Range yields the keys of a partition, in no order. One that comes or goes
// meanwhile may be left out. The table may be used on the way.
func (t *Table[K, V]) Range(n int) iter.Seq2[Entry[K, V], error] {
	return func(yield func(Entry[K, V], error) bool) {
		p := t.t.assigned(n)
		if p == nil {
			yield(Entry[K, V]{}, fmt.Errorf("table %s, partition %d: %w", t.t.name, n, ErrNotAssigned))
			return
		}
		for _, key := range p.keys() {
			r, ok := p.get(key)
			if !ok {
				continue
			}
			v, err := decode[V](t.t, p, key, r)
			if !yield(Entry[K, V]{K(key), v, r.source}, err) || err != nil {
				return
			}
		}
	}
}

// Len is how many keys are here.
func (t *Table[K, V]) Len() (n int) {
	for _, p := range t.t.all() {
		n += p.len()
	}
	return n
}

// Partitions lists the partitions that are here, in order.
func (t *Table[K, V]) Partitions() []int {
	list := make([]int, 0)
	for _, p := range t.t.all() {
		list = append(list, p.n)
	}
	slices.Sort(list)
	return list
}

// decode reads a value: the caller gets one that nobody else has.
func decode[V any](t *table, p *part, key string, r record) (v V, err error) {
	if r.alien {
		return v, t.fail(key, p.n, fmt.Errorf("topic %s, seq %d: %w", t.o.Changelog, r.seq, errAlien))
	}
	if err := json.Unmarshal(r.value, &v); err != nil {
		return v, t.fail(key, p.n, fmt.Errorf("topic %s, seq %d: value: %w", t.o.Changelog, r.seq, err))
	}
	return v, nil
}

// table is what does not depend on the types of keys and values.
type table struct {
	hub  *promethean.Hub
	name string
	o    Options

	mu     sync.RWMutex
	source string // "": not known yet
	count  int    // how many partitions there were when one was assigned last
	parts  map[int]*part
	// restoring are the partitions that are on their way here.
	restoring map[int]*part
}

func newTable(hub *promethean.Hub, name string, o Options) (*table, error) {
	if o.Changelog == "" {
		o.Changelog = name + ".changelog"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	bad := func(format string, args ...any) (*table, error) {
		return nil, fmt.Errorf("%w: "+format, append([]any{event.ErrInvalidArgument}, args...)...)
	}
	for _, topic := range []string{o.Changelog, o.Changelog + ".snapshot"} {
		if err := event.CheckTopic(topic); err != nil {
			return nil, fmt.Errorf("changelog: %w", err)
		}
	}
	switch {
	case event.ReservedTopic(o.Changelog):
		return bad("changelog: %s is the hub's own topic", o.Changelog)
	case o.Source == o.Changelog:
		return bad("changelog: %s is the source", o.Changelog)
	case o.Partitions < 0 || o.Partitions > event.MaxPartitions:
		return bad("partitions %d is not within 1 to %d", o.Partitions, event.MaxPartitions)
	case o.KeyOf != nil && o.Partitions == 0:
		return bad("KeyOf is for a group with a number of partitions of its own: one that follows its topic is ordered by the keys of the events")
	case o.Group != "" && o.Source == "":
		return bad("group %s is given without the source", o.Group)
	case o.Tombstones < 0:
		return bad("tombstones %v is negative", o.Tombstones)
	}
	if o.Source != "" {
		if err := event.CheckTopic(o.Source); err != nil {
			return nil, fmt.Errorf("source: %w", err)
		}
	}
	return &table{hub: hub, name: name, o: o, source: o.Source, parts: make(map[int]*part), restoring: make(map[int]*part)}, nil
}

// fail says which table, key and partition an error is about.
func (t *table) fail(key string, n int, err error) error {
	return fmt.Errorf("table %s, key %q, partition %d: %w", t.name, key, n, err)
}

// assigned gives a partition that is here, or nil.
func (t *table) assigned(n int) *part {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.parts[n]
}

func (t *table) all() []*part {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]*part, 0, len(t.parts))
	for _, p := range t.parts {
		list = append(list, p)
	}
	return list
}

// home gives the partition that a key belongs to.
func (t *table) home(key string) (*part, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.homeLocked(key)
}

// homeLocked is home for one who holds mu.
func (t *table) homeLocked(key string) (*part, error) {
	if t.count == 0 {
		return nil, fmt.Errorf("table %s, key %q: %w", t.name, key, ErrNotAssigned)
	}
	n := event.PartitionFor(key, event.ID{}, t.count)
	if p := t.parts[n]; p != nil {
		return p, nil
	}
	return nil, t.fail(key, n, ErrNotAssigned)
}

// part is one partition in memory: the keys that are not deleted.
type part struct {
	n, count int

	mu      sync.RWMutex
	records map[string]record
}

func (p *part) get(key string) (record, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r, ok := p.records[key]
	return r, ok
}

// mine says whether a key belongs here. An event of another key may come, of a
// publisher who chose its partition or from before their number changed.
func (p *part) mine(key string) bool { return event.PartitionFor(key, event.ID{}, p.count) == p.n }

// put takes over a record of a key that belongs here, if it is newer than what is
// known.
func (p *part) put(key string, r record) {
	if !p.mine(key) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if was, ok := p.records[key]; ok && was.seq >= r.seq {
		return
	}
	if r.value == nil && !r.alien {
		delete(p.records, key)
		return
	}
	p.records[key] = r
}

func (p *part) len() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.records)
}

func (p *part) keys() []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	list := make([]string, 0, len(p.records))
	for key := range p.records {
		list = append(list, key)
	}
	return list
}
