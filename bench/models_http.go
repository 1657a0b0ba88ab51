package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"promethean"
	"promethean/gateway"
	"promethean/view"
)

// askers is how many connections ask at a time.
const askers = 32

// measureSnap asks for documents over HTTP, and for a constant body of the same
// size from a handler that does nothing else.
func (b *bench) measureSnap(ctx context.Context, p modelPlan, r *modelResult, dir string) (err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	b.progress("snap: a view of %s documents", count(float64(p.documents)))
	if err := fillKeys(ctx, h, p.documents, keyName); err != nil {
		return err
	}
	v, err := view.Changelog(ctx, h, view.ChangelogOptions{Topic: topicName(0), Collection: "states", Indexes: modelIndexes()})
	if err != nil {
		return err
	}
	set := view.NewSet()
	if err := set.Add(v); err != nil {
		return errors.Join(err, v.Close())
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if err := v.Wait(ctx, uint64(p.documents)); err != nil {
		return err
	}
	g := gateway.New(h, gateway.Options{Views: set})
	defer func() { err = errors.Join(err, g.Close(ctx)) }()
	hub, stop, err := listen(g)
	if err != nil {
		return err
	}
	defer stop()
	doc, err := fetchOnce(hub, "/views/states/snap/"+keyName(7), "")
	if err != nil {
		return err
	}
	plain, stopPlain, err := listen(constant(doc.body))
	if err != nil {
		return err
	}
	defer stopPlain()
	for round := range b.rounds {
		b.progress("snap: round %d", round+1)
		for _, row := range []struct {
			addr, etag string
			into       *[]float64
		}{{plain, "", &r.Constant}, {hub, "", &r.Snap}, {hub, doc.etag, &r.NotModified}} {
			rate, err := askFor(row.addr, "/views/states/snap/"+keyName(7), row.etag, p.serve)
			if err != nil {
				return err
			}
			*row.into = append(*row.into, rate)
		}
	}
	for i := range p.asks {
		for _, row := range []struct {
			query string
			into  *[]float64
		}{{fmt.Sprintf("host=node-%02d", i%16), &r.List}, {fmt.Sprintf("host=node-%02d&status=%s&offset=100", i%16, doc.status()), &r.ListTwo}} {
			began := time.Now()
			if _, err := fetchOnce(hub, "/views/states/list?"+row.query, ""); err != nil {
				return err
			}
			*row.into = append(*row.into, time.Since(began).Seconds())
		}
	}
	return nil
}

// constant answers every request with the same body.
func constant(body string) http.Handler {
	text := []byte(body)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = w.Write(text)
	})
}

func listen(h http.Handler) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	return l.Addr().String(), func() { _ = s.Close() }, nil
}

type answer struct{ body, etag string }

// status is a value that documents have in that field.
func (a answer) status() string {
	_, rest, _ := strings.Cut(a.body, `"status":"`)
	s, _, _ := strings.Cut(rest, `"`)
	return s
}

func fetchOnce(addr, path, etag string) (a answer, err error) {
	r, err := http.NewRequest(http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return a, err
	}
	if etag != "" {
		r.Header.Set("If-None-Match", etag)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, err
	}
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	if err == nil && got.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, got.Status, body)
	}
	return answer{string(body), got.Header.Get("ETag")}, err
}

// askFor asks the same over and over on several connections, and gives the
// answers a second. It reads no more of an answer than it must, so that the
// server is what is measured.
func askFor(addr, path, etag string, d time.Duration) (float64, error) {
	request := "GET " + path + " HTTP/1.1\r\nHost: " + addr + "\r\n"
	if etag != "" {
		request += "If-None-Match: " + etag + "\r\n"
	}
	request += "\r\n"
	var all sync.WaitGroup
	counts, errs := make([]int, askers), make([]error, askers)
	began := time.Now()
	for i := range askers {
		all.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				errs[i] = err
				return
			}
			defer func() { _ = c.Close() }()
			in := bufio.NewReader(c)
			for time.Since(began) < d {
				_, err := io.WriteString(c, request)
				if err == nil {
					err = skipAnswer(in)
				}
				if err != nil {
					errs[i] = err
					return
				}
				counts[i]++
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	n := 0
	for _, c := range counts {
		n += c
	}
	return float64(n) / took, errors.Join(errs...)
}

// skipAnswer reads an answer with a Content-Length, or without a body.
func skipAnswer(in *bufio.Reader) error {
	size := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		text := string(line)
		switch {
		case first && !strings.HasPrefix(text, "HTTP/1.1 200") && !strings.HasPrefix(text, "HTTP/1.1 304"):
			return fmt.Errorf("the server says %q", text)
		case text == "\r\n":
			_, err := in.Discard(size)
			return err
		case strings.HasPrefix(text, "Content-Length: "):
			if size, err = strconv.Atoi(strings.TrimSpace(text[16:])); err != nil {
				return err
			}
		}
	}
}
