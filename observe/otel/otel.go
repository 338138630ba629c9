// Package otel turns pawl's events into OpenTelemetry metrics and traces, which
// answer: who waits, for how long and for what; how many locks were lost; and how
// late heartbeats run.
//
//	pawl.lock.wait        histogram, s   how long it took to be granted or refused
//	pawl.lock.hold        histogram, s   how long a lock was held until it was released or lost
//	pawl.lock.waiting     up-down count  attempts under way
//	pawl.lock.contended   counter        attempts that had to wait
//	pawl.lock.lost        counter        locks that were lost
//	pawl.renewal.late     histogram, s   how long after its time a heartbeat was sent
//	pawl.renewal.failed   counter        heartbeats that failed
//
// The attributes are pawl.use (lock or semaphore), pawl.name (bounded, see
// [Options.Name]) and pawl.outcome (granted, refused, released or lost). A trace has a
// span "pawl wait" for each attempt and "pawl hold" for each lease, with the full
// name and the token, in the span of the context given to Lock.
package otel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

const scope = "github.com/pawl-go/pawl/observe/otel"

// Options are where events go. The zero value is the default.
type Options struct {
	// Meter provides the metrics; default the global one.
	Meter metric.MeterProvider
	// Tracer provides the traces; default the global one.
	Tracer trace.TracerProvider
	// Name makes of the name of a lock what is counted under one name. Default: what is
	// before the first slash. Only the first 100 that it returns are told apart, the
	// rest is "other": names are often ids, and a metric of each would cost more
	// than it says.
	Name func(string) string
}

// mostNames bounds how many names metrics tell apart.
const mostNames = 100

// New returns an observer for [pawl.Options]. Nil opts are the defaults.
func New(opts *Options) (func(context.Context, pawl.Event), error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	if o.Meter == nil {
		o.Meter = otel.GetMeterProvider()
	}
	if o.Tracer == nil {
		o.Tracer = otel.GetTracerProvider()
	}
	if o.Name == nil {
		o.Name = func(name string) string { before, _, _ := strings.Cut(name, "/"); return before }
	}
	b := &observer{name: o.Name, names: make(map[string]bool), tracer: o.Tracer.Tracer(scope)}
	if err := b.instruments(o.Meter.Meter(scope)); err != nil {
		return nil, err
	}
	return b.observe, nil
}

type observer struct {
	name   func(string) string
	tracer trace.Tracer

	wait, hold, late        metric.Float64Histogram
	waiting                 metric.Int64UpDownCounter
	contended, lost, failed metric.Int64Counter

	mu    sync.Mutex
	names map[string]bool
}

func (b *observer) instruments(m metric.Meter) error {
	var errs [7]error
	seconds := metric.WithUnit("s")
	b.wait, errs[0] = m.Float64Histogram("pawl.lock.wait", seconds, metric.WithDescription("how long it took to be granted or refused"))
	b.hold, errs[1] = m.Float64Histogram("pawl.lock.hold", seconds, metric.WithDescription("how long a lock was held"))
	b.late, errs[2] = m.Float64Histogram("pawl.renewal.late", seconds, metric.WithDescription("how long after its time a heartbeat was sent"))
	b.waiting, errs[3] = m.Int64UpDownCounter("pawl.lock.waiting", metric.WithDescription("attempts under way"))
	b.contended, errs[4] = m.Int64Counter("pawl.lock.contended", metric.WithDescription("attempts that had to wait"))
	b.lost, errs[5] = m.Int64Counter("pawl.lock.lost", metric.WithDescription("locks that were lost"))
	b.failed, errs[6] = m.Int64Counter("pawl.renewal.failed", metric.WithDescription("heartbeats that failed"))
	return errors.Join(errs[:]...)
}

// bounded is the name under which a lock is counted.
func (b *observer) bounded(name string) string {
	name = b.name(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.names[name] {
		if len(b.names) == mostNames {
			return "other"
		}
		b.names[name] = true
	}
	return name
}

func (b *observer) observe(ctx context.Context, e pawl.Event) {
	if e.Kind == pawl.EventRenewed {
		b.late.Record(ctx, max(e.Took, 0).Seconds())
		if e.Err != nil {
			b.failed.Add(ctx, 1)
		}
		return
	}
	lock := []attribute.KeyValue{attribute.String("pawl.use", e.Use), attribute.String("pawl.name", b.bounded(e.Name))}
	of := metric.WithAttributes(lock...)
	outcome := metric.WithAttributes(append(lock, attribute.String("pawl.outcome", e.Kind.String()))...)
	switch e.Kind {
	case pawl.EventAttempt:
		b.waiting.Add(ctx, 1, of)
	case pawl.EventContended:
		b.contended.Add(ctx, 1, of)
	case pawl.EventGranted, pawl.EventRefused:
		b.waiting.Add(ctx, -1, of)
		b.wait.Record(ctx, e.Took.Seconds(), outcome)
		b.span(ctx, "pawl wait", e)
	case pawl.EventLost:
		b.lost.Add(ctx, 1, of)
		fallthrough
	case pawl.EventReleased:
		b.hold.Record(ctx, e.Took.Seconds(), outcome)
		b.span(ctx, "pawl hold", e)
	}
}

// span tells of what has just ended.
func (b *observer) span(ctx context.Context, what string, e pawl.Event) {
	now := time.Now()
	_, span := b.tracer.Start(ctx, what, trace.WithTimestamp(now.Add(-e.Took)), trace.WithAttributes(
		attribute.String("pawl.name", e.Name), attribute.String("pawl.use", e.Use), attribute.String("pawl.outcome", e.Kind.String()),
	))
	if e.Token != 0 {
		span.SetAttributes(attribute.Int64("pawl.token", int64(e.Token))) //nolint:gosec // below 2^53
	}
	if e.Err != nil && !errors.Is(e.Err, engine.ErrBusy) { // that a TryLock found a lock taken is an answer
		span.RecordError(e.Err)
		span.SetStatus(codes.Error, e.Kind.String())
	}
	span.End(trace.WithTimestamp(now))
}
