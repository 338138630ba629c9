package bench

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// samples collects durations of one thing.
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

// compare prints a figure beside its floor and its goal.
func compare(b *testing.B, what string, ours, floor, goal float64) {
	b.Helper()
	ratio := ours / floor
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(goal, "goal")
	b.ReportMetric(0, "ns/op")
	fmt.Printf("%-42s %8.2f µs, floor %8.2f µs: %.2f × (goal %.2f ×)\n", what, ours, floor, ratio, goal)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
