package bench

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/segment"
)

// BenchmarkSegment measures a number of a batch beside one addition to an atomic counter, which
// every such generator needs. The goal is at least 20 million a second.
func BenchmarkSegment(b *testing.B) {
	registers, err := id.Values(client(b, memengine.New()), nil)
	if err != nil {
		b.Fatal(err)
	}
	g, err := segment.New(registers.Counter("bench"), &segment.Options{MaxStep: 1_000_000_000})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { g.Close(ctx) }) //nolint:errcheck // in memory
	const numbers = 1_000_000
	var counter atomic.Int64
	rates := map[string]float64{"one at a time": 20e6, "100 at a time": 20e6}
	for name, next := range map[string]func(dst []int64){
		"one at a time": func([]int64) {
			if _, err := g.Next(ctx); err != nil {
				b.Error(err)
			}
		},
		"100 at a time": func(dst []int64) {
			if _, err := g.NextN(ctx, dst); err != nil {
				b.Error(err)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			dst := make([]int64, 100)
			each := map[bool]int{true: 1, false: len(dst)}[name == "one at a time"]
			var ours, floor samples
			for b.Loop() {
				floor.time(func() {
					for range numbers {
						counter.Add(1)
					}
				})
				ours.time(func() {
					for range numbers / each {
						next(dst)
					}
				})
			}
			best, least := ours.quantile(0), floor.quantile(0)
			rate := numbers / best.Seconds()
			b.ReportMetric(rate/1e6, "M/s")
			b.ReportMetric(0, "ns/op")
			fmt.Printf("%-54s %8.1f M/s, floor %8.1f M/s (goal %.0f M/s)\n", "numbers of a segment, "+name, rate/1e6, numbers/least.Seconds()/1e6, rates[name]/1e6)
			if rate < rates[name] {
				b.Errorf("%.1f M/s: %.0f are the least", rate/1e6, rates[name]/1e6)
			}
		})
	}
}
