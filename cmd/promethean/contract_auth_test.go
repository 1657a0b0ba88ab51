package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const (
	opsToken  = "ops-token-0123456789"
	appToken  = "app-token-0123456789"
	jwtSecret = "a secret of more than thirty-two bytes"
)

// configFile writes a promethean.yaml.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "promethean.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// guarded starts a hub that wants tokens.
func guarded(t *testing.T) *hub {
	t.Helper()
	t.Setenv("OPS_TOKEN", opsToken)
	t.Setenv("APP_TOKEN", appToken)
	t.Setenv("JWT_SECRET", jwtSecret)
	return startHub(t, "--store", "memory://", "--config", configFile(t, `
auth:
  jwt: {secret_env: JWT_SECRET, issuer: tests, audience: hub}
  tokens:
    - {token_env: OPS_TOKEN, scopes: ["publish:**", "subscribe:**", "read:**", "admin"]}
    - {token_env: APP_TOKEN, scopes: ["publish:app.*", "subscribe:app.**", "read:app.x"]}
limits:
  topic_rate: {app.slow: 2/s}
`))
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// sign makes a JWT.
func sign(t *testing.T, header, claims map[string]any, secret string) string {
	t.Helper()
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := part(header) + "." + part(claims)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func TestContractAccess(t *testing.T) {
	p := guarded(t)
	ops, app := bearer(opsToken), bearer(appToken)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		p.get(nil, 200, "GET", path, "")
	}
	if a := p.call("POST", "/publish/app.x", `1`); a.status != 401 || a.header.Get("WWW-Authenticate") == "" {
		t.Errorf("%d %v", a.status, a.header)
	}
	p.refused(401, "unauthorized", "POST", "/publish/app.x", `1`, bearer("wrong")...)
	p.refused(401, "unauthorized", "POST", "/publish/app.x", `1`, "Authorization", "Basic eDp5")
	p.get(nil, 201, "POST", "/publish/app.x", `1`, app...)
	p.refused(403, "forbidden", "POST", "/publish/other.x", `1`, app...)
	p.refused(403, "forbidden", "POST", "/publish/app.x.y", `1`, app...)
	p.refused(403, "forbidden", "POST", "/publish", `[{"topic":"app.x","payload":1},{"topic":"other.x","payload":1}]`, append(app, "Content-Type", "application/json")...)
	p.get(nil, 200, "GET", "/replay?topic=app.x", "", app...)
	p.refused(403, "forbidden", "GET", "/replay?topic=app.y", "", app...)
	p.refused(403, "forbidden", "GET", "/dlq", "", app...)
	p.refused(403, "forbidden", "PUT", "/topics/app.x", `{"partitions":2}`, app...)
	p.refused(403, "forbidden", "PUT", "/cursors", `{"topic":"app.x","group":"g","to":{"from":"earliest"}}`, app...)
	p.refused(403, "forbidden", "GET", "/schemas/other.x", "", app...)
	p.refused(404, "not_found", "GET", "/schemas/other.x", "", ops...)
	p.refused(401, "unauthorized", "GET", "/schemas/other.x", "")
	p.get(nil, 200, "POST", "/pull", `{"topic":"app.x.deep","group":"g","max":1,"wait_ms":0}`, app...)
	p.refused(403, "forbidden", "POST", "/pull", `{"topic":"other.x","group":"g","max":1,"wait_ms":0}`, app...)
	p.refused(403, "forbidden", "POST", "/ack", `{"topic":"other.x","group":"g","ids":["`+id1+`"]}`, app...)
	var log struct{ Events []record }
	p.get(&log, 200, "GET", "/replay?topic=app.x", "", ops...)
	if len(log.Events) != 1 {
		t.Errorf("%d events; refused ones are stored", len(log.Events))
	}
	// Rates.
	limited := 0
	for range 6 {
		a := p.call("POST", "/publish/app.slow", `1`, app...)
		if a.status == 429 {
			limited++
			if a.header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		}
	}
	if limited == 0 {
		t.Error("the rate of a topic limits nothing")
	}
	// JWTs.
	claims := func(change map[string]any) map[string]any {
		c := map[string]any{"iss": "tests", "aud": "hub", "exp": time.Now().Add(time.Hour).Unix(), "scope": "publish:jwt.* read:jwt.*", "sub": "me"}
		for k, v := range change {
			if v == nil {
				delete(c, k)
			} else {
				c[k] = v
			}
		}
		return c
	}
	hs := map[string]any{"alg": "HS256", "typ": "JWT"}
	p.get(nil, 201, "POST", "/publish/jwt.a", `1`, bearer(sign(t, hs, claims(nil), jwtSecret))...)
	p.get(nil, 201, "POST", "/publish/jwt.a", `1`, bearer(sign(t, hs, claims(map[string]any{"scope": nil, "scopes": []string{"publish:jwt.a"}}), jwtSecret))...)
	p.refused(403, "forbidden", "POST", "/publish/other.a", `1`, bearer(sign(t, hs, claims(nil), jwtSecret))...)
	for name, token := range map[string]string{
		"another secret": sign(t, hs, claims(nil), "some other secret of more than 32 bytes"),
		"alg none":       sign(t, map[string]any{"alg": "none"}, claims(nil), jwtSecret),
		"alg RS256":      sign(t, map[string]any{"alg": "RS256"}, claims(nil), jwtSecret),
		"expired":        sign(t, hs, claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), jwtSecret),
		"without exp":    sign(t, hs, claims(map[string]any{"exp": nil}), jwtSecret),
		"other audience": sign(t, hs, claims(map[string]any{"aud": "else"}), jwtSecret),
		"other issuer":   sign(t, hs, claims(map[string]any{"iss": "else"}), jwtSecret),
		"not yet":        sign(t, hs, claims(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), jwtSecret),
	} {
		if a := p.call("POST", "/publish/jwt.a", `1`, bearer(token)...); a.status != 401 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	walkAuthFrames(p, sign(t, hs, claims(map[string]any{"exp": time.Now().Add(3 * time.Second).Unix(), "scope": "subscribe:app.**"}), jwtSecret))
	// What an admin does is on record, without his token.
	p.get(nil, 200, "PUT", "/topics/app.made", `{"partitions":2}`, ops...)
	found := false
	for deadline := time.Now().Add(10 * time.Second); !found && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		a := p.call("GET", "/replay?topic=system.audit", "", ops...)
		found = strings.Contains(string(a.body), "app.made")
		if strings.Contains(string(a.body), opsToken) {
			t.Fatal("a token is in the audit")
		}
	}
	if !found {
		t.Error("what an admin did is not on record")
	}
	p.stop()
	for _, secret := range []string{opsToken, appToken, jwtSecret} {
		if strings.Contains(p.said.String(), secret) {
			t.Errorf("the log shows %q", secret)
		}
	}
}

