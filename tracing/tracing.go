// Package tracing makes OpenTelemetry spans of what happens to events: one for
// each publish, each call of a handler and each settlement. The trace goes from
// publisher to handler in the headers traceparent and tracestate of the event.
//
//	hub, err := promethean.Open("data", promethean.Options{Tracer: tracing.New(provider)})
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"promethean/event"
)

// Names of the semantic conventions for messaging, all in one place: they are
// not stable yet.
const (
	attrSystem    = attribute.Key("messaging.system")
	attrOperation = attribute.Key("messaging.operation.name")
	attrTopic     = attribute.Key("messaging.destination.name")
	attrGroup     = attribute.Key("messaging.consumer.group.name")
	attrID        = attribute.Key("messaging.message.id")
	attrCount     = attribute.Key("messaging.batch.message_count")
	attrAttempt   = attribute.Key("promethean.attempt")
	attrOutcome   = attribute.Key("promethean.outcome")
	attrSeq       = attribute.Key("promethean.seq")
)

// Tracer implements promethean.Tracer.
type Tracer struct {
	tracer trace.Tracer
	prop   propagation.TraceContext
}

// New makes a tracer over a provider.
func New(p trace.TracerProvider) *Tracer {
	return &Tracer{tracer: p.Tracer("promethean")}
}

// carrier lets the propagator read and write an event's headers.
type carrier struct{ e *event.Event }

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	v, _ := c.e.Headers.Get(key)
	return v
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) { c.e.Headers = c.e.Headers.Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c.e.Headers))
	for _, h := range c.e.Headers {
		keys = append(keys, h.Name)
	}
	return keys
}

func end(span trace.Span) func(error) {
	return func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// Publish implements promethean.Tracer.
func (t *Tracer) Publish(ctx context.Context, events []event.Event) (context.Context, func(error)) {
	ctx, span := t.tracer.Start(ctx, "publish "+events[0].Topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attrSystem.String("promethean"), attrOperation.String("publish"), attrTopic.String(events[0].Topic), attrCount.Int(len(events)),
	))
	if len(events) == 1 {
		span.SetAttributes(attrID.String(events[0].ID.String()))
	}
	for i := range events {
		// An event that comes with a trace of its own keeps it.
		if _, given := events[i].Headers.Get("traceparent"); !given {
			t.prop.Inject(ctx, carrier{&events[i]})
		}
	}
	return ctx, end(span)
}

// Deliver implements promethean.Tracer.
func (t *Tracer) Deliver(ctx context.Context, group string, e *event.Event, attempt int) (context.Context, func(error)) {
	ctx, span := t.start(ctx, "deliver", group, e, trace.SpanKindConsumer)
	span.SetAttributes(attrAttempt.Int(attempt))
	return ctx, end(span)
}

// Settle implements promethean.Tracer.
func (t *Tracer) Settle(ctx context.Context, group string, e *event.Event, outcome string) func(error) {
	_, span := t.start(ctx, "settle", group, e, trace.SpanKindClient)
	span.SetAttributes(attrOutcome.String(outcome))
	return end(span)
}

func (t *Tracer) start(ctx context.Context, operation, group string, e *event.Event, kind trace.SpanKind) (context.Context, trace.Span) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = t.prop.Extract(ctx, carrier{e})
	}
	return t.tracer.Start(ctx, operation+" "+e.Topic, trace.WithSpanKind(kind), trace.WithAttributes(
		attrSystem.String("promethean"), attrOperation.String(operation), attrTopic.String(e.Topic),
		attrGroup.String(group), attrID.String(e.ID.String()), attrSeq.Int64(int64(e.Seq)),
	))
}
