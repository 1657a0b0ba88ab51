package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"promethean/internal/app/config"
	"promethean/metrics"
)

// newLogger writes to w from a level on that can be changed.
func newLogger(w io.Writer, c config.Log, level *slog.LevelVar) *slog.Logger {
	setLevel(level, c)
	o := &slog.HandlerOptions{Level: level}
	format := c.Format
	if _, terminal := terminalWidth(w); format == "auto" {
		format = "json"
		if terminal {
			format = "text"
		}
	}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

// setLevel sets a level that the configuration has checked.
func setLevel(level *slog.LevelVar, c config.Log) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.Level)); err != nil {
		panic(err)
	}
	level.Set(l)
}

// figures are what /metrics shows.
type figures struct {
	hub         *metrics.Metrics
	connections prometheus.Gauge
	handler     http.Handler
	registry    *prometheus.Registry
}

// add has /metrics show more.
func (f *figures) add(c prometheus.Collector) { f.registry.MustRegister(c) }

// liveHeap adds what the last collection of garbage left to the figures of the
// runtime: go_gc_heap_live_bytes shows a leak where resident memory swings.
var liveHeap = collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)})

func newFigures(namespace string, log *slog.Logger) *figures {
	f := &figures{
		hub:         metrics.New(metrics.Options{Namespace: namespace}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "ws_connections", Help: "WebSockets that are open."}),
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(f.hub, f.connections, collectors.NewGoCollector(liveHeap), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f.registry = reg
	f.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError, Registry: reg,
	})
	return f
}

// newTracing sends spans to where the settings say; an address without a path
// means the usual one. Spans that cannot be sent are dropped, and the log says
// so.
func newTracing(ctx context.Context, endpoint, version string, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing", "err", err) }))
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	if strings.Trim(at.Path, "/") == "" {
		at.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(at.String()))
	if err != nil {
		return nil, fmt.Errorf("send spans to %s: %w", config.Redact(endpoint), err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(resource.NewSchemaless(
		attribute.String("service.name", "promethean"), attribute.String("service.version", version)))), nil
}

// profiles serves pprof. It has a listener of its own, on loopback, and takes no
// request that a page in a browser can have caused.
func profiles() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !localHost(r.Host) || r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
				http.Error(w, "profiles are for this machine only", http.StatusForbidden)
				return
			}
			mux.ServeHTTP(w, r)
		}),
	}
}

// localHost says whether a request names us as this machine.
func localHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && ip.IsLoopback()
}
