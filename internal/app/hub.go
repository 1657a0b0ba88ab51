package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"

	"promethean"
	"promethean/cluster"
	"promethean/compact"
	"promethean/event"
	"promethean/gateway"
	"promethean/internal/app/config"
	"promethean/partition"
	"promethean/schema"
	"promethean/tracing"
)

const (
	// headerWait is how long a client may take to send the head of a request,
	// and maxHeader how large that may be: both bound what one who sends
	// slowly, or too much, can hold.
	headerWait = 10 * time.Second
	maxHeader  = 64 << 10
	// idleWait is how long a connection may stay without a request.
	idleWait = 2 * time.Minute
	// maxStreams bounds the requests under way on one HTTP/2 connection.
	maxStreams = 250
	// endWait is how long spans may take to be sent at the end.
	endWait = 5 * time.Second
)

// server is a hub that runs.
type server struct {
	c     *config.Config
	log   *slog.Logger
	level *slog.LevelVar

	hub      *promethean.Hub
	schemas  *schema.Registry
	models   *models
	squeezer *compact.Compactor
	cluster  *cluster.Cluster
	parts    *partition.Coordinator
	inflow   inflow
	gateway  *gateway.Gateway
	login    *login        // nil where nobody needs a token
	certs    *certificates // nil without TLS
	spans    *sdktrace.TracerProvider
	http     *http.Server
	listener net.Listener
	pprof    *http.Server

	failed chan error // a listener's end that nobody asked for
	work   inFlight
	beside func(context.Context) error // stops the company; nil without
}

// company is what runs beside a hub in the same process. It is started when the
// hub takes work, and stopped before the hub is.
type company func(*server) (stop func(context.Context) error, err error)

// serve runs a hub until it is told to stop. with may be nil.
func (a *app) serve(ctx context.Context, c *config.Config, load func() (*config.Config, error), signals <-chan os.Signal, with company) error {
	s := &server{c: c, level: new(slog.LevelVar), failed: make(chan error, 2)}
	s.log = newLogger(a.stderr, c.Log, s.level)
	if err := s.open(ctx, a.version); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // told to stop before it was ready
		}
		return err
	}
	boss := newSupervisor(s.log)
	where := s.where()
	if _, err := fmt.Fprintf(a.stdout, "promethean ready on %s (store %s)\n", where, config.Redact(c.Store)); err != nil {
		return errors.Join(fmt.Errorf("say that the hub is ready: %w", err), s.close(c.DrainTimeout))
	}
	s.log.Info("ready", "address", where, "store", config.Redact(c.Store), "config", c.File, "version", a.version, "auth", c.Auth.On())
	if !config.Loopback(c.Listen) && !c.Auth.On() {
		s.log.Warn("other machines can reach the hub, and nobody needs a token", "listen", c.Listen)
	}
	if with != nil {
		stop, err := with(s)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return s.close(c.DrainTimeout) // told to stop meanwhile
		}
		if err != nil {
			return errors.Join(err, s.close(c.DrainTimeout))
		}
		s.beside = stop
	}
	boss.ready("serving on " + where)
	return s.run(ctx, load, signals, boss)
}

// run goes on until the hub is told to stop and has stopped.
func (s *server) run(ctx context.Context, load func() (*config.Config, error), signals <-chan os.Signal, boss *supervisor) error {
	var beat <-chan time.Time
	if every := boss.watchdog(); every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		beat = t.C
	}
	reloads := make(chan *config.Config, 1)
	reloading, again := false, false
	reload := func() {
		boss.reloading()
		reloading = true
		old := s.c
		go func() { reloads <- s.reload(ctx, old, load) }()
	}
	// A reload ends before the hub it works on does.
	var stopped chan error
	told, stopping, cause := ctx.Done(), false, error(nil)
	end := func() {
		if stopping && !reloading && stopped == nil {
			stopped = make(chan error, 1)
			go func() { stopped <- s.close(s.c.DrainTimeout) }()
		}
	}
	stop := func() {
		if stopping {
			return
		}
		stopping, told = true, nil
		boss.stopping()
		s.log.Info("stopping: work under way is finished", "within", s.c.DrainTimeout.String())
		s.gateway.Drain()
		end()
	}
	asked := 0
	for {
		select {
		case <-beat:
			boss.tell("WATCHDOG=1")
		case <-told:
			stop()
		case err := <-s.failed:
			s.log.Error("a listener has failed", "err", err)
			cause = err
			stop()
		case sig := <-signals:
			switch {
			case sig != syscall.SIGHUP:
				if asked++; asked > 1 {
					return errors.New("stopped at once by a second signal: work under way is lost")
				}
				stop()
			case stopping:
			case reloading:
				again = true
			default:
				reload()
			}
		case c := <-reloads:
			s.c, reloading = c, false
			if again && !stopping {
				again = false
				reload()
				continue
			}
			if !stopping {
				boss.ready("serving on " + s.where())
			}
			end()
		case err := <-stopped:
			if err = errors.Join(cause, err); err == nil {
				s.log.Info("stopped")
			}
			return err
		}
	}
}

