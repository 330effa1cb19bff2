package caddymodule

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// tracerName is the name of the tracer of this package: its import path, by the convention of OpenTelemetry.
const tracerName = "github.com/limitkeeper/limitkeeper/caddymodule"

// startSpan starts the span of a decision if Caddy's directive `tracing` records the request. Otherwise it returns ctx and
// nil.
func startSpan(ctx context.Context) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	return parent.TracerProvider().Tracer(tracerName).Start(ctx, "limitkeeper.decide")
}

// endSpan ends the span of a decision. No attribute contains a key, a user or the text of an error.
func endSpan(span trace.Span, v *requestState) {
	attributes := []attribute.KeyValue{
		attribute.String("limitkeeper.account", v.account),
		attribute.String("limitkeeper.outcome", v.outcome),
	}
	if d := &v.decision; d.Plan != nil {
		attributes = append(attributes, attribute.String("limitkeeper.plan", secrets.MaskSecrets(d.Plan.Name)), attribute.Int64("limitkeeper.limit", d.Limit.Max),
			attribute.Int64("limitkeeper.cost", d.Cost))
	}
	span.SetAttributes(attributes...)
	if v.err != nil {
		span.SetStatus(codes.Error, v.outcome)
	}
	span.End()
}
