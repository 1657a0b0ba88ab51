package gateway

import (
	_ "embed" // the page
	"net/http"
	"strconv"

	"promethean/wire"
)

//go:embed page.html
var page []byte

// pagePolicy lets the page load nothing but what we serve, run no script that
// stands in it, and stand in no frame.
const pagePolicy = "default-src 'self'; script-src 'self'; style-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// home serves GET /.
func home(c *call) error {
	h := c.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Length", strconv.Itoa(len(page)))
	_, err := c.w.Write(page)
	return err
}

// metrics serves GET /metrics.
func metrics(c *call) error {
	if c.g.o.Metrics == nil {
		return wire.Errorf(wire.NotFound, "this hub keeps no metrics")
	}
	c.g.o.Metrics.ServeHTTP(c.w, c.r)
	return nil
}

// notBuilt serves what the contract names and nobody has built: callers who may
// do it are told so.
func notBuilt(what string) handler {
	return func(*call) error { return wire.Errorf(wire.Unsupported, "this hub has no %s yet", what) }
}

// openAPI serves GET /openapi.json.
func openAPI(c *call) error { return c.answer(http.StatusOK, c.g.document()) }