// open makes everything and begins to serve.
func (s *server) open(ctx context.Context, version string) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(time.Second))
		}
	}()
	c := s.c
	o := gateway.Options{
		Hosts: s.hosts(c), Origins: c.Origins, ConnectionRate: c.Limits.ConnectionRate, TopicRate: c.Limits.TopicRate,
		NoAutoCreate: !c.AutoCreate, Version: version, Logger: s.log,
	}
	if c.Auth.On() {
		if s.login, err = newLogin(c, s.log); err != nil {
			return err
		}
		o.Verifier = s.login
	}
	if c.TLS.On() {
		if s.certs, err = newCertificates(c.TLS, s.log); err != nil {
			return err
		}
	}
	// Listening comes before the store, which may take long: two hubs on one
	// address are found at once. Nobody is answered before it is open.
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	most, now := maxConnections(maxFiles()), rate.Sometimes{Interval: time.Minute}
	s.listener = newDoorman(l.(*net.TCPListener), most, func() {
		now.Do(func() {
			s.log.Warn("connections wait until others end: the process may have no more files", "connections", most)
		})
	})
	figures := newFigures(c.Metrics.Namespace, s.log)
	o.Metrics, o.Connections = figures.handler, func(delta int) { figures.connections.Add(float64(delta)) }
	ho := promethean.Options{
		Limits: event.Limits{Payload: c.Limits.Payload}, Logger: s.log, Metrics: figures.hub, DrainTimeout: c.DrainTimeout,
	}
	if c.Tracing.OTLPEndpoint != "" {
		if s.spans, err = newTracing(ctx, c.Tracing.OTLPEndpoint, version, s.log); err != nil {
			return err
		}
		ho.Tracer = tracing.New(s.spans)
	}
	if s.hub, err = openHub(ctx, c, ho); err != nil {
		return err
	}
	if s.schemas, err = schema.Open(ctx, s.hub, schema.Options{Logger: s.log}); err != nil {
		return err
	}
	if err = s.openModels(ctx); err != nil {
		return err
	}
	if err = s.join(version, &o); err != nil {
		return err
	}
	if err = s.openPartitions(); err != nil {
		return err
	}
	s.inflow = newInflow(s.hub, s.log)
	figures.add(newInflowMetrics(c.Metrics.Namespace, s.inflow.feeds, s.inflow.boxes))
	o.Schemas, o.Compactor, o.Views, o.Partitions = s.schemas, s.squeezer, s.models.set, s.parts
	o.Changefeeds, o.Outboxes = s.inflow.feeds, s.inflow.boxes
	o.Reduce = func(topic string) string { return reduce(c.Views, topic) }
	s.gateway = gateway.New(s.hub, o)
	if err = s.inflow.start(c, s.gateway.Bus(), s.log); err != nil {
		return err
	}
	if c.Pprof != "" {
		l, err := net.Listen("tcp", c.Pprof)
		if err != nil {
			return fmt.Errorf("pprof: %w", err)
		}
		s.pprof = profiles()
		s.log.Info("profiles", "address", "http://"+l.Addr().String()+"/debug/pprof/")
		go func() { s.ended(s.pprof.Serve(l)) }()
	}
	s.http = &http.Server{
		Handler: s.work.around(s.gateway), ConnContext: s.gateway.ConnContext,
		ReadHeaderTimeout: headerWait, MaxHeaderBytes: maxHeader, IdleTimeout: idleWait,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	go func() {
		if s.certs != nil {
			s.http.TLSConfig = s.certs.listener()
			s.ended(s.http.ServeTLS(s.listener, "", ""))
			return
		}
		s.ended(s.http.Serve(s.listener))
	}()
	return nil
}

