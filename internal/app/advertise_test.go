package app

import (
	"net"
	"net/netip"
	"testing"
)

func TestAdvertised(t *testing.T) {
	listen := func(addr string) (net.Listener, string) {
		t.Helper()
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return l, port
	}
	none := func() []netip.Addr { return nil }
	some := func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")}
	}
	l, port := listen("127.0.0.1:0")
	s := &server{listener: l}
	if url, warning := s.advertised(none); url != "http://127.0.0.1:"+port || warning != "" {
		t.Errorf("%s, %q", url, warning)
	}
	s.certs = new(certificates)
	if url, _ := s.advertised(none); url != "https://127.0.0.1:"+port {
		t.Errorf("with TLS: %s", url)
	}
	l, port = listen("0.0.0.0:0")
	s = &server{listener: l}
	if url, warning := s.advertised(some); url != "http://10.0.0.5:"+port || warning == "" {
		t.Errorf("on all addresses: %s, %q", url, warning)
	}
	if url, warning := s.advertised(none); url != "" || warning == "" {
		t.Errorf("without an address: %s, %q", url, warning)
	}
}
