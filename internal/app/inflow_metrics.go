package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"promethean/changefeed"
	"promethean/outbox"
)

// inflowMetrics are the figures of change feeds and outboxes. They are asked for
// when somebody looks, so that they cost nothing otherwise.
type inflowMetrics struct {
	feeds *changefeed.Set
	boxes *outbox.Set
	of    []figure
}

// figure is one series of a feed or an outbox: each has one of the two.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	feed func(*changefeed.Status) (float64, bool)
	box  func(*outbox.Status) (float64, bool)
}

func newInflowMetrics(namespace string, feeds *changefeed.Set, boxes *outbox.Set) *inflowMetrics {
	m := &inflowMetrics{feeds: feeds, boxes: boxes}
	feed := func(name, help string, kind prometheus.ValueType, value func(*changefeed.Status) (float64, bool)) {
		m.of = append(m.of, figure{desc: prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, []string{"feed"}, nil), kind: kind, feed: value})
	}
	box := func(name, help string, kind prometheus.ValueType, value func(*outbox.Status) (float64, bool)) {
		m.of = append(m.of, figure{desc: prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, []string{"outbox"}, nil), kind: kind, box: value})
	}
	counted := func(value func(*changefeed.Status) uint64) func(*changefeed.Status) (float64, bool) {
		return func(s *changefeed.Status) (float64, bool) { return float64(value(s)), true }
	}
	feed("changefeed_up", "1 while a change feed streams or takes its snapshot, 0 while it waits or has failed. Absent where another hub runs it.", prometheus.GaugeValue,
		func(s *changefeed.Status) (float64, bool) {
			switch s.State {
			case changefeed.Elsewhere, changefeed.Stopped:
				return 0, false
			case changefeed.Streaming, changefeed.Snapshot:
				return 1, true
			}
			return 0, true
		})
	feed("changefeed_events_total", "Events that a change feed has published.", prometheus.CounterValue, counted(func(s *changefeed.Status) uint64 { return s.Published }))
	feed("changefeed_duplicates_total", "Changes that were read again and known to the hub.", prometheus.CounterValue, counted(func(s *changefeed.Status) uint64 { return s.Duplicates }))
	feed("changefeed_oversized_total", "Documents that were too large, and replaced by a marker.", prometheus.CounterValue, counted(func(s *changefeed.Status) uint64 { return s.Oversized }))
	feed("changefeed_refused_total", "Changes that were left out because the hub refused them.", prometheus.CounterValue, counted(func(s *changefeed.Status) uint64 { return s.Refused }))
	feed("changefeed_failures_total", "Times that a change feed had to try again.", prometheus.CounterValue, counted(func(s *changefeed.Status) uint64 { return s.Failures }))
	feed("changefeed_history_lost_total", "Times that the source no longer had what came after the saved place.", prometheus.CounterValue, counted(func(s *changefeed.Status) uint64 { return s.HistoryLost }))
	feed("changefeed_lag_ms", "How long after it was made the last change was published, or the age of one that cannot be.", prometheus.GaugeValue,
		func(s *changefeed.Status) (float64, bool) {
			return float64(s.Lag.Milliseconds()), s.Lag > 0 || !s.LastChange.IsZero()
		})
	feed("changefeed_source_lag_bytes", "How much of its log the source keeps for a change feed.", prometheus.GaugeValue,
		func(s *changefeed.Status) (float64, bool) { return float64(s.LagBytes), s.LagBytes >= 0 })

	rows := func(value func(*outbox.Status) int64) func(*outbox.Status) (float64, bool) {
		return func(s *outbox.Status) (float64, bool) { return float64(value(s)), !s.StatsAt.IsZero() }
	}
	box("outbox_up", "1 while an outbox is drained, 0 while its database or the hub is away.", prometheus.GaugeValue,
		func(s *outbox.Status) (float64, bool) {
			if s.Running && s.Outage == "" {
				return 1, true
			}
			return 0, true
		})
	box("outbox_pending", "Rows that are not sent.", prometheus.GaugeValue, rows(func(s *outbox.Status) int64 { return s.Pending + s.Claimed }))
	box("outbox_refused", "Rows that were refused and are tried again.", prometheus.GaugeValue, rows(func(s *outbox.Status) int64 { return s.Refused }))
	box("outbox_failed", "Rows that wait for a person.", prometheus.GaugeValue, rows(func(s *outbox.Status) int64 { return s.Failed }))
	box("outbox_lag_ms", "Age of the oldest row that is not sent.", prometheus.GaugeValue, rows(func(s *outbox.Status) int64 { return s.Lag().Milliseconds() }))
	box("outbox_sent_total", "Rows that were published.", prometheus.CounterValue, func(s *outbox.Status) (float64, bool) { return float64(s.SentTotal), true })
	box("outbox_refusals_total", "Refusals of rows.", prometheus.CounterValue, func(s *outbox.Status) (float64, bool) { return float64(s.RefusedTotal), true })
	return m
}

// Describe implements [prometheus.Collector].
func (m *inflowMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range m.of {
		ch <- f.desc
	}
}

// Collect implements [prometheus.Collector].
func (m *inflowMetrics) Collect(ch chan<- prometheus.Metric) {
	feeds, boxes := m.feeds.List(), m.boxes.List()
	for _, f := range m.of {
		if f.feed != nil {
			for i := range feeds {
				if v, ok := f.feed(&feeds[i]); ok {
					ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v, feeds[i].Name)
				}
			}
			continue
		}
		for i := range boxes {
			if v, ok := f.box(&boxes[i]); ok {
				ch <- prometheus.MustNewConstMetric(f.desc, f.kind, v, boxes[i].Name)
			}
		}
	}
}
