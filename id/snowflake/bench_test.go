package snowflake_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/snowflake"
)

func newGenerator(tb testing.TB, opts *snowflake.Options) *snowflake.Generator {
	tb.Helper()
	client, err := pawl.New(tb.Context(), newStore(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close(tb.Context()) }) //nolint:errcheck // the store is memory
	registers, err := id.Values(client, nil)
	if err != nil {
		tb.Fatal(err)
	}
	g, err := snowflake.New(tb.Context(), client, registers, "ids", opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { g.Close(tb.Context()) }) //nolint:errcheck // as above
	return g
}

// BenchmarkNext is the steady state: 4,096 in a millisecond is 244 ns each.
func BenchmarkNext(b *testing.B) {
	const burst = 50 * time.Millisecond
	g := newGenerator(b, &snowflake.Options{Burst: burst})
	if _, err := g.NextN(b.Context(), make([]int64, burst.Milliseconds()*4096)); err != nil { // it is used up
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Next(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBurst makes 4 * 10^6 IDs that are borrowed.
func BenchmarkBurst(b *testing.B) {
	const n = 4_000_000
	for name, run := range map[string]func(*testing.B, *snowflake.Generator){
		"Next": func(b *testing.B, g *snowflake.Generator) {
			for range n {
				if _, err := g.Next(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		},
		"NextN": func(b *testing.B, g *snowflake.Generator) {
			var ids [100]int64
			for range n / len(ids) {
				if _, err := g.NextN(b.Context(), ids[:]); err != nil {
					b.Fatal(err)
				}
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				g := newGenerator(b, nil)
				b.StartTimer()
				run(b, g)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/ID")
		})
	}
}

// TestNoAllocations: an ID costs none.
func TestNoAllocations(t *testing.T) {
	g := newGenerator(t, nil)
	var ids [100]int64
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := g.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := g.NextN(t.Context(), ids[:]); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
