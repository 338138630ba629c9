package pawlotel_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/observe/pawlotel"
)

// gauge reads a gauge: of each stream its value.
func gauge(t *testing.T, reader sdkmetric.Reader, name string) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if data, ok := m.Data.(metricdata.Gauge[float64]); ok && m.Name == name {
				for _, p := range data.DataPoints {
					got[attributes{p.Attributes.ToSlice()}.String()] = p.Value
				}
			}
		}
	}
	return got
}

// TestBounds: waits and holds of milliseconds, seconds and minutes are told apart.
func TestBounds(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	observe, err := pawlotel.New(&pawlotel.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	took := []time.Duration{300 * time.Microsecond, 3 * time.Millisecond, 30 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second, 3 * time.Minute}
	for _, took := range took {
		observe(t.Context(), pawl.Event{Kind: pawl.EventGranted, Use: "lock", Name: "m", Took: took})
		observe(t.Context(), pawl.Event{Kind: pawl.EventReleased, Use: "lock", Name: "m", Took: took})
		observe(t.Context(), pawl.Event{Kind: pawl.EventRenewed, Took: took})
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, m := range all.ScopeMetrics[0].Metrics {
		data, ok := m.Data.(metricdata.Histogram[float64])
		if !ok {
			continue
		}
		seen++
		used := 0
		for _, n := range data.DataPoints[0].BucketCounts {
			if n > 1 {
				t.Errorf("%s: %d fall into one bucket", m.Name, n)
			}
			used += int(n) //nolint:gosec // small
		}
		if used != len(took) {
			t.Errorf("%s has %d", m.Name, used)
		}
	}
	if seen != 3 {
		t.Errorf("%d histograms", seen)
	}
}

// TestHeldAndOldest: a lease is counted until it is released or lost. The oldest attempt under
// way shows how long it has lasted, whichever ends first.
func TestHeldAndOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		observe, err := pawlotel.New(&pawlotel.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
		if err != nil {
			t.Fatal(err)
		}
		c, err := pawl.New(t.Context(), memengine.New(), &pawl.Options{Observe: observe})
		if err != nil {
			t.Fatal(err)
		}
		const stream = "[pawl.name=m pawl.use=lock]"
		want := func(held int64, oldest time.Duration) {
			t.Helper()
			if got := collect(t, reader)["pawl.lock.held "+stream]; got != held {
				t.Errorf("%d are held, want %d", got, held)
			}
			if got, told := gauge(t, reader, "pawl.lock.waiting.oldest")[stream]; !told || got != oldest.Seconds() {
				t.Errorf("the oldest attempt lasts %v s, %v, want %v", got, told, oldest)
			}
		}
		lease, err := c.Mutex("m").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want(1, 0)
		first, giveUp := context.WithCancel(t.Context())
		ended := make(chan error)
		for i, ctx := range []context.Context{first, t.Context()} {
			go func() {
				second, err := c.Mutex("m").Lock(ctx)
				if err == nil {
					err = second.Unlock(ctx)
				}
				ended <- err
			}()
			<-time.After(time.Duration(i+1) * time.Minute)
		}
		want(1, 3*time.Minute)
		giveUp()
		<-ended
		want(1, 2*time.Minute)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want(0, 0)
		if _, err := c.Mutex("m").Lock(t.Context()); err != nil {
			t.Error(err)
		}
		want(1, 0)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		want(0, 0)
	})
}

// TestOldestIsBounded: a million names are a hundred and "other", also in the gauge.
func TestOldestIsBounded(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	observe, err := pawlotel.New(&pawlotel.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), Name: func(s string) string { return s }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		observe(t.Context(), pawl.Event{Kind: pawl.EventAttempt, Use: "lock", Name: fmt.Sprint("id ", i), Since: time.Now()})
	}
	if n := len(gauge(t, reader, "pawl.lock.waiting.oldest")); n != 101 {
		t.Errorf("%d names", n)
	}
}

// TestGrace: attempts that meet the restart grace of the store are counted, and their end as well.
func TestGrace(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	observe, err := pawlotel.New(&pawlotel.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	observe(t.Context(), pawl.Event{Kind: pawl.EventGrace, Use: "lock", Name: "m", Took: time.Second, Err: pawl.ErrGrace})
	observe(t.Context(), pawl.Event{Kind: pawl.EventRefused, Use: "lock", Name: "m", Err: fmt.Errorf("%w: %w", pawl.ErrNotAcquired, pawl.ErrGrace)})
	got := collect(t, reader)
	for _, stream := range []string{"pawl.lock.grace [pawl.name=m pawl.use=lock]", "pawl.lock.wait [pawl.name=m pawl.outcome=grace pawl.use=lock]"} {
		if got[stream] != 1 {
			t.Errorf("%s is %d; all: %v", stream, got[stream], got)
		}
	}
}
