package view

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"promethean/store"
	"promethean/wire"
)

const (
	listLimit    = 100
	maxListLimit = 1000
	// listBuffer is how large a list is whose count comes before its items.
	listBuffer = 4 << 20
)

// query reads what a list is to hold.
func (h *handler) query(r *http.Request) (q store.DocQuery, err error) {
	q.Limit = listLimit
	params, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, wire.Errorf(wire.InvalidArgument, "the query cannot be read: %s", clip(err.Error()))
	}
	for name, list := range params {
		if len(list) > 1 {
			return q, wire.Errorf(wire.InvalidArgument, "%s is there %d times: give it once", clip(name), len(list))
		}
		value := list[0]
		switch {
		case name == "limit":
			q.Limit, err = number(name, value, maxListLimit)
		case name == "offset":
			q.Offset, err = number(name, value, math.MaxInt)
		case slices.Contains(h.fields, name):
			if q.Filter == nil {
				q.Filter = make(map[string][]json.RawMessage)
			}
			q.Filter[name] = values(value)
		default:
			return q, h.undeclared(name)
		}
		if err != nil {
			return q, err
		}
	}
	return q, nil
}

func (h *handler) undeclared(name string) error {
	if len(h.fields) == 0 {
		return wire.Errorf(wire.InvalidArgument, "%q is no field to filter by: collection %s declares none", clip(name), h.c.c.Name)
	}
	return wire.Errorf(wire.InvalidArgument, "%q is no field to filter by: collection %s declares %s", clip(name), h.c.c.Name, strings.Join(h.fields, ", "))
}

// number reads a number from 0 on; above most it is most.
func number(name, s string, most uint64) (int, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		n, err = most, nil
	}
	if err != nil {
		return 0, wire.Errorf(wire.InvalidArgument, "%s: %q is no number from 0 on", name, clip(s))
	}
	return int(min(n, most)), nil
}

// values gives the JSON values that a text may mean: itself, and the number,
// true, false or null that it looks like.
func values(s string) []json.RawMessage {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("a text does not encode: %v", err))
	}
	out := []json.RawMessage{text}
	if s != "" && s[0] != '"' && s[0] != '{' && s[0] != '[' && !hasSpace([]byte(s)) && json.Valid([]byte(s)) {
		out = append(out, json.RawMessage(s))
	}
	return out
}

// list serves a page of documents.
func (h *handler) list(w http.ResponseWriter, r *http.Request) error {
	q, err := h.query(r)
	if err != nil {
		return err
	}
	head := fmt.Appendf(nil, `{"offset":%d,"limit":%d,`, q.Offset, q.Limit)
	items, count, streaming := []byte{'['}, 0, false
	if q.Limit > 0 { // to the documents 0 is no limit
		for d, err := range h.c.List(r.Context(), q) {
			if err != nil && streaming {
				// Nobody shall take a part for the whole.
				panic(http.ErrAbortHandler)
			}
			if err != nil {
				return err
			}
			if count > 0 {
				items = append(items, ',')
			}
			items = append(items, d.Body...)
			count++
			if len(items) < listBuffer || r.Method == http.MethodHead {
				continue
			}
			if !streaming {
				streaming = true
				h.begin(w, -1)
				items = append(append(head, `"items":`...), items...)
			}
			if _, err := w.Write(items); err != nil {
				return nil // he has gone
			}
			items = items[:0]
		}
	}
	if streaming {
		_, _ = w.Write(fmt.Appendf(items, `],"count":%d}`+"\n", count))
		return nil
	}
	head = fmt.Appendf(head, `"count":%d,"items":`, count)
	tail := "]}\n"
	h.begin(w, len(head)+len(items)+len(tail))
	if r.Method == http.MethodHead {
		return nil
	}
	for _, part := range [][]byte{head, append(items, tail...)} {
		if _, err := w.Write(part); err != nil {
			return nil
		}
	}
	return nil
}

// begin begins the answer of a list.
func (h *handler) begin(w http.ResponseWriter, size int) {
	header := w.Header()
	header["Content-Type"] = typeJSON
	header["Cache-Control"] = noStore
	if size >= 0 {
		header["Content-Length"] = []string{strconv.Itoa(size)}
	}
	w.WriteHeader(http.StatusOK)
}
