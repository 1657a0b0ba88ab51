package natsstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/internal/natstest"
	"promethean/store/natsstore"
	"promethean/store/storetest"
)

// prefixes tells stores on one server apart.
var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("t%d", prefixes.Add(1)) }

// open opens a store and closes it with the test.
func open(t testing.TB, url string, o natsstore.Options) *natsstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := natsstore.Open(ctx, url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// remove deletes all streams of a prefix, so that hundreds of stores in one
// test do not slow the server down.
func remove(t testing.TB, url, prefix string) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for name := range js.StreamNames(ctx).Name() {
		if strings.HasPrefix(strings.TrimPrefix(name, "KV_"), prefix+"-") {
			if err := js.DeleteStream(ctx, name); err != nil {
				t.Log(err)
			}
		}
	}
}

// harness opens stores on one server, each with a prefix of its own.
func harness(name, url string) storetest.Harness {
	var places sync.Map // engine → prefix
	start := func(t testing.TB, prefix string) storetest.Engine {
		s := open(t, url, natsstore.Options{Prefix: prefix})
		places.Store(s, prefix)
		return s
	}
	return storetest.Harness{
		Name: name, Timeout: 4 * time.Minute, // with -race it is slow
		Open: func(t testing.TB) storetest.Engine {
			prefix := newPrefix()
			t.Cleanup(func() { remove(t, url, prefix) })
			return start(t, prefix)
		},
		Reopen: func(t testing.TB, e storetest.Engine) storetest.Engine {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			prefix, _ := places.Load(e)
			return start(t, prefix.(string))
		},
	}
}

// leakCase looks at all goroutines of the process, so its server must be in
// another one.
const leakCase = "lifecycle/no goroutine is left"

func TestConformance(t *testing.T) {
	t.Parallel()
	h := harness("single", natstest.Start(t, nil).URL())
	h.Skip = map[string]string{leakCase: "runs in TestNoGoroutineLeft, with the server in another process"}
	storetest.Run(t, h)
}

func TestModel(t *testing.T) {
	t.Parallel()
	storetest.Model(t, harness("single", natstest.Start(t, nil).URL()))
}

// TestMain runs a server in place of the tests where a test asks for one in a
// process of its own.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(serve())
	}
	os.Exit(m.Run())
}

const childEnv = "PROMETHEAN_TEST_NATS_DIR"

// serve runs a server until its input ends, and prints where it listens.
func serve() int {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: os.Getenv(childEnv),
		MaxPayload: 4 << 20, NoLog: true, NoSigs: true,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return 1
	}
	fmt.Println(s.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Shutdown()
	return 0
}

// child runs a server in another process and says where it listens.
func child(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url)
}

func TestNoGoroutineLeft(t *testing.T) {
	cases := storetest.Cases()
	i := slices.IndexFunc(cases, func(c storetest.Case) bool { return c.Name == leakCase })
	cases[i].Run(t, harness("child", child(t)))
}

func BenchmarkStore(b *testing.B) {
	b.Run("default", func(b *testing.B) { storetest.Bench(b, harness("default", natstest.Start(b, nil).URL())) })
	b.Run("sync always", func(b *testing.B) {
		url := natstest.Start(b, func(o *natstest.Options) { o.SyncAlways = true }).URL()
		storetest.Bench(b, harness("sync always", url))
	})
	b.Run("cluster", func(b *testing.B) { storetest.Bench(b, harness("cluster", natstest.StartCluster(b, 3).URL())) })
}
