package config

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// load reads a file with this text.
func load(t *testing.T, text string, from Source) (*Config, error) {
	t.Helper()
	from.File = filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(from.File, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(from)
}

// said gives the lines of an error without the directory of the file.
func said(err error) string {
	if err == nil {
		return ""
	}
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if i := strings.Index(line, "p.yaml"); i >= 0 {
			line = line[i:]
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestProblemsNameFileLineAndKey(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown keys, all at once": {
			"listen: 127.0.0.1:1\nlisen: x\nlog:\n  levl: info\n  colour: red\ntopics:\n  a: {retenton: 1h}\n",
			`p.yaml:2: unknown key "lisen", did you mean listen?
p.yaml:4: unknown key "log.levl", did you mean level?
p.yaml:5: unknown key "log.colour"; there are format, level
p.yaml:7: unknown key "topics[a].retenton", did you mean retention?`,
		},
		"wrong kinds": {
			"listen: [a]\nlog: text\norigins: https://a.example\nauth: {tokens: {a: 1}}\ntopics: [a]\nstore:\n",
			`p.yaml:1: listen: must be a single value, not a list
p.yaml:2: log: must be a map, not a single value
p.yaml:3: origins: must be a list, not a single value
p.yaml:4: auth.tokens: must be a list, not a map
p.yaml:5: topics: must be a map, not a list
p.yaml:6: store: must be a single value, not nothing`,
		},
		"refused values": {
			`listen: 7070
store: redis://x
origins: [ops.example.org]
hosts: ["a.example:80"]
limits: {payload: 9MiB, connection_rate: fast, topic_rate: {A: 1/s, a: 7}}
auto_create: yes
drain_timeout: 30
pprof: 0.0.0.0:6060
metrics: {namespace: a-b}
tracing: {otlp_endpoint: collector:4318}
topics: {a: {retention: soon, max_bytes: -1, partitions: 0, durability: maybe, schemas: "", strict_schema: 1, legacy_version: 0, dual_write: later}, "..": {}}
`,
			`p.yaml:1: listen: "7070" is no address such as 127.0.0.1:7070
p.yaml:2: store: there is no engine "redis": it is memory://, file://DIR, nats://HOST or mongodb://HOST
p.yaml:3: origins: "ops.example.org" is no origin such as https://ops.example.org
p.yaml:4: hosts: "a.example:80": leave the port out
p.yaml:5: limits.payload: 9MiB is not within 1KiB and 8MiB
p.yaml:5: limits.connection_rate: "fast" is no rate such as 5000/s, 300/m or 0 for no limit
p.yaml:5: limits.topic_rate: topic: must be segments of a-z and 0-9 joined by single dots, found "A"
p.yaml:5: limits.topic_rate.a: "7" is no rate such as 5000/s, 300/m or 0 for no limit
p.yaml:6: auto_create: "yes" is neither true nor false
p.yaml:7: drain_timeout: "30" is no duration such as 90s, 72h or 3d
p.yaml:8: pprof: "0.0.0.0:6060" is no loopback address: profiles show what is in memory, so they are for this machine only
p.yaml:9: metrics.namespace: "a-b": only letters, digits and _ go into the name of a metric, a digit not first
p.yaml:10: tracing.otlp_endpoint: "collector:4318" is no address such as https://host/path
p.yaml:11: topics[a].retention: "soon" is no duration such as 90s, 72h or 3d
p.yaml:11: topics[a].max_bytes: "-1" is no size such as 1MiB, 500MB or 4096
p.yaml:11: topics[a].partitions: "0" is no number from 1 to 65536
p.yaml:11: topics[a].durability: "maybe" is none of sync, async
p.yaml:11: topics[a].schemas: name a directory
p.yaml:11: topics[a].strict_schema: "1" is neither true nor false
p.yaml:11: topics[a].legacy_version: "0" is no number from 1 to 999999999
p.yaml:11: topics[a].dual_write: "later" is not true, false or a time such as 2026-12-31T18:00:00Z
p.yaml:11: topics: topic: must be segments of a-z and 0-9 joined by single dots, found ".."`,
		},
		"tokens": {
			`auth:
  tokens:
    - {token_env: A, scopes: ["publish"]}
    - {scopes: [admin]}
    - {token_env: A, token_file: b, scopes: [admin]}
    - {token_env: A}
    - {token_env: A, scopes: [admin], scope: x}
    - {token: hunter2, scopes: [admin]}
`,
			`p.yaml:3: auth.tokens[0].scopes: scope "publish": publish needs a pattern, such as publish:**
p.yaml:4: auth.tokens[1]: name the token by either token_env or token_file
p.yaml:5: auth.tokens[2]: name the token by either token_env or token_file
p.yaml:6: auth.tokens[3]: without scopes the token allows nothing
p.yaml:7: unknown key "auth.tokens[4].scope", did you mean scopes?
p.yaml:8: unknown key "auth.tokens[5].token"; there are name, scopes, token_env, token_file`,
		},
		"what does not fit together": {
			"listen: :7070\ntls: {cert: a}\nauth: {jwt: {issuer: me}}\nnats: {key: k}\n",
			`p.yaml:2: tls.cert: tls.cert and tls.key go together
p.yaml:4: nats.key: nats.cert and nats.key go together
p.yaml:3: auth.jwt.issuer: needs secret_env, secret_file or jwks_url
p.yaml:1: listen: :7070 can be reached from other machines, and nobody would need a token: configure auth, listen on a loopback address, or give --insecure if something else keeps strangers away`,
		},
		"a key twice": {"log:\n  level: info\n  level: warn\n", `p.yaml:3: log.level comes twice, first on line 2`},
		"no YAML":     {"listen: 127.0.0.1:1\n\tstore: x\n", `p.yaml:2: no YAML: found a tab character that violates indentation`},
		"two files":   {"listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2\n", `p.yaml:2: a second document: there is one for each file`},
		"no map":      {"hello\n", `p.yaml:1: the file: must be a map, not a single value`},
		"not in the file": {
			"insecure: true\n",
			`p.yaml:1: unknown key "insecure"; there are auth, auto_create, changefeeds, cluster, drain_timeout, hosts, limits, listen, log, metrics, nats, origins, outboxes, pprof, store, tls, topics, tracing, views`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, c.text, Source{})
			var p Problems
			if !errors.As(err, &p) {
				t.Fatalf("%v", err)
			}
			if got := said(err); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestLaterSourcesCountMore(t *testing.T) {
	env := func(name string) (string, bool) {
		v, ok := map[string]string{
			"PROMETHEAN_STORE": "memory://", "PROMETHEAN_LOG_LEVEL": "warn", "PROMETHEAN_ORIGINS": "https://a.example, https://b.example",
			"PROMETHEAN_UNHEARD_OF": "1", "PROMETHEAN_PPROF": "",
		}[name]
		return v, ok
	}
	c, err := load(t, "listen: 127.0.0.1:1\nstore: file://x\nlog: {level: debug, format: text}\npprof: 127.0.0.1:0\n", Source{
		Env: env, Flags: map[string]string{"log.level": "error"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:1" || c.Store != "memory://" || c.Log.Level != "error" || c.Log.Format != "text" || c.Pprof != "127.0.0.1:0" ||
		!reflect.DeepEqual(c.Origins, []string{"https://a.example", "https://b.example"}) || c.DrainTimeout != 30*time.Second || !c.AutoCreate {
		t.Errorf("%+v", c)
	}
	for key, want := range map[string]string{"store": "variable PROMETHEAN_STORE", "log.level": "flag --log-level", "listen": c.File + ":1", "tls.cert": "default of tls.cert"} {
		if got := c.Place(key); got != want {
			t.Errorf("%s was set by %q, want %q", key, got, want)
		}
	}
	_, err = Load(Source{Env: func(name string) (string, bool) { return "x", name == "PROMETHEAN_LISTEN" }, Flags: map[string]string{"drain_timeout": "soon"}})
	if want := "variable PROMETHEAN_LISTEN: \"x\" is no address such as 127.0.0.1:7070\nflag --drain-timeout: \"soon\" is no duration such as 90s, 72h or 3d"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	if _, err := Load(Source{File: filepath.Join(t.TempDir(), "none.yaml")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// The settings in force can be read back, and show no secret.
func TestPrintedSettingsAreTheSame(t *testing.T) {
	text := `listen: 0.0.0.0:7070
store: nats://me:hunter2@a:4222,nats://b
hosts: [bus.example]
origins: ["https://ops.example"]
auth:
  tokens:
    - {name: ops, token_env: OPS_TOKEN, scopes: ["publish:heartbeat.*", admin]}
    - {token_file: /run/t, scopes: ["read:**"]}
limits: {payload: 512KiB, connection_rate: 90/m, topic_rate: {a.b: 0.5/s, c: 5000/s}}
topics:
  a.b: {retention: 1d12h, max_bytes: 1.5GiB, partitions: 8, durability: async}
  c:
  d: {schemas: schemas/d, strict_schema: true, legacy_version: 2, dual_write: 2026-12-31T18:00:00+01:00}
  e: {dual_write: true, strict_schema: false}
log: &log {level: debug}
`
	c, err := load(t, text, Source{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), "hunter2") || !strings.Contains(string(out), "OPS_TOKEN") {
		t.Errorf("%s", out)
	}
	again, err := load(t, string(out), Source{Flags: map[string]string{"store": c.Store}})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, x := range []*Config{c, again} {
		x.File, x.places = "", nil
		for i := range x.Auth.Tokens {
			x.Auth.Tokens[i].Place = ""
		}
		for i := range x.Topics {
			x.Topics[i].Place = ""
		}
	}
	if !reflect.DeepEqual(c, again) {
		t.Errorf("\n%+v\n%+v", c, again)
	}
	if c.Limits.ConnectionRate != 1.5 || *c.Topics[0].Retention != 36*time.Hour || *c.Topics[0].MaxBytes != 3<<29 || c.Topics[1].Retention != nil {
		t.Errorf("%+v", c)
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"mongodb://u:p@a,b/db?replicaSet=rs0&tlsCertificateKeyFilePassword=x&w=1": "mongodb://***@a,b/db?replicaSet=rs0&tlsCertificateKeyFilePassword=***&w=1",
		"nats://u:p@a,nats://u:p@b":  "nats://***@b",
		"nats://u:p/w@a":             "nats://***@a",
		"nats://a,b?creds=/etc/c":    "nats://a,b?creds=/etc/c",
		"u:p@a":                      "***@a",
		"file:///srv/a@b":            "file:///srv/a@b",
		"mongodb://a/?authToken=abc": "mongodb://a/?authToken=***",
	} {
		if got := Redact(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestUnits(t *testing.T) {
	for in, want := range map[string]time.Duration{"0": 0, "90s": 90 * time.Second, "3d": 72 * time.Hour, "1d12h30m": 36*time.Hour + 30*time.Minute, "0d": 0, "1.5h": 90 * time.Minute} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "d", "-1s", "-0s", "+1s", "1", "1d-1h", "-1d", "1.5d", "110000d", "106751d24h", "9999999999d", "1d1d", "x"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("%q is taken for %v", in, got)
		}
	}
	for in, want := range map[string]int64{"0": 0, "4096": 4096, "1KiB": 1024, "1 MiB": 1 << 20, "1.5GB": 15e8, "2TiB": 2 << 40, "7B": 7, "8kB": 8000} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "B", "MiB", "-1", "1e3", "0x10", "9223372036854775808", "9223372036854775807KiB", "1XB", "1.5.5MB", "NaN", "Inf", "1 2MB"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q is taken for %d", in, got)
		}
	}
	for in, want := range map[string]float64{"0": 0, "5000/s": 5000, "90/m": 1.5, "3600/h": 1, "0.5 / s": 0.5} {
		if got, err := ParseRate(in); err != nil || math.Abs(got-want) > 1e-12 {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "/s", "5", "-1/s", "1e9/s", "0/s", "5/d", "NaN/s", "Inf/s", "5/s/s"} {
		if got, err := ParseRate(in); err == nil {
			t.Errorf("%q is taken for %g", in, got)
		}
	}
}

// Whatever a file holds, reading it ends with settings or with reasons.
func FuzzFile(f *testing.F) {
	for _, s := range []string{"", "listen: 127.0.0.1:1", "a: &a [*a]", "topics: &t {a: *t}", "<<: {listen: x}", "? [a]\n: b", "auth: {tokens: [{token_env: A, scopes: [admin]}]}", "log: &l {level: info}\ntls: *l", "\x00", "---\n...\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := defaults()
		c.places = map[string]string{}
		r := &reader{c: c, name: "p.yaml"}
		r.read([]byte(text))
		r.agree()
		if len(r.problems) > 0 {
			return
		}
		out, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again := &reader{c: defaults(), name: "p.yaml"}
		again.c.places = map[string]string{}
		if again.read(out); len(again.problems) > 0 && c.Store == Redact(c.Store) {
			t.Errorf("what was printed is refused: %v\n%s", again.problems, out)
		}
	})
}
