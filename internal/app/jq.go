package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/itchyny/gojq"
	"github.com/spf13/cobra"

	"promethean/event"
)

// program is the value of a flag that is a jq program; it is compiled when the
// flag is read, so that a mistake in it is found before anything is done.
type program struct {
	text string
	code *gojq.Code
}

// String implements pflag.Value.
func (p *program) String() string { return p.text }

// Type implements pflag.Value.
func (p *program) Type() string { return "jq" }

// Set implements pflag.Value.
func (p *program) Set(s string) error {
	q, err := gojq.Parse(s)
	if err != nil {
		return err
	}
	code, err := gojq.Compile(q)
	if err != nil {
		return err
	}
	p.text, p.code = s, code
	return nil
}

// set says whether there is a program.
func (p *program) set() bool { return p.code != nil }

// values runs the program. Numbers keep all their digits.
func (p *program) values(ctx context.Context, input any) (out []any, err error) {
	it := p.code.RunWithContext(ctx, input)
	for {
		v, ok := it.Next()
		if !ok {
			return out, nil
		}
		if err, failed := v.(error); failed {
			var halt *gojq.HaltError
			if errors.As(err, &halt) && halt.Value() == nil {
				return out, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, err
		}
		out = append(out, v)
	}
}

// jqInput is a JSON text as jq sees it.
func jqInput(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a float would lose digits
	err = d.Decode(&v)
	return v, err
}

// reshape is what is done to events on their way: a filter, a new payload, a
// new key.
type reshape struct {
	filter, payload, key program
}

// jqHelp explains the programs; the commands that take them say so.
const jqHelp = `--filter, --map and --key-from are jq programs that see the whole event, such as
{"id":…,"seq":42,"ts":…,"topic":…,"key":…,"headers":{…},"payload":{…}}. An event
is kept if the first value of --filter is neither null nor false. Each value of
--map is a payload: none drops the event, and several make several events.
--key-from gives the key; null takes it away. Numbers keep all their digits;
--map writes objects with their names in order.`

func (r *reshape) flags(cmd *cobra.Command) {
	cmd.Flags().Var(&r.filter, "filter", "keep events for which this is true")
	cmd.Flags().Var(&r.payload, "map", "what the payload becomes")
	cmd.Flags().Var(&r.key, "key-from", "what the key becomes")
}

// apply gives what becomes of an event. The payloads that it makes are JSON.
func (r *reshape) apply(ctx context.Context, e *event.Event) ([]event.Event, error) {
	if !r.filter.set() && !r.payload.set() && !r.key.set() {
		return []event.Event{*e}, nil
	}
	text, err := e.AppendStoredJSON(nil)
	if err != nil {
		return nil, err
	}
	input, err := jqInput(text)
	if err != nil {
		return nil, err
	}
	if r.filter.set() {
		keep, err := r.filter.values(ctx, input)
		if err != nil {
			return nil, fmt.Errorf("--filter: %w", err)
		}
		if len(keep) == 0 || keep[0] == nil || keep[0] == false {
			return nil, nil
		}
	}
	made := *e
	if r.key.set() {
		if made.Key, err = keyOf(ctx, &r.key, input); err != nil {
			return nil, err
		}
	}
	if !r.payload.set() {
		return []event.Event{made}, nil
	}
	payloads, err := r.payload.values(ctx, input)
	if err != nil {
		return nil, fmt.Errorf("--map: %w", err)
	}
	out := make([]event.Event, 0, len(payloads))
	for _, v := range payloads {
		if made.Payload, err = gojq.Marshal(v); err != nil {
			return nil, fmt.Errorf("--map: %w", err)
		}
		out = append(out, made)
	}
	return out, nil
}

// keyOf is the key that a program finds.
func keyOf(ctx context.Context, p *program, input any) (string, error) {
	found, err := p.values(ctx, input)
	switch {
	case err != nil:
		return "", fmt.Errorf("--key-from: %w", err)
	case len(found) != 1:
		return "", fmt.Errorf("--key-from: %d values, not one", len(found))
	}
	switch v := found[0].(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case map[string]any, []any:
		return "", fmt.Errorf("--key-from: a key is a text or a number, not %s", gojq.Preview(v))
	default:
		text, err := gojq.Marshal(v)
		return string(text), err
	}
}
