package app

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"promethean/cluster"
	"promethean/gateway"
)

// join puts the hub on the list of those that share its store, and says to the
// gateway how to reach the others.
func (s *server) join(version string, o *gateway.Options) error {
	c := s.c.Cluster
	url := c.Advertise
	warning := ""
	if url == "" {
		url, warning = s.advertised(hostAddresses)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return fmt.Errorf("read who signs other hubs' certificates: %w", err)
		}
		if secure.RootCAs, err = x509.SystemCertPool(); err != nil {
			secure.RootCAs = x509.NewCertPool() // the system has none
		}
		if !secure.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("read who signs other hubs' certificates: %s holds no certificate in PEM", c.CA)
		}
	}
	if s.certs != nil {
		// Where callers need a certificate, other hubs show their own.
		secure.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			now, err := s.certs.current(nil)
			if err != nil {
				return nil, err
			}
			return &now.Certificates[0], nil
		}
	}
	var err error
	if s.cluster, err = cluster.Join(s.hub, cluster.Options{URL: url, Version: version, Logger: s.log}); err != nil {
		return err
	}
	o.Cluster, o.PeerTLS = s.cluster, secure
	if s.cluster.Shared() {
		if warning != "" {
			s.log.Warn(warning, "address", url)
		}
		s.log.Info("this hub shares its store with others", "id", s.cluster.Self().ID, "address", url)
	}
	return nil
}

// advertised is where other hubs reach this one, if nobody says: the address
// that it listens on, or one of the machine's where that is all of them. It may
// come with a warning.
func (s *server) advertised(addresses func() []netip.Addr) (url, warning string) {
	scheme := "http://"
	if s.certs != nil {
		scheme = "https://"
	}
	at, err := netip.ParseAddrPort(s.listener.Addr().String())
	if err != nil {
		return "", "other hubs cannot reach this one: say how in cluster.advertise"
	}
	host := at.Addr().Unmap()
	if host.IsUnspecified() {
		list := addresses()
		if len(list) == 0 {
			return "", "other hubs cannot reach this one, which has no address but loopback: say how in cluster.advertise"
		}
		host = list[0]
		warning = "other hubs are told the first address of this machine: if that is the wrong one, say so in cluster.advertise"
	}
	return scheme + net.JoinHostPort(host.WithZone("").String(), strconv.Itoa(int(at.Port()))), warning
}

// hostAddresses are the addresses of the machine that others can reach.
func hostAddresses() (list []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil // as if there were none
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if ip := p.Addr().Unmap(); err == nil && ip.IsGlobalUnicast() {
			list = append(list, ip)
		}
	}
	return list
}
