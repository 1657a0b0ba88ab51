package app

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/migrate"
	"promethean/store/natsstore"
)

// BenchmarkMigrate copies events of about 200 bytes from a directory to a NATS
// server and from there to another directory, and compares them. Each figure is
// of one step alone: there and back have the comparison in them. Append is the
// same events given to the server by nothing but appends, one behind the other.
func BenchmarkMigrate(b *testing.B) {
	const count = 100_000
	ctx := context.Background()
	open := func(name string) *logstore.Store {
		s, err := logstore.Open(filepath.Join(b.TempDir(), name), logstore.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		return s
	}
	from := open("from")
	fill := strings.Repeat("x", 120)
	var batches [][]event.Event
	for n := 0; n < count; {
		batch := make([]event.Event, 1000)
		for i := range batch {
			batch[i] = event.New("orders", json.RawMessage(fmt.Sprintf(`{"n":%d,"status":"up","fill":%q}`, n, fill)))
			batch[i].Key = fmt.Sprintf("k%d", n%10_000)
			n++
		}
		if _, err := from.Append(ctx, store.Batch{Events: batch}); err != nil {
			b.Fatal(err)
		}
		batches = append(batches, batch)
	}
	server := natstest.Start(b, func(o *natstest.Options) { o.SyncAlways = true })
	steps := map[string]float64{}
	timed := func(name string, run func() error) {
		before := b.Elapsed()
		if err := run(); err != nil {
			b.Fatal(err)
		}
		steps[name] += (b.Elapsed() - before).Seconds()
	}
	step := func(name string, from, to migrate.Engine, run func(context.Context, migrate.Engine, migrate.Engine, migrate.Options) (migrate.Summary, error)) {
		timed(name, func() error { _, err := run(ctx, from, to, migrate.Options{}); return err })
	}
	for i := range b.N {
		to, err := natsstore.Open(ctx, server.URL(), natsstore.Options{Prefix: fmt.Sprintf("b%d", i)})
		if err != nil {
			b.Fatal(err)
		}
		back := open(fmt.Sprint("back", i))
		step("there", from, to, migrate.Run)
		step("compare", from, to, migrate.Verify)
		step("back", to, back, migrate.Run)
		timed("append", func() error {
			for _, batch := range batches {
				batch = slices.Clone(batch)
				for k := range batch {
					batch[k].Topic = "appended"
				}
				if _, err := to.Append(ctx, store.Batch{Events: batch, Internal: true}); err != nil {
					return err
				}
			}
			return nil
		})
		if err := to.Close(); err != nil {
			b.Fatal(err)
		}
	}
	for name, took := range steps {
		b.ReportMetric(float64(count*b.N)/took, name+"-events/s")
	}
}
