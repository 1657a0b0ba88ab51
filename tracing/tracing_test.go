package tracing_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"promethean"
	"promethean/event"
	"promethean/tracing"
)

// One trace goes from the publisher through the handler to the settlement.
func TestOneTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := tracetest.NewSpanRecorder()
		hub, err := promethean.OpenMemory(promethean.Options{Tracer: tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(rec)))})
		if err != nil {
			t.Fatal(err)
		}
		var inHandler trace.SpanContext
		_, err = hub.Subscribe(t.Context(), "t.a", "g", func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
			inHandler = trace.SpanContextFromContext(ctx)
			if d.Attempt == 1 {
				return errors.New("later")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Emit(t.Context(), "t.a", 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if err := hub.Close(); err != nil {
			t.Fatal(err)
		}
		count := make(map[string]int)
		ids := make(map[trace.TraceID]bool)
		failed := 0
		for _, s := range rec.Ended() {
			count[s.Name()]++
			ids[s.SpanContext().TraceID()] = true
			if s.Status().Code == codes.Error {
				failed++
			}
		}
		if count["publish t.a"] != 1 || count["deliver t.a"] != 2 || count["settle t.a"] != 2 || len(ids) != 1 || failed != 1 {
			t.Errorf("spans %v in %d traces, %d failed", count, len(ids), failed)
		}
		if !inHandler.IsValid() || !ids[inHandler.TraceID()] {
			t.Error("the handler's context has no span of the trace")
		}
	})
}

// An event that brings its trace keeps it.
func TestGivenTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := tracetest.NewSpanRecorder()
		hub, err := promethean.OpenMemory(promethean.Options{Tracer: tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(rec)))})
		if err != nil {
			t.Fatal(err)
		}
		const given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		got := make(chan string, 1)
		if _, err := hub.Subscribe(t.Context(), "t.a", "g", func(ctx context.Context, e event.Event, _ *promethean.Delivery) error {
			v, _ := e.Headers.Get("traceparent")
			got <- v + " " + trace.SpanContextFromContext(ctx).TraceID().String()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Emit(t.Context(), "t.a", 1, promethean.Header("traceparent", given)); err != nil {
			t.Fatal(err)
		}
		if g := <-got; g != given+" 0af7651916cd43dd8448eb211c80319c" {
			t.Error(g)
		}
		if err := hub.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
