package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// Hub is what a view needs of one; *promethean.Hub has it.
type Hub interface {
	Log() promethean.Log
	Engine() *group.Engine
}

// Options are those of every view. The zero value works.
type Options struct {
	// Docs is where the documents are. Default: the hub's engine, if it keeps
	// documents. Where several hubs share an engine, documents that are given
	// here are this hub's own: every hub projects for itself then, and the
	// view's group is not shown.
	Docs store.Docs
	// Upcast brings an event up to the latest version of its schema before it
	// is projected. Default: events are projected as they are stored. It is
	// not asked about a payload that is null.
	Upcast func(ctx context.Context, e event.Event) (event.Event, error)
	// Logger hears of what has no caller to be told. Default: nobody does.
	Logger *slog.Logger
	// FlushEvery is how often the documents are made durable, and the view's
	// group is moved along. Default 1 s.
	FlushEvery time.Duration
	// Forget is how long deletions are remembered. It is longer than a watcher
	// stays away and, where several hubs share the documents, than two of them
	// may take themselves for the one that projects. Default 24 h, and not less
	// than a minute; negative: for ever.
	Forget time.Duration
	// SnapshotTopic names the topic of snapshots of the view's topic, for
	// views and rebuilds that begin with [Snapshot]. Default: what the settings
	// of the topic say.
	SnapshotTopic string
}

// ChangelogOptions describe a changelog view.
type ChangelogOptions struct {
	Options
	Topic string
	// Collection is the view's name. Its group is changelog:<collection>.
	Collection string
	// KeyOf gives the key of the document. Default: the event's own key, which
	// is used too where it gives "". An event without any key is counted and
	// reported, and changes nothing.
	//
	// It and the functions below may be called for several events at a time,
	// and again for the same one; they depend on nothing but the event.
	KeyOf func(e *event.Event) (string, error)
	// Map gives the document of an event: a JSON object. Default: the payload.
	Map func(e *event.Event) (json.RawMessage, error)
	// Tombstone says which events delete the document, beside those whose
	// payload is null or has _deleted: true.
	Tombstone func(e *event.Event) (bool, error)
	// VersionOf guards documents: an event whose version is not above that of
	// the document changes nothing. Default: the seq alone guards.
	VersionOf func(e *event.Event) (v int64, ok bool, err error)
	// Merge applies what Map gives as a merge patch (RFC 7386) to the document,
	// in place of replacing it.
	Merge   bool
	Indexes []store.Index
	// From is where a new view begins. Default: with the first event.
	From From
	// BatchSize is how many events one commit takes; a view that is far behind
	// takes up to eight times as many. Default 500.
	BatchSize int
	// Definition says what the functions do: a view whose definition has
	// changed is built anew beside the old one when it starts.
	Definition string
}

// From is where a new view begins.
type From string

// Places where a new view begins.
const (
	Earliest From = ""
	Latest   From = "latest"
	// Snapshot begins with the snapshot topic of a compaction topic, and goes
	// on with the events after it. It holds the last event of every key, so it
	// is not for views that merge; a transactional handler must know that it
	// does not see the earlier ones.
	Snapshot From = "snapshot"
)

// TransactionalOptions describe a transactional view.
type TransactionalOptions struct {
	Options
	Topic string
	// Name is the view's, and its group's.
	Name        string
	Collections []store.Collection
	// Handler is called for each event in the order of the topic. What it does
	// through tx takes effect together with the place of the view, once. It may
	// be called again for an event, before anything of the call before has
	// taken effect. Its context ends when the view is closed.
	Handler func(ctx context.Context, e event.Event, tx *Tx) error
	From    From
	// Retries is how often a handler that fails is called again, after 100 ms
	// and longer each time, before the event becomes a dead letter. Default 3;
	// negative: never. See promethean.Dead and promethean.Retry too.
	Retries int
	// BatchSize is how many events one commit takes; a view that is far behind
	// takes up to eight times as many. Default 200.
	BatchSize int
	// Definition is as in ChangelogOptions.
	Definition string
}

// Defaults.
const (
	changelogBatch     = 500
	transactionalBatch = 200
	defaultRetries     = 3
	defaultFlush       = time.Second
	defaultForget      = 24 * time.Hour
	minForget          = time.Minute
)

