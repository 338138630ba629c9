// Package pawlotel turns pawl's events into OpenTelemetry metrics and traces. Metrics and traces show
// waiters, their names and the times of waiting; the held locks; the number of lost locks;
// and how late heartbeats run. All are of one process.
//
//	pawl.lock.wait            histogram, s   how long it took to be granted or refused
//	pawl.lock.hold            histogram, s   how long a lock was held until it was released or lost
//	pawl.lock.waiting         up-down count  attempts under way
//	pawl.lock.waiting.oldest  gauge, s       how long the oldest attempt under way has lasted; 0: there is none
//	pawl.lock.held            up-down count  locks that are held
//	pawl.lock.contended       counter        attempts that had to wait
//	pawl.lock.grace           counter        attempts that had to wait for the restart grace of the store
//	pawl.lock.lost            counter        locks that were lost
//	pawl.renewal.late         histogram, s   how long after its time a heartbeat was sent
//	pawl.renewal.failed       counter        heartbeats that failed
//
// The attributes are pawl.use (lock or semaphore), pawl.name (bounded, see [Options.Name]) and
// pawl.outcome. The outcome is granted, refused, grace (refused in the restart grace of the
// store), released or lost. The bounds of histograms go from half a millisecond to 5 minutes,
// and for holds to a day. A view of the meter may change them. A trace has a span "pawl wait"
// for each attempt and "pawl hold" for each lease. Spans have the full name and the token, and
// are in the span of the context given to Lock.
//
// The names of pawl's own locks begin with "pawl:". Idle workers of a queue of work wait for a
// lock of the name "pawl:pool", by default: so its oldest attempt is no alarm.
package pawlotel

import (
	"context"
	"errors"
	"slices"
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

const scope = "github.com/pawl-go/pawl/observe/pawlotel"

// Options are where events go. The zero value is the default.
type Options struct {
	// Meter provides the metrics; default the global one.
	Meter metric.MeterProvider
	// Tracer provides the traces; default the global one.
	Tracer trace.TracerProvider
	// Name turns the name of a lock into the name under which it is counted. Default: the part
	// before the first slash. Only the first 100 results are told apart, and the rest is
	// "other". Names are often ids, and a metric of each would cost more than it is worth.
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
	b := &observer{name: o.Name, names: make(map[string]bool), waits: make(map[group]map[time.Time]int), tracer: o.Tracer.Tracer(scope)}
	if err := b.instruments(o.Meter.Meter(scope)); err != nil {
		return nil, err
	}
	return b.observe, nil
}

type observer struct {
	name   func(string) string
	tracer trace.Tracer

	wait, hold, late               metric.Float64Histogram
	waiting, held                  metric.Int64UpDownCounter
	contended, grace, lost, failed metric.Int64Counter

	mu    sync.Mutex
	names map[string]bool
	waits map[group]map[time.Time]int // how many attempts under way began when
}

// group is a set of locks that are counted together.
type group struct{ use, name string }

func (g group) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("pawl.use", g.use), attribute.String("pawl.name", g.name)}
}

// waitBounds are of what takes some milliseconds when all is well, and holdBounds of what a
// program does meanwhile. The default ones begin with 5 seconds.
var (
	waitBounds = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	holdBounds = append(slices.Clone(waitBounds), 1800, 3600, 6*3600, 24*3600)
)

