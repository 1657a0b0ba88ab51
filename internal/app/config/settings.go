package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"promethean/cluster"
	"promethean/event"
)

// Setting is one row of the table: a value that file, environment and flag can
// set.
type Setting struct {
	// Key is its place in the file, such as "log.level".
	Key string
	// Usage says what it is, in half a sentence.
	Usage string
	// Reloads says that SIGHUP changes it.
	Reloads bool
	// NotInFile says that only the environment and the flag set it.
	NotInFile bool

	value func(*Config) value
}

// Env is the variable of a setting.
func (s *Setting) Env() string {
	return "PROMETHEAN_" + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Flag is the flag of a setting.
func (s *Setting) Flag() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.Key)
}

// Default is the value where nobody sets one.
func (s *Setting) Default() string {
	c := defaults()
	return s.value(c).text()
}

// Text is the value in a configuration.
func (s *Setting) Text(c *Config) string { return s.value(c).text() }

// IsBool says whether a flag alone means true.
func (s *Setting) IsBool() bool {
	_, yes := s.value(&Config{}).(boolValue)
	return yes
}

// IsList says whether a flag may be given several times.
func (s *Setting) IsList() bool {
	_, yes := s.value(&Config{}).(list)
	return yes
}

// maxPayload keeps a record that the hub itself writes, which may be twice as
// large, within what every engine takes at once.
const maxPayload = 8 << 20

func defaults() *Config {
	return &Config{
		Listen: "127.0.0.1:7070", Store: "file://./data", AutoCreate: true,
		Limits:       Limits{Payload: event.DefaultPayload},
		Log:          Log{Format: "auto", Level: "info"},
		DrainTimeout: 30 * time.Second,
	}
}

// Settings gives the table.
func Settings() []Setting { return append([]Setting(nil), settings...) }

var settings = []Setting{
	{Key: "listen", Usage: "address to serve on; port 0 takes a free one", value: func(c *Config) value { return textValue{at: &c.Listen, check: checkAddress, needed: true} }},
	{Key: "store", Usage: "where events are kept: memory://, file://DIR, nats://HOST or mongodb://HOST", value: func(c *Config) value { return textValue{at: &c.Store, check: checkStore, needed: true} }},
	{Key: "nats.ca", Usage: "PEM file of who signs the NATS servers' certificates", value: func(c *Config) value { return textValue{at: &c.NATS.CA} }},
	{Key: "nats.cert", Usage: "PEM file of our own certificate for NATS", value: func(c *Config) value { return textValue{at: &c.NATS.Cert} }},
	{Key: "nats.key", Usage: "PEM file of its key", value: func(c *Config) value { return textValue{at: &c.NATS.Key} }},
	{Key: "nats.creds", Usage: "file with a user's JWT and seed for NATS", value: func(c *Config) value { return textValue{at: &c.NATS.Creds} }},
	{Key: "nats.nkey", Usage: "file with an nkey seed for NATS", value: func(c *Config) value { return textValue{at: &c.NATS.NKey} }},
	{Key: "nats.user", Usage: "user to log in to NATS with a password", value: func(c *Config) value { return textValue{at: &c.NATS.User} }},
	{Key: "nats.password_env", Usage: "variable that holds the password", value: func(c *Config) value { return textValue{at: &c.NATS.PasswordEnv, check: checkVariable} }},
	{Key: "nats.token_env", Usage: "variable that holds a token for NATS", value: func(c *Config) value { return textValue{at: &c.NATS.TokenEnv, check: checkVariable} }},
	{Key: "nats.prefix", Usage: "begins the names of all streams; empty is promethean", value: func(c *Config) value { return textValue{at: &c.NATS.Prefix} }},
	{Key: "nats.replicas", Usage: "servers that keep each stream; 0 is 3 in a cluster, else 1", value: func(c *Config) value { return intValue{&c.NATS.Replicas, 0, 5} }},
	{Key: "hosts", Reloads: true, Usage: "names under which browsers may reach the hub, beside localhost and the address", value: func(c *Config) value { return listValue{&c.Hosts, checkHost} }},
	{Key: "origins", Reloads: true, Usage: "origins of other sites' pages that may call the hub", value: func(c *Config) value { return listValue{&c.Origins, checkOrigin} }},
	{Key: "auth.jwt.secret_env", Reloads: true, Usage: "variable that holds the secret of signed tokens", value: func(c *Config) value { return textValue{at: &c.Auth.JWT.SecretEnv, check: checkVariable} }},
	{Key: "auth.jwt.secret_file", Reloads: true, Usage: "file that holds the secret of signed tokens", value: func(c *Config) value { return textValue{at: &c.Auth.JWT.SecretFile} }},
	{Key: "auth.jwt.jwks_url", Reloads: true, Usage: "where the keys of signed tokens are", value: func(c *Config) value { return textValue{at: &c.Auth.JWT.JWKSURL, check: checkURL} }},
	{Key: "auth.jwt.issuer", Reloads: true, Usage: "issuer that signed tokens must name", value: func(c *Config) value { return textValue{at: &c.Auth.JWT.Issuer} }},
	{Key: "auth.jwt.audience", Reloads: true, Usage: "audience that signed tokens must name", value: func(c *Config) value { return textValue{at: &c.Auth.JWT.Audience} }},
	{Key: "limits.payload", Usage: "largest payload of an event", value: func(c *Config) value { return sizeValue{&c.Limits.Payload, 1 << 10, maxPayload} }},
	{Key: "limits.connection_rate", Reloads: true, Usage: "requests or frames that one connection may send; 0 is no limit", value: func(c *Config) value { return rateValue{&c.Limits.ConnectionRate} }},
	{Key: "auto_create", Usage: "let a first publish make its topic", value: func(c *Config) value { return boolValue{&c.AutoCreate} }},
	{Key: "tls.cert", Reloads: true, Usage: "PEM file of the hub's certificate, with those between it and the root", value: func(c *Config) value { return textValue{at: &c.TLS.Cert} }},
	{Key: "tls.key", Reloads: true, Usage: "PEM file of its key", value: func(c *Config) value { return textValue{at: &c.TLS.Key} }},
	{Key: "tls.client_ca", Reloads: true, Usage: "PEM file of who signs callers' certificates, which they need then", value: func(c *Config) value { return textValue{at: &c.TLS.ClientCA} }},
	{Key: "log.format", Usage: "json, text, or auto: text on a terminal, else json", value: func(c *Config) value {
		return textValue{at: &c.Log.Format, check: oneOf("auto", "json", "text"), needed: true}
	}},
	{Key: "log.level", Reloads: true, Usage: "least that is written: debug, info, warn or error", value: func(c *Config) value {
		return textValue{at: &c.Log.Level, check: oneOf("debug", "info", "warn", "error"), needed: true}
	}},
	{Key: "pprof", Usage: "loopback address to serve profiles on; empty is nowhere", value: func(c *Config) value { return textValue{at: &c.Pprof, check: checkLoopback} }},
	{Key: "metrics.namespace", Usage: "begins the name of every metric of the hub", value: func(c *Config) value { return textValue{at: &c.Metrics.Namespace, check: checkNamespace} }},
	{Key: "tracing.otlp_endpoint", Usage: "where spans are sent by OTLP over HTTP, such as http://127.0.0.1:4318", value: func(c *Config) value { return textValue{at: &c.Tracing.OTLPEndpoint, check: checkURL} }},
	{Key: "cluster.advertise", Usage: "how other hubs on the same store reach this one, such as http://10.0.0.5:7070; empty is the address that it serves on", value: func(c *Config) value { return textValue{at: &c.Cluster.Advertise, check: cluster.CheckURL} }},
	{Key: "cluster.ca", Usage: "PEM file of who signs other hubs' certificates, beside those that the system knows", value: func(c *Config) value { return textValue{at: &c.Cluster.CA} }},
	{Key: "drain_timeout", Reloads: true, Usage: "how long work under way may take to finish at the end", value: func(c *Config) value { return durationValue{&c.DrainTimeout} }},
	{Key: "insecure", NotInFile: true, Usage: "serve other machines without asking for tokens", value: func(c *Config) value { return boolValue{&c.Insecure} }},
}

