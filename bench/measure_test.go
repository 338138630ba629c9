package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(beServer); what != "" {
		os.Exit(serveAs(what))
	}
	os.Exit(testservers.Main(m))
}

var ctx = context.Background()

func client(b *testing.B, eng engine.Engine) *pawl.Client {
	b.Helper()
	c, err := pawl.New(ctx, eng, &pawl.Options{TTL: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(ctx); eng.Close() })
	return c
}

func lockUnlock(b *testing.B, m *pawl.Mutex) {
	l, err := m.Lock(ctx)
	if err != nil {
		b.Error(err)
		return
	}
	if err := l.Unlock(ctx); err != nil {
		b.Error(err)
	}
}

// until waits until something holds. until gives up after two minutes, or an error of the benchmark.
func until(b *testing.B, what string, holds func() bool) {
	b.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if b.Failed() || time.Now().After(deadline) {
			b.Fatal("not reached: ", what)
		}
	}
}

// turns is how many rounds of each way an iteration has where a round is long: b.Loop ends after a second.
const turns = 3

// samples collects durations of one kind.
type samples []time.Duration

func (s *samples) time(f func()) {
	start := time.Now()
	f()
	*s = append(*s, time.Since(start))
}

func (s samples) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[int(q*float64(len(sorted)-1))]
}

// beside times a lock and an unlock beside the least work that the store needs for them.
func beside(b *testing.B, what string, m *pawl.Mutex, goal float64, least func()) {
	b.Helper()
	var ours, floor samples
	for b.Loop() {
		floor.time(least)
		ours.time(func() { lockUnlock(b, m) })
	}
	compare(b, what, micros(ours.quantile(.5)), micros(floor.quantile(.5)), goal)
}

// parallel has 64 goroutines lock and unlock names of their own, some times each. Beside that,
// goroutine i does the least work that the store needs.
func parallel(b *testing.B, what string, times int, c *pawl.Client, goal float64, least func(i int)) {
	b.Helper()
	const workers = 64
	run := func(pair func(i int)) time.Duration {
		var wg sync.WaitGroup
		start := time.Now()
		for i := range workers {
			wg.Go(func() {
				for range times {
					pair(i)
				}
			})
		}
		wg.Wait()
		return time.Since(start) / time.Duration(workers*times)
	}
	var ours, floor samples
	for b.Loop() {
		floor = append(floor, run(least))
		ours = append(ours, run(func(i int) { lockUnlock(b, c.Mutex("p"+strconv.Itoa(i))) }))
	}
	compare(b, what, micros(ours.quantile(.5)), micros(floor.quantile(.5)), goal)
}

// say prints a line, and tells whether the servers are as shipped.
func say(format string, args ...any) {
	if testservers.AsShipped() {
		format = "as shipped: " + format
	}
	fmt.Printf(format+"\n", args...)
}

// unflushed marks the work of a MariaDB. The commits of a tuned MariaDB do not wait for the disk.
func unflushed(what string) string {
	if !testservers.AsShipped() {
		what = "not flushed: " + what
	}
	return what
}

// compare prints a figure beside its floor and its goal.
func compare(b *testing.B, what string, ours, floor, goal float64) {
	b.Helper()
	ratio := ours / floor
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(goal, "goal")
	b.ReportMetric(0, "ns/op")
	say("%-54s %8.2f µs, floor %8.2f µs: %.2f × (goal %.2f ×)", what, ours, floor, ratio, goal)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// lock returns when its client holds, with a function that gives the lock back.
type lock func() (unlock func() error, err error)

func lockOf(m *pawl.Mutex) lock {
	return func() (func() error, error) {
		l, err := m.Lock(ctx)
		return func() error { return l.Unlock(ctx) }, err
	}
}

// holds is how long a holder holds the lock. With a long hold all others wait, so that a hand-over
// is all the work of the store. With no hold, a client that unlocked asks for the lock again
// meanwhile. That client may have the lock back before any other waits.
func holds(b *testing.B, measure func(b *testing.B, hold time.Duration)) {
	for _, hold := range []time.Duration{2 * time.Millisecond, 0} {
		b.Run("held for "+hold.String(), func(b *testing.B) { measure(b, hold) })
	}
}

// handoffs lets each client have the lock some times, and measures each hand-over. A hand-over
// lasts from before an unlock to the return of the next client's lock. handoffs returns the
// holders, in order.
func (s *samples) handoffs(b *testing.B, clients []lock, each int, hold time.Duration) (order []int) {
	var left time.Time // the holder writes it, and also order and the samples
	var wg sync.WaitGroup
	for i, take := range clients {
		wg.Go(func() {
			for range each {
				unlock, err := take()
				if err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				if !left.IsZero() {
					*s = append(*s, now.Sub(left))
				}
				order = append(order, i)
				time.Sleep(hold)
				left = time.Now()
				if err := unlock(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return order
}
