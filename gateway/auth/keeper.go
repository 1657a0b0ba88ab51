package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"
)

const (
	maxKeySet    = 1 << 20          // bytes of an answer
	fetchTimeout = 10 * time.Second // for the whole of it
	retryFirst   = time.Second      // after a failure, doubled from then on
	retryMost    = time.Minute
)

// keeper keeps the keys of an issuer. One goroutine fetches them: at the start,
// every now and then, and when a token names a key that is not known. While the
// issuer is out of reach, the keys that were there last count.
//
// Somebody who makes up key ids can cause one fetch in each JWTOptions.Refetch,
// and delays by as much, at most, how soon a new key is seen.
type keeper struct {
	url    string
	client *http.Client
	own    bool // the client is ours
	log    *slog.Logger
	every  time.Duration
	wait   time.Duration
	asked  *rate.Limiter // for unknown keys

	now atomic.Pointer[keySet]

	mu     sync.Mutex
	flight *flight // the fetch that is under way, or about to be
	closed bool
	kick   chan struct{} // has room for one: a flight wants to begin

	cancel context.CancelFunc
	done   chan struct{}
}

// flight is one fetch, for those who wait for it.
type flight struct {
	began time.Time
	done  chan struct{}
}

func newFlight() *flight { return &flight{began: time.Now(), done: make(chan struct{})} }

func newKeeper(o JWTOptions) (*keeper, error) {
	u, err := url.Parse(o.JWKS)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the address of the key set is no http or https address") // without it: it may hold a password
	}
	k := &keeper{
		url: o.JWKS, client: o.Client, log: o.Logger.With("jwks", u.Redacted()),
		every: o.Refresh, wait: o.Wait,
		kick: make(chan struct{}, 1), done: make(chan struct{}),
		flight: newFlight(), // the first one begins at once
	}
	if k.every <= 0 {
		k.every = 15 * time.Minute
	}
	if k.wait <= 0 {
		k.wait = 2 * time.Second
	}
	if o.Refetch <= 0 {
		o.Refetch = 10 * time.Second
	}
	k.asked = rate.NewLimiter(rate.Every(o.Refetch), 2)
	if k.client == nil {
		k.own = true
		k.client = &http.Client{
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true},
			CheckRedirect: noDowngrade,
		}
	}
	if u.Scheme == "http" && !isLoopback(u.Hostname()) {
		k.log.Warn("keys are fetched without TLS: who can change the answer can sign tokens")
	}
	k.now.Store(&keySet{})
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	go k.run(ctx)
	return k, nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// noDowngrade follows few redirects, and none from https to http.
func noDowngrade(r *http.Request, via []*http.Request) error {
	if len(via) >= 5 {
		return errors.New("too many redirects")
	}
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return errors.New("a redirect from https to " + r.URL.Scheme)
	}
	return nil
}

// find gives the keys that fit, and their set. If there are none it may have
// the set fetched, and waits for that, but no longer than wait from its
// beginning: an issuer that hangs holds nobody up for long.
func (k *keeper) find(ctx context.Context, alg, id string) ([]jwt.VerificationKey, *keySet) {
	set := k.now.Load()
	if found := set.find(alg, id); len(found) > 0 {
		return found, set
	}
	f := k.ask()
	if f == nil {
		return nil, nil
	}
	over := time.NewTimer(time.Until(f.began.Add(k.wait)))
	defer over.Stop()
	select {
	case <-f.done:
	case <-over.C:
	case <-ctx.Done():
	}
	set = k.now.Load()
	return set.find(alg, id), set
}

// ask gives the fetch that is under way, or has one begin if there may be one.
func (k *keeper) ask() *flight {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flight == nil && !k.closed && k.asked.Allow() {
		k.flight = newFlight()
		select {
		case k.kick <- struct{}{}:
		default: // it is kicked already
		}
	}
	return k.flight
}

// run fetches until close.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	retry := retryFirst
	for {
		pause := k.every
		if err := k.fly(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("keys cannot be fetched, those that are known stay", "err", err)
			pause = min(retry, k.every)
			retry = min(2*retry, retryMost)
		} else {
			retry = retryFirst
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
		case <-k.kick:
		case <-ctx.Done():
			next.Stop()
			k.land(true)
			return
		}
		next.Stop()
	}
}

// fly is one fetch, that of the flight that waits if there is one.
func (k *keeper) fly(ctx context.Context) error {
	k.mu.Lock()
	if k.flight == nil {
		k.flight = newFlight()
	}
	k.mu.Unlock()
	err := k.fetch(ctx)
	k.land(false)
	return err
}

// land lets those go on who wait.
func (k *keeper) land(last bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flight != nil {
		close(k.flight.done)
	}
	k.flight = nil
	k.closed = k.closed || last
	select {
	case <-k.kick: // it was about the flight that has just ended
	default:
	}
}

// fetch has the keys replaced by what the issuer says now.
func (k *keeper) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, http.NoBody)
	if err != nil {
		return errors.New("the address cannot be asked")
	}
	r.Header.Set("Accept", "application/jwk-set+json, application/json")
	answer, err := k.client.Do(r)
	if err != nil {
		var where *url.Error // says the address, with what it may hold
		if errors.As(err, &where) {
			err = where.Err
		}
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %d", answer.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxKeySet+1))
	if err != nil {
		return err
	}
	if len(data) > maxKeySet {
		return fmt.Errorf("the answer has more than %d bytes", maxKeySet)
	}
	before := k.now.Load()
	if before.sum == sha256.Sum256(data) {
		return nil // what was verified by it stays so
	}
	set, err := readKeySet(data, func(id string, err error) {
		k.log.Warn("a key is left out", "kid", clip(id), "err", err)
	})
	if err != nil {
		return fmt.Errorf("the answer is no key set: %w", err)
	}
	if len(set.keys) == 0 {
		k.log.Error("the issuer has no key that could be used: no token of his is good any more")
	}
	k.now.Store(set)
	return nil
}

// close ends the fetching and waits for its end.
func (k *keeper) close() {
	k.cancel()
	<-k.done
	if k.own {
		k.client.CloseIdleConnections()
	}
}
