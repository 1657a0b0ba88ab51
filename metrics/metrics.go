// Package metrics tells Prometheus what happens in a hub.
//
//	reg := prometheus.NewRegistry()
//	m := metrics.New(metrics.Options{})
//	reg.MustRegister(m)
//	hub, err := promethean.Open("data", promethean.Options{Metrics: m})
//
// The names are those of the contract: events_published_total,
// events_delivered_total and so on, with the labels topic and group. The
// number of label values is bounded: topics and groups beyond the bound are
// counted together under "other".
package metrics

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"promethean"
)

// other stands for the label values that are too many.
const other = "other"

// Options configure the metrics.
type Options struct {
	// Namespace is put before every name. Default none.
	Namespace string
	// MaxSeries bounds how many topics, and how many pairs of topic and group,
	// have series of their own. Default 1000.
	MaxSeries int
}

// Metrics implements [promethean.Metrics] and [prometheus.Collector].
type Metrics struct {
	promethean.NoMetrics
	max int

	hub atomic.Pointer[promethean.Hub]
	lag *prometheus.Desc

	mu     sync.RWMutex
	topics map[string]*topicSeries
	groups map[pair]*groupSeries

	published, delivered, redelivered, acked, nacked, dead, expired *prometheus.CounterVec
	inflight                                                        *prometheus.GaugeVec
	syncTook                                                        prometheus.Histogram
	publishTook, readTook, handlerTook, latency                     *prometheus.HistogramVec
}

type pair struct{ topic, group string }

type topicSeries struct {
	published prometheus.Counter
	took      prometheus.Observer
}

type groupSeries struct {
	delivered, redelivered, acked, nacked, dead, expired prometheus.Counter
	inflight                                             prometheus.Gauge
	read, handler, latency                               prometheus.Observer
}

// buckets in milliseconds.
var buckets = []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000}

// New makes metrics. Register them with a Prometheus registry.
func New(o Options) *Metrics {
	if o.MaxSeries == 0 {
		o.MaxSeries = 1000
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: o.Namespace, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: o.Namespace, Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &Metrics{
		max:         o.MaxSeries,
		lag:         prometheus.NewDesc(prometheus.BuildFQName(o.Namespace, "", "group_lag"), "Events that are not settled.", []string{"topic", "group"}, nil),
		syncTook:    prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: o.Namespace, Name: "store_sync_duration_ms", Help: "Time of one sync of the log.", Buckets: buckets}),
		topics:      make(map[string]*topicSeries),
		groups:      make(map[pair]*groupSeries),
		published:   counter("events_published_total", "Events stored.", "topic"),
		delivered:   counter("events_delivered_total", "Events handed out.", "topic", "group"),
		redelivered: counter("events_redelivered_total", "Events handed out again.", "topic", "group"),
		acked:       counter("events_acked_total", "Events settled by an ack.", "topic", "group"),
		nacked:      counter("events_nacked_total", "Deliveries that failed.", "topic", "group"),
		dead:        counter("events_dead_lettered_total", "Events moved to the dead letters.", "topic", "group"),
		expired:     counter("events_expired_total", "Events that retention removed before they were settled.", "topic", "group"),
		inflight:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: o.Namespace, Name: "events_inflight", Help: "Events handed out and not settled."}, []string{"topic", "group"}),
		publishTook: histogram("publish_duration_ms", "Time from publish to its acknowledgement.", "topic"),
		readTook:    histogram("subscribe_poll_duration_ms", "Time of one read-ahead.", "topic", "group"),
		handlerTook: histogram("delivery_handler_duration_ms", "Time of one call of a handler.", "topic", "group"),
		latency:     histogram("delivery_latency_ms", "Time from publish to ack.", "topic", "group"),
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.published, m.delivered, m.redelivered, m.acked, m.nacked, m.dead, m.expired, m.inflight, m.syncTook, m.publishTook, m.readTook, m.handlerTook, m.latency}
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.lag
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
	m.collectLag(ch)
}