func walkAuthFrames(p *hub, short string) {
	t := p.T
	s := p.dial()
	s.err("unauthorized", "PUBLISH", `"topic":"app.x","payload":1`)
	s.err("unauthorized", "AUTH", `"token":"wrong"`)
	s.ok("AUTH", `"token":"`+appToken+`"`)
	s.ok("PUBLISH", `"topic":"app.x","payload":1`)
	s.err("forbidden", "PUBLISH", `"topic":"other.x","payload":1`)
	s.err("forbidden", "PUBLISH", `"events":[{"topic":"app.x","payload":1},{"topic":"other.x","payload":1}]`)
	s.err("forbidden", "SUBSCRIBE", `"topic":"other.x","group":"g"`)
	s.err("forbidden", "SUBSCRIBE", `"topic":"**","group":"g"`)
	s.ok("SUBSCRIBE", `"topic":"app.**","group":"g"`)
	s.err("forbidden", "ACK", `"topic":"other.x","group":"g","id":"`+id1+`"`)
	// By the upgrade.
	s = p.dial(bearer(appToken)...)
	s.ok("PUBLISH", `"topic":"app.x","payload":1`)
	// A connection ends when its token does.
	s = p.dial(bearer(short)...)
	s.ok("SUBSCRIBE", `"topic":"app.quiet","group":"g"`)
	began := time.Now()
	if s.ends(); time.Since(began) > 10*time.Second {
		t.Errorf("a connection outlives its token by %v", time.Since(began))
	}
	// Nobody may stay without one.
	s = p.dial()
	began = time.Now()
	if s.ends(); time.Since(began) < 3*time.Second || time.Since(began) > 12*time.Second {
		t.Errorf("a connection without a token ends after %v", time.Since(began))
	}
}

// ends reads until the hub closes the connection.
func (s *socket) ends() {
	s.Helper()
	for {
		f, err := s.read()
		if websocket.CloseStatus(err) != -1 {
			return
		}
		if err != nil || f.Op != "ERR" {
			s.Fatalf("want the end: %+v, %v", f, err)
		}
	}
}

// TestContractStart holds serve to what it refuses.
func TestContractStart(t *testing.T) {
	bad := configFile(t, "listen: 127.0.0.1:0\nstroe: memory://\n")
	for _, c := range []struct {
		args  []string
		code  int
		parts []string
	}{
		{[]string{"serve", "--config", bad}, 2, []string{bad + ":2", "stroe"}},
		{[]string{"serve", "--listen", "0.0.0.0:0", "--store", "memory://"}, 2, []string{"--insecure"}},
		{[]string{"serve", "--store", "ftp://x"}, 2, []string{"ftp"}},
		{[]string{"serve", "--nope"}, 2, []string{"--nope"}},
		{[]string{"serve", "extra"}, 2, []string{"extra"}},
		{[]string{"serve", "--config", filepath.Join(t.TempDir(), "none.yaml")}, 2, []string{"none.yaml"}},
	} {
		out, err := exec.Command("promethean", c.args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.code {
			t.Errorf("%v: %v, want exit code %d\n%s", c.args, err, c.code, out)
		}
		for _, part := range c.parts {
			if !strings.Contains(string(out), part) {
				t.Errorf("%v says nothing of %q:\n%s", c.args, part, out)
			}
		}
	}
	// Flags go before the environment, and that before the file.
	file := configFile(t, "listen: 127.0.0.1:1\nstore: file:///nowhere\n")
	t.Setenv("PROMETHEAN_STORE", "memory://")
	t.Setenv("PROMETHEAN_UNHEARD_OF", "x")
	p := startHub(t, "--config", file)
	p.get(nil, 200, "GET", "/readyz", "")
	p.stop()
	if fmt.Sprint(p.cmd) != "<nil>" {
		t.Error("it is still there")
	}
}
