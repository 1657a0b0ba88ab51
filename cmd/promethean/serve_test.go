package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"promethean/store/logstore"
)

// patience is how long anything may take that a test waits for.
const patience = 30 * time.Second

// process is a hub that runs as one.
type process struct {
	*testing.T
	cmd    *exec.Cmd
	ready  string // the line that it has written
	url    string
	stderr lockedBuffer
	rest   chan string // what came on standard output after the line
	client *http.Client
}

// lockedBuffer is a buffer that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// serveProcess starts a hub and waits until it is ready. Env is added to the
// environment.
func serveProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{T: t, rest: make(chan string, 1), client: &http.Client{Timeout: patience, Transport: &http.Transport{}}}
	p.cmd = exec.Command("promethean", append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			<-p.rest
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the hub wrote:\n%s", p.stderr.String())
		}
	})
	line := make(chan string, 1)
	go func() {
		r := bufio.NewReader(out)
		first, _ := r.ReadString('\n')
		line <- first
		more, _ := io.ReadAll(r)
		p.rest <- string(more)
	}()
	select {
	case p.ready = <-line:
	case <-time.After(patience):
	}
	if _, err := fmt.Sscanf(p.ready, "promethean ready on %s (store", &p.url); err != nil {
		t.Fatalf("the hub is not ready: %q", p.ready)
	}
	return p
}

// signal sends a signal.
func (p *process) signal(s os.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.Fatal(err)
	}
}

// ends waits for the end and checks the exit code.
func (p *process) ends(code int) {
	p.Helper()
	select {
	case more := <-p.rest: // standard output is closed
		if more != "" {
			p.Errorf("more than the line on standard output: %q", more)
		}
	case <-time.After(patience):
		p.Fatal("the hub does not end")
	}
	if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != code {
		p.Errorf("ended with %v, want exit code %d", err, code)
	}
}

// until waits for a condition that nothing tells of.
func (p *process) until(what string, done func() bool) {
	p.Helper()
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			p.Fatalf("in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // polling, up to a deadline
	}
}

// try sends a request, with headers as pairs.
func (p *process) try(method, path, body string, headers ...string) (status int, answer string, err error) {
	r, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	got, err := p.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = got.Body.Close() }()
	data, err := io.ReadAll(got.Body)
	return got.StatusCode, string(data), err
}

func (p *process) want(status int, method, path, body string, headers ...string) string {
	p.Helper()
	got, answer, err := p.try(method, path, body, headers...)
	if err != nil || got != status {
		p.Fatalf("%s %s: %d %s %v, want %d", method, path, got, answer, err, status)
	}
	return answer
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestServeSaysThatItIsReady(t *testing.T) {
	p := serveProcess(t, nil, "--store", "file://./data")
	if want := fmt.Sprintf("promethean ready on %s (store file://./data)\n", p.url); p.ready != want || strings.HasSuffix(p.url, ":0") {
		t.Errorf("said %q, want %q", p.ready, want)
	}
	p.want(200, "GET", "/readyz", "")
	p.want(201, "POST", "/publish/a", `{"n":1}`)
	p.signal(syscall.SIGTERM)
	p.ends(0)
	if got := p.stderr.String(); !strings.HasPrefix(got, `{"time":`) {
		t.Errorf("the log on a pipe is no JSON: %q", got)
	}

	// What was acknowledged is there, and an interrupt ends it as well.
	dir := p.cmd.Dir
	p = serveProcess(t, nil, "--store", "file://"+filepath.Join(dir, "data"), "--log-format", "text")
	if got := p.want(201, "POST", "/publish/a", `2`); !strings.Contains(got, `"seq":2`) {
		t.Error(got)
	}
	p.signal(os.Interrupt)
	p.ends(0)
	if got := p.stderr.String(); !strings.Contains(got, "level=INFO msg=stopped") {
		t.Errorf("%q", got)
	}
}

// half begins a publish and waits until the hub has it under way. The function
// that it gives sends the rest and reads the answer.
func (p *process) half() (conn net.Conn, finish func() string) {
	p.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "POST /publish/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\nExpect: 100-continue\r\n\r\n")
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		p.Fatalf("%q, %v", line, err)
	}
	if _, err := r.ReadString('\n'); err != nil {
		p.Fatal(err)
	}
	fmt.Fprint(conn, `{"a"`)
	return conn, func() string {
		fmt.Fprint(conn, `:1}`)
		line, err := r.ReadString('\n')
		if err != nil {
			p.Error(err)
		}
		return line
	}
}

func (p *process) draining() {
	p.Helper()
	p.until("readiness fails", func() bool {
		status, answer, err := p.try("GET", "/readyz", "")
		return err == nil && status == 503 && strings.Contains(answer, `"draining"`)
	})
}

