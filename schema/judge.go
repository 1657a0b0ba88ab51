package schema

import (
	"context"
	"encoding/json"
	"fmt"

	"promethean/event"
	"promethean/schema/compat"
	"promethean/schema/internal/sample"
	"promethean/store"
)

// How an upcaster is tried.
const (
	trialDocs   = 250  // made from the schema before
	trialStored = 1000 // of those that are there
	trialEnough = 200  // made ones without which it counts as unproved
	trialShown  = 5    // problems that are listed
)

// candidate is a definition that was looked at.
type candidate struct {
	record
	problems []compat.Problem
}

// judge looks at a definition as the next version. The error says what is wrong
// with it alone; what is wrong with it beside those before are problems.
func (r *Registry) judge(ctx context.Context, e *entry, d Definition) (*candidate, error) {
	if err := event.CheckTopic(d.Topic); err != nil {
		return nil, err
	}
	if d.Compat == "" {
		d.Compat = compat.Backward
	}
	mode, err := compat.ParseMode(string(d.Compat))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidSchema, err)
	}
	last := e.latest()
	if d.Version == 0 {
		d.Version = 1
		if last != nil {
			d.Version = last.Version + 1
		}
	}
	if err := e.follows(d.Version); err != nil {
		return nil, err
	}
	next, err := Parse(d.Schema)
	if err != nil {
		return nil, err
	}
	c := &candidate{record: record{Definition: d}}
	var ups []Upcaster // all that readers may use: each must do
	if d.Upcast != "" {
		if last == nil {
			return nil, fmt.Errorf("%w: upcast: there is no version before this one", ErrInvalidSchema)
		}
		program, err := r.compile(d.Upcast)
		if err != nil {
			return nil, fmt.Errorf("%w: upcast: %w", ErrInvalidSchema, err)
		}
		ups = append(ups, jqUpcaster(program))
	}
	if last == nil {
		return c, nil
	}
	if f := r.function(d.Topic, last.Version); f != nil {
		ups, c.Function = append(ups, f), d.Upcast == ""
	}
	before := e.versions[len(e.versions)-1:]
	if mode.Transitive() {
		before = e.versions
	}
	for _, v := range before {
		old, err := v.Parsed()
		if err != nil {
			return nil, fmt.Errorf("schema of topic %s, version %d: %w", d.Topic, v.Version, err)
		}
		rest := mode
		if len(ups) > 0 {
			rest = mode.WithoutBackward() // the trial says more
		}
		for _, p := range compat.Check(old.Tree(), next.Tree(), rest, d.Lenient) {
			if len(before) > 1 {
				p.Detail = fmt.Sprintf("version %d: %s", v.Version, p.Detail)
			}
			c.problems = append(c.problems, p)
		}
	}
	if len(ups) > 0 && mode.Transitive() && mode.DemandsBackward() {
		// The trial is from the version before; those before that must come to it.
		for _, v := range e.versions[:len(e.versions)-1] {
			if e.through[v.Version] == nil {
				c.problems = append(c.problems, compat.Problem{Rule: "upcast_missing", Detail: fmt.Sprintf(
					"%v, so that its documents cannot be brought up to version %d: ask for less than %s", e.missing(v.Version), d.Version, mode)})
			}
		}
	}
	for _, up := range ups {
		problems, err := r.try(ctx, e, d, next, up)
		if err != nil {
			return nil, err
		}
		c.problems = append(c.problems, problems...)
	}
	return c, nil
}

// try runs an upcaster on documents of the version before, made and stored
// ones, and looks at what comes out.
func (r *Registry) try(ctx context.Context, e *entry, d Definition, next *Schema, up Upcaster) (problems []compat.Problem, err error) {
	last := e.latest()
	old, err := last.Parsed()
	if err != nil {
		return nil, fmt.Errorf("schema of topic %s, version %d: %w", d.Topic, last.Version, err)
	}
	add := func(detail string, doc json.RawMessage) bool {
		problems = append(problems, compat.Problem{Rule: "upcast_fails", Detail: detail, Example: doc})
		return len(problems) < trialShown
	}
	maker, made := sample.New(old.Tree(), 1), 0
	for range trialDocs {
		doc, ok := maker.Next()
		if !ok {
			break
		}
		made++
		x := event.New(d.Topic, doc)
		x.TS = r.now().UnixMilli()
		if err := attempt(ctx, up, &x, next); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if !add(fmt.Sprintf("the upcaster does not make a valid document of one that version %d allows: %v; mend the program, or the schema of version %d", last.Version, err, d.Version), doc) {
				return problems, nil
			}
		}
	}
	if made < trialEnough && !d.Unproved {
		problems = append(problems, compat.Problem{Rule: "upcast_unproved", Detail: fmt.Sprintf(
			"the upcaster could be tried on %d documents only, since no more can be made from the schema of version %d: if you are sure of it, register with unproved", made, last.Version)})
	}
	for x, err := range r.hub.Read(ctx, store.Query{Topic: d.Topic, Reverse: true, Limit: trialStored}) {
		if err != nil {
			return nil, fmt.Errorf("read topic %s: %w", d.Topic, err)
		}
		version, err := e.versionOf(&x)
		if err != nil || version != last.Version || old.Check(x.Payload) != nil {
			continue // not one of those that the upcaster is for
		}
		if err := attempt(ctx, up, &x, next); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if !add(fmt.Sprintf("the upcaster does not make a valid document of the stored event with seq %d: %v", x.Seq, err), nil) {
				return problems, nil
			}
		}
	}
	return problems, nil
}

// attempt upcasts an event and looks at what comes out.
func attempt(ctx context.Context, up Upcaster, e *event.Event, next *Schema) error {
	payload, err := up(ctx, *e)
	if err != nil {
		return err
	}
	if err := event.CheckJSON(payload); err != nil {
		return fmt.Errorf("it gives no JSON: %w", err)
	}
	if bad := next.Check(payload); len(bad) > 0 {
		return fmt.Errorf("what it gives is not valid: %w", &InvalidError{Topic: e.Topic, Errors: bad})
	}
	return nil
}
