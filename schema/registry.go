package schema

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/internal/jq"
	"promethean/schema/compat"
	"promethean/store"
)

// Topic is where registrations are kept.
const Topic = "system.schemas"

const (
	// MaxVersion is the highest number of a version.
	MaxVersion = 999_999_999
	// followAgain is how soon registrations are looked for again after that has
	// failed.
	followAgain = time.Second
	// lookEvery is how often it is looked for a version that somebody names and
	// nobody knows. Others are told within moments anyway.
	lookEvery = 50 * time.Millisecond
)

// Options configure a registry. The zero value works.
type Options struct {
	// Logger hears of registrations that cannot be read. Default: nobody does.
	Logger *slog.Logger
}

// Registry knows the schemas of all topics. What is registered here is known
// when Register returns; what another hub on the same engine registers, moments
// later.
//
// All methods may be called concurrently.
type Registry struct {
	hub   *promethean.Hub
	topic *promethean.SystemTopic
	log   *slog.Logger
	now   func() time.Time

	// entries holds what is known of a topic, by its name: *entry, which does
	// not change.
	entries sync.Map
	// gate is held for reading by what is published through DualWrite, and
	// briefly for writing where dual write begins after a cutover.
	gate gate
	// registering is held by one registration at a time.
	registering sync.Mutex

	looking sync.Mutex
	looked  time.Time // when it was last looked for an unknown version; under looking

	// mu is held while entries change.
	mu  sync.Mutex
	seq uint64 // of the last registration that is known

	functions sync.Map // upcasters that are Go functions, by hop

	cancel context.CancelFunc
	stop   func()
	done   sync.WaitGroup
}

// entry is what is known of a topic.
type entry struct {
	versions []*Version // ascending
	settings Settings
	// compacted says that null deletes what the key of an event stands for: it
	// is no document, and no schema is about it.
	compacted bool
	// through are upcasters by the version they start from; nil: there is none.
	through map[int]Upcaster
}

// record is the payload of a registration.
type record struct {
	Definition
	// Function says that the version was judged with an upcaster that is a Go
	// function: processes that lack it cannot read older events.
	Function bool `json:"function,omitempty"`
}

// Version is one version of a topic's schema, as it was registered.
type Version struct {
	Definition
	// Function says that its upcaster is a Go function, see
	// [Registry.AddUpcaster].
	Function bool
	// Seq is that of the registration in [Topic], At its time.
	Seq uint64
	At  time.Time

	parsed  func() (*Schema, error)
	program func() (*jq.Program, error)
	stamp   string        // what the header of events says
	headers event.Headers // the same, of an event that has no others
}

// Parsed gives the compiled schema.
func (v *Version) Parsed() (*Schema, error) { return v.parsed() }

// Open reads what was registered on the hub's engine, and goes on listening.
// Close the registry before the hub.
func Open(ctx context.Context, hub *promethean.Hub, o Options) (*Registry, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	topic, err := hub.SystemTopic("schemas", 0)
	if err != nil {
		return nil, err
	}
	r := &Registry{hub: hub, topic: topic, log: o.Logger, now: time.Now}
	w := hub.Log().Watch(Topic) // before the first look, so that nothing is missed
	if err := r.sync(ctx); err != nil {
		w.Stop()
		return nil, fmt.Errorf("open schemas: %w", err)
	}
	r.stop = hub.WatchSettings(r.setting)
	following, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done.Go(func() {
		defer w.Stop()
		r.follow(following, w)
	})
	return r, nil
}

// Close ends listening. Nothing is lost: everything is in the log.
func (r *Registry) Close() error {
	r.stop()
	r.cancel()
	r.done.Wait()
	return nil
}

// follow takes registrations as they come.
func (r *Registry) follow(ctx context.Context, w *store.Watch) {
	again := time.NewTimer(followAgain)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.C:
		case <-again.C:
		}
		if err := r.sync(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("schemas that others registered cannot be read", "topic", Topic, "err", err)
			again.Reset(followAgain)
		}
	}
}

// sync takes what was registered since the last time.
func (r *Registry) sync(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for e, err := range r.hub.Read(ctx, store.Query{Topic: Topic, After: r.seq}) {
		if err != nil {
			return err
		}
		if err := r.take(&e); err != nil {
			return fmt.Errorf("topic %s, seq %d: %w", Topic, e.Seq, err)
		}
		r.seq = e.Seq
	}
	return nil
}

