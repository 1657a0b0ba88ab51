package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"promethean/client"
)

// defaultAddr is where a hub listens unless it is told otherwise.
const defaultAddr = "http://127.0.0.1:7070"

// remote is how a hub is reached.
type remote struct {
	addr, token, ca string
}

// remoteFlags makes the flags that say where the hub is.
func (a *app) remoteFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.remote.addr, "addr", "", "address of the hub (default $PROMETHEAN_ADDR, or else "+defaultAddr+")")
	f.StringVar(&a.remote.token, "token", "", "token for the hub (default $PROMETHEAN_TOKEN, which other users cannot see)")
	f.StringVar(&a.remote.ca, "ca", "", "file with the authority of the hub's certificate (default $PROMETHEAN_CA, or else those of the system)")
	if err := root.MarkPersistentFlagFilename("ca", "pem", "crt"); err != nil {
		panic(err) // the flag is defined right above
	}
}

// where is the address of the hub.
func (r *remote) where() string { return cmp.Or(r.addr, os.Getenv("PROMETHEAN_ADDR"), defaultAddr) }

// connect makes a client of the hub. It does not call it yet.
func (r *remote) connect() (*client.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 1024 // bench has one for each publisher
	t.DisableCompression = true
	if ca := cmp.Or(r.ca, os.Getenv("PROMETHEAN_CA")); ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca: %s holds no certificate in PEM", ca)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	token := cmp.Or(r.token, os.Getenv("PROMETHEAN_TOKEN"))
	c, err := client.New(r.where(), client.Options{Token: token, HTTP: &http.Client{Transport: t}})
	if err != nil {
		return nil, advised{err, "name the hub with --addr or $PROMETHEAN_ADDR, such as " + defaultAddr}
	}
	return c, nil
}

// onHub wraps what a command does with a hub.
func (a *app) onHub(run func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return a.begin(func(ctx context.Context, args []string) error {
		c, err := a.remote.connect()
		if err != nil {
			return err
		}
		return a.remote.explain(run(ctx, c, args))
	})
}

// explain says of an error in speaking to the hub what can be done about it.
func (r *remote) explain(err error) error {
	var own advised
	var refused *client.Error
	var call *url.Error
	switch {
	case err == nil, errors.As(err, &own), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &refused):
		if next := r.adviceOn(refused); next != "" {
			return advised{err, next}
		}
		return err
	case errors.As(err, &call):
		what := fmt.Errorf("%s: %w", r.where(), call.Err)
		if text, inside := strings.CutSuffix(err.Error(), call.Error()); inside {
			what = fmt.Errorf("%s%w", text, what)
		}
		return advised{what, adviceOnCall(call.Err)}
	case client.Temporary(err):
		return advised{fmt.Errorf("the connection to %s was lost: %w", r.where(), err), "see whether the hub still runs, then try again"}
	}
	return err
}

// adviceOnCall is what to do about a call that got no answer.
func adviceOnCall(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	switch {
	case errors.As(err, &unknown):
		return "name the file with the authority of the hub's certificate with --ca"
	case errors.As(err, &name):
		return "reach the hub by a name that its certificate is for"
	case errors.As(err, &invalid):
		return "the hub needs another certificate"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "the hub there speaks without TLS: use http:// in --addr"
	case errors.As(err, &dns):
		return "there is no such host: name the hub with --addr or $PROMETHEAN_ADDR"
	}
	return "no hub answers there: start one with 'promethean serve', or name it with --addr or $PROMETHEAN_ADDR"
}