func (b *observer) instruments(m metric.Meter) error {
	var errs [10]error
	seconds := metric.WithUnit("s")
	waitBounds, holdBounds := metric.WithExplicitBucketBoundaries(waitBounds...), metric.WithExplicitBucketBoundaries(holdBounds...)
	b.wait, errs[0] = m.Float64Histogram("pawl.lock.wait", seconds, waitBounds, metric.WithDescription("how long it took to be granted or refused"))
	b.hold, errs[1] = m.Float64Histogram("pawl.lock.hold", seconds, holdBounds, metric.WithDescription("how long a lock was held"))
	b.late, errs[2] = m.Float64Histogram("pawl.renewal.late", seconds, waitBounds, metric.WithDescription("how long after its time a heartbeat was sent"))
	b.waiting, errs[3] = m.Int64UpDownCounter("pawl.lock.waiting", metric.WithDescription("attempts under way"))
	b.held, errs[4] = m.Int64UpDownCounter("pawl.lock.held", metric.WithDescription("locks that are held"))
	b.contended, errs[5] = m.Int64Counter("pawl.lock.contended", metric.WithDescription("attempts that had to wait"))
	b.grace, errs[6] = m.Int64Counter("pawl.lock.grace", metric.WithDescription("attempts that had to wait for the restart grace of the store"))
	b.lost, errs[7] = m.Int64Counter("pawl.lock.lost", metric.WithDescription("locks that were lost"))
	b.failed, errs[8] = m.Int64Counter("pawl.renewal.failed", metric.WithDescription("heartbeats that failed"))
	_, errs[9] = m.Float64ObservableGauge("pawl.lock.waiting.oldest", seconds, metric.WithFloat64Callback(b.oldest),
		metric.WithDescription("how long the oldest attempt under way has lasted"))
	return errors.Join(errs[:]...)
}

// note counts attempts that begin or end.
func (b *observer) note(g group, since time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.waits[g]
	if all == nil {
		all = make(map[time.Time]int)
		b.waits[g] = all
	}
	if all[since] += n; all[since] <= 0 {
		delete(all, since)
	}
}

// oldest says of each group how long the oldest attempt has lasted.
func (b *observer) oldest(_ context.Context, tell metric.Float64Observer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for g, all := range b.waits {
		lasts := time.Duration(0)
		for since := range all {
			lasts = max(lasts, now.Sub(since))
		}
		tell.Observe(lasts.Seconds(), metric.WithAttributes(g.attributes()...))
	}
	return nil
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
	g := group{e.Use, b.bounded(e.Name)}
	of := metric.WithAttributes(g.attributes()...)
	outcome := metric.WithAttributes(append(g.attributes(), attribute.String("pawl.outcome", outcomeOf(e)))...)
	switch e.Kind {
	case pawl.EventAttempt:
		b.note(g, e.Since, 1)
		b.waiting.Add(ctx, 1, of)
	case pawl.EventContended:
		b.contended.Add(ctx, 1, of)
	case pawl.EventGrace:
		b.grace.Add(ctx, 1, of)
	case pawl.EventGranted, pawl.EventRefused:
		b.note(g, e.Since, -1)
		b.waiting.Add(ctx, -1, of)
		b.wait.Record(ctx, e.Took.Seconds(), outcome)
		b.span(ctx, "pawl wait", e)
		if e.Kind == pawl.EventGranted {
			b.held.Add(ctx, 1, of)
		}
	case pawl.EventLost:
		b.lost.Add(ctx, 1, of)
		fallthrough
	case pawl.EventReleased:
		b.held.Add(ctx, -1, of)
		b.hold.Record(ctx, e.Took.Seconds(), outcome)
		b.span(ctx, "pawl hold", e)
	}
}

// outcomeOf is how an attempt or a hold ended.
func outcomeOf(e pawl.Event) string {
	if e.Kind == pawl.EventRefused && errors.Is(e.Err, pawl.ErrGrace) {
		return "grace"
	}
	return e.Kind.String()
}

// span reports an interval that has just ended.
func (b *observer) span(ctx context.Context, what string, e pawl.Event) {
	now := time.Now()
	_, span := b.tracer.Start(ctx, what, trace.WithTimestamp(now.Add(-e.Took)), trace.WithAttributes(
		attribute.String("pawl.name", e.Name), attribute.String("pawl.use", e.Use), attribute.String("pawl.outcome", outcomeOf(e)),
	))
	if e.Token != 0 {
		span.SetAttributes(attribute.Int64("pawl.token", int64(e.Token))) //nolint:gosec // below 2^53
	}
	if e.Err != nil && !errors.Is(e.Err, engine.ErrBusy) && !errors.Is(e.Err, pawl.ErrGrace) { // that a TryLock found a lock taken is an answer
		span.RecordError(e.Err)
		span.SetStatus(codes.Error, e.Kind.String())
	}
	span.End(trace.WithTimestamp(now))
}
