package prometheantest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/gateway"
	"promethean/partition"
	"promethean/schema"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/view"
)

// Option changes what [Start] makes.
type Option func(*options)

type options struct {
	bare     bool
	memory   bool
	patience time.Duration
	hub      promethean.Options
	gateway  gateway.Options
	process  process.Options
	parted   partition.Options
}

// WithoutProjector leaves the process projector out. The hub is then empty, and
// has no group.
func WithoutProjector() Option { return func(o *options) { o.bare = true } }

// InMemory lets the hub listen in memory, as it does in a bubble anyway. It can
// be reached through [Hub.Client] and [Hub.Dial] only.
func InMemory() Option { return func(o *options) { o.memory = true } }

// Patience is how long [Hub.Eventually] and [Hub.ExpectEvents] wait. The default
// is 10 s, and in a bubble, where waiting takes no time, one minute.
func Patience(d time.Duration) Option { return func(o *options) { o.patience = d } }

// HubOptions are the hub's. Where there is no Logger, warnings go to the
// [Recorder].
func HubOptions(ho promethean.Options) Option { return func(o *options) { o.hub = ho } }

// GatewayOptions are the gateway's: tokens, rates, and how patient it is.
func GatewayOptions(g gateway.Options) Option { return func(o *options) { o.gateway = g } }

// ProjectorOptions are the process projector's.
func ProjectorOptions(p process.Options) Option { return func(o *options) { o.process = p } }

// PartitionOptions are those of the coordinator of partitioned groups: how long a
// silent member counts as alive, and how patient it is.
func PartitionOptions(p partition.Options) Option { return func(o *options) { o.parted = p } }

// Hub is a hub that belongs to a test.
type Hub struct {
	t        testing.TB
	bubbled  bool
	patience time.Duration

	hub       *promethean.Hub
	schemas   *schema.Registry
	views     *view.Set
	parted    *partition.Coordinator
	gateway   *gateway.Gateway
	projector *process.Projector
	listener  *tracked
	memory    *memoryListener // nil if it listens on a port
	server    *http.Server
	served    chan error
	client    *http.Client
	recorder  *Recorder
	faults    *faults

	stop func() error

	mu   sync.Mutex
	seen map[string]uint64 // the last seq of a topic that was expected
}

// segment is the size of the log's segments: small, so that a hub is made in
// milliseconds. It bounds what one publish may hold to a little less.
const segment = 4 << 20

// stopWait is how long the hub has to stop, and closeWait how long connections
// have to say good-bye before they are cut.
const (
	stopWait  = 10 * time.Second
	closeWait = 50 * time.Millisecond
)

// Start gives a hub that stops with the test.
func Start(t testing.TB, opts ...Option) *Hub {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	h := &Hub{t: t, bubbled: inBubble(), seen: make(map[string]uint64), served: make(chan error, 1)}
	h.patience = o.patience
	if h.patience <= 0 {
		h.patience = 10 * time.Second
		if h.bubbled {
			h.patience = time.Minute
		}
	}
	h.stop = sync.OnceValue(h.close)
	t.Cleanup(h.end)
	if err := h.open(t.Context(), &o); err != nil {
		t.Fatalf("prometheantest: start a hub: %v", err)
	}
	return h
}

// inBubble says whether the caller is in a bubble of synctest: outside, Wait
// panics. It does so inside too if another goroutine waits.
func inBubble() (in bool) {
	defer func() { in = !strings.Contains(fmt.Sprint(recover()), "not in a bubble") }()
	synctest.Wait()
	return true
}