func TestServeFinishesWhatIsUnderWay(t *testing.T) {
	p := serveProcess(t, nil, "--store", "file://./data")
	_, finish := p.half()
	p.signal(syscall.SIGTERM)
	p.draining()
	p.want(200, "GET", "/livez", "")
	if got := p.want(503, "POST", "/publish/late", `1`); !strings.Contains(got, `"draining"`) {
		t.Error(got)
	}
	if got := finish(); !strings.Contains(got, "201 Created") {
		t.Errorf("what was under way got %q", got)
	}
	p.ends(0)
	s, err := logstore.Open(filepath.Join(p.cmd.Dir, "data"), logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := s.Bounds(context.Background(), "slow")
	late, err2 := s.Bounds(context.Background(), "late")
	if err := errors.Join(err, err2, s.Close()); err != nil || slow.Last != 1 || late.Last != 0 {
		t.Errorf("stored: %d and %d, %v", slow.Last, late.Last, err)
	}
}

func TestServeEndsAtOnceWhenToldTwice(t *testing.T) {
	p := serveProcess(t, nil, "--store", "memory://")
	p.half()
	p.signal(syscall.SIGTERM)
	p.draining()
	p.signal(syscall.SIGTERM)
	p.ends(1)
	if got := p.stderr.String(); !strings.Contains(got, "promethean: stopped at once by a second signal") {
		t.Errorf("%q", got)
	}
}

func TestServeDoesNotWaitForEver(t *testing.T) {
	p := serveProcess(t, nil, "--store", "memory://", "--drain-timeout", "50ms")
	p.half()
	p.signal(syscall.SIGTERM)
	p.ends(0)
	if got := p.stderr.String(); !strings.Contains(got, "requests under way are cut off") {
		t.Errorf("%q", got)
	}
}

func TestServeReloads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yaml")
	config := func(rest string) string {
		return "store: memory://\nlog: {level: debug}\nauth:\n  tokens:\n" + rest
	}
	a, b := []string{"Authorization", "Bearer token-of-a"}, []string{"Authorization", "Bearer token-of-b"}
	write(t, file, config("    - {name: a, token_env: TOKEN_A, scopes: ['publish:orders.*']}\n"))
	p := serveProcess(t, []string{"TOKEN_A=token-of-a", "TOKEN_B=token-of-b"}, "--config", file)
	p.want(201, "POST", "/publish/orders.placed", `1`, a...)
	p.want(403, "POST", "/publish/users", `1`, a...)
	p.want(401, "POST", "/publish/orders.placed", `1`, b...)
	p.want(401, "POST", "/publish/orders.placed", `1`)
	p.want(200, "GET", "/readyz", "")

	// A file that is wrong changes nothing.
	write(t, file, config("    - {name: b, token_env: TOKEN_B, scopes: ['publish:**']}\ncolour: red\n"))
	p.signal(syscall.SIGHUP)
	p.until("the mistake is named", func() bool {
		got := p.stderr.String()
		return strings.Contains(got, "nothing has changed") && strings.Contains(got, file+`:6: unknown key \"colour\"`)
	})
	p.want(201, "POST", "/publish/orders.placed", `1`, a...)
	p.want(401, "POST", "/publish/orders.placed", `1`, b...)

	// One that is right changes what can change, and names what cannot.
	write(t, file, config(`    - {name: b, token_env: TOKEN_B, scopes: ['publish:**']}
pprof: 127.0.0.1:0
origins: ["https://ops.example"]
hosts: [bus.example]
limits: {topic_rate: {slow: 1/h}}
topics: {orders.placed: {partitions: 4, durability: async}}
`))
	p.want(403, "POST", "/publish/users", `1`, append(b, "Origin", "https://ops.example")...)
	p.signal(syscall.SIGHUP)
	p.until("the new token is known", func() bool {
		status, _, err := p.try("POST", "/publish/users", `1`, b...)
		return err == nil && status == 201
	})
	p.want(401, "POST", "/publish/orders.placed", `1`, a...)
	p.until("the reload is done", func() bool { return strings.Contains(p.stderr.String(), "the configuration was read again") })
	p.want(201, "POST", "/publish/orders.placed?partition=3", `1`, b...)
	p.want(201, "POST", "/publish/users", `1`, append(b, "Origin", "https://ops.example", "Host", "bus.example")...)
	p.want(201, "POST", "/publish/slow", `1`, b...)
	p.want(429, "POST", "/publish/slow", `1`, b...)
	if got := p.stderr.String(); !strings.Contains(got, `"some settings change only with a restart","settings":"pprof"`) {
		t.Errorf("%s", got)
	}
	p.signal(syscall.SIGTERM)
	p.ends(0)
	for _, secret := range []string{"token-of-a", "token-of-b"} {
		if strings.Contains(p.stderr.String(), secret) {
			t.Errorf("the log shows %s", secret)
		}
	}
}

