package mongostore_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"promethean/internal/mongotest"
	"promethean/internal/netfault"
)

// proxy stands between a store and its server.
type proxy struct {
	*netfault.Proxy
	requests, stream atomic.Int64
}

func newProxy(t testing.TB, uri string) *proxy {
	t.Helper()
	p := &proxy{Proxy: netfault.New(t, mongotest.Host(t, uri))}
	p.Judge(nil)
	return p
}

func (p *proxy) uri() string { return mongotest.Direct(p.Addr()) }

// Judge has the fate of requests decided by f, and counts them.
func (p *proxy) Judge(f func(chunk []byte) netfault.Fate) {
	p.Proxy.Judge(func(chunk []byte) netfault.Fate {
		switch {
		case bytes.Contains(chunk, []byte("hello\x00")), bytes.Contains(chunk, []byte("isMaster\x00")):
		case bytes.Contains(chunk, []byte("getMore\x00")) && bytes.Contains(chunk, []byte("maxTimeMS\x00")):
			p.stream.Add(1)
		default:
			p.requests.Add(1)
		}
		if f == nil {
			return netfault.Pass
		}
		return f(chunk)
	})
}

// count gives the number of chunks that clients have sent so far and that are
// neither greetings nor questions for the next change: about the number of
// requests.
func (p *proxy) count() int { return int(p.requests.Load()) }

// awaits gives the number of questions for the next change of a stream. The
// server holds each back until there is one, or for some time.
func (p *proxy) awaits() int { return int(p.stream.Load()) }
