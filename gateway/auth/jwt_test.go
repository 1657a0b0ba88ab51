package auth_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"promethean/gateway/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	secret   = []byte("0123456789abcdef0123456789abcdef")
	rsaKey   = must(rsa.GenerateKey(rand.Reader, 2048))
	rsaOther = must(rsa.GenerateKey(rand.Reader, 2048))
	ecKey    = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	ecOther  = must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	edKey    = ed25519.NewKeyFromSeed(secret)
	edOther  = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// jwkOf writes a public key as a JWK; more are fields beside it, as pairs.
func jwkOf(kid string, key crypto.PublicKey, more ...string) map[string]any {
	m := map[string]any{"kid": kid}
	switch k := key.(type) {
	case *rsa.PublicKey:
		m["kty"], m["n"], m["e"] = "RSA", b64(k.N.Bytes()), b64(big.NewInt(int64(k.E)).Bytes())
	case *ecdsa.PublicKey:
		raw := must(k.Bytes())
		half := len(raw) / 2
		m["kty"], m["crv"], m["x"], m["y"] = "EC", k.Curve.Params().Name, b64(raw[1:1+half]), b64(raw[1+half:])
	case ed25519.PublicKey:
		m["kty"], m["crv"], m["x"] = "OKP", "Ed25519", b64(k)
	case []byte:
		m["kty"], m["k"] = "oct", b64(k)
	}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

func setOf(keys ...map[string]any) []byte {
	return must(json.Marshal(map[string]any{"keys": keys}))
}

// issuer serves a key set, and counts how often it is asked.
type issuer struct {
	*httptest.Server
	mu    sync.Mutex
	body  []byte
	asked int
}

func newIssuer(t testing.TB, body []byte) *issuer {
	i := &issuer{body: body}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked++
		_, _ = w.Write(i.body)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) set(body []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.body = body
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

func newJWT(t testing.TB, o auth.JWTOptions) *auth.JWT {
	t.Helper()
	j, err := auth.NewJWT(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	return j
}

// good are claims that pass, with more beside them; nil takes one away.
func good(more jwt.MapClaims) jwt.MapClaims {
	c := jwt.MapClaims{"sub": "ada", "exp": time.Now().Add(time.Hour).Unix(), "scope": "read:a.* publish:b"}
	maps.Copy(c, more)
	for k, v := range c {
		if v == nil {
			delete(c, k)
		}
	}
	return c
}

func sign(method jwt.SigningMethod, kid string, key any, claims jwt.MapClaims) string {
	t := jwt.NewWithClaims(method, claims)
	if kid != "" {
		t.Header["kid"] = kid
	}
	return must(t.SignedString(key))
}

// passes and fails check what becomes of a token. The error never holds it.
func passes(t testing.TB, v auth.Verifier, token string) *auth.Principal {
	t.Helper()
	who, err := v.Verify(context.Background(), token)
	if err != nil {
		t.Errorf("refused: %v", err)
		return &auth.Principal{}
	}
	return who
}

func fails(t testing.TB, v auth.Verifier, token, why string) {
	t.Helper()
	who, err := v.Verify(context.Background(), token)
	if who != nil || !errors.Is(err, auth.ErrUnauthorized) || !strings.Contains(err.Error(), why) {
		t.Errorf("%v %v, want %s", who, err, why)
		return
	}
	for part := range strings.SplitSeq(token, ".") {
		if len(part) > 8 && strings.Contains(err.Error(), part) {
			t.Errorf("the error shows the token: %v", err)
		}
	}
}

func TestAlgorithms(t *testing.T) {
	keys := newIssuer(t, setOf(
		jwkOf("r", rsaKey.Public(), "alg", "RS256", "use", "sig"),
		jwkOf("e", ecKey.Public()),
		jwkOf("d", edKey.Public(), "alg", "EdDSA"),
	))
	j := newJWT(t, auth.JWTOptions{Secret: secret, JWKS: keys.URL})
	for _, c := range []struct {
		method jwt.SigningMethod
		kid    string
		key    any
		wrong  any // another key of the same kind
	}{
		{jwt.SigningMethodHS256, "", secret, []byte("another secret of 32 bytes......")},
		{jwt.SigningMethodRS256, "r", rsaKey, rsaOther},
		{jwt.SigningMethodES256, "e", ecKey, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))},
		{jwt.SigningMethodEdDSA, "d", edKey, edOther},
	} {
		t.Run(c.method.Alg(), func(t *testing.T) {
			token := sign(c.method, c.kid, c.key, good(nil))
			who := passes(t, j, token)
			if who.Name != "ada" || !who.Can(auth.Read, "a.x") || !who.Can(auth.Publish, "b") || who.Can(auth.Publish, "a.x") || who.Expires.Before(time.Now()) {
				t.Errorf("%+v", who)
			}
			if passes(t, j, token) != who {
				t.Error("verified again, not remembered")
			}
			passes(t, j, sign(c.method, "", c.key, good(nil))) // without a kid every key of the algorithm is tried
			fails(t, j, sign(c.method, c.kid, c.wrong, good(nil)), "signature")
			parts := strings.Split(token, ".")
			fails(t, j, parts[0]+"."+parts[1]+".", "signature")
			fails(t, j, parts[0]+"."+b64([]byte(`{"sub":"root","exp":99999999999,"scope":"admin"}`))+"."+parts[2], "signature")
			fails(t, j, parts[0]+"."+parts[1], "no JWT")
		})
	}
}

// The token chooses neither the algorithm of a key nor the key of an algorithm.
func TestKeyConfusion(t *testing.T) {
	der := must(x509.MarshalPKIXPublicKey(rsaKey.Public()))
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	keys := newIssuer(t, setOf(
		jwkOf("r", rsaKey.Public()),
		jwkOf("e", ecKey.Public()),
		jwkOf("ps", rsaOther.Public(), "alg", "PS256"),
		jwkOf("enc", rsaOther.Public(), "use", "enc"),
		jwkOf("hs-alg", rsaOther.Public(), "alg", "HS256"),
		jwkOf("oct", secret),
		jwkOf("p384", ecOther.Public()),
		map[string]any{"kty": "RSA", "kid": "small", "n": b64(bytes.Repeat([]byte{0xff}, 64)), "e": "AQAB"},
		map[string]any{"kty": "RSA", "kid": "ops", "n": jwkOf("", rsaOther.Public())["n"], "e": "AQAB", "key_ops": []string{"encrypt"}},
		map[string]any{"kty": "RSA", "kid": "one", "n": jwkOf("", rsaOther.Public())["n"], "e": "AQ"},
	))
	both := newJWT(t, auth.JWTOptions{Secret: secret, JWKS: keys.URL})
	only := newJWT(t, auth.JWTOptions{JWKS: keys.URL})
	hmac := newJWT(t, auth.JWTOptions{Secret: secret})
	passes(t, only, sign(jwt.SigningMethodRS256, "r", rsaKey, good(nil)))

	for _, public := range [][]byte{der, asPEM, rsaKey.N.Bytes()} {
		for _, kid := range []string{"r", ""} {
			fails(t, both, sign(jwt.SigningMethodHS256, kid, public, good(nil)), "signature")
			fails(t, only, sign(jwt.SigningMethodHS256, kid, public, good(nil)), "algorithm")
		}
	}
	fails(t, only, sign(jwt.SigningMethodHS256, "oct", secret, good(nil)), "algorithm")
	fails(t, hmac, sign(jwt.SigningMethodRS256, "r", rsaKey, good(nil)), "algorithm")
	for _, j := range []*auth.JWT{both, only, hmac} {
		fails(t, j, sign(jwt.SigningMethodNone, "", jwt.UnsafeAllowNoneSignatureType, good(nil)), "algorithm")
		fails(t, j, sign(jwt.SigningMethodNone, "r", jwt.UnsafeAllowNoneSignatureType, good(nil)), "algorithm")
		for _, alg := range []string{"None", "NONE", "", "hs256", "RS1"} {
			head := b64(fmt.Appendf(nil, `{"alg":%q,"kid":"r"}`, alg))
			fails(t, j, head+"."+b64([]byte(`{"exp":99999999999}`))+".", "algorithm")
		}
		fails(t, j, b64([]byte(`{"alg":7}`))+"."+b64([]byte(`{}`))+".", "algorithm")
		for _, m := range []jwt.SigningMethod{jwt.SigningMethodHS384, jwt.SigningMethodHS512} {
			fails(t, j, sign(m, "", secret, good(nil)), "algorithm")
		}
		for _, m := range []jwt.SigningMethod{jwt.SigningMethodRS384, jwt.SigningMethodPS256} {
			fails(t, j, sign(m, "r", rsaKey, good(nil)), "algorithm")
		}
	}
	for _, kid := range []string{"e", "ps", "enc", "hs-alg", "small", "ops", "one"} {
		key := rsaOther
		if kid == "e" {
			key = rsaKey
		}
		fails(t, only, sign(jwt.SigningMethodRS256, kid, key, good(nil)), "key is unknown")
	}
	fails(t, only, sign(jwt.SigningMethodES384, "p384", ecOther, good(nil)), "algorithm")
	fails(t, only, sign(jwt.SigningMethodRS256, "", rsaOther, good(nil)), "signature")

	odd := jwt.NewWithClaims(jwt.SigningMethodHS256, good(nil))
	odd.Header["crit"] = []string{"b64"}
	fails(t, both, must(odd.SignedString(secret)), "critical")
	odd = jwt.NewWithClaims(jwt.SigningMethodRS256, good(nil))
	odd.Header["kid"] = 7
	fails(t, both, must(odd.SignedString(rsaKey)), "kid")
}

func TestClaims(t *testing.T) {
	var log bytes.Buffer
	j := newJWT(t, auth.JWTOptions{
		Secret: secret, Issuer: "https://id.example", Audience: "hub",
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	now := time.Now()
	base := jwt.MapClaims{"iss": "https://id.example", "aud": "hub"}
	with := func(more jwt.MapClaims) string {
		c := good(base)
		maps.Copy(c, more)
		for k, v := range c {
			if v == nil {
				delete(c, k)
			}
		}
		return sign(jwt.SigningMethodHS256, "", secret, c)
	}
	for name, more := range map[string]jwt.MapClaims{
		"as it is":        {},
		"several aud":     {"aud": []string{"x", "hub"}},
		"nbf before":      {"nbf": now.Add(-time.Minute).Unix()},
		"nbf in leeway":   {"nbf": now.Add(3 * time.Second).Unix()},
		"iat in leeway":   {"iat": now.Add(3 * time.Second).Unix()},
		"exp as fraction": {"exp": float64(now.Unix()) + 100.5},
	} {
		t.Run(name, func(t *testing.T) { passes(t, j, with(more)) })
	}
	for _, c := range []struct {
		name, why string
		more      jwt.MapClaims
	}{
		{"expired", "over", jwt.MapClaims{"exp": now.Add(-time.Hour).Unix()}},
		{"just expired", "over", jwt.MapClaims{"exp": now.Add(-2 * time.Second).Unix()}},
		{"no exp", "lacks a claim", jwt.MapClaims{"exp": nil}},
		{"exp is text", "wrong type", jwt.MapClaims{"exp": "tomorrow"}},
		{"exp is 0", "lacks a claim", jwt.MapClaims{"exp": 0}},
		{"exp is far", "no time", jwt.MapClaims{"exp": 1e15}},
		{"nbf ahead", "not come", jwt.MapClaims{"nbf": now.Add(time.Minute).Unix()}},
		{"iat ahead", "future", jwt.MapClaims{"iat": now.Add(time.Minute).Unix()}},
		{"other iss", "another issuer", jwt.MapClaims{"iss": "https://id.example.evil"}},
		{"no iss", "lacks a claim", jwt.MapClaims{"iss": nil}},
		{"other aud", "another audience", jwt.MapClaims{"aud": []string{"x", "hubs"}}},
		{"no aud", "lacks a claim", jwt.MapClaims{"aud": nil}},
		{"aud is a number", "lacks a claim", jwt.MapClaims{"aud": 7}},
	} {
		t.Run(c.name, func(t *testing.T) { fails(t, j, with(c.more), c.why) })
	}
	for _, exp := range []string{"1e300", "-1e300", "1e19", "-1", "253402300800", "null", "true", "{}"} {
		claims := `{"iss":"https://id.example","aud":"hub","exp":` + exp + `}`
		text := b64([]byte(`{"alg":"HS256"}`)) + "." + b64([]byte(claims))
		sig := must(jwt.SigningMethodHS256.Sign(text, secret))
		fails(t, j, text+"."+b64(sig), "")
	}
	fails(t, j, strings.Repeat("a", 1<<20), "too long")

	who := passes(t, j, with(jwt.MapClaims{"sub": strings.Repeat("x", 500) + "\n", "scope": "read:a openid  read:*.c", "scopes": []any{"publish:d", "wrong:", 7, "admin"}}))
	if len(who.Name) > 100 || !who.Can(auth.Read, "a") || !who.Can(auth.Read, "b.c") || !who.Can(auth.Publish, "d") || !who.Can(auth.Admin, "") || len(who.Scopes) != 4 {
		t.Errorf("%+v", who)
	}
	if who := passes(t, j, with(jwt.MapClaims{"sub": "a\x00\x1b[31mb"})); who.Name != "a[31mb" {
		t.Errorf("%q", who.Name)
	}
	who = passes(t, j, with(jwt.MapClaims{"sub": nil, "scope": []string{"admin"}, "scopes": "admin"}))
	if who.Name != "jwt" || len(who.Scopes) != 0 {
		t.Errorf("%+v", who)
	}
	for range 5 {
		passes(t, j, with(jwt.MapClaims{"jti": rand.Text(), "scope": "openid"}))
	}
	if n := strings.Count(log.String(), "openid"); n != 1 {
		t.Errorf("openid was logged %d times: %s", n, log.String())
	}
	for _, want := range []string{"wrong:", "no string", "no list"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not logged: %s", want, log.String())
		}
	}
}

func TestNewJWTRefuses(t *testing.T) {
	for want, o := range map[string]auth.JWTOptions{
		"needed":   {},
		"31 bytes": {Secret: secret[:31]},
		"address":  {JWKS: "ftp://user:hidden@x/keys"},
		"http or":  {JWKS: "keys.json"},
	} {
		if _, err := auth.NewJWT(o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func FuzzVerify(f *testing.F) {
	keys := newIssuer(f, setOf(jwkOf("r", rsaKey.Public()), jwkOf("e", ecKey.Public()), jwkOf("d", edKey.Public())))
	j := newJWT(f, auth.JWTOptions{Secret: secret, JWKS: keys.URL, Wait: time.Millisecond, Refetch: time.Hour})
	tokens := must(auth.NewTokens(auth.Token{Secret: "known"}))
	f.Add("known")
	f.Add("a.b.c")
	f.Add("")
	f.Add(b64([]byte(`{"alg":"none"}`)) + "." + b64([]byte(`{"exp":9e9}`)) + ".")
	f.Add(b64([]byte(`{"alg":"EdDSA","kid":"d"}`)) + "." + b64([]byte(`{"exp":9e9}`)) + "." + b64(make([]byte, 64)))
	f.Add(b64([]byte(`{"alg":"ES256","kid":"e"}`)) + "." + b64([]byte(`{"exp":[]}`)) + "." + b64(make([]byte, 64)))
	v := auth.Chain{tokens, j}
	f.Fuzz(func(t *testing.T, token string) {
		who, err := v.Verify(context.Background(), token)
		if (who == nil) == (err == nil) || who != nil && token != "known" || err != nil && !errors.Is(err, auth.ErrUnauthorized) {
			t.Errorf("%v %v", who, err)
		}
	})
}
