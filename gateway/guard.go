package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"promethean/wire"
)

// guard keeps pages of other sites away, which a browser on this machine would
// let reach us: by a name that somebody points at us (Host), or by a request
// from another origin (Origin, Sec-Fetch-Site). No page can choose these
// headers; programs that are no browsers can, and are not who this is about.
type guard struct {
	hosts   map[string]bool // names that were configured, on any port
	origins map[origin]bool // pages that were configured
}

// origin is that of a page. The port is filled in where the scheme has one.
type origin struct{ scheme, name, port string }

// place is what a Host header says of an origin: its port is left out where it
// is the usual one.
func (o origin) place() (name, port string) {
	if o.port == usualPort(o.scheme) {
		return o.name, ""
	}
	return o.name, o.port
}

func usualPort(scheme string) string {
	switch scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	}
	return ""
}

// CheckOrigin says what is wrong with an entry of [Options.Origins]. Every page
// is named: there is no "*", and "null", which any page can be, is refused.
func CheckOrigin(s string) error {
	_, err := parseOrigin(strings.TrimSuffix(s, "/"))
	return err
}

func parseOrigin(s string) (origin, error) {
	switch s {
	case "*":
		return origin{}, errors.New(`origin "*" would let every page in: name them one by one`)
	case "null":
		return origin{}, errors.New(`origin "null" is that of any sandboxed page: it cannot be let in`)
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#") {
		return origin{}, fmt.Errorf("origin %q is none: a scheme, a host and maybe a port, such as https://ops.example.org:8443", clip(s))
	}
	name, port, ok := splitHost(u.Host)
	if !ok {
		return origin{}, fmt.Errorf("origin %q: the host %q is none", clip(s), clip(u.Host))
	}
	o := origin{scheme: strings.ToLower(u.Scheme), name: name, port: port}
	if o.port == "" {
		o.port = usualPort(o.scheme)
	}
	return o, nil
}

// newGuard takes what was configured. What is no origin lets nobody in.
func newGuard(hosts, origins []string, log *slog.Logger) *guard {
	g := &guard{hosts: make(map[string]bool), origins: make(map[origin]bool)}
	for _, h := range hosts {
		g.hosts[strings.ToLower(strings.TrimSuffix(h, "."))] = true
	}
	for _, s := range origins {
		o, err := parseOrigin(strings.TrimSuffix(s, "/"))
		if err != nil {
			log.Error("an origin is left out", "err", err)
			continue
		}
		g.origins[o] = true
	}
	return g
}

// splitHost reads a Host header or the host of an address: a name or an IPv4
// address, or an IPv6 address in brackets, and maybe a port.
func splitHost(host string) (name, port string, ok bool) {
	if rest, v6 := strings.CutPrefix(host, "["); v6 {
		if name, port, ok = strings.Cut(rest, "]"); !ok || port != "" && port[0] != ':' {
			return "", "", false
		}
		ip, err := netip.ParseAddr(name)
		if err != nil || !ip.Is6() {
			return "", "", false
		}
		name = ip.String() // one spelling
		port = strings.TrimPrefix(port, ":")
	} else {
		name, port, _ = strings.Cut(host, ":")
	}
	if len(port) > 5 || strings.Trim(port, "0123456789") != "" {
		return "", "", false
	}
	name = strings.ToLower(strings.TrimSuffix(name, ".")) // "localhost." is localhost
	return name, port, name != ""
}

// check refuses a request that a foreign page may have caused.
func (g *guard) check(r *http.Request) error {
	// Without a Host it is not from a browser: health checks of HTTP/1.0.
	if r.Host != "" && !g.ours(r) {
		return wire.Errorf(wire.Forbidden, "the hub is not known as %q: add its address, such as http://%s, to origins in the configuration", clip(r.Host), clip(r.Host))
	}
	values := r.Header.Values("Origin")
	allowed := g.allows(r)
	if len(values) > 0 && !allowed && !g.same(r, values) {
		return wire.Errorf(wire.Forbidden, "pages of %q may not call this hub: add the origin to origins in the configuration", clip(values[0]))
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return nil
	case "same-site":
		// Another port or name of the same site: it may show us in a window,
		// and no more.
		if r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
			return nil
		}
	}
	if !allowed {
		return wire.Errorf(wire.Forbidden, "a page of another site may not call this hub")
	}
	return nil
}

// allows says whether the request is from a page that was configured.
func (g *guard) allows(r *http.Request) bool {
	values := r.Header.Values("Origin")
	if len(g.origins) == 0 || len(values) != 1 {
		return false
	}
	o, err := parseOrigin(values[0])
	return err == nil && g.origins[o]
}

// same says whether the request is from a page of ours: same scheme, name and
// port as the request itself.
func (g *guard) same(r *http.Request, values []string) bool {
	if len(values) != 1 {
		return false
	}
	o, err := parseOrigin(values[0])
	name, port, ok := splitHost(r.Host)
	if err != nil || !ok {
		return false
	}
	own := origin{scheme: "http", name: name, port: port}
	if r.TLS != nil {
		own.scheme = "https"
	}
	if own.port == "" {
		own.port = usualPort(own.scheme)
	}
	return o == own
}

// ours says whether the Host is one of us: a loopback address, localhost, the
// address that the connection came in on, or one that was configured. Of an
// origin that was configured the port counts too: otherwise who can lie about
// its name on the way could serve a page by it on our port.
func (g *guard) ours(r *http.Request) bool {
	name, port, ok := splitHost(r.Host)
	if !ok {
		return false
	}
	if name == "localhost" || g.hosts[name] {
		return true
	}
	for o := range g.origins {
		if n, p := o.place(); n == name && (p == port || p == "" && port == o.port) {
			return true
		}
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	if ip.IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap() == ip.Unmap()
}

// share lets pages that were configured read the answer.
func (g *guard) share(h http.Header, r *http.Request) {
	if len(g.origins) == 0 {
		return
	}
	h.Add("Vary", "Origin")
	if g.allows(r) {
		h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		h.Set("Access-Control-Expose-Headers", "ETag, Retry-After")
	}
}

// preflight answers what a browser asks before a page's request. Tokens are
// sent as a header by the page, so credentials of the browser are never
// allowed.
func (g *guard) preflight(h http.Header, r *http.Request, methods string) {
	h.Set("Allow", methods)
	if !g.allows(r) || r.Header.Get("Access-Control-Request-Method") == "" {
		return
	}
	h.Set("Access-Control-Allow-Methods", methods)
	if want := r.Header.Get("Access-Control-Request-Headers"); want != "" {
		h.Set("Access-Control-Allow-Headers", want)
	}
	if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
		h.Set("Access-Control-Allow-Private-Network", "true")
	}
	h.Set("Access-Control-Max-Age", "600")
}

// clip shortens what somebody sent, for a message.
func clip(s string) string { return clipTo(s, 80) }

func clipTo(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
