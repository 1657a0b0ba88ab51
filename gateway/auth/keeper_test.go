package auth_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"promethean/gateway/auth"
)

func TestKeyRotation(t *testing.T) {
	keys := newIssuer(t, setOf(jwkOf("old", edKey.Public())))
	j := newJWT(t, auth.JWTOptions{JWKS: keys.URL})
	old := sign(jwt.SigningMethodEdDSA, "old", edKey, good(nil))
	passes(t, j, old)
	passes(t, j, old)
	if n := keys.count(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
	keys.set(setOf(jwkOf("new", edOther.Public())))
	passes(t, j, old) // nobody has asked yet
	passes(t, j, sign(jwt.SigningMethodEdDSA, "new", edOther, good(nil)))
	if n := keys.count(); n != 2 {
		t.Errorf("the keys were fetched %d times", n)
	}
	// The old key is gone, and so is what it had verified.
	fails(t, j, old, "key is unknown")
}

// reply is how an issuer answers.
type reply func(ctx context.Context) (status int, body io.Reader, err error)

// fake answers for an issuer without a network, so that time can be virtual.
type fake struct {
	mu    sync.Mutex
	do    reply
	asked int
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.asked++
	do := f.do
	f.mu.Unlock()
	status, body, err := do(r.Context())
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(body), Request: r}, nil
}

func (f *fake) becomes(do reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.do = do
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func gives(status int, body []byte) reply {
	return func(context.Context) (int, io.Reader, error) { return status, bytes.NewReader(body), nil }
}

// hangs answers nothing until the caller gives up.
func hangs(ctx context.Context) (int, io.Reader, error) {
	<-ctx.Done()
	return 0, nil, ctx.Err()
}

func TestRefetchIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: gives(200, setOf(jwkOf("r", edKey.Public())))}
		j := newJWT(t, auth.JWTOptions{JWKS: "http://127.0.0.1/keys", Client: &http.Client{Transport: f}})
		passes(t, j, sign(jwt.SigningMethodEdDSA, "r", edKey, good(nil)))
		if n := f.count(); n != 1 {
			t.Fatalf("fetched %d times", n)
		}
		began := time.Now()
		for i := 0; time.Since(began) < time.Minute; i++ {
			fails(t, j, sign(jwt.SigningMethodEdDSA, fmt.Sprint("made up ", i%50), edKey, good(nil)), "key is unknown")
			time.Sleep(100 * time.Millisecond)
		}
		// The first, two at once, then one in each ten seconds.
		if n := f.count(); n < 7 || n > 9 {
			t.Errorf("fetched %d times", n)
		}
		if took := time.Since(began); took > 61*time.Second {
			t.Errorf("callers waited: %v", took)
		}
		j.Close()
	})
}

func TestKeysAreRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: gives(200, setOf(jwkOf("r", edKey.Public())))}
		j := newJWT(t, auth.JWTOptions{JWKS: "http://127.0.0.1/keys", Client: &http.Client{Transport: f}})
		token := sign(jwt.SigningMethodEdDSA, "r", edKey, good(nil))
		passes(t, j, token)
		f.becomes(gives(200, []byte(`{"keys":[]}`))) // all withdrawn
		time.Sleep(16 * time.Minute)
		fails(t, j, token, "key is unknown")
		if n := f.count(); n > 3 {
			t.Errorf("fetched %d times", n)
		}
		j.Close()
	})
}