// take makes one registration known. mu must be held.
func (r *Registry) take(e *event.Event) error {
	var d record
	if err := json.Unmarshal(e.Payload, &d); err != nil {
		return err
	}
	was := r.entry(d.Topic)
	if err := was.follows(d.Version); err != nil {
		return err // a writer that did not look: AppendAfter keeps them out
	}
	v := r.newVersion(d)
	v.Seq, v.At = e.Seq, e.Time()
	r.entries.Store(d.Topic, r.grown(was, v))
	return nil
}

// newVersion makes a version of its record. Most schemas are not needed soon,
// and there may be many: they are compiled when somebody asks.
func (r *Registry) newVersion(d record) *Version {
	return &Version{
		Definition: d.Definition, Function: d.Function, stamp: stampOf(d.Version),
		headers: event.Headers{{Name: VersionHeader, Value: stampOf(d.Version)}},
		parsed:  sync.OnceValues(func() (*Schema, error) { return compile(d.Schema) }),
		program: sync.OnceValues(func() (*jq.Program, error) { return r.compile(d.Upcast) }),
	}
}

// compile makes a program ready, that may give payloads as large as the hub
// takes.
func (r *Registry) compile(program string) (*jq.Program, error) {
	most := r.hub.Limits().Payload
	return jq.CompileWith(program, jq.Options{Output: most, Value: max(8*most, 8<<20), Memory: max(64*most, 64<<20)})
}

// grown gives what is known of a topic with one version more.
func (r *Registry) grown(was *entry, v *Version) *entry {
	now := *was
	now.versions = append(slices.Clip(was.versions), v)
	now.through = r.hops(v.Topic, now.versions)
	return &now
}