// collectLag asks the hub, so that lag costs nothing while nobody looks.
func (m *Metrics) collectLag(ch chan<- prometheus.Metric) {
	hub := m.hub.Load()
	if hub == nil {
		return
	}
	n, rest := 0, 0.0
	for i, err := range hub.Groups(context.Background(), "") {
		if err != nil {
			return // the hub is closed
		}
		if n++; n > m.max {
			rest += float64(i.Lag)
			continue
		}
		ch <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, float64(i.Lag), i.Topic, i.Group)
	}
	if n > m.max {
		ch <- prometheus.MustNewConstMetric(m.lag, prometheus.GaugeValue, rest, other, other)
	}
}

// Attach implements [promethean.Metrics].
func (m *Metrics) Attach(h *promethean.Hub) { m.hub.Store(h) }

// Synced implements [promethean.Metrics].
func (m *Metrics) Synced(took time.Duration) { m.syncTook.Observe(ms(took)) }

func (m *Metrics) topic(topic string) *topicSeries {
	m.mu.RLock()
	s := m.topics[topic]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.topics[topic]; s != nil {
		return s
	}
	if len(m.topics) >= m.max {
		topic = other
		if s := m.topics[topic]; s != nil {
			return s
		}
	}
	s = &topicSeries{m.published.WithLabelValues(topic), m.publishTook.WithLabelValues(topic)}
	m.topics[topic] = s
	return s
}

func (m *Metrics) group(topic, group string) *groupSeries {
	p := pair{topic, group}
	m.mu.RLock()
	s := m.groups[p]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.groups[p]; s != nil {
		return s
	}
	if len(m.groups) >= m.max {
		p = pair{other, other}
		if s := m.groups[p]; s != nil {
			return s
		}
	}
	l := []string{p.topic, p.group}
	s = &groupSeries{
		delivered: m.delivered.WithLabelValues(l...), redelivered: m.redelivered.WithLabelValues(l...),
		acked: m.acked.WithLabelValues(l...), nacked: m.nacked.WithLabelValues(l...), dead: m.dead.WithLabelValues(l...),
		expired: m.expired.WithLabelValues(l...), inflight: m.inflight.WithLabelValues(l...),
		read: m.readTook.WithLabelValues(l...), handler: m.handlerTook.WithLabelValues(l...), latency: m.latency.WithLabelValues(l...),
	}
	m.groups[p] = s
	return s
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Published implements [promethean.Metrics].
func (m *Metrics) Published(topic string, took time.Duration) {
	s := m.topic(topic)
	s.published.Inc()
	s.took.Observe(ms(took))
}

// Delivered implements [promethean.Metrics].
func (m *Metrics) Delivered(topic, group string, again bool) {
	s := m.group(topic, group)
	s.delivered.Inc()
	if again {
		s.redelivered.Inc()
	}
}

// Acked implements [promethean.Metrics].
func (m *Metrics) Acked(topic, group string, sincePublish time.Duration) {
	s := m.group(topic, group)
	s.acked.Inc()
	s.latency.Observe(ms(max(sincePublish, 0)))
}

// Nacked implements [promethean.Metrics].
func (m *Metrics) Nacked(topic, group string) { m.group(topic, group).nacked.Inc() }

// DeadLettered implements [promethean.Metrics].
func (m *Metrics) DeadLettered(topic, group string) { m.group(topic, group).dead.Inc() }

// Expired implements [promethean.Metrics].
func (m *Metrics) Expired(topic, group string, n uint64) {
	m.group(topic, group).expired.Add(float64(n))
}

// InFlight implements [promethean.Metrics].
func (m *Metrics) InFlight(topic, group string, delta int) {
	m.group(topic, group).inflight.Add(float64(delta))
}

// ReadAhead implements [promethean.Metrics].
func (m *Metrics) ReadAhead(topic, group string, took time.Duration) {
	m.group(topic, group).read.Observe(ms(took))
}

// Handled implements [promethean.Metrics].
func (m *Metrics) Handled(topic, group string, took time.Duration) {
	m.group(topic, group).handler.Observe(ms(took))
}
