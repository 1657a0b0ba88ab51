package jq

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/itchyny/gojq"

	"promethean/internal/jq/value"
)

// MaxProgram is the longest program in bytes.
const MaxProgram = 64 << 10

// ErrLimit says that a run was ended because it used too much.
var ErrLimit = errors.New("the program is stopped")

// Options are the limits of one run.
type Options struct {
	// Timeout is how long it may take, without waiting for a processor as far as
	// that can be told. The default is 50 ms. Waiting is bounded by the context.
	Timeout time.Duration
	// Steps is how many steps it may take; work inside of a step counts by its
	// size. Other than time it is the same on every machine. The default is two
	// million.
	Steps int
	// Memory is what it may use in bytes, added up over the run, without what the
	// machine itself needs for its steps. The default is 64 MiB.
	Memory int
	// Value is the size of the largest value, in memory and with everything that
	// it holds more than once counted so often. The default is 8 MiB.
	Value int
	// Output is the size of the result in bytes. The default is 1 MiB.
	Output int
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = 50 * time.Millisecond
	}
	if o.Steps <= 0 {
		o.Steps = 2_000_000
	}
	if o.Memory <= 0 {
		o.Memory = 64 << 20
	}
	if o.Value <= 0 {
		o.Value = 8 << 20
	}
	if o.Output <= 0 {
		o.Output = 1 << 20
	}
	return o
}

// Program is a program that may be run, also concurrently.
type Program struct {
	steps   []step
	query   *gojq.Query // what comes after the steps, or nil
	options Options
	idle    chan *machine
}

// Compile checks and compiles a program, with the default limits.
func Compile(program string) (*Program, error) { return CompileWith(program, Options{}) }

// CompileWith is [Compile] with other limits. The error says what the program
// uses that is not there, or where it is no jq.
func CompileWith(program string, o Options) (*Program, error) {
	if len(program) > MaxProgram {
		return nil, fmt.Errorf("the program has %d bytes, the limit is %d", len(program), MaxProgram)
	}
	q, err := gojq.Parse(program)
	if err != nil {
		var at *gojq.ParseError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("no jq at offset %d: %w", at.Offset, err)
		}
		return nil, fmt.Errorf("no jq: %w", err)
	}
	p := &Program{options: o.withDefaults(), idle: make(chan *machine, 2*runtime.GOMAXPROCS(0))}
	if p.steps, q = steps(q); q == nil {
		return p, nil
	}
	if p.query, err = guard(q); err != nil {
		return nil, err
	}
	m, err := p.build()
	if err != nil {
		return nil, err
	}
	p.idle <- m
	return p, nil
}

// machine is a compiled program with an account of its own. gojq gives its
// functions no way to know in which run they are called, so that a machine
// serves one run at a time.
type machine struct {
	code *gojq.Code
	run  run
}

func (p *Program) build() (m *machine, err error) {
	m = &machine{}
	m.run.patterns = make(map[[2]string]*pattern)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the program cannot be compiled: %v", r)
		}
	}()
	if m.code, err = gojq.Compile(p.query, functions(&m.run)...); err != nil {
		return nil, fmt.Errorf("the program cannot be compiled: %w", err)
	}
	return m, nil
}

// Run gives what the program makes of a payload: JSON in, JSON out. The error
// says why there is none; it is [ErrLimit] if the program used too much.
func (p *Program) Run(ctx context.Context, payload []byte) ([]byte, error) {
	in, err := value.Decode(payload)
	if err != nil {
		return nil, err
	}
	// A short text cannot be a large value.
	out, err := p.run(ctx, in, len(payload) <= maxDigits)
	if err != nil {
		return nil, err
	}
	return p.Encode(make([]byte, 0, len(payload)+len(payload)/4+16), out)
}

// Encode writes what RunValue gave behind dst, if it is not too large.
func (p *Program) Encode(dst []byte, out any) ([]byte, error) {
	text, err := value.AppendMax(dst, out, p.options.Output)
	switch {
	case errors.Is(err, value.ErrTooLarge):
		return nil, fmt.Errorf("%w: it gives a value larger than %d bytes", ErrLimit, p.options.Output)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrLimit, err)
	}
	return text, nil
}

// RunValue is [Program.Run] on values of package value, for several programs one
// after the other. The input is used up: it may have changed afterwards, and may
// be a part of what comes out.
func (p *Program) RunValue(ctx context.Context, in any) (any, error) { return p.run(ctx, in, false) }

func (p *Program) run(ctx context.Context, in any, small bool) (out any, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	var large bool
	for i := range p.steps {
		var more bool
		if in, more, err = p.steps[i].do(in); err != nil {
			return nil, err
		}
		large = large || more
	}
	if small = small && !large; p.query == nil {
		return in, nil // Encode looks at how large it is
	}
	var m *machine
	select {
	case m = <-p.idle:
	default:
		if m, err = p.build(); err != nil {
			return nil, err
		}
	}
	m.run.begin(ctx, p.options)
	defer func() {
		m.run.Context = nil
		if r := recover(); r != nil {
			// The machine is left to the collector: who knows what it holds.
			out, err = nil, fmt.Errorf("the program failed: %v", r)
			return
		}
		select {
		case p.idle <- m:
		default:
		}
	}()
	return m.one(in, small)
}

// one runs the machine and gives its only value.
func (m *machine) one(in any, small bool) (any, error) {
	r := &m.run
	if r.look(); r.err != nil {
		return nil, r.err
	}
	if !small {
		if _, err := r.size(in); err != nil {
			return nil, fmt.Errorf("the payload: %w", err)
		}
	}
	it := m.code.RunWithContext(r, in)
	out, ok := it.Next()
	if err := r.failure(out); err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("the program gives no value")
	}
	more, ok := it.Next()
	if err := r.failure(more); err != nil {
		return nil, err
	}
	if ok {
		return nil, errors.New("the program gives more than one value")
	}
	return out, nil
}

// failure gives the error that a value is, if the run is not over anyway.
func (r *run) failure(v any) error {
	if r.err != nil {
		return r.err
	}
	err, ok := v.(error)
	if !ok {
		return nil
	}
	text := err.Error()
	if len(text) > 1024 {
		text = text[:1024] + " …"
	}
	return fmt.Errorf("jq: %s", text)
}
