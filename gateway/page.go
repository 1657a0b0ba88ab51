package gateway

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"

	"promethean/web"
	"promethean/wire"
)

// pagePolicy lets the page load nothing but what we serve, run no script that
// stands in it, and stand in no frame.
const pagePolicy = "default-src 'self'; script-src 'self'; style-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// asset is one file of the page, as it is served.
type asset struct {
	body            []byte
	kind, tag, size string
}

// console reads the files of the page, by name.
var console = sync.OnceValue(func() map[string]asset {
	list := make(map[string]asset)
	files := web.Console()
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(files, name)
		list[name] = asset{body, mime.TypeByExtension(filepath.Ext(name)), fmt.Sprintf(`"%.16x"`, sha256.Sum256(body)), strconv.Itoa(len(body))}
		return err
	})
	if err != nil {
		panic(err) // they are part of the program
	}
	return list
})

// home serves GET /.
func home(c *call) error { return c.asset("index.html") }

// consoleFile serves GET /console/{file}: what the page is made of.
func consoleFile(c *call) error { return c.asset(c.r.PathValue("file")) }

func (c *call) asset(name string) error {
	a, ok := console()[name]
	if !ok {
		return wire.Errorf(wire.NotFound, "there is no file %q", clip(name))
	}
	h := c.w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // a browser asks whether it is still the same
	h.Set("ETag", a.tag)
	if c.r.Header.Get("If-None-Match") == a.tag {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", a.kind)
	h.Set("Content-Length", a.size)
	_, err := c.w.Write(a.body)
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

// openAPI serves GET /openapi.json.
func openAPI(c *call) error { return c.answer(http.StatusOK, c.g.document()) }
