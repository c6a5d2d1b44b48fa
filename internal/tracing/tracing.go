// Package tracing sends a span for each batch to an OpenTelemetry collector,
// with a child for each of its steps, by OTLP over HTTP.
//
// It is off unless the environment asks for it. All settings are the standard
// variables (OTEL_EXPORTER_OTLP_ENDPOINT, …_HEADERS, OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_…); the SDK reads
// them itself.
//
// A span is made when its batch has ended, from times that were taken anyway,
// and goes into a bounded queue. Where the collector is slow or away the queue
// fills and spans are dropped: no batch waits for it.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
)

const (
	// closePatience is how long an end of the process waits for the last spans.
	closePatience = 3 * time.Second
	// complainEvery bounds what is logged of a collector that does not answer.
	complainEvery = time.Minute
	// textMax bounds an attribute that grows with the number of partitions.
	textMax = 4096

	scope       = "github.com/weirlake/weir"
	serviceName = "weir"
)

// Variables of the environment that switch tracing on and off.
const (
	envDisabled = "OTEL_SDK_DISABLED"
	envExporter = "OTEL_TRACES_EXPORTER"
)

var (
	envEndpoints = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}
	envProtocols = []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"}
)

// Wanted reports whether the environment asks for traces: with an endpoint, or
// with OTEL_TRACES_EXPORTER=otlp. Errors are failure.Config.
func Wanted() (bool, error) {
	if strings.EqualFold(os.Getenv(envDisabled), "true") {
		return false, nil
	}
	exporter := os.Getenv(envExporter)
	switch exporter {
	case "", "otlp", "none":
	default:
		return false, failure.New(failure.Config, "%s is %q", envExporter, exporter).WithHint("traces go by otlp; none switches them off")
	}
	if exporter == "none" || exporter == "" && first(envEndpoints) == "" {
		return false, nil
	}
	if p := first(envProtocols); p != "" && p != "http/protobuf" {
		return false, failure.New(failure.Config, "%s is %q", envProtocols[1], p).
			WithHint("traces go by http/protobuf, to a collector's port 4318 as a rule")
	}
	return true, nil
}

func first(names []string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

// Options are what a tracer is made from.
type Options struct {
	Pipeline string
	Version  string
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Tracer makes spans of batches. It implements engine.Observer.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

var _ engine.Observer = (*Tracer)(nil)

// New makes a tracer as the environment says; no connection is opened yet. Call
// Wanted first. Close sends what is left.
func New(ctx context.Context, o Options) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "OpenTelemetry traces").WithHint("check the OTEL_EXPORTER_OTLP_ variables")
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", serviceName), attribute.String("service.version", o.Version),
			attribute.String("weir.pipeline", o.Pipeline)),
		resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithHost())
	if err != nil && res == nil {
		return nil, failure.Wrap(failure.Config, err, "OpenTelemetry traces: OTEL_RESOURCE_ATTRIBUTES")
	}
	otel.SetErrorHandler(complainer(o))
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	return &Tracer{provider: p, tracer: p.Tracer(scope, trace.WithInstrumentationVersion(o.Version))}, nil
}

// complainer logs what goes wrong with sending, now and then.
func complainer(o Options) otel.ErrorHandlerFunc {
	var last atomic.Int64
	return func(err error) {
		now := o.Clock.Now().UnixNano()
		then := last.Load()
		if now-then < int64(complainEvery) || !last.CompareAndSwap(then, now) {
			return
		}
		o.Logger.Warn("traces could not be sent; the pipeline goes on", "error", err)
	}
}

// Close sends what is queued, for closePatience at most.
func (t *Tracer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	// What cannot be sent by then is lost; the error handler has told why.
	_ = t.provider.Shutdown(ctx)
	return nil
}

// BatchStarted implements engine.Observer: a span is made at the end.
func (t *Tracer) BatchStarted(engine.BatchRun) {}

