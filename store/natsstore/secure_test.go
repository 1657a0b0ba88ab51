package natsstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/store"
	"promethean/store/natsstore"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.issue("ca")
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes a certificate and its key to name.pem and name.key. The first
// one is the authority's own.
func (a *authority) issue(name string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer, a.key = c, key, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "PRIVATE KEY", Bytes: raw},
	} {
		if err := os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// works appends an event and reads it.
func works(t *testing.T, s *natsstore.Store) {
	t.Helper()
	mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("k", 1)}})
	if log := readAll(t, s, store.Query{Topic: topic}); len(log) != 1 {
		t.Fatalf("%d events, want 1", len(log))
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	ours.issue("server")
	ours.issue("client")
	theirs.issue("client")
	pair, err := tls.LoadX509KeyPair(ours.file("server.pem"), ours.file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	url := natstest.Start(t, func(o *natstest.Options) {
		o.TLS = true
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	}).URL()
	o := quick
	o.CA, o.Cert, o.Key = ours.file("ca.pem"), ours.file("client.pem"), ours.file("client.key")
	works(t, open(t, url, o))

	strange := o
	strange.CA = theirs.file("ca.pem")
	wantRefused(t, url, strange, "certificate")
	foreign := o
	foreign.Cert, foreign.Key = theirs.file("client.pem"), theirs.file("client.key")
	wantRefused(t, url, foreign, "connect to")
	missing := o
	missing.CA = ours.file("none.pem")
	wantRefused(t, url, missing, "none.pem")
}

// seed makes a key pair, and writes its seed to a file.
func seed(t *testing.T, make func() (nkeys.KeyPair, error)) (pair nkeys.KeyPair, public, file string) {
	t.Helper()
	pair, err := make()
	if err != nil {
		t.Fatal(err)
	}
	public, err = pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(file, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	return pair, public, file
}

func TestNKey(t *testing.T) {
	t.Parallel()
	_, public, file := seed(t, nkeys.CreateUser)
	_, _, other := seed(t, nkeys.CreateUser)
	url := natstest.Start(t, func(o *natstest.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} }).URL()
	o := quick
	o.NKeySeed = file
	works(t, open(t, url, o))
	o.NKeySeed = other
	wantRefused(t, url, o, "Authorization")
}

// TestCredentials logs in as a user of an account that an operator signed.
func TestCredentials(t *testing.T) {
	t.Parallel()
	operator, operatorKey, _ := seed(t, nkeys.CreateOperator)
	account, accountKey, _ := seed(t, nkeys.CreateAccount)
	_, systemKey, _ := seed(t, nkeys.CreateAccount)
	user, userKey, _ := seed(t, nkeys.CreateUser)

	claims := jwt.NewAccountClaims(accountKey)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	signed, err := claims.Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	system, err := jwt.NewAccountClaims(systemKey).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	login, err := jwt.NewUserClaims(userKey).Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(login, secret)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "user.creds")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	url := natstest.Start(t, func(o *natstest.Options) {
		o.TrustedKeys, o.SystemAccount = []string{operatorKey}, systemKey
		resolver := &server.MemAccResolver{}
		for key, token := range map[string]string{accountKey: signed, systemKey: system} {
			if err := resolver.Store(key, token); err != nil {
				t.Fatal(err)
			}
		}
		o.AccountResolver = resolver
	}).URL()
	o := quick
	o.Credentials = file
	works(t, open(t, url, o))
	o.Credentials = file + ".none"
	wantRefused(t, url, o, "none")
	wantRefused(t, url, quick, "Authorization")
}

// A user that may not write is told so at once, and not that the server is away.
func TestReadOnlyUser(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, func(o *natstest.Options) {
		o.Users = []*server.User{
			{Username: "writer", Password: "w"},
			{Username: "reader", Password: "r", Permissions: &server.Permissions{Publish: &server.SubjectPermission{
				Allow: []string{"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.MSG.GET.>", "$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.>", "_INBOX.>"},
			}}},
		}
	}).URL()
	reader := natsstore.Options{User: "reader", Password: "r"} // patient: the error must not come from that
	wantRefused(t, url, reader, "lacks a permission", "STREAM.CREATE")
	works(t, open(t, url, natsstore.Options{User: "writer", Password: "w"}))
	s := open(t, url, reader)
	if log := readAll(t, s, store.Query{Topic: topic}); len(log) != 1 {
		t.Fatalf("%d events, want 1", len(log))
	}
	for name, call := range map[string]func() error{
		"append": func() error {
			_, err := s.Append(deadline(t), store.Batch{Events: []event.Event{newEvent("k", 2)}})
			return err
		},
		"put cursor": func() error { _, err := s.PutCursor(deadline(t), store.Cursor{Topic: topic, Group: "g"}); return err },
		"set topic":  func() error { return s.SetTopic(deadline(t), topic, store.Settings{MaxBytes: 1 << 20}) },
	} {
		if err := call(); err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "lacks a permission") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestServerFull fills what the server may keep: publishers get an error that
// says so, what was acknowledged stays, and space that is freed can be used.
func TestServerFull(t *testing.T) {
	t.Parallel()
	url := natstest.Start(t, func(o *natstest.Options) { o.JetStreamMaxStore = 1 << 20 }).URL()
	s := open(t, url, natsstore.Options{})
	ctx := deadline(t)
	acked := 0
	var full error
	var began time.Time
	for full == nil {
		began = time.Now()
		e := newEvent("k", acked)
		e.Payload = fmt.Appendf(nil, "%q", strings.Repeat("x", 50_000))
		if _, full = s.Append(ctx, store.Batch{Events: []event.Event{e}}); full == nil {
			acked++
		}
		if acked > 100 {
			t.Fatal("it is never full")
		}
	}
	if !errors.Is(full, store.ErrUnavailable) || !strings.Contains(full.Error(), "raise max_file_store") {
		t.Errorf("the error does not say what to do: %v", full)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v until the publisher was told", took)
	}
	if acked < 5 {
		t.Errorf("full after %d events", acked)
	}
	if log := readAll(t, s, store.Query{Topic: topic}); len(log) != acked {
		t.Fatalf("%d events, %d were acknowledged", len(log), acked)
	}
	if err := s.Trim(ctx, topic, uint64(acked)); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("k", 1)}})
}