// setting takes the settings of a topic.
func (r *Registry) setting(topic string, s store.Settings) {
	set, err := SettingsOf(s)
	var keeps compact.Settings
	if err == nil {
		keeps, err = compact.SettingsOf(s)
	}
	if err != nil {
		r.log.Error("the settings of a topic cannot be read", "topic", topic, "err", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := *r.entry(topic)
	now.settings, now.compacted = set, keeps.Compaction
	r.entries.Store(topic, &now)
}

var unknown entry

// entry gives what is known of a topic.
func (r *Registry) entry(topic string) *entry {
	if e, ok := r.entries.Load(topic); ok {
		return e.(*entry)
	}
	return &unknown
}

// latest is the newest version; nil if there is none.
func (e *entry) latest() *Version {
	if len(e.versions) == 0 {
		return nil
	}
	return e.versions[len(e.versions)-1]
}

// find gives the place of a version, or -1.
func (e *entry) find(version int) int {
	at, found := slices.BinarySearchFunc(e.versions, version, func(v *Version, n int) int { return v.Version - n })
	if !found {
		return -1
	}
	return at
}

// follows says what is wrong with a version as the next one.
func (e *entry) follows(version int) error {
	switch last := e.latest(); {
	case version < 1 || version > MaxVersion:
		return fmt.Errorf("%w: version %d is not from 1 to %d", ErrInvalidSchema, version, MaxVersion)
	case last != nil && version <= last.Version:
		return &ConflictError{Topic: last.Topic, Version: version, Reason: fmt.Sprintf("versions go up, and the latest is %d", last.Version)}
	}
	return nil
}

// Latest gives the newest version of a topic's schema; nil if there is none.
func (r *Registry) Latest(topic string) *Version { return r.entry(topic).latest() }

// Version gives one version of a topic's schema; nil if there is none.
func (r *Registry) Version(topic string, version int) *Version {
	e := r.entry(topic)
	if at := e.find(version); at >= 0 {
		return e.versions[at]
	}
	return nil
}

// Versions gives all versions of a topic's schema, in ascending order.
func (r *Registry) Versions(topic string) []*Version { return slices.Clone(r.entry(topic).versions) }

// Topics gives the names of all topics that have a schema, in order.
func (r *Registry) Topics() []string {
	var list []string
	r.entries.Range(func(topic, e any) bool {
		if len(e.(*entry).versions) > 0 {
			list = append(list, topic.(string))
		}
		return true
	})
	slices.Sort(list)
	return list
}

// ConflictError says that a version does not fit those that are there. Nothing
// was registered.
type ConflictError struct {
	Topic   string
	Version int
	Reason  string
	// Problems are those of the compatibility check, and of the upcaster's
	// trial; none where the number of the version is what is wrong.
	Problems []compat.Problem
}

// ErrConflict is what a [ConflictError] is.
var ErrConflict = errors.New("schema conflict")

// Is makes it [ErrConflict].
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("schema of topic %s, version %d: %s", e.Topic, e.Version, e.Reason)
	for i, p := range e.Problems {
		if i == 3 && len(e.Problems) > 4 {
			return text + fmt.Sprintf("; and %d more", len(e.Problems)-i)
		}
		where := p.Path
		if where == "" {
			where = "the whole"
		}
		text += "; " + where + ": " + p.Detail
	}
	return text
}

// Register adds a version, durably when it returns. What is there already, with
// the same schema and upcaster, is given back as it is, and fresh is false. An
// error that is a [*ConflictError] says why it does not fit.
func (r *Registry) Register(ctx context.Context, d Definition) (v *Version, fresh bool, err error) {
	list, fresh, err := r.register(ctx, []Definition{d})
	if err != nil {
		return nil, false, err
	}
	return list[0], fresh, nil
}

// Load registers what a directory holds, see [ReadDir]: all of it or nothing.
// What is there already is left as it is.
func (r *Registry) Load(ctx context.Context, topic, dir string) (fresh bool, err error) {
	defs, err := ReadDir(topic, dir)
	if err != nil {
		return false, err
	}
	if _, fresh, err = r.register(ctx, defs); err != nil {
		err = fmt.Errorf("%s: %w", dir, err)
	}
	return fresh, err
}

// register adds versions of one topic: all or none.
func (r *Registry) register(ctx context.Context, defs []Definition) (list []*Version, fresh bool, err error) {
	topic := defs[0].Topic
	r.registering.Lock()
	defer r.registering.Unlock()
	for {
		if err := r.sync(ctx); err != nil {
			return nil, false, fmt.Errorf("register schema of topic %s: %w", topic, err)
		}
		r.mu.Lock()
		seq := r.seq
		r.mu.Unlock()
		e, list := r.entry(topic), list[:0]
		var payloads []json.RawMessage
		for _, d := range defs {
			v, err := e.same(&d)
			if err != nil {
				return nil, false, err
			}
			if v == nil {
				c, err := r.judge(ctx, e, d)
				if err != nil {
					return nil, false, err
				}
				if len(c.problems) > 0 {
					return nil, false, &ConflictError{Topic: c.Topic, Version: c.Version, Reason: "it does not fit the version before", Problems: c.problems}
				}
				payload, err := encode(c.record)
				if err != nil {
					return nil, false, fmt.Errorf("register schema of topic %s: %w", topic, err)
				}
				payloads = append(payloads, payload)
				v = r.newVersion(c.record)
				e = r.grown(e, v)
			}
			list = append(list, v)
		}
		if len(payloads) == 0 {
			return list, false, nil
		}
		err = r.topic.AppendAfter(ctx, seq, payloads...)
		if err == nil {
			err = r.sync(ctx)
		}
		var late *store.SeqConflictError
		switch {
		case errors.As(err, &late):
			continue // another hub was first: look at what it registered
		case err != nil:
			return nil, false, fmt.Errorf("register schema of topic %s: %w", topic, err)
		}
		for i, v := range list {
			list[i] = r.Version(topic, v.Version)
		}
		return list, true, nil
	}
}

// same finds a version that is what somebody wants to register.
func (e *entry) same(d *Definition) (*Version, error) {
	v := e.latest()
	if d.Version != 0 {
		v = nil
		if at := e.find(d.Version); at >= 0 {
			v = e.versions[at]
		}
	}
	switch {
	case v == nil:
		return nil, nil
	case equal(v.Schema, d.Schema) && v.Upcast == d.Upcast:
		return v, nil
	case d.Version != 0:
		return nil, &ConflictError{Topic: d.Topic, Version: d.Version, Reason: "that version is there, with another schema or upcaster: a version never changes, register the next one"}
	}
	return nil, nil
}

// equal says whether two schemas are the same JSON but for white space.
func equal(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// encode writes a registration.
func encode(d record) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// Check says what is wrong with a version as the next one, without registering
// it: no problems means that Register would take it.
func (r *Registry) Check(ctx context.Context, d Definition) ([]compat.Problem, error) {
	if err := r.sync(ctx); err != nil {
		return nil, fmt.Errorf("check schema of topic %s: %w", d.Topic, err)
	}
	e := r.entry(d.Topic)
	if was, err := e.same(&d); was != nil || err != nil {
		return nil, err
	}
	c, err := r.judge(ctx, e, d)
	if err != nil {
		return nil, err
	}
	return c.problems, nil
}
