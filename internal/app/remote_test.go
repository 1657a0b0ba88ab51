package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean/client"
	"promethean/event"
)

func TestPlaces(t *testing.T) {
	const id = "0192f7c1-0000-7000-8000-000000000001"
	for text, want := range map[string]string{
		"earliest": "earliest", "latest": "latest", "0": "0", "41": "41", id: id, strings.ToUpper(id): id,
		"@1765700000000": "@1765700000000", "2026-11-15T00:00:00Z": "@1794700800000", "2026-11-15T01:00:00.5+01:00": "@1794700800500",
	} {
		var p place
		if err := p.Set(text); err != nil || p.String() != want {
			t.Errorf("%s is %q, %v, want %q", text, p.String(), err, want)
		}
	}
	for _, text := range []string{"", "-1", "first", "@", "@-1", "@99999999999999999", "-5m", "1.5", "0192f7c1", "9999-99-99T00:00:00Z", "1900-01-01T00:00:00Z"} {
		var p place
		if err := p.Set(text); err == nil {
			t.Errorf("%q is %q", text, p.String())
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var p place
		if err := p.Set("90m"); err != nil || !p.Time.Equal(time.Now().Add(-90*time.Minute)) {
			t.Errorf("90m is %v, %v", p.Time, err)
		}
	})
	for text, want := range map[string]int64{"1765700000000": 1765700000000, "@5": 5, "1970-01-01T00:00:01Z": 1000} {
		var at instant
		if err := at.Set(text); err != nil || at.UnixMilli() != want {
			t.Errorf("%s is %v, %v", text, at, err)
		}
	}
	if err := new(instant).Set("soon"); err == nil {
		t.Error("soon is a time")
	}
}

// A percentile is never below the true one, and at most 1.6 % above.
func TestHistogram(t *testing.T) {
	var h, half histogram
	for i := 1; i <= 100_000; i++ {
		into := &h
		if i%2 == 0 {
			into = &half
		}
		into.add(time.Duration(i)*time.Microsecond, 1)
	}
	h.merge(&half)
	for _, p := range []float64{1, 50, 90, 99, 99.9, 100} {
		want := time.Duration(p*1000) * time.Microsecond
		if got := h.percentile(p); got < want || float64(got) > 1.016*float64(want) {
			t.Errorf("p%v is %s, want %s", p, got, want)
		}
	}
	if h.most != 100*time.Millisecond || h.count != 100_000 {
		t.Errorf("%s, %d", h.most, h.count)
	}
	for _, d := range []time.Duration{0, 1, 63, 64, 65, 127, 128, 1000, time.Hour, 1<<63 - 1} {
		if at := bucket(d); ceiling(at) < d || at > 0 && ceiling(at-1) >= d {
			t.Errorf("%d is in bucket %d, which ends at %d", d, at, ceiling(at))
		}
	}
	if got := new(histogram).percentile(50); got != 0 {
		t.Errorf("nothing has %s", got)
	}
}

func TestLastLine(t *testing.T) {
	var l lastLine
	for _, c := range []struct{ text, want string }{{"one\n", "one"}, {"two\nthr", "thr"}, {"ee\n\n", "three"}, {strings.Repeat("x", 2*maxReason) + "\r\n", strings.Repeat("x", maxReason)}} {
		if _, err := io.WriteString(&l, c.text); err != nil || l.String() != c.want {
			t.Errorf("after %q: %q, %v", c.text, l.String(), err)
		}
	}
}

func TestReadLines(t *testing.T) {
	long := strings.Repeat("y", 600<<10)
	var got []string
	for line, err := range readLines(strings.NewReader("a\n\n  b\r\n" + long + "\nend")) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d:%s", line.n, line.text))
	}
	if want := []string{"1:a", "3:b", "4:" + long, "5:end"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d lines", len(got))
	}
	failed := error(nil)
	for _, err := range readLines(io.MultiReader(strings.NewReader("a\n"), failingReader{})) {
		failed = err
	}
	if !errors.Is(failed, io.ErrNoProgress) {
		t.Error(failed)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrNoProgress }

// The first call must succeed; after that a hub that is away is waited for, but
// not for ever, and a refusal ends it at once.
func TestPatience(t *testing.T) {
	away := &client.Error{Code: "unavailable"}
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		told := 0
		p := patience{within: time.Minute, tell: func(error) { told++ }}
		if err := p.do(ctx, func() error { return away }); !errors.Is(err, away) || told != 0 {
			t.Errorf("at first: %v, told %d times", err, told)
		}
		if err := p.do(ctx, func() error { return nil }); err != nil {
			t.Error(err)
		}
		calls := 0
		begun := time.Now()
		if err := p.do(ctx, func() error {
			if calls++; calls < 10 {
				return away
			}
			return nil
		}); err != nil || told != 1 || time.Since(begun) > 30*time.Second {
			t.Errorf("%v, told %d times, after %s", err, told, time.Since(begun))
		}
		begun = time.Now()
		err := p.do(ctx, func() error { return away })
		if took := time.Since(begun); !errors.Is(err, away) || took < time.Minute || took > 70*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		slow := &client.Error{Code: "rate_limited", RetryAfter: 7 * time.Second}
		begun, calls = time.Now(), 0
		if err := p.do(ctx, func() error {
			if calls++; calls == 1 {
				return slow
			}
			return nil
		}); err != nil || time.Since(begun) < 7*time.Second {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		refused := &client.Error{Code: "forbidden"}
		begun = time.Now()
		if err := p.do(ctx, func() error { return refused }); !errors.Is(err, refused) || time.Since(begun) > 0 {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := p.do(ctx, func() error { return away }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// An upload keeps the order, loses nothing and doubles nothing, though answers
// are lost: the same rows come again with the same ids.
func TestUploadOverLostAnswers(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[string]bool)
	var order []int
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		var got struct {
			Events []client.Stored `json:"events"`
		}
		for line := range bytes.Lines(data) {
			var e event.Event
			if err := event.DecodeJSON(bytes.TrimSpace(line), &e); err != nil {
				t.Error(err)
			}
			known := seen[e.ID.String()]
			if !known {
				seen[e.ID.String()] = true
				var n int
				if err := json.Unmarshal(e.Payload, &n); err != nil {
					t.Error(err)
				}
				order = append(order, n)
			}
			got.Events = append(got.Events, client.Stored{ID: e.ID, Seq: uint64(len(order)), Duplicate: known})
		}
		if calls++; calls > 1 && calls%3 == 0 {
			panic(http.ErrAbortHandler) // stored, and the answer is lost
		}
		_ = json.NewEncoder(w).Encode(got)
	}))
	defer s.Close()
	c, err := client.New(s.URL, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 30_000
	done, known := 0, 0
	l := &uploader{c: c, source: "line", wait: patience{within: time.Minute}}
	l.done = func(b *batch, got []client.Stored) error {
		done += len(b.marks)
		for _, g := range got {
			if g.Duplicate {
				known++
			}
		}
		return nil
	}
	feed := func(_ context.Context, put func(uint64, *event.Event) error) error {
		for i := range n {
			e := event.New("a", json.RawMessage(fmt.Sprint(i)))
			if err := put(uint64(i), &e); err != nil {
				return err
			}
		}
		return io.ErrNoProgress // what was put before is sent all the same
	}
	if err := l.run(t.Context(), feed); !errors.Is(err, io.ErrNoProgress) {
		t.Fatal(err)
	}
	if done != n || len(order) != n || known == 0 {
		t.Errorf("%d done, %d stored, %d came twice", done, len(order), known)
	}
	for i, v := range order {
		if i != v {
			t.Fatalf("%d came in the place of %d", v, i)
		}
	}
	// One that cannot go on says why, and whoever feeds it is not left waiting.
	l.done = func(*batch, []client.Stored) error { return io.ErrShortWrite }
	if err := l.run(t.Context(), feed); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
}

func TestBenchInsideIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	code, stdout, stderr := run(ctx, "bench", "--store", "memory://", "--duration", "1h")
	if code != exitFailed || stdout != "" || !strings.HasPrefix(stderr, "promethean: ") {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestAdviceOfCodes(t *testing.T) {
	r := &remote{}
	for _, code := range []string{"unauthorized", "forbidden", "group_conflict", "seq_conflict", "unsupported", "payload_too_large", "rate_limited", "draining", "unavailable", ""} {
		if advice(r.explain(fmt.Errorf("call: %w", &client.Error{Code: code}))) == "" {
			t.Errorf("%q: nothing to do", code)
		}
	}
	if err := r.explain(nil); err != nil {
		t.Error(err)
	}
}
