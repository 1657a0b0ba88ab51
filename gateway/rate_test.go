package gateway

import (
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/wire"
)

func TestBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(10)
		for i := range 10 {
			if wait := b.take(time.Now(), 1); wait != 0 {
				t.Fatalf("the %dth waits %v", i, wait)
			}
		}
		wait := b.take(time.Now(), 1)
		if wait != 100*time.Millisecond {
			t.Errorf("the eleventh waits %v", wait)
		}
		time.Sleep(wait)
		if wait := b.take(time.Now(), 1); wait != 0 {
			t.Errorf("who came when he was told waits %v", wait)
		}
		// It never holds more than a second's worth.
		time.Sleep(time.Hour)
		if b.take(time.Now(), 10) != 0 || b.take(time.Now(), 1) == 0 {
			t.Error("a long pause is saved up")
		}
		// What is larger than that comes when it is full, and is paid for later.
		time.Sleep(time.Second)
		if b.take(time.Now(), 35) != 0 {
			t.Error("a large batch never comes")
		}
		if wait := b.take(time.Now(), 1); wait != 2600*time.Millisecond {
			t.Errorf("after a large batch: %v", wait)
		}
		// A refusal takes nothing, and a time that is over adds nothing.
		if wait := b.take(time.Now().Add(-time.Hour), 1); wait != 2600*time.Millisecond {
			t.Errorf("%v", wait)
		}
		b.giveBack(1e9)
		if b.take(time.Now(), 10) != 0 || b.take(time.Now(), 1) == 0 {
			t.Error("more was given back than there can be")
		}
	})
}

func TestBucketOfOddRates(t *testing.T) {
	now := time.Now()
	for _, rate := range []float64{0.001, 1e-300, math.SmallestNonzeroFloat64} {
		b := newBucket(rate)
		if b.take(now, 1) != 0 {
			t.Errorf("%g: the first waits", rate)
		}
		if wait := b.take(now, 1); wait <= 0 || wait > longestWait {
			t.Errorf("%g: %v", rate, wait)
		}
	}
	r := newRates(math.NaN(), map[string]float64{"zero": 0, "less": -1, "inf": math.Inf(1), "nan": math.NaN()}, nil)
	if r.connection != 0 || len(r.topics) != 0 {
		t.Errorf("%+v", r)
	}
}

// No more comes through than the rate says, whoever takes at once.
func TestBucketIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(100)
		var passed atomic.Int64
		var wg sync.WaitGroup
		end := time.Now().Add(10 * time.Second)
		for range 8 {
			wg.Go(func() {
				for time.Now().Before(end) {
					if b.take(time.Now(), 1) == 0 {
						passed.Add(1)
					}
					time.Sleep(3 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if n := passed.Load(); n < 1090 || n > 1100 {
			t.Errorf("%d passed in ten seconds", n)
		}
	})
}

func TestBatchTakesAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRates(0, map[string]float64{"a": 10, "b": 1}, nil)
		batch := func(topics string) error {
			var list []event.Event
			for _, t := range strings.Fields(topics) {
				list = append(list, event.New(t, nil))
			}
			return r.batch(list)
		}
		if err := batch("a b c"); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			err := batch("a b c")
			if codeOf(err) != wire.RateLimited || retryAfter(err) != 1 || !strings.Contains(err.Error(), "topic b takes 1") {
				t.Fatal(err)
			}
		}
		if err := batch("a a a a a a a a a c c c"); err != nil {
			t.Errorf("what was refused was taken: %v", err)
		}
		if err := batch("a"); err == nil {
			t.Error("more than ten")
		}
	})
}

func TestTopicRate(t *testing.T) {
	g := opened(t, Options{TopicRate: map[string]float64{"a": 0.25}})
	post := func(topic string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/publish/"+topic, strings.NewReader("1"))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w
	}
	if w := post("a"); w.Code != 201 {
		t.Fatal(w.Body)
	}
	w := post("a")
	if after, _ := strconv.Atoi(w.Header().Get("Retry-After")); w.Code != 429 || after < 3 || after > 4 || !strings.Contains(w.Body.String(), "rate_limited") {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := post("b"); w.Code != 201 {
		t.Error(w.Body)
	}
}

// A connection is a TCP connection: one that is used up leaves the others alone.
func TestConnectionRate(t *testing.T) {
	g := opened(t, Options{ConnectionRate: 0.5})
	s := httptest.NewUnstartedServer(g)
	s.Config.ConnContext = g.ConnContext
	s.Start()
	t.Cleanup(s.Close)
	get := func(c *http.Client) (int, string) {
		t.Helper()
		got, err := c.Get(s.URL + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, got.Body) // or the connection is not used again
		_ = got.Body.Close()
		return got.StatusCode, got.Header.Get("Retry-After")
	}
	dial := &net.Dialer{}
	one := &http.Client{Transport: &http.Transport{DialContext: dial.DialContext, MaxConnsPerHost: 1}}
	two := &http.Client{Transport: &http.Transport{DialContext: dial.DialContext, MaxConnsPerHost: 1}}
	defer one.CloseIdleConnections()
	defer two.CloseIdleConnections()
	if status, _ := get(one); status != 200 {
		t.Errorf("%d", status)
	}
	if status, after := get(one); status != 429 || after != "2" {
		t.Errorf("%d, again after %s", status, after)
	}
	if status, _ := get(two); status != 200 {
		t.Errorf("another connection: %d", status)
	}
	// Without a rate nothing is attached.
	free := opened(t, Options{})
	ctx := t.Context()
	if free.ConnContext(ctx, nil) != ctx || free.connection(asked("localhost")) != nil {
		t.Error("a bucket without a rate")
	}
	// A connection of a server that does not know the hook still bounds frames.
	if b := g.connection(asked("localhost")); b == nil || b.request() != nil || b.request() == nil {
		t.Error("frames are not bounded")
	}
}
