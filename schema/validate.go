package schema

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"promethean"
	"promethean/event"
	"promethean/store"
)

// Headers of events that are about schemas.
const (
	// VersionHeader is the stamp: the version that the payload is of.
	VersionHeader = "x-schema-version"
	// UpcastHeader is the version that a payload was of before it was upcast.
	UpcastHeader = "x-upcasted-from"
)

// ErrInvalid says that a payload is not what the schema of its topic wants.
// Errors that are it are an [*InvalidError].
var ErrInvalid = errors.New("schema invalid")

// maxErrors bounds what is listed of one payload.
const maxErrors = 100

// InvalidError says what is wrong with a payload.
type InvalidError struct {
	Topic   string
	Version int // 0: there is none to look at
	// Reason is what is wrong where the payload was not even looked at.
	Reason string
	// Errors are what is wrong with the payload.
	Errors []FieldError
}

func (e *InvalidError) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("schema of topic %s: %s", e.Topic, e.Reason)
	}
	var b strings.Builder
	b.WriteString("the payload is not valid")
	if e.Version > 0 {
		fmt.Fprintf(&b, " under version %d of the schema of topic %s", e.Version, e.Topic)
	}
	for i, f := range e.Errors {
		if i == 3 && len(e.Errors) > 4 {
			fmt.Fprintf(&b, "; and %d more", len(e.Errors)-i)
			break
		}
		b.WriteString([2]string{": ", "; "}[min(i, 1)])
		if f.Path != "" {
			b.WriteString(f.Path + ": ")
		}
		b.WriteString(f.Message)
	}
	return b.String()
}

// Is makes it [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// rules are what counts for the events of a topic.
type rules struct {
	topic string // that the versions are registered under
	*entry
}

// rules finds what counts for a topic. One called X.vN that has no schema of its
// own is what dual write and cutover make of X: its events are of version N.
func (r *Registry) rules(topic string) rules {
	own := r.entry(topic)
	if len(own.versions) > 0 {
		return rules{topic, own}
	}
	base, n, ok := event.TopicVersion(topic)
	if !ok {
		return rules{topic, own}
	}
	e := r.entry(base)
	at := e.find(n)
	if at < 0 {
		return rules{topic, own}
	}
	return rules{base, &entry{versions: e.versions[at : at+1], settings: own.settings, compacted: own.compacted}}
}

// tombstone says that an event of a compaction topic deletes what its key stands
// for.
func (e *entry) tombstone(x *event.Event) bool {
	return e.compacted && string(bytes.TrimSpace(x.Payload)) == "null"
}

// VersionTopic is the name of the topic that holds the events of a topic in one
// version only.
func VersionTopic(topic string, version int) string { return topic + ".v" + strconv.Itoa(version) }

func stampOf(version int) string { return strconv.Itoa(version) }

