package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"promethean"
	"promethean/event"
	"promethean/internal/app/config"
)

// opened opens a server with a configuration.
func opened(t *testing.T, flags map[string]string) (*server, *bytes.Buffer) {
	t.Helper()
	all := map[string]string{"listen": "127.0.0.1:0", "store": "memory://"}
	for k, v := range flags {
		all[k] = v
	}
	c, err := config.Load(config.Source{Flags: all})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := &server{c: c, level: new(slog.LevelVar), failed: make(chan error, 2)}
	s.log = newLogger(&lockedWriter{w: &log}, c.Log, s.level)
	if err := s.open(t.Context(), "v0"); err != nil {
		t.Fatal(err)
	}
	return s, &log
}

// lockedWriter lets several goroutines write.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func get(t *testing.T, url string) (int, []byte) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, data
}

// Prometheus reads all that the contract names, with its labels.
func TestMetricsAreWhatPrometheusReads(t *testing.T) {
	defer goleak.VerifyNone(t)
	s, _ := opened(t, map[string]string{"metrics.namespace": "bus"})
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.close(10 * time.Second); err != nil {
			t.Error(err)
		}
	}()
	done := make(chan struct{}, 10)
	_, err := s.hub.Subscribe(t.Context(), "t.a", "g", func(_ context.Context, e event.Event, d *promethean.Delivery) error {
		defer func() { done <- struct{}{} }()
		if e.Key == "again" && d.Attempt == 1 {
			return promethean.Retry(0, errors.New("later"))
		}
		if e.Key == "dead" {
			return promethean.Dead(errors.New("no"))
		}
		return nil
	}, promethean.MaxInFlight(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ok", "again", "dead"} {
		if _, err := s.hub.Emit(t.Context(), "t.a", 1, promethean.Key(key)); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		<-done
	}
	for end := time.Now().Add(10 * time.Second); ; {
		l, err := s.hub.Lag(t.Context(), "t.a", "g")
		if err != nil || time.Now().After(end) {
			t.Fatal(l, err)
		}
		if l.Events == 0 {
			break
		}
	}
	status, text := get(t, s.where()+"/metrics")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	one, two := []string{"topic"}, []string{"group", "topic"}
	for name, want := range map[string]struct {
		kind   dto.MetricType
		labels []string
		n      float64 // at least
	}{
		"events_published_total":       {dto.MetricType_COUNTER, one, 3},
		"events_delivered_total":       {dto.MetricType_COUNTER, two, 4},
		"events_acked_total":           {dto.MetricType_COUNTER, two, 2},
		"events_nacked_total":          {dto.MetricType_COUNTER, two, 2},
		"events_dead_lettered_total":   {dto.MetricType_COUNTER, two, 1},
		"events_redelivered_total":     {dto.MetricType_COUNTER, two, 1},
		"events_expired_total":         {dto.MetricType_COUNTER, two, 0},
		"events_inflight":              {dto.MetricType_GAUGE, two, 0},
		"group_lag":                    {dto.MetricType_GAUGE, two, 0},
		"subscribe_poll_duration_ms":   {dto.MetricType_HISTOGRAM, two, 1},
		"delivery_handler_duration_ms": {dto.MetricType_HISTOGRAM, two, 4},
		"delivery_latency_ms":          {dto.MetricType_HISTOGRAM, two, 2},
		"publish_duration_ms":          {dto.MetricType_HISTOGRAM, one, 3},
		"ws_connections":               {dto.MetricType_GAUGE, nil, 0},
		"store_sync_duration_ms":       {dto.MetricType_HISTOGRAM, nil, 1},
	} {
		f := families["bus_"+name]
		if f == nil || f.GetType() != want.kind {
			t.Errorf("%s: %v", name, f)
			continue
		}
		m := f.GetMetric()[0]
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		n := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		if !slices.Equal(labels, want.labels) || n < want.n {
			t.Errorf("%s: labels %v, %g; want %v, %g", name, labels, n, want.labels, want.n)
		}
		if want.kind == dto.MetricType_HISTOGRAM && len(m.GetHistogram().GetBucket()) < 5 {
			t.Errorf("%s has no buckets", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if families[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
}

// Spans reach a collector, the last ones when the hub ends.
func TestSpansAreSent(t *testing.T) {
	defer goleak.VerifyNone(t)
	var mu sync.Mutex
	var got bytes.Buffer
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		got.Write(body)
		mu.Unlock()
	}))
	defer collector.Close()
	s, _ := opened(t, map[string]string{"tracing.otlp_endpoint": collector.URL})
	if _, err := s.hub.Emit(t.Context(), "orders.placed", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.close(10 * time.Second); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"publish orders.placed", "service.name", "messaging.system"} {
		if !bytes.Contains(got.Bytes(), []byte(want)) {
			t.Errorf("%q did not arrive", want)
		}
	}
}

// A command that runs in a process ends when its context does, and leaves
// nothing behind.
func TestServeEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- Run(ctx, "v0", []string{"serve", "--listen", "127.0.0.1:0", "--store", "memory://"}, w, &lockedWriter{w: &stderr})
	}()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil || !strings.HasPrefix(string(line[:n]), "promethean ready on http://127.0.0.1:") {
		t.Fatalf("%q, %v", line[:n], err)
	}
	cancel()
	if got := <-code; got != exitDone {
		t.Errorf("exit code %d: %s", got, stderr.String())
	}
	// One that cannot say that it is ready does not run unseen.
	errs := &bytes.Buffer{}
	if got := Run(t.Context(), "v0", []string{"serve", "--listen", "127.0.0.1:0", "--store", "memory://"}, failing{}, &lockedWriter{w: errs}); got != exitFailed || !strings.Contains(errs.String(), "say that the hub is ready") {
		t.Errorf("exit code %d: %s", got, errs.String())
	}
	// Nor one whose address is taken.
	s, _ := opened(t, nil)
	defer func() {
		if err := s.close(time.Second); err != nil {
			t.Error(err)
		}
	}()
	errs.Reset()
	if got := Run(t.Context(), "v0", []string{"serve", "--listen", s.listener.Addr().String(), "--store", "memory://"}, io.Discard, &lockedWriter{w: errs}); got != exitFailed || !strings.Contains(errs.String(), "address already in use") {
		t.Errorf("exit code %d: %s", got, errs.String())
	}
}

