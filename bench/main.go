package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	if code, child := runChild(os.Args[1:]); child {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program at once; its children die with it.
	context.AfterFunc(ctx, stop)
	os.Exit(program(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// bench is one run of the program.
type bench struct {
	selection
	short    bool
	duration time.Duration // of each row of a figure, all rounds together
	rounds   int
	work     string           // scratch directory, removed at the end
	absent   map[string]error // targets that are not measured, and why
	out, log io.Writer
	// dropCaches is replaced where the machine's cache is not ours to drop.
	dropCaches func(dir string) (string, error)

	results  results
	sections []section
	failures []error
}

// program runs with arguments and gives the exit code: 0 when everything that
// was asked for was measured, whatever the gates say; 1 when something failed;
// 2 for wrong use.
func program(ctx context.Context, args []string, out, log io.Writer) int {
	b := &bench{out: out, log: log, dropCaches: dropCaches, results: results{figures: map[string]*measured{}}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.BoolVar(&b.short, "short", false, "measure everything briefly, in less than two minutes")
	flags.DurationVar(&b.duration, "duration", 60*time.Second, "time for each row of a publishing figure, all rounds together (with -short: 2s)")
	flags.IntVar(&b.rounds, "rounds", 5, "interleaved rounds (with -short: 2)")
	only := flags.String("only", "", "comma-separated figures ("+strings.Join(figureNames, " ")+") and targets ("+strings.Join(targetNames, " ")+")")
	parent := flags.String("dir", "", "make the scratch directory in this one (default: the system's)")
	markdown := flags.String("markdown", "", "write the tables to this file too")
	install := flags.Bool("install", false, "install redis-server with apt-get where it is missing")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if b.short && !given["duration"] {
		b.duration = 2 * time.Second
	}
	if b.short && !given["rounds"] {
		b.rounds = 2
	}
	var err error
	if b.selection, err = parseSelection(*only); err == nil {
		err = b.checkUse(flags.Args())
	}
	if err != nil {
		fmt.Fprintln(log, "bench:", err)
		return 2
	}
	if err := b.all(ctx, *parent, *markdown, *install); err != nil {
		b.failures = append(b.failures, err)
	}
	for _, err := range b.failures {
		fmt.Fprintln(log, "bench:", err)
	}
	if len(b.failures) > 0 {
		return 1
	}
	return 0
}

func (b *bench) checkUse(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case b.rounds < 1:
		return fmt.Errorf("-rounds %d: at least 1", b.rounds)
	case b.duration <= 0:
		return fmt.Errorf("-duration %v: must be positive", b.duration)
	}
	return nil
}

// all measures, prints and cleans up. Interrupted, it still prints what it has.
func (b *bench) all(ctx context.Context, parent, markdown string, install bool) (err error) {
	if b.work, err = os.MkdirTemp(parent, "promethean-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.work)) }()
	if install && b.target(nameRedis) {
		if err := installRedis(ctx); err != nil {
			b.failures = append(b.failures, err) // the other targets can still be measured
		}
	}
	b.absent = map[string]error{}
	for _, name := range targetNames {
		if !b.target(name) || b.short && name == nameRecycled && len(b.targets) == 0 {
			b.absent[name] = errLeftOut
		} else if err := newTarget(name).Available(); err != nil {
			b.absent[name] = err
		}
	}
	fmt.Fprintln(b.out, b.machine())
	for _, line := range b.missing() {
		fmt.Fprintln(b.out, line)
	}
	err = b.figuresInTurn(ctx)
	gs := gates(b.results)
	fmt.Fprintln(b.out, "\nGates")
	for _, g := range gs {
		fmt.Fprintln(b.out, " ", g)
	}
	if markdown != "" {
		err = errors.Join(err, b.writeMarkdown(markdown, gs))
	}
	return err
}

func (b *bench) figuresInTurn(ctx context.Context) error {
	for _, f := range publishFigures() {
		if !b.figure(f.name) {
			continue
		}
		m, err := b.measure(ctx, f)
		b.results.figures[f.name] = m
		b.note(m)
		b.show(publishSection(m))
		if err != nil {
			return err
		}
	}
	if b.absent[nameUs] != nil {
		return nil // what follows is about us alone
	}
	if err := b.deliveryFigures(ctx); err != nil {
		return err
	}
	if err := b.crowdFigures(ctx); err != nil {
		return err
	}
	if err := b.sharedFigures(ctx); err != nil {
		return err
	}
	if err := b.gatewayFigures(ctx); err != nil {
		return err
	}
	if err := b.modelFigures(ctx); err != nil {
		return err
	}
	if b.figure(figGrowth) {
		m, err := b.measure(ctx, variants())
		b.results.variants = m
		b.note(m)
		b.show(variantSection(m))
		if err != nil {
			return err
		}
	}
	if b.figure(figScan) || b.figure(figGrowth) {
		h, err := b.measureHistory(ctx, planHistory(b.short))
		if err != nil {
			b.failures = append(b.failures, err)
		} else {
			b.results.history = h
			b.show(historySection(h))
		}
	}
	if b.figure(figAllocs) && ctx.Err() == nil {
		a, err := b.measureAllocs(ctx)
		if err != nil {
			b.failures = append(b.failures, fmt.Errorf("allocs: %w", err))
		} else {
			b.results.allocs = &a
			b.show(allocSection(&a))
		}
	}
	return ctx.Err()
}

func (b *bench) note(m *measured) {
	for _, s := range m.rows {
		if s.err != nil {
			b.failures = append(b.failures, fmt.Errorf("%s: %s: %w", m.name, s.name, s.err))
		}
	}
}

func (b *bench) show(s section) {
	if len(s.rows) == 0 {
		return
	}
	b.sections = append(b.sections, s)
	s.text(b.out)
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.log, "· "+format+"\n", args...)
}

func (b *bench) machine() string {
	return fmt.Sprintf("%s, %s/%s, %d processors, %s; %s; events of %d bytes; %d rounds, %v a row",
		kernel(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly),
		eventBytes, b.rounds, b.duration)
}

// missing names the targets that cannot run here.
func (b *bench) missing() (lines []string) {
	for _, name := range targetNames {
		if err := b.absent[name]; err != nil && !errors.Is(err, errLeftOut) {
			lines = append(lines, fmt.Sprintf("not run: %s: %v", name, err))
		}
	}
	return lines
}

func (b *bench) writeMarkdown(path string, gs []gate) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var text strings.Builder
	fmt.Fprintf(&text, "%s.\n", b.machine())
	for _, line := range b.missing() {
		fmt.Fprintf(&text, "\n%s.\n", line)
	}
	for _, s := range append(b.sections, gateSection(gs)) {
		s.markdown(&text)
	}
	_, err = f.WriteString(text.String())
	return err
}