// stamp reads the version that an event says it is of; 0 if it says nothing.
func stamp(e *event.Event) (int, error) {
	text, ok := e.Headers.Get(VersionHeader)
	if !ok {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > MaxVersion || text[0] < '1' || text[0] > '9' {
		return 0, &InvalidError{Topic: e.Topic, Reason: fmt.Sprintf("%s: %q is no number of a version", VersionHeader, text)}
	}
	return n, nil
}

// versionOf says what version a stored event is of.
func (e *entry) versionOf(x *event.Event) (int, error) {
	n, err := stamp(x)
	if err != nil || n > 0 {
		return n, err
	}
	if e.settings.LegacyVersion > 0 {
		return e.settings.LegacyVersion, nil
	}
	return e.latest().Version, nil
}

// find finds a version that an event names. One that is not known may have been
// registered by another hub a moment ago.
func (r *Registry) find(ctx context.Context, topic string, version int) (rules, *Version, error) {
	for again := false; ; again = true {
		k := r.rules(topic)
		if at := k.entry.find(version); at >= 0 {
			return k, k.versions[at], nil
		}
		if again {
			known := make([]string, 0, len(k.versions))
			for _, v := range k.versions {
				known = append(known, strconv.Itoa(v.Version))
			}
			return k, nil, &InvalidError{Topic: topic, Reason: fmt.Sprintf("there is no version %d, only %s", version, strings.Join(known, ", "))}
		}
		if err := r.look(ctx); err != nil {
			return k, nil, err
		}
	}
}

// look is sync for those who have met something unknown. Anybody can name
// versions that there are not: that must not become a flood of reads.
func (r *Registry) look(ctx context.Context) error {
	r.looking.Lock() // who comes while another looks has what he finds
	defer r.looking.Unlock()
	if r.now().Sub(r.looked) < lookEvery {
		return nil
	}
	err := r.sync(ctx)
	r.looked = r.now()
	return err
}

// Admit looks at an event that is to be published, and stamps it: it is what
// [Validate] does with each.
func (r *Registry) Admit(ctx context.Context, e *event.Event) error {
	return r.admit(ctx, r.rules(e.Topic), e)
}

func (r *Registry) admit(ctx context.Context, k rules, e *event.Event) error {
	if len(k.versions) == 0 {
		if k.settings.Strict {
			return &InvalidError{Topic: e.Topic, Reason: "there is none, and the topic takes no events without (strict_schema): register one"}
		}
		return nil
	}
	if k.tombstone(e) {
		return nil
	}
	n, err := stamp(e)
	if err != nil {
		return err
	}
	v := k.latest()
	if n > 0 && n != v.Version {
		if _, v, err = r.find(ctx, e.Topic, n); err != nil {
			return err
		}
	}
	if err := v.accept(e.Topic, e.Payload); err != nil {
		return err
	}
	switch {
	case n > 0:
	case len(e.Headers) == 0:
		e.Headers = v.headers // shared: headers are never changed in place
	default:
		e.Headers = e.Headers.Set(VersionHeader, v.stamp)
	}
	return nil
}

// accept says what is wrong with a payload.
func (v *Version) accept(topic string, payload []byte) error {
	s, err := v.Parsed()
	if err != nil {
		return fmt.Errorf("schema of topic %s, version %d: %w", v.Topic, v.Version, err)
	}
	if s.Valid(payload) {
		return nil
	}
	if err := event.CheckJSON(payload); err != nil {
		return err
	}
	bad := s.Check(payload)
	if len(bad) == 0 {
		return nil
	}
	if len(bad) > maxErrors {
		bad = bad[:maxErrors]
	}
	return &InvalidError{Topic: topic, Version: v.Version, Errors: bad}
}

// Validate says what is wrong with a payload under a version of the topic's
// schema; 0 is the latest. A topic without a schema takes everything. It gives
// the version that was looked at. An error that is [ErrInvalid] is an
// [*InvalidError].
func (r *Registry) Validate(ctx context.Context, topic string, payload []byte, version int) (int, error) {
	k := r.rules(topic)
	if len(k.versions) == 0 && version == 0 {
		return 0, event.CheckJSON(payload)
	}
	if version == 0 {
		version = k.latest().Version
	}
	_, v, err := r.find(ctx, topic, version)
	if err != nil {
		return 0, err
	}
	return version, v.accept(topic, payload)
}

// Validate gives a bus that refuses events whose payload is not valid: without
// a stamp under the latest version of the topic's schema, with one under the
// version that it names. What it lets through is stamped. A tombstone, which is
// null, of a topic that is compacted is let through as it is. If one event of a
// batch is not valid, nothing is published, and the error is an [*InvalidError]
// within a [*store.EventError].
func Validate(bus promethean.Bus, reg *Registry) promethean.Bus { return &validated{bus, reg} }

// copies are lists of events that were stamped. A bus does not keep what it is
// given to publish; those that grew large are left to the collector.
var copies = sync.Pool{New: func() any { return new([]event.Event) }}

const maxCopies = 256

type validated struct {
	promethean.Bus
	reg *Registry
}

// Publish implements [promethean.Bus].
func (b *validated) Publish(ctx context.Context, events ...event.Event) ([]promethean.Receipt, error) {
	return b.PublishIf(ctx, nil, events...)
}

// PublishIf is Publish under conditions, where the bus below has it.
func (b *validated) PublishIf(ctx context.Context, expect []store.Expect, events ...event.Event) ([]promethean.Receipt, error) {
	list := events // copied when one is to be stamped: it is the caller's
	var kept *[]event.Event
	for i := range events {
		k := b.reg.rules(events[i].Topic)
		if len(k.versions) == 0 && !k.settings.Strict {
			continue
		}
		if kept == nil {
			kept = copies.Get().(*[]event.Event)
			list = append((*kept)[:0], events...)
		}
		if err := b.reg.admit(ctx, k, &list[i]); err != nil {
			return nil, fmt.Errorf("publish topic %s: %w", list[i].Topic, &store.EventError{Index: i, Err: err})
		}
	}
	got, err := promethean.PublishIf(ctx, b.Bus, expect, list...)
	if kept != nil && cap(list) <= maxCopies {
		clear(list)
		*kept = list[:0]
		copies.Put(kept)
	}
	return got, err
}
