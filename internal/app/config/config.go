package config

import (
	"fmt"
	"strings"
	"time"

	"promethean/compact"
	"promethean/schema"
	"promethean/view/jqview"
)

// Config is what a hub is told. Load fills in the defaults.
type Config struct {
	// File is what was read; "" if there was none.
	File string

	Listen       string
	Store        string
	NATS         NATS
	Hosts        []string
	Origins      []string
	Auth         Auth
	Limits       Limits
	Topics       []Topic // in the order of the file
	Views        []View  // so are these
	Changefeeds  []Changefeed
	Outboxes     []Outbox
	AutoCreate   bool
	TLS          TLS
	Log          Log
	Pprof        string
	Metrics      Metrics
	Tracing      Tracing
	Cluster      Cluster
	DrainTimeout time.Duration
	// Insecure serves other machines without asking for tokens.
	Insecure bool

	places map[string]string // where a setting was made, by key
}

// NATS is how to log in to NATS servers, and what to make there.
type NATS struct {
	CA, Cert, Key string
	Creds, NKey   string
	User          string
	PasswordEnv   string
	TokenEnv      string
	Prefix        string
	Replicas      int
}

// Auth is who may call.
type Auth struct {
	JWT    JWT
	Tokens []Token
}

// On says whether callers need a token.
func (a *Auth) On() bool { return a.JWT.On() || len(a.Tokens) > 0 }

// JWT is what signed tokens must keep to.
type JWT struct {
	SecretEnv, SecretFile string
	JWKSURL               string
	Issuer, Audience      string
}

// On says whether signed tokens are taken.
func (j *JWT) On() bool { return j.SecretEnv != "" || j.SecretFile != "" || j.JWKSURL != "" }

// Token is one token that is known by itself.
type Token struct {
	Name      string // for logs
	TokenEnv  string // the variable that holds it, or
	TokenFile string // the file
	Scopes    []string
	// Place is where the file names it.
	Place string
}

// Limits bound what comes in. A rate is in events or requests a second; 0 is no
// limit.
type Limits struct {
	Payload        int
	ConnectionRate float64
	TopicRate      map[string]float64
}

// Topic is the settings of a topic that the file names; those that it leaves
// out are nil.
type Topic struct {
	Name       string
	Retention  *time.Duration
	MaxBytes   *int64
	Partitions *int
	Async      *bool
	// Schemas is a directory, found from where the file stands, or else from where
	// the hub is started.
	Schemas       *string
	Strict        *bool
	LegacyVersion *int
	DualWrite     *schema.Window
	Compaction    *bool
	History       *time.Duration
	Tombstones    *time.Duration
	// Snapshot points to nil where there are to be none.
	Snapshot **compact.Snapshot
	// Place is where the file names it.
	Place string
}

// View is a read model that the file names.
type View struct {
	Name string
	jqview.Definition
	// Place is where the file names it.
	Place string
}

// TLS names PEM files.
type TLS struct{ Cert, Key, ClientCA string }

// On says whether connections are encrypted.
func (t *TLS) On() bool { return t.Cert != "" }

// Log is what is written to standard error.
type Log struct{ Format, Level string }

// Metrics is how figures are named.
type Metrics struct{ Namespace string }

// Tracing is where spans go.
type Tracing struct{ OTLPEndpoint string }

// Cluster is how hubs that share a store reach each other.
type Cluster struct{ Advertise, CA string }

// Place says where a setting was made, such as "promethean.yaml:3" or "flag
// --listen".
func (c *Config) Place(key string) string {
	if p, ok := c.places[key]; ok {
		return p
	}
	return "default of " + key
}

// Problem is one thing that is wrong, and where.
type Problem struct {
	Place string
	What  string
}

func (p Problem) Error() string { return p.Place + ": " + p.What }

// Problems is all that is wrong with a configuration.
type Problems []Problem

func (p Problems) Error() string { return lines(p) }

func lines(list []Problem) string {
	var b strings.Builder
	for i, p := range list {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.Error())
	}
	return b.String()
}

// At makes the problem of a setting.
func (c *Config) At(key, format string, args ...any) Problem {
	return Problem{c.Place(key), fmt.Sprintf("%s: %s", key, fmt.Sprintf(format, args...))}
}
