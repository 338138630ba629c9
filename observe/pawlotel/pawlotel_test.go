package pawlotel_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/observe/pawlotel"
)

// collect reads the metrics: of each stream its name, its attributes and its sum
// or count.
func collect(t *testing.T, reader sdkmetric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			add := func(attrs fmt.Stringer, n int64) { got[m.Name+" "+attrs.String()] += n }
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(attributes{p.Attributes.ToSlice()}, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(attributes{p.Attributes.ToSlice()}, int64(p.Count)) //nolint:gosec // small
				}
			}
		}
	}
	return got
}

// Under synctest no time passes before the second attempt waits.
func TestMetricsAndTraces(t *testing.T) { synctest.Test(t, metricsAndTraces) }

func metricsAndTraces(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	observe, err := pawlotel.New(&pawlotel.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), Tracer: tracer})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pawl.New(t.Context(), memengine.New(), &pawl.Options{Observe: observe})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	ctx, parent := tracer.Tracer("test").Start(t.Context(), "request")
	lease, err := c.Mutex("order/42").Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := c.Mutex("order/42").Lock(short); err == nil {
		t.Fatal("held twice")
	}
	if _, err := c.Mutex("order/42").TryLock(ctx); err == nil {
		t.Fatal("held twice")
	}
	if err := lease.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	parent.End()
	got := collect(t, reader)
	for stream, want := range map[string]int64{
		"pawl.lock.wait [pawl.name=order pawl.outcome=granted pawl.use=lock]":  1,
		"pawl.lock.wait [pawl.name=order pawl.outcome=refused pawl.use=lock]":  2,
		"pawl.lock.hold [pawl.name=order pawl.outcome=released pawl.use=lock]": 1,
		"pawl.lock.contended [pawl.name=order pawl.use=lock]":                  1,
		"pawl.lock.waiting [pawl.name=order pawl.use=lock]":                    0,
	} {
		if is, there := got[stream]; !there || is != want {
			t.Errorf("%s is %d, %v, want %d; all: %v", stream, is, there, want, got)
		}
	}
	names, failed := make(map[string]int), 0
	for _, s := range spans.Ended() {
		names[s.Name()]++
		if s.Status().Code == codes.Error {
			failed++
		}
		if s.Name() != "request" && s.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("span %q is not in that of the request", s.Name())
		}
	}
	if names["pawl wait"] != 3 || names["pawl hold"] != 1 || failed != 1 { // a TryLock does not fail
		t.Errorf("spans %v, %d of them failed", names, failed)
	}
}

// TestNamesAreBounded: a million names are a hundred and "other".
func TestNamesAreBounded(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	observe, err := pawlotel.New(&pawlotel.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), Name: func(s string) string { return s }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		observe(t.Context(), pawl.Event{Kind: pawl.EventLost, Use: "lock", Name: fmt.Sprint("id ", i)})
	}
	lost, other := 0, int64(0)
	for stream, n := range collect(t, reader) {
		if stream == "pawl.lock.lost [pawl.name=other pawl.use=lock]" {
			other = n
		}
		if stream[:len("pawl.lock.lost")] == "pawl.lock.lost" {
			lost++
		}
	}
	if lost != 101 || other != 900 {
		t.Errorf("%d names, %d of them under other", lost, other)
	}
}

// TestRenewals: heartbeats that are late and that fail are seen.
func TestRenewals(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	observe, err := pawlotel.New(&pawlotel.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	observe(t.Context(), pawl.Event{Kind: pawl.EventRenewed, Took: -time.Second})
	observe(t.Context(), pawl.Event{Kind: pawl.EventRenewed, Took: time.Second, Err: pawl.ErrUnavailable})
	if got := collect(t, reader); got["pawl.renewal.late []"] != 2 || got["pawl.renewal.failed []"] != 1 {
		t.Errorf("%v", got)
	}
}