// factor is how many times as many events a batch takes if there are so many.
const factor = 8

// next is what the name of what is being built ends with.
const next = "~next"

// maxName leaves room for next.
const maxName = 120

// checkName says what is wrong with the name of a view or a collection.
func checkName(what, name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%w: the name of a %s has 1 to %d bytes, not %d", store.ErrInvalid, what, maxName, len(name))
	}
	for _, c := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:", c) {
			return fmt.Errorf("%w: the name of a %s is made of letters, digits and \".\", \"_\", \"-\", \":\", not %q", store.ErrInvalid, what, name)
		}
	}
	return nil
}

// checkCollections says what is wrong with collections.
func checkCollections(list []store.Collection) error {
	if len(list) == 0 {
		return fmt.Errorf("%w: a view has one collection at least", store.ErrInvalid)
	}
	var seen []string
	for _, c := range list {
		if err := checkName("collection", c.Name); err != nil {
			return err
		}
		if slices.Contains(seen, c.Name) {
			return fmt.Errorf("%w: collection %s is declared twice", store.ErrInvalid, c.Name)
		}
		seen = append(seen, c.Name)
		for _, x := range c.Indexes {
			if len(x.Fields) == 0 || slices.Contains(x.Fields, "") {
				return fmt.Errorf("%w: collection %s: an index without a field", store.ErrInvalid, c.Name)
			}
		}
	}
	return nil
}

func checkFrom(f From) error {
	switch f {
	case Earliest, Latest, Snapshot, "earliest":
		return nil
	}
	return fmt.Errorf("%w: from %q is none of earliest, latest, snapshot", store.ErrInvalid, string(f))
}

// withDefaults fills in what was left out.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FlushEvery <= 0 {
		o.FlushEvery = defaultFlush
	}
	switch {
	case o.Forget == 0:
		o.Forget = defaultForget
	case o.Forget > 0:
		o.Forget = max(o.Forget, minForget)
	}
	return o
}

// docsOf finds the documents of a hub.
func docsOf(ctx context.Context, log store.Log) (store.Docs, error) {
	if h, ok := store.As[store.HasDocs](log); ok {
		return h.Docs(ctx)
	}
	return nil, fmt.Errorf("%w: the engine keeps no documents, and none were given", errors.ErrUnsupported)
}

// Changelog starts a changelog view.
func Changelog(ctx context.Context, hub Hub, o ChangelogOptions) (*View, error) {
	v := &View{
		hub: hub, o: o.Options.withDefaults(), kind: "changelog", topic: o.Topic, name: o.Collection,
		group: "changelog:" + o.Collection, from: o.From, definition: o.Definition, batch: o.BatchSize, factor: factor,
		declared: []store.Collection{{Name: o.Collection, Indexes: o.Indexes}},
	}
	if v.batch <= 0 {
		v.batch = changelogBatch
	}
	v.mapper = func(l *line) mapper { return &changelog{o: &o, l: l} }
	err := error(nil)
	if o.Merge && o.From == Snapshot {
		err = errMergeSnapshot
	}
	v.merge = o.Merge
	if err == nil {
		err = v.start(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("view %s: %w", o.Collection, err)
	}
	return v, nil
}

var errMergeSnapshot = fmt.Errorf("%w: a view that merges cannot begin with a snapshot, which holds the last event of every key", store.ErrInvalid)

// Transactional starts a transactional view.
func Transactional(ctx context.Context, hub Hub, o TransactionalOptions) (*View, error) {
	v := &View{
		hub: hub, o: o.Options.withDefaults(), kind: "transactional", topic: o.Topic, name: o.Name,
		group: o.Name, from: o.From, definition: o.Definition, batch: o.BatchSize, factor: factor,
		declared: o.Collections,
	}
	if v.batch <= 0 {
		v.batch = transactionalBatch
	}
	switch {
	case o.Retries == 0:
		o.Retries = defaultRetries
	case o.Retries < 0:
		o.Retries = 0
	}
	v.mapper = func(l *line) mapper { return newTransactional(&o, l) }
	err := error(nil)
	if o.Handler == nil {
		err = fmt.Errorf("%w: no handler", store.ErrInvalid)
	}
	if err == nil {
		err = v.start(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("view %s: %w", o.Name, err)
	}
	return v, nil
}