// adviceOn is what to do about a refusal.
func (r *remote) adviceOn(e *client.Error) string {
	switch e.Code {
	case "unauthorized":
		if r.token == "" && os.Getenv("PROMETHEAN_TOKEN") == "" {
			return "the hub wants a token: give one with --token or $PROMETHEAN_TOKEN"
		}
		return "the hub does not take this token: it is wrong or has ended; give another with --token or $PROMETHEAN_TOKEN"
	case "forbidden":
		if strings.Contains(e.Message, "origins") {
			return "reach the hub by an address that it knows, or have it listed there"
		}
		return "use a token with the scope that is missing; docs/security.md tells which one each call needs"
	case "invalid_topic":
		return "'promethean topics' lists those that there are"
	case "schema_invalid":
		if e.Seq > 0 {
			return "an event that cannot be brought up to the latest version needs an upcaster that knows it; without --normalise it comes as it was stored"
		}
		return "'promethean schema show TOPIC' shows the schema; header x-schema-version says that a payload is of an older version"
	case "group_conflict":
		return "leave the settings out to use the group as it is, or name another group"
	case "seq_conflict":
		return "somebody has published meanwhile: look at the topic, then try again with its last seq"
	case "unsupported":
		return "the hub is older than this command, or the feature is not built yet"
	case "payload_too_large":
		return "limits.payload in the hub's configuration says how large a payload may be"
	case "rate_limited":
		return "try again later; limits in the hub's configuration say how much it takes"
	case "draining", "unavailable":
		return "the hub stops or cannot work now: try again later"
	case "":
		if strings.Contains(e.Message, "HTTP request to an HTTPS server") {
			return "the hub there speaks TLS: use https:// in --addr"
		}
		return "that is no hub: name one with --addr or $PROMETHEAN_ADDR"
	}
	return ""
}

// retryFor is how long commands wait for a hub that went away in the middle of
// their work, unless they are told otherwise.
const retryFor = time.Minute

// patience tries calls again while the hub is away. The first call must
// succeed: who names the wrong address shall not have to wait.
type patience struct {
	within time.Duration
	tell   func(err error) // that the hub is away; may be nil
	met    bool
}

// retryFlag adds the flag that sets the patience of a command.
func retryFlag(cmd *cobra.Command, within *time.Duration) {
	cmd.Flags().DurationVar(within, "retry", retryFor, "how long to wait for a hub that goes away in the middle")
}

// do runs f until it succeeds, fails for good or the hub is away for too long.
func (p *patience) do(ctx context.Context, f func() error) error {
	const first, most = 50 * time.Millisecond, 2 * time.Second
	var since time.Time
	for wait := first; ; wait = min(2*wait, most) {
		err := f()
		if err == nil {
			p.met = true
			return nil
		}
		if !p.met || !client.Temporary(err) {
			return err
		}
		switch {
		case since.IsZero():
			since = time.Now()
			if p.tell != nil {
				p.tell(err)
			}
		case time.Since(since) > p.within:
			return fmt.Errorf("the hub is away for %s: %w", p.within, err)
		}
		pause := wait/2 + rand.N(wait/2)
		var refused *client.Error
		if errors.As(err, &refused) {
			pause = max(pause, refused.RetryAfter)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// awayEvery is how often people are told that the hub is away.
const awayEvery = 10 * time.Second

// away gives a function that tells people that a command waits for the hub. It
// may be called at every try.
func (a *app) away(bar *progress) func(error) {
	told := rate.Sometimes{Interval: awayEvery}
	return func(err error) {
		told.Do(func() {
			if bar != nil {
				bar.clear()
			}
			fmt.Fprintf(a.stderr, "promethean: the hub is away, trying again: %s\n", printable(shown(brief(err))))
		})
	}
}

// brief leaves the address of a call away.
func brief(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

// brokenPipe says that whoever read our output has had enough.
type brokenPipe struct{ error }

// Unwrap gives the error.
func (e brokenPipe) Unwrap() error { return e.error }

// output is standard output. It tells a reader that has gone from a hub that
// has.
type output struct{ *app }

// Write implements io.Writer.
func (o output) Write(p []byte) (int, error) {
	n, err := o.screen.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		err = brokenPipe{err}
	}
	return n, err
}
