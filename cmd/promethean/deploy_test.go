package main

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// metric is one that a hub in use shows.
type metric struct{ name, kind, help, labels string }

// shownMetrics are those of a hub in use, in the order that it shows them.
func shownMetrics(t *testing.T) (out []metric) {
	p := startHub(t, "--store", "memory://", "--config", inflowSettings(t))
	// Something of everything: the series of a topic, a group, a feed or an outbox
	// appear with it.
	p.shows("changefeed_lag_ms{", "outbox_pending{")
	p.get(nil, 201, "POST", "/publish/a.b", "1")
	var pulled struct {
		Events []struct{ Event struct{ ID string } }
	}
	p.get(&pulled, 200, "POST", "/pull", `{"topic":"a.b","group":"g","max":1,"wait_ms":10000,"opts":{"from":"earliest"}}`)
	p.get(nil, 200, "POST", "/nack", `{"topic":"a.b","group":"g","ids":["`+pulled.Events[0].Event.ID+`"],"dead":true}`)
	label := regexp.MustCompile(`([a-z_]+)="`)
	for s := bufio.NewScanner(strings.NewReader(string(p.call("GET", "/metrics", "").body))); s.Scan(); {
		f := strings.SplitN(s.Text(), " ", 4)
		switch {
		case f[0] == "#" && f[1] == "HELP":
			out = append(out, metric{name: f[2], help: f[3]})
		case f[0] == "#" && f[1] == "TYPE":
			out[len(out)-1].kind = f[3]
		case out[len(out)-1].labels == "":
			var labels []string
			for _, m := range label.FindAllStringSubmatch(f[0], -1) {
				if m[1] != "le" && m[1] != "quantile" {
					labels = append(labels, m[1])
				}
			}
			slices.Sort(labels)
			slices.Reverse(labels) // the topic before its group
			out[len(out)-1].labels = strings.Join(labels, ", ")
		}
	}
	p.stop()
	// Only PostgreSQL tells that, and it is not there in every run.
	out = append(out, metric{name: "changefeed_source_lag_bytes", kind: "gauge", labels: "feed", help: "How much of its log the source keeps for a change feed."})
	slices.SortFunc(out, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return out
}

// inflowSettings is a file with a change feed that has had a change, and an outbox.
func inflowSettings(t *testing.T) string {
	s, c := watched(t)
	save(t, c, "a", "up")
	dir := t.TempDir()
	db, err := sql.Open("sqlite", filepath.Join(dir, "shop.db"))
	if err == nil {
		_, err = db.ExecContext(t.Context(), "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "p.yaml")
	write(t, file, fmt.Sprintf("changefeeds: {processes: {uri: %q, database: prom, collection: processes, topic: processes.changed, snapshot: true}}\noutboxes: {shop: {uri: %q}}\n",
		s.URI(), "sqlite://"+filepath.Join(dir, "shop.db")))
	return file
}

// shows waits until the metrics have some series.
func (p *hub) shows(series ...string) {
	p.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		body := string(p.call("GET", "/metrics", "").body)
		if !slices.ContainsFunc(series, func(s string) bool { return !strings.Contains(body, s) }) {
			return
		}
		if time.Now().After(end) {
			p.Fatalf("no %v in the metrics:\n%s", series, body)
		}
	}
}

var (
	inQuotes  = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^\]]*\]`)
	clause    = regexp.MustCompile(`\b(by|on|without|ignoring) *\([^)]*\)`)
	word      = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	functions = []string{"sum", "rate", "increase", "deriv", "histogram_quantile", "and", "or", "unless", "max", "label_values"}
)

// series are the names of metrics in an expression.
func series(expr string) (out []string) {
	for _, w := range word.FindAllString(clause.ReplaceAllString(inQuotes.ReplaceAllString(expr, ""), ""), -1) {
		if !slices.Contains(functions, w) {
			out = append(out, w)
		}
	}
	return out
}

// Every figure that the dashboard and the alerts look at is one that a hub
// shows: a name that was changed would leave a panel empty and an alert silent.
func TestDashboardAndAlertsUseRealMetrics(t *testing.T) {
	have := map[string]bool{"up": true} // Prometheus' own
	for _, m := range shownMetrics(t) {
		have[m.name] = true
		if m.kind == "histogram" {
			have[m.name+"_bucket"], have[m.name+"_count"], have[m.name+"_sum"] = true, true, true
		}
	}
	used := 0
	check := func(where, expr string) {
		names := series(expr)
		if len(names) == 0 {
			t.Errorf("%s: there is no metric in %q", where, expr)
		}
		for _, n := range names {
			used++
			if !have[n] {
				t.Errorf("%s: a hub has no metric %s: %s", where, n, expr)
			}
		}
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}

	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(read("grafana/promethean.json"), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			check("panel "+p.Title, target.Expr)
		}
	}
	for _, v := range board.Templating.List {
		if v.Type == "query" {
			// label_values(metric{…}, label)
			check("variable "+v.Name, v.Definition[:strings.LastIndex(v.Definition, ",")])
		}
	}

	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(read("prometheus/alerts.yaml"), &alerts); err != nil {
		t.Fatal(err)
	}
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			check("alert "+r.Alert, r.Expr)
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s does not say what it means and what to do", r.Alert)
			}
		}
	}
	if used < 30 {
		t.Errorf("only %d uses were found", used)
	}
}

func TestSeries(t *testing.T) {
	for expr, want := range map[string]string{
		`up{job="x"} == 0`: "up",
		`histogram_quantile(0.99, sum by (le, topic) (rate(a_bucket{topic=~"$topic"}[$__rate_interval]))) > 2`: "a_bucket",
		`group_lag > 0 and on (topic, group) sum by (topic) (rate(b_total[15m])) == 0`:                         "group_lag b_total",
	} {
		if got := strings.Join(series(expr), " "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

var update = flag.Bool("update", false, "write docs/metrics.md")

// The page of metrics lists those that a hub has, in its own words.
func TestMetricsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("<!-- metrics -->\n| metric | kind | labels | what it is |\n|---|---|---|---|\n")
	for _, m := range shownMetrics(t) {
		if !regexp.MustCompile(`^(go|process|promhttp)_`).MatchString(m.name) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, m.labels, m.help)
		}
	}
	b.WriteString("<!-- /metrics -->")
	page := filepath.Join("..", "..", "docs", "metrics.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?s)<!-- metrics -->.*<!-- /metrics -->`).ReplaceAllLiteralString(string(text), b.String())
	switch {
	case want == string(text):
	case *update:
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("docs/metrics.md is not what a hub shows; run this test with -update")
	}
}