// openModels starts what turns topics into state: views, and the compactor.
func (s *server) openModels(ctx context.Context) (err error) {
	if s.models, err = openModels(s.hub); err != nil {
		return err
	}
	if s.squeezer, err = compact.Start(ctx, s.hub, compact.Options{Hold: s.models.hold, Logger: s.log}); err != nil {
		return err
	}
	if err := setTopics(ctx, s.hub, s.schemas, s.squeezer, s.c, s.log); err != nil {
		return err
	}
	return s.models.start(ctx, s.hub, s.schemas, s.c, s.log)
}

// ended takes why a listener has ended.
func (s *server) ended(err error) {
	if !errors.Is(err, http.ErrServerClosed) {
		s.failed <- err
	}
}

// hosts are the names of the hub: those of the settings, and the one that it
// listens on.
func (s *server) hosts(c *config.Config) []string {
	if host, _, err := net.SplitHostPort(s.c.Listen); err == nil && host != "" {
		return append([]string{host}, c.Hosts...)
	}
	return c.Hosts
}

// where is the address for people and scripts.
func (s *server) where() string {
	if s.certs != nil {
		return "https://" + s.listener.Addr().String()
	}
	return "http://" + s.listener.Addr().String()
}

// close finishes what is under way, for so long at most, and releases
// everything. Readiness fails while that takes place.
func (s *server) close(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var errs []error
	if s.gateway != nil {
		s.gateway.Drain()
		if err := s.work.wait(ctx); err != nil {
			s.log.Warn("requests under way are cut off: they took longer than drain_timeout", "requests", s.work.count())
		}
		if err := s.gateway.Close(ctx); err != nil {
			s.log.Warn("connections are cut off: they took longer than drain_timeout", "err", err)
		}
	}
	if s.http != nil {
		if err := s.http.Shutdown(ctx); err != nil {
			errs = append(errs, s.http.Close())
		}
	} else if s.listener != nil {
		errs = append(errs, s.listener.Close())
	}
	if s.beside != nil {
		errs = append(errs, s.beside(ctx))
	}
	errs = append(errs, s.inflow.close()...)
	if s.parts != nil {
		errs = append(errs, s.parts.Close(ctx))
	}
	s.login.close()
	if s.cluster != nil { // nobody sends anything here any more
		if err := s.cluster.Close(ctx); err != nil {
			s.log.Warn("other hubs learn of the end when the lease is over", "err", err)
		}
	}
	if s.pprof != nil {
		errs = append(errs, s.pprof.Close())
	}
	if s.squeezer != nil {
		errs = append(errs, s.squeezer.Close())
	}
	errs = append(errs, s.models.close())
	if s.schemas != nil {
		errs = append(errs, s.schemas.Close())
	}
	if s.hub != nil {
		errs = append(errs, s.hub.Close())
	}
	if s.spans != nil {
		ctx, cancel := context.WithTimeout(context.Background(), endWait)
		defer cancel()
		if err := s.spans.Shutdown(ctx); err != nil {
			s.log.Warn("the last spans were not sent", "err", err)
		}
	}
	return errors.Join(errs...)
}

// inFlight counts the requests under way, so that the listener can stay open,
// and tell everybody that the hub stops, until the last is answered.
type inFlight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n comes to 0; nil while nobody waits
}

func (w *inFlight) around(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.add(1)
		defer w.add(-1)
		h.ServeHTTP(rw, r)
	})
}

func (w *inFlight) add(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n += n; w.n == 0 && w.idle != nil {
		close(w.idle)
		w.idle = nil
	}
}

func (w *inFlight) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// wait returns when nothing is under way for a moment, or ctx has ended.
func (w *inFlight) wait(ctx context.Context) error {
	w.mu.Lock()
	if w.n == 0 {
		w.mu.Unlock()
		return nil
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	idle := w.idle
	w.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
