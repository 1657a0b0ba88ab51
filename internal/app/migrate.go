package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"promethean/event"
	"promethean/group"
	"promethean/internal/app/config"
	"promethean/store"
	"promethean/store/intent"
	"promethean/store/logstore"
	"promethean/store/migrate"
)

// moving is what the flags of migrate say.
type moving struct {
	from, to string
	file     string
	verify   bool
	force    bool
}

func (a *app) migrateCommand() *cobra.Command {
	var m moving
	cmd := &cobra.Command{
		Use:   "migrate --from STORE --to STORE",
		Short: "Copy everything to another engine, and compare it",
		Long: `Migrate copies all topics with their settings, all events and all groups from
one store to another: file://DIR, nats://… or mongodb://…, each to any of them.
Events keep their seqs, so cursors, and whatever else holds a seq, stay right.
At the end both sides are read again and compared event by event, field by
field. The source is not changed.

No hub may serve either side meanwhile. A directory is locked; on a server,
groups that a hub holds are found and the migration is refused, but a hub
without consumers is not found. --force goes on all the same.

The target must be empty. One that was cut off is gone on with when the same
command runs again. --verify-only compares and changes nothing.

Documents of views are not copied: a hub makes them anew from their topics. The
age of events, which retention goes by, begins anew.

What a server needs beyond its address, and the limit of payloads, comes from
the configuration, as in 'promethean serve'.`,
		Example: `  promethean migrate --from file://./data --to nats://127.0.0.1:4222
  promethean migrate --from nats://127.0.0.1:4222 --to mongodb://127.0.0.1/bus
  promethean migrate --from file://./data --to nats://127.0.0.1:4222 --verify-only`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return misuse(cmd, "%q is more than it takes: name the stores by --from and --to", args[0])
			case m.from == "" || m.to == "":
				return misuse(cmd, "missing: --from and --to")
			}
			return nil
		},
		RunE: a.begin(func(ctx context.Context, _ []string) error { return a.migrate(ctx, m) }),
	}
	f := cmd.Flags()
	f.StringVar(&m.from, "from", "", "`store` to copy")
	f.StringVar(&m.to, "to", "", "`store` to copy to")
	f.StringVar(&m.file, "config", "", "`file` to read settings from (default "+configFile+" if there is one)")
	f.BoolVar(&m.verify, "verify-only", false, "compare only")
	f.BoolVar(&m.force, "force", false, "go on also where a hub serves groups")
	stores := cobra.FixedCompletions([]string{"file://", "nats://", "mongodb://"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
	if err := errors.Join(cmd.MarkFlagFilename("config", "yaml", "yml"), cmd.RegisterFlagCompletionFunc("from", stores), cmd.RegisterFlagCompletionFunc("to", stores)); err != nil {
		panic(err) // the flags are defined right above
	}
	return cmd
}

func (a *app) migrate(ctx context.Context, m moving) (err error) {
	load, err := loader(m.file, nil)
	if err != nil {
		return err
	}
	c, err := load()
	if err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return err
	}
	from, err := openEnd(ctx, c, m.from, false)
	if err != nil {
		return fmt.Errorf("open the source: %w", hideAddress(m.from, err))
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if err := m.mayCopy(ctx, from, "source"); err != nil {
		return err
	}
	to, err := openEnd(ctx, c, m.to, !m.verify)
	if err != nil {
		return fmt.Errorf("open the target: %w", hideAddress(m.to, err))
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := m.mayCopy(ctx, to, "target"); err != nil {
		return err
	}
	label, run := "migrating", migrate.Run
	if m.verify {
		label, run = "comparing", migrate.Verify
	}
	bar := a.progress(label)
	began := time.Now()
	sum, err := run(ctx, from, to, migrate.Options{Source: shownStore(m.from), Progress: bar.show})
	bar.clear()
	if err != nil {
		return m.explain(ctx, err)
	}
	return a.result(field{"from", shownStore(m.from)}, field{"to", shownStore(m.to)},
		field{"topics", sum.Topics}, field{"groups", sum.Groups}, field{"copied", sum.Copied}, field{"gaps", sum.Filled},
		field{"compared", sum.Compared}, field{"expired", sum.Expired}, field{"resumed", sum.Resumed}, field{"seconds", float64(time.Since(began).Milliseconds()) / 1000})
}

// check refuses what can be told from the addresses.
func (m *moving) check() error {
	for _, url := range []string{m.from, m.to} {
		if err := config.CheckStore(url); err != nil {
			return err
		}
		if strings.HasPrefix(url, "memory://") {
			return errors.New("memory:// ends with its process, so there is nothing to copy from or to")
		}
	}
	if sameStore(m.from, m.to) {
		return fmt.Errorf("source and target are the same store, %s", shownStore(m.from))
	}
	return nil
}

// shownStore is an address without secrets, by which a store is known.
func shownStore(url string) string {
	dir, ok := strings.CutPrefix(url, "file://")
	if !ok {
		return config.Redact(url)
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return "file://" + dir
}

func sameStore(a, b string) bool {
	if a == b || shownStore(a) == shownStore(b) && strings.HasPrefix(a, "file://") {
		return true
	}
	one, ok1 := strings.CutPrefix(a, "file://")
	two, ok2 := strings.CutPrefix(b, "file://")
	if !ok1 || !ok2 {
		return false
	}
	st1, err1 := os.Stat(one)
	st2, err2 := os.Stat(two)
	return err1 == nil && err2 == nil && os.SameFile(st1, st2)
}

// openEnd opens a source or a target. Nothing is made unless fresh is set.
func openEnd(ctx context.Context, c *config.Config, url string, fresh bool) (migrate.Engine, error) {
	limits := event.Limits{Payload: c.Limits.Payload}
	dir, ok := strings.CutPrefix(url, "file://")
	if !ok {
		at := *c
		at.Store = url
		return openServer(ctx, &at, limits, nil)
	}
	err := logstore.Exists(dir)
	if errors.Is(err, logstore.ErrNoStore) && fresh {
		err = mayFill(dir)
	}
	if err != nil {
		return nil, err
	}
	// It is swept now and then only: what expires while it is copied may as well
	// be there.
	return logstore.Open(dir, logstore.Options{Limits: limits, SweepEvery: 24 * time.Hour})
}

// mayFill says why a directory without a store must not become one. What a
// process that was killed at once has left of a store is no reason.
func mayFill(dir string) error {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range list {
		if name := e.Name(); name != "LOCK" && name != "journal" && name != "state" {
			return advised{fmt.Errorf("%s holds other files, such as %s", dir, name), "name a directory that does not exist or is empty"}
		}
	}
	return err
}

// mayCopy looks for signs that somebody is at work on a store.
func (m *moving) mayCopy(ctx context.Context, e migrate.Engine, side string) error {
	leases, ok := e.(store.Leases)
	if _, shared := e.(store.Shared); !ok || !shared || m.verify {
		return nil
	}
	if side == "source" {
		n, err := intent.Unfinished(ctx, e)
		if err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
		if n > 0 && !m.force {
			return advised{fmt.Errorf("the %s has a publish over several topics that is not done yet: %d records of %s", side, n, intent.Topic),
				"run a hub on it for some seconds, which does the rest, and stop it"}
		}
	}
	if m.force {
		return nil
	}
	owner := "migrate-" + event.NewID().String()
	for c, err := range e.Cursors(ctx, "") {
		if err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
		lease, err := leases.Acquire(ctx, group.LeaseName(c.Topic, c.Group), owner, time.Second)
		if errors.Is(err, store.ErrHeld) {
			return advised{fmt.Errorf("a hub serves group %s of topic %s on the %s", c.Group, c.Topic, side),
				"stop all hubs on it, then try again; one that was killed holds its groups for some seconds"}
		}
		if err == nil {
			err = leases.Release(ctx, lease)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
	}
	return nil
}

// explain says what to do about a migration that has failed.
func (m *moving) explain(ctx context.Context, err error) error {
	err = hideAddress(m.from, hideAddress(m.to, err))
	var occupied *migrate.OccupiedError
	switch {
	case errors.As(err, &occupied) && occupied.Copy:
		return advised{err, "finish that one first, or name another target"}
	case errors.As(err, &occupied):
		return advised{err, "name an empty directory, another prefix or another database"}
	case errors.Is(err, migrate.ErrUnfinished):
		return advised{err, "finish that migration first"}
	case errors.Is(err, migrate.ErrMismatch) && m.verify:
		return err
	case errors.Is(err, migrate.ErrMismatch):
		return advised{err, "somebody else has written to one of them, or the source has lost events since it was begun: begin again with an empty target"}
	case ctx.Err() != nil, errors.Is(err, store.ErrUnavailable):
		return advised{err, "the same command goes on from here"}
	}
	return err
}