// certificate writes a certificate for loopback, which signs itself, and its
// key, and gives a pool that trusts it.
func certificate(t *testing.T, dir string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "hub"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, filepath.Join(dir, "cert.pem"), string(cert))
	write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}

func TestServeWithTLS(t *testing.T) {
	dir := t.TempDir()
	pool := certificate(t, dir, 1)
	p := serveProcess(t, nil, "--store", "memory://", "--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem"))
	if !strings.HasPrefix(p.url, "https://127.0.0.1:") {
		t.Fatal(p.url)
	}
	// serial asks over a new connection, with HTTP/2 if wanted.
	serial := func(pool *x509.CertPool, two bool) (n int64, proto string, err error) {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: two}
		defer tr.CloseIdleConnections()
		r, err := http.NewRequest(http.MethodGet, p.url+"/readyz", nil)
		if err != nil {
			return 0, "", err
		}
		got, err := (&http.Client{Transport: tr, Timeout: patience}).Do(r)
		if err != nil {
			return 0, "", err
		}
		return got.TLS.PeerCertificates[0].SerialNumber.Int64(), got.Proto, got.Body.Close()
	}
	for two, want := range map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"} {
		if n, proto, err := serial(pool, two); n != 1 || proto != want || err != nil {
			t.Errorf("%d, %s, %v", n, proto, err)
		}
	}
	next := certificate(t, dir, 2)
	p.signal(syscall.SIGHUP)
	p.until("the new certificate is shown", func() bool {
		n, _, err := serial(next, false)
		return err == nil && n == 2
	})
	write(t, filepath.Join(dir, "cert.pem"), "broken")
	p.signal(syscall.SIGHUP)
	p.until("the broken one is named", func() bool { return strings.Contains(p.stderr.String(), "nothing has changed") })
	if n, _, err := serial(next, false); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	p.signal(syscall.SIGTERM)
	p.ends(0)
}

func TestServeAsksForCertificates(t *testing.T) {
	dir := t.TempDir()
	pool := certificate(t, dir, 1)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	p := serveProcess(t, nil, "--store", "memory://", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
	p.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	if status, _, err := p.try("GET", "/readyz", ""); err == nil {
		t.Errorf("a caller without a certificate got %d", status)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	p.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}
	p.want(200, "GET", "/readyz", "")
	p.client.CloseIdleConnections()
	p.signal(syscall.SIGTERM)
	p.ends(0)
}

func TestServeOthersOnlyWhenInsecure(t *testing.T) {
	p := serveProcess(t, nil, "--listen", "0.0.0.0:0", "--insecure", "--store", "memory://")
	p.until("the log warns", func() bool { return strings.Contains(p.stderr.String(), "nobody needs a token") })
	p.url = strings.Replace(strings.Replace(p.url, "[::]", "127.0.0.1", 1), "0.0.0.0", "127.0.0.1", 1)
	p.want(200, "GET", "/readyz", "")
	p.signal(syscall.SIGTERM)
	p.ends(0)
}

func TestServeProfiles(t *testing.T) {
	p := serveProcess(t, nil, "--store", "memory://", "--pprof", "127.0.0.1:0")
	p.want(404, "GET", "/debug/pprof/", "")
	hub := p.url
	for line := range strings.Lines(p.stderr.String()) {
		var l struct{ Msg, Address string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Msg == "profiles" {
			p.url = strings.TrimSuffix(l.Address, "/debug/pprof/")
		}
	}
	if p.url == hub {
		t.Fatal("the log does not say where profiles are")
	}
	if got := p.want(200, "GET", "/debug/pprof/cmdline", ""); !strings.Contains(got, "serve") {
		t.Error(got)
	}
	p.want(200, "GET", "/debug/pprof/goroutine?debug=1", "")
	p.want(403, "GET", "/debug/pprof/heap", "", "Host", "evil.example")
	p.want(403, "GET", "/debug/pprof/heap", "", "Origin", "http://evil.example")
	p.want(403, "GET", "/debug/pprof/heap", "", "Sec-Fetch-Site", "cross-site")
	p.signal(syscall.SIGTERM)
	p.ends(0)
}

// Too many headers are refused before they are held.
func TestServeBoundsHeaders(t *testing.T) {
	p := serveProcess(t, nil, "--store", "memory://")
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	go func() {
		w := bufio.NewWriter(conn)
		fmt.Fprint(w, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n")
		for i := range 100_000 {
			fmt.Fprintf(w, "x-%d: %d\r\n", i, i)
		}
		_ = w.Flush() // the hub does not take all of it
	}()
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "431") {
		t.Errorf("%q, %v", line, err)
	}
	p.want(200, "GET", "/readyz", "")
	p.signal(syscall.SIGTERM)
	p.ends(0)
}
