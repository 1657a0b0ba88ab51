package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"promethean"
	"promethean/event"
	"promethean/internal/jq"
)

// Upcaster makes the payload of an event into one of the next version. It must
// give the same for the same event, for ever, and must not keep or change it.
type Upcaster func(ctx context.Context, e event.Event) (json.RawMessage, error)

// hop is the step that an upcaster takes: from a version of a topic to the next
// one that there is.
type hop struct {
	topic string
	from  int
}

// jqUpcaster runs a program on the payload.
func jqUpcaster(p *jq.Program) Upcaster {
	return func(ctx context.Context, e event.Event) (json.RawMessage, error) { return p.Run(ctx, e.Payload) }
}

// identity is the upcaster of a version that takes documents of the one before
// as they are.
func identity(_ context.Context, e event.Event) (json.RawMessage, error) { return e.Payload, nil }

// AddUpcaster makes a function the upcaster from a version of a topic to the
// next one, in this process: it goes before a jq program that was registered.
// Other programs that read normalised need it too. It is tried as those are, if
// the next version is there; add it before you register that version to let it
// be judged with the upcaster instead of by compatibility alone.
func (r *Registry) AddUpcaster(ctx context.Context, topic string, from int, up Upcaster) error {
	if up == nil || from < 1 || from > MaxVersion {
		return fmt.Errorf("add upcaster to topic %s: there must be a function, and a version to start from", topic)
	}
	e := r.entry(topic)
	if at := e.find(from); at >= 0 && at+1 < len(e.versions) {
		next := e.versions[at+1]
		parsed, err := next.Parsed()
		if err != nil {
			return err
		}
		upTo := *e
		upTo.versions = e.versions[:at+1]
		problems, err := r.try(ctx, &upTo, next.Definition, parsed, up)
		if err != nil {
			return err
		}
		if len(problems) > 0 {
			return &ConflictError{Topic: topic, Version: next.Version, Reason: "the upcaster does not fit", Problems: problems}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.functions.Store(hop{topic, from}, up)
	now := *r.entry(topic)
	now.through = r.hops(topic, now.versions)
	r.entries.Store(topic, &now)
	return nil
}

// function gives the upcaster that was added for a hop; nil if there is none.
func (r *Registry) function(topic string, from int) Upcaster {
	if up, ok := r.functions.Load(hop{topic, from}); ok {
		return up.(Upcaster)
	}
	return nil
}

// hops finds the upcasters of a topic.
func (r *Registry) hops(topic string, versions []*Version) map[int]Upcaster {
	out := make(map[int]Upcaster, len(versions))
	for i := range max(len(versions)-1, 0) {
		from, next := versions[i].Version, versions[i+1]
		switch up := r.function(topic, from); {
		case up != nil:
			out[from] = up
		case next.Upcast != "":
			out[from] = next.lazyUpcaster()
		case next.Compat.DemandsBackward() && !next.Function:
			// It was found to take what the version before it allows.
			out[from] = identity
		}
	}
	return out
}

// lazyUpcaster compiles the program of a version when it is needed.
func (v *Version) lazyUpcaster() Upcaster {
	return func(ctx context.Context, e event.Event) (json.RawMessage, error) {
		p, err := v.program()
		if err != nil {
			return nil, err
		}
		return jqUpcaster(p)(ctx, e)
	}
}

// UpcastError says that an event cannot be made into one of the latest version.
// The event is as it was.
type UpcastError struct {
	Topic    string
	Seq      uint64
	From, To int // versions; 0: not known
	Err      error
}

func (e *UpcastError) Error() string {
	return fmt.Sprintf("normalise topic %s, seq %d: from version %d to %d: %v", e.Topic, e.Seq, e.From, e.To, e.Err)
}

func (e *UpcastError) Unwrap() error { return e.Err }

// ErrUpcast is what an [UpcastError] is.
var ErrUpcast = errors.New("cannot be normalised")

// Is makes it [ErrUpcast].
func (e *UpcastError) Is(target error) bool { return target == ErrUpcast }

// ErrNoUpcaster says that there is no way from a version to the next.
var ErrNoUpcaster = errors.New("there is no upcaster")

// Normalise gives an event in the latest version of its topic's schema: upcast,
// stamped, and found valid. An event of a topic without a schema is given back
// as it is, and a tombstone with a stamp alone. What cannot be normalised is an [*UpcastError].
func (r *Registry) Normalise(ctx context.Context, e event.Event) (event.Event, error) {
	k := r.rules(e.Topic)
	if len(k.versions) == 0 {
		return e, nil
	}
	return r.raise(ctx, k, e)
}

// raise is Normalise where there is a schema.
func (r *Registry) raise(ctx context.Context, k rules, e event.Event) (event.Event, error) {
	to := k.latest()
	if k.tombstone(&e) {
		out := e
		out.Headers = stamped(e.Headers, to.stamp)
		return out, nil
	}
	from, err := k.versionOf(&e)
	fail := func(err error) (event.Event, error) {
		return e, &UpcastError{Topic: e.Topic, Seq: e.Seq, From: from, To: to.Version, Err: err}
	}
	if err != nil {
		return fail(err)
	}
	if from != to.Version {
		if k, _, err = r.find(ctx, e.Topic, from); err != nil {
			return fail(err)
		}
		to = k.latest() // it may be another one by now
	}
	out := e
	for _, v := range k.versions[k.entry.find(from):] {
		if v == to {
			break
		}
		up := k.through[v.Version]
		if up == nil {
			return fail(k.missing(v.Version))
		}
		if out.Payload, err = up(ctx, out); err != nil {
			return fail(err)
		}
	}
	if from != to.Version {
		// Programs may give anything; what was stored is known to be JSON.
		if err := event.CheckJSON(out.Payload); err != nil {
			return fail(err)
		}
		out.Headers = out.Headers.Set(UpcastHeader, strconv.Itoa(from))
	}
	if err := to.accept(e.Topic, out.Payload); err != nil {
		return fail(err)
	}
	out.Headers = stamped(out.Headers, to.stamp)
	return out, nil
}

// missing says why there is no way on from a version.
func (e *entry) missing(from int) error {
	next := e.versions[e.find(from)+1]
	if next.Function {
		return fmt.Errorf("%w from version %d to %d: it is a Go function, which this process was not given (AddUpcaster)", ErrNoUpcaster, from, next.Version)
	}
	return fmt.Errorf("%w from version %d to %d", ErrNoUpcaster, from, next.Version)
}

// stamped gives headers with a stamp.
func stamped(h event.Headers, version string) event.Headers {
	if have, ok := h.Get(VersionHeader); ok && have == version {
		return h
	}
	return h.Set(VersionHeader, version)
}

// SubscribeNormalised is Subscribe for a handler that knows the latest version
// only: events of older ones are upcast first. One that cannot be normalised
// goes to the dead letters, as it was stored. Conditions of the subscription see
// events as they were stored.
func SubscribeNormalised(ctx context.Context, bus promethean.Bus, reg *Registry, topic, group string, h promethean.Handler, opts ...promethean.SubscribeOption) (promethean.Subscription, error) {
	if h == nil {
		return bus.Subscribe(ctx, topic, group, nil, opts...) // says what is wrong
	}
	return bus.Subscribe(ctx, topic, group, func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
		now, err := reg.Normalise(ctx, e)
		switch {
		case err == nil:
			return h(ctx, now, d)
		case Passing(ctx, err):
			return err
		}
		return promethean.Dead(err)
	}, opts...)
}

// Passing says whether an event that could not be normalised may be later: the
// work was broken off, or took longer than it may on a busy machine.
func Passing(ctx context.Context, err error) bool {
	var u *UpcastError
	return ctx.Err() != nil || !errors.As(err, &u) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