func checkAddress(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is no address such as 127.0.0.1:7070", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is no number from 0 to 65535", s, port)
	} else if strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("%q: write the port as %d", s, n)
	}
	return nil
}

// Loopback says whether an address can be reached from this machine alone.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func checkLoopback(s string) error {
	if err := checkAddress(s); err != nil {
		return err
	}
	if !Loopback(s) {
		return fmt.Errorf("%q is no loopback address: profiles show what is in memory, so they are for this machine only", s)
	}
	return nil
}

// CheckStore says what is wrong with the address of a store.
func CheckStore(s string) error { return checkStore(s) }

func checkStore(s string) error {
	scheme, rest, found := strings.Cut(s, "://")
	switch {
	case !found:
		return fmt.Errorf("%q has no scheme: write memory://, file://DIR, nats://HOST or mongodb://HOST", Redact(s))
	case scheme == "memory" && rest != "":
		return fmt.Errorf("%q: nothing comes behind memory://", s)
	case scheme == "memory":
		return nil
	case scheme != "file" && scheme != "nats" && scheme != "mongodb" && scheme != "mongodb+srv":
		return fmt.Errorf("there is no engine %q: it is memory://, file://DIR, nats://HOST or mongodb://HOST", scheme)
	case rest == "" && scheme == "file":
		return errors.New("file:// needs a directory, such as file://./data")
	case rest == "" || strings.HasPrefix(rest, "?") || strings.HasPrefix(rest, "/") && scheme != "file":
		return fmt.Errorf("%s:// needs a host", scheme)
	}
	return nil
}

func checkVariable(s string) error {
	if strings.ContainsAny(s, "= \x00") {
		return errors.New("that is no name of a variable")
	}
	return nil
}

func checkHost(s string) error {
	if s == "" || strings.ContainsAny(s, "/@?# ") || strings.Contains(s, "://") {
		return fmt.Errorf("%q is no name of a host", s)
	}
	if _, _, err := net.SplitHostPort(s); err == nil {
		return fmt.Errorf("%q: leave the port out", s)
	}
	return nil
}

func checkOrigin(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is no origin such as https://ops.example.org", s)
	}
	return nil
}

func checkURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is no address such as https://host/path", Redact(s))
	}
	return nil
}

var namespaces = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func checkNamespace(s string) error {
	if !namespaces.MatchString(s) {
		return fmt.Errorf("%q: only letters, digits and _ go into the name of a metric, a digit not first", s)
	}
	return nil
}

// secrets are the values of parameters that hold one.
var secrets = regexp.MustCompile(`(?i)([?&][^=&]*(?:password|token|secret|properties)[^=&]*=)[^&]*`)

// Redact leaves the secrets out of an address. What stands before an @ goes
// whole, also where that is more than a name and a password: a secret with a
// slash in it must not show either.
func Redact(s string) string {
	scheme, rest, found := strings.Cut(s, "://")
	if !found {
		scheme, rest = "", s
	}
	if scheme == "file" {
		return s
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = "***" + rest[i:]
	}
	if found {
		scheme += "://"
	}
	return scheme + secrets.ReplaceAllString(rest, "${1}***")
}
