package group_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"promethean/group"
	"promethean/internal/mongotest"
	"promethean/internal/natstest"
	"promethean/store/mongostore"
	"promethean/store/natsstore"
)

// serverRuns is how many histories a server gets: they take real time.
func serverRuns() uint64 {
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		return 40
	}
	return 4
}

// The model over engines that have a server.
func TestModelNATS(t *testing.T) {
	url := natstest.Start(t, nil).URL()
	var prefix atomic.Int64
	serverHistories(t, func() func() (group.Log, error) {
		o := natsstore.Options{Prefix: fmt.Sprint("model", prefix.Add(1))}
		return func() (group.Log, error) { return natsstore.Open(context.Background(), url, o) }
	})
}

func TestModelMongoDB(t *testing.T) {
	url := mongotest.Any(t)
	var n atomic.Int64
	serverHistories(t, func() func() (group.Log, error) {
		o := mongostore.Options{Database: fmt.Sprintf("model_%d_%d", time.Now().UnixNano(), n.Add(1))}
		return func() (group.Log, error) { return mongostore.Open(context.Background(), url, o) }
	})
}

// serverHistories tries histories, each with a log of its own. Time is real
// there: a machine that is busy may keep an owner from renewing, which the model
// knows nothing of. Such a history is tried again.
func serverHistories(t *testing.T, fresh func() func() (group.Log, error)) {
	for seed := uint64(1); seed <= serverRuns(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			for range 5 {
				if tryHistory(t, fresh(), seed) {
					return
				}
				t.Log("the machine is too busy to renew in time: once more")
			}
			t.Fatal("the machine is too busy to renew in time")
		})
	}
}

// tryHistory runs a history. It returns false if the group was lost on the way
// for want of time.
func tryHistory(t *testing.T, server func() (group.Log, error), seed uint64) (ok bool) {
	began := time.Now()
	late := &lateness{TB: t}
	w := &world{t: late, server: server}
	defer func() {
		if p := recover(); p != nil && p != any(errLost) {
			panic(p)
		} else if p != nil {
			ok = false
		}
	}()
	newModel(w, seed).run(*modelSteps / 2)
	t.Logf("%v", time.Since(began).Round(time.Millisecond))
	return true
}

var errLost = errors.New("the group was lost for want of time")

// lateness is a test that cannot fail once an owner has come too late.
type lateness struct {
	testing.TB
	engine atomic.Int64 // which one counts: the last
	lost   atomic.Bool
}

// listen gives a handler for the log of the next engine: what the one before
// says, which was cut off, counts for nothing.
func (l *lateness) listen() slog.Handler { return ear{l, l.engine.Add(1)} }

// ear hears of owners that come too late.
type ear struct {
	l      *lateness
	engine int64
}

// Enabled implements [slog.Handler].
func (ear) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (e ear) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "cause" && e.engine == e.l.engine.Load() && strings.Contains(a.Value.String(), "not renewed in time") {
			e.l.lost.Store(true)
		}
		return true
	})
	return nil
}

// WithAttrs implements [slog.Handler].
func (e ear) WithAttrs([]slog.Attr) slog.Handler { return e }

// WithGroup implements [slog.Handler].
func (e ear) WithGroup(string) slog.Handler { return e }

// Fatal implements [testing.TB].
func (l *lateness) Fatal(args ...any) {
	l.Helper()
	l.give()
	l.TB.Fatal(args...)
}

// Fatalf implements [testing.TB].
func (l *lateness) Fatalf(format string, args ...any) {
	l.Helper()
	l.give()
	l.TB.Fatalf(format, args...)
}

// Error implements [testing.TB].
func (l *lateness) Error(args ...any) {
	l.Helper()
	l.give()
	l.TB.Error(args...)
}

// Errorf implements [testing.TB].
func (l *lateness) Errorf(format string, args ...any) {
	l.Helper()
	l.give()
	l.TB.Errorf(format, args...)
}

// give ends the history if it means nothing.
func (l *lateness) give() {
	if l.lost.Load() {
		panic(errLost)
	}
}
