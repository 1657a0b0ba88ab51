package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	if as := os.Getenv(role); as != "" {
		os.Exit(act(as))
	}
	os.Exit(start(os.Args[1:]))
}

// act is a node or a worker.
func act(as string) int {
	do, ok := map[string]func(string) error{"node": runNode, "worker": runWorker}[as]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: unknown role %q\n", role, as)
		return 2
	}
	if err := do(os.Getenv(role + "_CONFIG")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// start does a run: 0 all promises held, 1 one did not or the run failed, 2 it
// was asked for wrongly.
func start(args []string) int {
	var o options
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.StringVar(&o.program, "hub", "bin/promethean", "the program that is the hub")
	f.Uint64Var(&o.seed, "seed", 0, "what the plan of faults follows from; 0 takes one by chance")
	f.DurationVar(&o.length, "for", 5*time.Minute, "how long faults are made")
	f.IntVar(&o.steps, "steps", 0, "in place of faults, have members join, leave, die and stall for so many steps")
	f.IntVar(&o.hubs, "hubs", 3, "how many hubs there are")
	f.StringVar(&o.dir, "dir", "", "where logs, journals and data go; by default a temporary directory, removed if all is well")
	f.BoolVar(&o.keep, "keep", false, "keep the directory also if all is well")
	show := f.Int("plan", 0, "print so many faults of the plan, and do nothing")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if f.NArg() > 0 || o.hubs < 1 || o.length < 0 || o.steps < 0 {
		fmt.Fprintln(os.Stderr, "chaos: -hubs must be 1 or more, -for and -steps not negative, and there are no arguments")
		return 2
	}
	if o.seed == 0 {
		o.seed = uint64(rand.Uint32()) + 1
	}
	if *show > 0 {
		for x := range plan(o.seed) {
			if x.N > *show {
				return 0
			}
			fmt.Printf("%v, then %v of calm\n", x, x.Calm)
		}
	}
	if err := o.prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	ok, err := chaos(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: seed %d: %v; see %s\n", o.seed, err, o.dir)
	}
	if err != nil || !ok {
		return 1
	}
	return 0
}

// prepare makes the directory and the path of the program absolute.
func (o *options) prepare() (err error) {
	if o.program, err = filepath.Abs(o.program); err != nil {
		return err
	}
	if _, err := os.Stat(o.program); err != nil {
		return fmt.Errorf("the program of the hub: %w", err)
	}
	if o.dir == "" {
		o.dir, err = os.MkdirTemp("", "chaos")
		return err
	}
	o.keep = true
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	return os.MkdirAll(o.dir, 0o755)
}