// An issuer that is out of reach takes nothing away, holds nobody up, and is
// asked again, ever more seldom.
func TestOutage(t *testing.T) {
	const hours = 3
	refuses := func(context.Context) (int, io.Reader, error) { return 0, nil, errors.New("connection refused") }
	for name, do := range map[string]reply{
		"refused":   refuses,
		"hangs":     hangs,
		"500":       gives(500, nil),
		"no JSON":   gives(200, []byte("<html>")),
		"no keys":   gives(200, []byte(`{}`)),
		"keys null": gives(200, []byte(`{"keys":null}`)),
		"a list":    gives(200, []byte(`[]`)),
		"huge": func(context.Context) (int, io.Reader, error) {
			// Good keys, and then more blanks than anybody should read.
			return http.StatusOK, io.MultiReader(bytes.NewReader(setOf(jwkOf("other", edKey.Public()))), &blanks{t: t}), nil
		},
		"many keys": gives(200, setOf(make([]map[string]any, 101)...)),
		"cut off": func(context.Context) (int, io.Reader, error) {
			return http.StatusOK, io.MultiReader(strings.NewReader(`{"keys":[`), broken{}), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{do: gives(200, setOf(jwkOf("r", edKey.Public())))}
				j := newJWT(t, auth.JWTOptions{JWKS: "http://127.0.0.1/keys", Client: &http.Client{Transport: f}})
				long := good(jwt.MapClaims{"exp": time.Now().Add(48 * time.Hour).Unix()})
				passes(t, j, sign(jwt.SigningMethodEdDSA, "r", edKey, long))
				f.becomes(do)
				for range hours {
					time.Sleep(time.Hour)
					began := time.Now()
					long["jti"] = began.String()
					passes(t, j, sign(jwt.SigningMethodEdDSA, "r", edKey, long))
					if took := time.Since(began); took != 0 {
						t.Errorf("a token with a known key waited %v", took)
					}
					fails(t, j, sign(jwt.SigningMethodEdDSA, "other", edKey, long), "key is unknown")
					if took := time.Since(began); took > 2*time.Second {
						t.Errorf("a token with an unknown key waited %v", took)
					}
				}
				if n := f.count(); n < hours || n > hours*70 {
					t.Errorf("asked %d times in %d hours", n, hours)
				}
				f.becomes(gives(200, setOf(jwkOf("new", edOther.Public()))))
				time.Sleep(2 * time.Minute)
				passes(t, j, sign(jwt.SigningMethodEdDSA, "new", edOther, long))
				j.Close()
			})
		})
	}
}

// blanks has no end, and is not to be read for long.
type blanks struct {
	t    *testing.T
	read int
}

func (b *blanks) Read(p []byte) (int, error) {
	if b.read += len(p); b.read > 4<<20 {
		b.t.Error("an answer without end is read")
		return 0, io.EOF
	}
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// The hub starts while the issuer is away, and lets callers in when it is back.
func TestIssuerComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: hangs}
		var log lockedBuffer
		j := newJWT(t, auth.JWTOptions{JWKS: "https://me:hidden@id.example/keys", Client: &http.Client{Transport: f}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		token := sign(jwt.SigningMethodEdDSA, "r", edKey, good(nil))
		began := time.Now()
		fails(t, j, token, "key is unknown")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("waited %v for the first keys", took)
		}
		// Later ones do not wait for what has hung for so long.
		began = time.Now()
		fails(t, j, token, "key is unknown")
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %v", took)
		}
		f.becomes(gives(200, setOf(jwkOf("r", edKey.Public()))))
		time.Sleep(15 * time.Second)
		passes(t, j, token)
		if s := log.String(); !strings.Contains(s, "cannot be fetched") || strings.Contains(s, "hidden") {
			t.Errorf("log: %s", s)
		}
		j.Close()
	})
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJWT(t, auth.JWTOptions{JWKS: "http://127.0.0.1/keys", Client: &http.Client{Transport: &fake{do: hangs}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := j.Verify(ctx, sign(jwt.SigningMethodEdDSA, "r", edKey, good(nil))); err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		// Close ends a fetch that hangs, at once.
		began = time.Now()
		j.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("Close took %v", took)
		}
	})
}

// Many callers with a new key cause one fetch.
func TestCallersShareAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{do: gives(200, setOf(jwkOf("r", edKey.Public())))}
		j := newJWT(t, auth.JWTOptions{JWKS: "http://127.0.0.1/keys", Client: &http.Client{Transport: f}})
		passes(t, j, sign(jwt.SigningMethodEdDSA, "r", edKey, good(nil)))
		f.becomes(func(ctx context.Context) (int, io.Reader, error) {
			time.Sleep(time.Second)
			return gives(200, setOf(jwkOf("new", edOther.Public())))(ctx)
		})
		token := sign(jwt.SigningMethodEdDSA, "new", edOther, good(nil))
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { passes(t, j, token) })
		}
		wg.Wait()
		if n := f.count(); n != 2 {
			t.Errorf("fetched %d times", n)
		}
		j.Close()
	})
}

func TestRememberedTokensEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJWT(t, auth.JWTOptions{Secret: secret, Cache: 16})
		token := sign(jwt.SigningMethodHS256, "", secret, good(jwt.MapClaims{"exp": time.Now().Add(time.Minute).Unix()}))
		who := passes(t, j, token)
		time.Sleep(59 * time.Second)
		if passes(t, j, token) != who {
			t.Error("not remembered")
		}
		time.Sleep(time.Second)
		fails(t, j, token, "over")

		// More than there is room for still pass, some of them anew.
		for i := range 100 {
			passes(t, j, sign(jwt.SigningMethodHS256, "", secret, good(jwt.MapClaims{"n": i})))
		}
	})
}

func TestTokens(t *testing.T) {
	tokens, err := auth.NewTokens(
		auth.Token{Name: "OPS", Secret: "s3cret-of-ops", Scopes: []string{"admin", "read:**"}},
		auth.Token{Secret: "another"},
	)
	if err != nil {
		t.Fatal(err)
	}
	who := passes(t, tokens, "s3cret-of-ops")
	if who.Name != "OPS" || !who.Can(auth.Admin, "") || !who.Can(auth.Read, "a") || who.Can(auth.Publish, "a") || !who.Expires.IsZero() {
		t.Errorf("%+v", who)
	}
	if who := passes(t, tokens, "another"); who.Name != "token 2" || who.Can(auth.Read, "a") {
		t.Errorf("%+v", who)
	}
	for _, token := range []string{"", "s3cret-of-op", "s3cret-of-ops ", "S3CRET-OF-OPS", strings.Repeat("x", 1<<20)} {
		fails(t, tokens, token, "unknown")
	}
	for want, list := range map[string][]auth.Token{
		"X: the secret is empty":                  {{Name: "X"}},
		"token 1: the secret has a character":     {{Secret: "a b"}},
		"token 2: the secret has a character":     {{Secret: "a"}, {Secret: "ä"}},
		"B has the same secret as A":              {{Name: "A", Secret: "same"}, {Name: "B", Secret: "same"}},
		`A: scope "write:a": the action`:          {{Name: "A", Secret: "s", Scopes: []string{"write:a"}}},
		"A: the secret has 20000 bytes, the limi": {{Name: "A", Secret: strings.Repeat("s", 20000)}},
	} {
		if _, err := auth.NewTokens(list...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

type verifier func(token string) (*auth.Principal, error)

func (v verifier) Verify(_ context.Context, token string) (*auth.Principal, error) { return v(token) }

func TestChainAndSwitch(t *testing.T) {
	first := must(auth.NewTokens(auth.Token{Name: "one", Secret: "1"}))
	second := must(auth.NewTokens(auth.Token{Name: "two", Secret: "2"}))
	down := errors.New("down")
	var asked atomic.Int32
	last := verifier(func(string) (*auth.Principal, error) { asked.Add(1); return nil, down })
	c := auth.Chain{first, second, last}
	if passes(t, c, "1").Name != "one" || passes(t, c, "2").Name != "two" || asked.Load() != 0 {
		t.Error("the first that knows a token answers")
	}
	if _, err := c.Verify(t.Context(), "3"); !errors.Is(err, down) {
		t.Error(err)
	}
	fails(t, auth.Chain{}, "1", "unknown")
	fails(t, auth.Chain{first, newJWT(t, auth.JWTOptions{Secret: secret})}, "3", "no JWT")

	s := auth.NewSwitch(first)
	passes(t, s, "1")
	if old := s.Set(second); old != auth.Verifier(first) {
		t.Error("Set gives what was there")
	}
	passes(t, s, "2")
	fails(t, s, "1", "unknown")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				_, _ = s.Verify(context.Background(), "1") // one or the other, never neither
				s.Set(first)
			}
		})
	}
	wg.Wait()
	passes(t, s, "1")
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