// BatchEnded implements engine.Observer.
func (t *Tracer) BatchEnded(b engine.BatchRun) {
	ctx, span := t.tracer.Start(context.Background(), "batch", trace.WithNewRoot(), trace.WithTimestamp(b.Started),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(batchAttributes(&b)...))
	for _, s := range b.Steps {
		_, step := t.tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Start), trace.WithAttributes(stepAttributes(&b, s.Name)...))
		if s.Failed && !b.Stopped {
			step.RecordError(b.Err, trace.WithTimestamp(s.End))
			step.SetStatus(codes.Error, b.Err.Error())
		}
		step.End(trace.WithTimestamp(s.End))
	}
	switch {
	case b.Stopped:
		span.SetAttributes(attribute.Bool("weir.batch.stopped", true))
	case b.Err != nil:
		span.SetAttributes(attribute.String("error.type", failure.ClassOf(b.Err).String()))
		span.SetStatus(codes.Error, b.Err.Error())
	}
	span.End(trace.WithTimestamp(b.Ended))
}

func batchAttributes(b *engine.BatchRun) []attribute.KeyValue {
	c := b.Counters
	out := []attribute.KeyValue{
		attribute.String("weir.query.name", b.QueryName), attribute.String("weir.query.id", b.QueryID),
		attribute.Int64("weir.batch.id", b.BatchID), attribute.Int64("weir.epoch", b.Epoch), attribute.String("weir.attempt", b.Attempt),
		attribute.Bool("weir.rerun", b.Rerun), attribute.Int64("weir.offsets.count", b.From.Offsets(b.To)),
		attribute.Int64("weir.rows.read", c.Read), attribute.Int64("weir.rows.emitted", c.Emitted), attribute.Int64("weir.rows.filtered", c.Filtered),
		attribute.Int64("weir.rows.duplicate", c.Duplicate), attribute.Int64("weir.rows.late", c.Late), attribute.Int64("weir.rows.dead_lettered", c.DeadLettered),
	}
	if b.To.Kafka != nil {
		out = append(out, attribute.String("messaging.system", "kafka"))
	}
	if t := b.To.Table; t != nil {
		out = append(out, attribute.String("weir.source.table", t.Name), attribute.Int64("weir.source.snapshot_id", t.SnapshotID))
	}
	for _, o := range b.Outputs {
		if o.Output == operator.Main {
			out = append(out, attribute.String("weir.output", o.Sink), attribute.Int64("weir.output.snapshot_id", o.SnapshotID))
		}
	}
	return out
}

// stepAttributes are what belongs to one step alone.
func stepAttributes(b *engine.BatchRun, step string) []attribute.KeyValue {
	switch step {
	case "plan", "read":
		return []attribute.KeyValue{attribute.String("weir.offsets", offsets(b))}
	case "transform":
		return []attribute.KeyValue{attribute.Int64("weir.rows.read", b.Counters.Read), attribute.Int64("weir.rows.emitted", b.Counters.Emitted)}
	case "stage", "commit":
		var files, bytes, rows int64
		for _, o := range b.Outputs {
			files, bytes, rows = files+int64(o.Files), bytes+o.Bytes, rows+o.Rows
		}
		return []attribute.KeyValue{attribute.Int64("weir.files", files), attribute.Int64("weir.bytes", bytes), attribute.Int64("weir.rows.written", rows)}
	}
	return nil
}

// offsets are the ranges that a batch reads: topic/partition [from,to).
func offsets(b *engine.BatchRun) string {
	var s strings.Builder
	for _, r := range b.From.Ranges(b.To) {
		if s.Len() > textMax {
			s.WriteString(" …")
			break
		}
		if s.Len() > 0 {
			s.WriteByte(' ')
		}
		fmt.Fprintf(&s, "%s/%d [%d,%d)", r.Topic, r.Partition, r.From, r.To)
	}
	return s.String()
}