func (h *Hub) open(ctx context.Context, o *options) error {
	h.recorder = newRecorder()
	h.faults = &faults{recorder: h.recorder}
	if o.hub.Logger == nil {
		o.hub.Logger = slog.New(slog.NewTextHandler(logWriter{h.recorder}, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
	}
	h.recorder.observe(&o.hub)
	log, err := logstore.OpenMemory(logstore.Options{
		Limits: o.hub.Limits, Logger: o.hub.Logger, Synced: o.hub.Metrics.Synced,
		SegmentSize: max(segment, 4*int64(o.hub.Limits.Payload)),
	})
	if err != nil {
		return err
	}
	if h.hub, err = promethean.New(&faultyLog{Store: log, faults: h.faults}, o.hub); err != nil {
		return err
	}
	if err := h.listen(h.bubbled || o.memory); err != nil {
		return err
	}
	g := o.gateway
	g.Hosts = append(g.Hosts[:len(g.Hosts):len(g.Hosts)], memoryHost)
	if g.Logger == nil {
		g.Logger = o.hub.Logger
	}
	if h.schemas, err = schema.Open(ctx, h.hub, schema.Options{Logger: o.hub.Logger}); err != nil {
		return err
	}
	h.views = view.NewSet()
	if o.parted.Logger == nil {
		o.parted.Logger = o.hub.Logger
	}
	if h.parted, err = partition.New(h.hub, o.parted); err != nil {
		return err
	}
	g.Schemas, g.Views, g.Partitions = h.schemas, h.views, h.parted
	h.gateway = gateway.New(h.hub, g)
	h.server = &http.Server{
		Handler: h.gateway, ConnContext: h.gateway.ConnContext, ReadHeaderTimeout: stopWait,
		ErrorLog: slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError), // dropped connections are nobody's fault
	}
	go func() { h.served <- h.server.Serve(h.listener) }()
	h.client = &http.Client{Transport: &http.Transport{DialContext: h.Dial}}
	if o.bare {
		return nil
	}
	if o.process.Logger == nil {
		o.process.Logger = o.hub.Logger
	}
	h.projector, err = process.Start(ctx, h.hub, o.process)
	return err
}

func (h *Hub) listen(inMemory bool) error {
	if inMemory {
		h.memory = newMemoryListener()
		h.listener = track(h.memory)
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h.listener = track(l)
	return nil
}

// end is the last that happens to the hub.
func (h *Hub) end() {
	h.t.Helper()
	if err := h.stop(); err != nil {
		h.t.Errorf("prometheantest: stop the hub: %v", err)
	}
	if h.t.Failed() {
		if h.recorder != nil {
			h.t.Logf("what the hub did:\n%s", h.recorder)
		}
		return
	}
	for _, where := range h.faults.left() {
		h.t.Errorf("%s: FailNextAppend: no such append came, so that nothing has failed", where)
	}
}

// Stop stops the hub now rather than at the end of the test, which fails then if
// that went wrong. Calling it again does nothing.
func (h *Hub) Stop() {
	_ = h.stop() // end looks at what it says
}

func (h *Hub) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	var errs []error
	if h.projector != nil {
		errs = append(errs, h.projector.Stop(ctx))
	}
	if h.gateway != nil {
		h.client.CloseIdleConnections()
		h.gateway.Drain()
		// Who listens hears why; who does not is not waited for.
		polite, cancel := context.WithTimeout(ctx, closeWait)
		_ = h.server.Shutdown(polite) // the drop below is the end in any case
		_ = h.gateway.Close(polite)   // likewise
		cancel()
		h.listener.drop()
		errs = append(errs, h.server.Close(), h.gateway.Close(ctx))
		if err := <-h.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
		h.client.CloseIdleConnections()
	} else if h.listener != nil {
		errs = append(errs, h.listener.Close())
	}
	if h.parted != nil {
		errs = append(errs, h.parted.Close(ctx))
	}
	if h.views != nil {
		errs = append(errs, h.faults.without(h.views.Close()))
	}
	if h.schemas != nil {
		errs = append(errs, h.schemas.Close())
	}
	if h.hub != nil {
		errs = append(errs, h.faults.without(h.hub.Close()))
	}
	return errors.Join(errs...)
}

// Bus is the hub itself, to be given to the code under test.
func (h *Hub) Bus() *promethean.Hub { return h.hub }

// Schemas are those of the hub. What comes over HTTP and WebSockets is held to
// them; to have the same for what the code under test publishes, give it
// schema.Validate(h.Bus(), h.Schemas()).
func (h *Hub) Schemas() *schema.Registry { return h.schemas }

// Views are those that the hub serves under /views. Add the views of the code under
// test, started by [view.Changelog] or [view.Transactional] on [Hub.Bus]; they are
// closed with the hub.
func (h *Hub) Views() *view.Set { return h.views }

// Partitions is the coordinator of partitioned groups, for code under test that
// subscribes by [partition.SubscribePartitioned].
func (h *Hub) Partitions() *partition.Coordinator { return h.parted }

// URL is the address of the hub, such as http://127.0.0.1:41234. In memory it is
// http://hub.test, which only [Hub.Client] and [Hub.Dial] reach.
func (h *Hub) URL() string {
	if h.memory != nil {
		return "http://" + memoryHost
	}
	return "http://" + h.listener.Addr().String()
}

// Client reaches the hub, and nobody else, at [Hub.URL]. It serves for
// WebSockets too, where a library takes an *http.Client for its handshake.
func (h *Hub) Client() *http.Client { return h.client }

// Dial connects to the hub. It can be the DialContext of an [http.Transport]. An
// address that is not the hub's is refused: a test that reaches for something
// else should be told.
func (h *Hub) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if own := h.listener.Addr().String(); addr != own {
		return nil, fmt.Errorf("prometheantest: dial %s: this client reaches the hub of the test only, %s; use %s", addr, own, h.URL())
	}
	if h.memory != nil {
		return h.memory.dial(ctx)
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// Publish stores an event whose payload is v as JSON, and ends the test if that
// fails. A [json.RawMessage] is taken as it is. Where an error is expected, use
// [Hub.Bus].
func (h *Hub) Publish(topic string, v any, opts ...promethean.PublishOption) promethean.Receipt {
	h.t.Helper()
	payload, err := encode(v)
	if err != nil {
		h.t.Fatalf("publish topic %s: payload: %v", topic, err)
	}
	e := event.New(topic, payload)
	for _, o := range opts {
		o(&e)
	}
	got, err := h.hub.Publish(h.t.Context(), e)
	if err != nil {
		h.t.Fatalf("publish topic %s: %v\n    payload %s", topic, err, short(payload))
	}
	return got[0]
}

func encode(v any) (json.RawMessage, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, nil
	}
	return json.Marshal(v)
}

// Events gives all events of a topic.
func (h *Hub) Events(topic string) []event.Event {
	h.t.Helper()
	list, err := h.read(topic, 0)
	if err != nil {
		h.t.Fatalf("read topic %s: %v", topic, err)
	}
	return list
}

func (h *Hub) read(topic string, after uint64) (list []event.Event, err error) {
	for e, err := range h.hub.Read(context.Background(), store.Query{Topic: topic, After: after}) {
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// Recorder tells what the hub did.
func (h *Hub) Recorder() *Recorder { return h.recorder }
