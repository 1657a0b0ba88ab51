package tree_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"promethean/lint/tree"
)

// most is what a tree of a thousand files may take when the go command has built
// what the tree imports. It is held against processor time, which is at least what
// a machine takes that has nothing else to do.
const most = 10 * time.Second

// generate makes a module of so many Go files and scripts each, with one finding
// in every tenth of both.
func generate(tb testing.TB, n int) (dir string) {
	tb.Helper()
	dir = tb.TempDir()
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		tb.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		tb.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		tb.Fatal(err)
	}
	write("go.mod", strings.Replace(string(mod), "module promethean\n", "module generated\n", 1)+
		fmt.Sprintf("\nrequire promethean v0.0.0\n\nreplace promethean => %s\n", root))
	write("go.sum", string(sum))
	write("promethean.yaml", "topics:\n  orders.placed: {schemas: schemas/orders.placed}\n")
	write("schemas/orders.placed/v1.json", `{"type":"object","properties":{"item":{"type":"string"},"count":{"type":"integer"}},"required":["item","count"]}`)
	for i := range n {
		topic := "orders.placed"
		if i%10 == 0 {
			topic = "Orders.Placed"
		}
		write(fmt.Sprintf("pkg%d/file%d.go", i/20, i), fmt.Sprintf(goText, i/20, i, topic))
		write(fmt.Sprintf("web/part%d/file%d.ts", i/20, i), fmt.Sprintf(tsText, i, topic))
	}
	return dir
}

const goText = `// Package pkg%[1]d is one of many.
package pkg%[1]d

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"promethean"
	"promethean/client"
	"promethean/event"
)

// Order%[2]d is a payload.
type Order%[2]d struct {
	Item  string ` + "`json:\"item\"`" + `
	Count int    ` + "`json:\"count\"`" + `
}

// Serve%[2]d publishes what is posted.
func Serve%[2]d(hub *promethean.Hub, c *client.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o Order%[2]d
		if err := errors.Join(json.NewDecoder(r.Body).Decode(&o), r.Body.Close()); err != nil {
			http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		if _, err := hub.Emit(r.Context(), "%[3]s", o, promethean.Key(o.Item), promethean.Header("x-source", "web")); err != nil {
			http.Error(w, fmt.Sprint(err), http.StatusInternalServerError)
		}
	}
}

// Handle%[2]d reads it.
func Handle%[2]d(ctx context.Context, hub *promethean.Hub) error {
	_, err := hub.Subscribe(ctx, "orders.placed", "g%[2]d", promethean.Handle(func(_ context.Context, o Order%[2]d, e event.Event, _ *promethean.Delivery) error {
		fmt.Println(o.Item, e.Seq)
		return nil
	}))
	return err
}
`

const tsText = `import { Client, type Subscription } from 'promethean-client';

interface Order%[1]d { item: string; count: number }

export class Shop%[1]d {
  #hub: Client;
  readonly seen = new Map<string, Order%[1]d>();

  constructor(url: string, private readonly log: (line: string) => void = console.log) {
    this.#hub = new Client(url);
  }

  async place(item: string, count = 1): Promise<number> {
    const { seq } = await this.#hub.publish('%[2]s', { item, count }, { key: item, headers: { 'x-source': ` + "`web`" + ` } });
    this.log(` + "`${item} is ${seq}`" + `);
    return seq;
  }

  async watch(): Promise<Subscription> {
    return this.#hub.subscribe<Order%[1]d>('orders.placed', 'web%[1]d', async ({ event }) => {
      this.seen.set(event.key ?? event.id, event.payload!);
    });
  }

  async *tail() {
    for await (const event of this.#hub.tail<Order%[1]d>('orders.placed')) yield event.payload?.count ?? 0;
  }
}
`

// lintGenerated looks at a generated tree and says how long that took, by the clock
// and by the processors.
func lintGenerated(tb testing.TB, n int) (took, work time.Duration) {
	tb.Helper()
	dir := generate(tb, n)
	// As a program that is being worked on has built it.
	cmd := exec.Command("go", "build", "./pkg0")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	began, before := time.Now(), spent(tb)
	list, err := tree.Run(tb.Context(), tree.Options{Paths: []string{dir}})
	took, work = time.Since(began), spent(tb)-before
	if err != nil {
		tb.Fatal(err)
	}
	if want := 2 * ((n + 9) / 10); len(list) != want {
		tb.Errorf("%d findings, want %d", len(list), want)
		for _, f := range list[:min(len(list), 5)] {
			tb.Log(f.Position, f.Message)
		}
	}
	return took, work
}

func TestThousandFiles(t *testing.T) {
	took, work := lintGenerated(t, 500)
	t.Logf("1,000 files took %v, and %v of the processors", took, work)
	if limit := most * slowed; work > limit {
		t.Errorf("1,000 files took %v of the processors, at most %v were wanted", work, limit)
	}
}

func BenchmarkThousandFiles(b *testing.B) {
	for b.Loop() {
		took, work := lintGenerated(b, 500)
		b.ReportMetric(float64(took.Milliseconds()), "ms/tree")
		b.ReportMetric(float64(work.Milliseconds()), "cpu-ms/tree")
	}
}
