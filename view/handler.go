package view

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"promethean/store"
	"promethean/wire"
)

// HandlerOptions change how a collection is served.
type HandlerOptions struct {
	// MaxAge of a document in caches. Default 5 s; negative: no caching.
	MaxAge time.Duration
	// Private keeps documents out of shared caches.
	Private bool
	// KeyField is the field that /snap/{key} is about. Default _key. Another
	// one must be indexed; of several documents it is the newest then.
	KeyField string
	// Fail writes an error. Default: application/problem+json.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// Heartbeat is how often a watch without changes says that it is there.
	// Default 15 s.
	Heartbeat time.Duration
}

// ErrMethod is wrapped by errors about the method of a request: their status is
// 405.
var ErrMethod = errors.New("method not allowed")

// handler serves a collection.
type handler struct {
	c       *Collection
	o       HandlerOptions
	caching []string
	fields  []string // that may be filtered by
}

// Handler serves /snap/{key}, /list and /watch of a collection: documents with
// their ETags, pages of them, and their changes as Server-Sent Events. The key
// is everything after /snap/, percent-decoded.
func Handler(s Source, o ...HandlerOptions) http.Handler {
	if len(o) == 0 {
		o = []HandlerOptions{{}}
	}
	return newHandler(s, o[0])
}

func newHandler(s Source, o HandlerOptions) *handler {
	h := &handler{c: s.Source(), o: o}
	if h.o.Fail == nil {
		h.o.Fail = h.fail
	}
	if h.o.KeyField == "" {
		h.o.KeyField = "_key"
	}
	if h.o.Heartbeat <= 0 {
		h.o.Heartbeat = 15 * time.Second
	}
	if h.o.MaxAge == 0 {
		h.o.MaxAge = 5 * time.Second
	}
	scope := "public"
	if h.o.Private {
		scope = "private"
	}
	h.caching = []string{scope + ", max-age=" + strconv.Itoa(int(h.o.MaxAge/time.Second))}
	if h.o.MaxAge < 0 {
		h.caching = []string{scope + ", no-cache"}
	}
	seen := make(map[string]bool)
	for _, x := range h.c.c.Indexes {
		for _, f := range x.Fields {
			if !seen[f] {
				seen[f] = true
				h.fields = append(h.fields, f)
			}
		}
	}
	return h
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.serve(w, r); err != nil {
		h.o.Fail(w, r, err)
	}
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	var serve func(http.ResponseWriter, *http.Request) error
	key, isSnap := strings.CutPrefix(path, "/snap/")
	switch {
	case isSnap && key != "":
	case path == "/list":
		serve = h.list
	case path == "/watch":
		serve = h.watch
	default:
		return wire.Errorf(wire.NotFound, "there is no %s: a collection has /snap/{key}, /list and /watch", clip(r.URL.Path))
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return &wire.Error{Code: wire.InvalidArgument, Msg: clip(r.Method) + " is not for " + clip(r.URL.Path) + ", but GET and HEAD", Err: ErrMethod}
	}
	if !isSnap {
		return serve(w, r)
	}
	if strings.IndexByte(key, '%') >= 0 {
		escaped := key
		var err error
		if key, err = url.PathUnescape(escaped); err != nil {
			return wire.Errorf(wire.InvalidArgument, "the key %q cannot be read: %w", clip(escaped), err)
		}
	}
	return h.snap(w, r, key)
}

// Values of headers that are the same in every answer.
var (
	typeJSON    = []string{"application/json"}
	noStore     = []string{"no-store"}
	errNoMember = errors.New("there is no document")
)

func (h *handler) snap(w http.ResponseWriter, r *http.Request, key string) error {
	body, err := h.find(r, key)
	if errors.Is(err, store.ErrNotFound) {
		return wire.Errorf(wire.NotFound, "collection %s has no document %q", h.c.c.Name, clip(key))
	}
	if err != nil {
		return err
	}
	tag := etag(body)
	header := w.Header()
	header["Etag"] = []string{tag}
	header["Cache-Control"] = h.caching
	if matches(r.Header["If-None-Match"], tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	header["Content-Type"] = typeJSON
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // who does not take it does not miss it
	}
	return nil
}

// find gives the document that a key stands for.
func (h *handler) find(r *http.Request, key string) (json.RawMessage, error) {
	if h.o.KeyField == "_key" {
		d, err := h.c.Get(r.Context(), key)
		return d.Body, err
	}
	q := store.DocQuery{Filter: map[string][]json.RawMessage{h.o.KeyField: values(key)}, Limit: 1}
	for d, err := range h.c.List(r.Context(), q) {
		return d.Body, err
	}
	return nil, fmt.Errorf("%w: %w", store.ErrNotFound, errNoMember)
}

// etag names the bytes of a document.
func etag(body []byte) string {
	sum := sha256.Sum256(body)
	var b [34]byte
	b[0], b[33] = '"', '"'
	hex.Encode(b[1:33], sum[:16])
	return string(b[:])
}

// matches says whether a tag is among those of If-None-Match, compared weakly.
// What is no tag matches nothing.
func matches(lines []string, tag string) bool {
	for _, line := range lines {
		for line != "" {
			line = strings.TrimLeft(line, " \t,")
			if strings.HasPrefix(line, "*") {
				return true
			}
			line = strings.TrimPrefix(line, "W/")
			if !strings.HasPrefix(line, `"`) {
				// Not a tag: go on after the next comma.
				_, line, _ = strings.Cut(line, ",")
				continue
			}
			end := strings.IndexByte(line[1:], '"')
			if end < 0 {
				break
			}
			if line[:end+2] == tag {
				return true
			}
			line = line[end+2:]
		}
	}
	return false
}

// clip shortens what a caller sent.
func clip(s string) string {
	if len(s) <= 100 {
		return s
	}
	return strings.ToValidUTF8(s[:100], "") + "…"
}

// conditions are those of the rooms below. The first that fits counts.
var conditions = []struct {
	err  error
	code wire.Code
}{
	{store.ErrNotFound, wire.NotFound},
	{store.ErrInvalid, wire.InvalidArgument},
	{store.ErrClosed, wire.Draining},
	{store.ErrUnavailable, wire.Unavailable},
	{store.ErrFailed, wire.Unavailable},
}

// problem is an answer of application/problem+json.
type problem struct {
	Type   string    `json:"type"`
	Title  string    `json:"title"`
	Status int       `json:"status"`
	Detail string    `json:"detail,omitempty"`
	Code   wire.Code `json:"code"`
}

// fail answers with a problem.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody is there to read it
	}
	code := wire.Internal
	var own *wire.Error
	if errors.As(err, &own) {
		code = own.Code
	} else {
		for _, c := range conditions {
			if errors.Is(err, c.err) {
				code = c.code
				break
			}
		}
	}
	e := code.Entry()
	p := problem{Type: "about:blank", Title: e.Title, Status: e.Status, Code: e.Code, Detail: err.Error()}
	if code == wire.Internal {
		p.Detail = ""
		h.c.v.o.Logger.Error("request failed", "view", h.c.v.name, "path", r.URL.Path, "err", err)
	}
	if errors.Is(err, ErrMethod) {
		p.Status = http.StatusMethodNotAllowed
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("a problem does not encode: %v", err)) // plain fields
	}
	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	header["Cache-Control"] = noStore
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}
