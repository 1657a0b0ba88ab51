package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"promethean/internal/app/config"
)

// lookEvery is how often a handshake looks whether the files have changed.
const lookEvery = 2 * time.Second

// certificates are those of the listener. They are read again when their files
// change; a change that cannot be used is logged, and those before it stay.
type certificates struct {
	log *slog.Logger

	mu     sync.Mutex
	files  config.TLS
	config *tls.Config
	state  [3]fileState
	looked time.Time
}

// fileState tells one content of a file from the next.
type fileState struct {
	size int64
	at   time.Time
}

func newCertificates(files config.TLS, log *slog.Logger) (*certificates, error) {
	c := &certificates{log: log}
	return c, c.use(files)
}

// use reads the files and takes what is in them from now on. If it fails,
// nothing has changed.
func (c *certificates) use(files config.TLS) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read(files)
}

// read must be called with mu held.
func (c *certificates) read(files config.TLS) error {
	state := statesOf(files) // before the content: a change in between is seen later
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w", files.Cert, files.Key, err)
	}
	t := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if files.ClientCA != "" {
		pem, err := os.ReadFile(files.ClientCA)
		if err != nil {
			return fmt.Errorf("read who signs callers' certificates: %w", err)
		}
		t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !t.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("read who signs callers' certificates: %w", errors.New(files.ClientCA+" holds no certificate in PEM"))
		}
	}
	c.files, c.config, c.state, c.looked = files, t, state, time.Now()
	return nil
}

func statesOf(f config.TLS) (state [3]fileState) {
	for i, name := range []string{f.Cert, f.Key, f.ClientCA} {
		if st, err := os.Stat(name); err == nil {
			state[i] = fileState{st.Size(), st.ModTime()}
		}
	}
	return state
}

// current gives what a handshake uses.
func (c *certificates) current(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.looked) >= lookEvery {
		c.looked = now
		if state := statesOf(c.files); state != c.state {
			if err := c.read(c.files); err != nil {
				c.state = state // say it once
				c.log.Error("the new certificate cannot be used, the old one stays", "err", err)
			} else {
				c.log.Info("the certificate was read again", "cert", c.files.Cert)
			}
		}
	}
	return c.config, nil
}

// listener is the configuration of the listener.
func (c *certificates) listener() *tls.Config {
	return &tls.Config{GetConfigForClient: c.current, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
}