// The example that ships says what is true, and all of it.
func TestExampleIsComplete(t *testing.T) {
	const name = "../../promethean.example.yaml"
	c, err := config.Load(config.Source{File: name})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/serve.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range config.Settings() {
		last := s.Key[strings.LastIndexByte(s.Key, '.')+1:]
		if !s.NotInFile && !strings.Contains(string(text), last+":") {
			t.Errorf("%s does not show %s", name, s.Key)
		}
		reloads := "restart"
		if s.Reloads {
			reloads = "SIGHUP"
		}
		value := "`" + s.Default() + "`"
		if s.Default() == "" {
			value = "none"
		}
		row := fmt.Sprintf("| `%s` | %s | `--%s` | `%s` | %s |", s.Key, value, s.Flag(), s.Env(), reloads)
		if s.NotInFile {
			row = fmt.Sprintf("| not in the file | %s | `--%s` | `%s` | %s |", value, s.Flag(), s.Env(), reloads)
		}
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/serve.md lacks: %s", row)
		}
	}
	if len(c.Topics) == 0 || len(c.Auth.Tokens) == 0 || len(c.Limits.TopicRate) == 0 {
		t.Errorf("%+v", c)
	}
}

// Files that change are seen by a handshake without a signal; those that cannot
// be used leave what was before.
func TestCertificatesFollowTheirFiles(t *testing.T) {
	dir := t.TempDir()
	files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	first := pairOf(t, files, server.TLS.Certificates[0], time.Unix(1000, 0))
	var log bytes.Buffer
	c, err := newCertificates(files, newLogger(&log, config.Log{Format: "json", Level: "info"}, new(slog.LevelVar)))
	if err != nil {
		t.Fatal(err)
	}
	now := func() []byte {
		t.Helper()
		got, err := c.current(nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Certificates[0].Certificate[0]
	}
	later := func() { c.looked = time.Time{} }
	if !bytes.Equal(now(), first) {
		t.Fatal("the first one is not shown")
	}
	second := pairOf(t, files, otherPair(t), time.Unix(2000, 0))
	if !bytes.Equal(now(), first) {
		t.Error("the files are looked at with every handshake")
	}
	later()
	if !bytes.Equal(now(), second) {
		t.Error("the second one is not shown")
	}
	if err := os.WriteFile(files.Cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		later()
		if !bytes.Equal(now(), second) {
			t.Error("the second one is not kept")
		}
	}
	if n := strings.Count(log.String(), "cannot be used"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
	if err := c.use(config.TLS{Cert: files.Cert, Key: files.Key}); err == nil {
		t.Error("a broken certificate is taken")
	}
	if err := c.use(config.TLS{Cert: files.Cert, Key: filepath.Join(dir, "none.pem")}); err == nil {
		t.Error("a missing key is taken")
	}
}
