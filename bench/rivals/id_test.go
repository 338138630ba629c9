// Package rivals measures pawl beside other libraries. Package rivals is a module of its own, so that nobody who
// uses pawl gets those libraries.
package rivals

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	bwmarrin "github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	"github.com/sony/sonyflake"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/segment"
	"github.com/pawl-go/pawl/id/snowflake"
	"github.com/pawl-go/pawl/id/uuids"
)

var ctx = context.Background()

// client is a client of a store in memory, with its registers.
func client(b *testing.B) (*pawl.Client, id.Registers) {
	b.Helper()
	c, err := pawl.New(ctx, memengine.New(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(ctx) }) //nolint:errcheck // in memory
	registers, err := id.Values(c, nil)
	if err != nil {
		b.Fatal(err)
	}
	return c, registers
}

func newSnowflake(b *testing.B, burst time.Duration) *snowflake.Generator {
	b.Helper()
	c, registers := client(b)
	g, err := snowflake.New(ctx, c, registers, "ids", &snowflake.Options{Burst: burst})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { g.Close(ctx) }) //nolint:errcheck // in memory
	return g
}

// maker is a way to make IDs.
type maker struct {
	name  string
	ids   int     // of a run
	each  int     // IDs of a call
	call  func()  // makes them
	ready func()  // is called before each run; nil: there is nothing to do
	least float64 // IDs a second; 0: it is not for us to say
	bare  bool    // a call allocates nothing

	behind bool // the first maker must be faster
}

// beside times runs of all makers in turn. The fastest run of each counts, because the others had to share the
// machine. The time of an ID is printed, and as a part of it that of the first maker.
func beside(b *testing.B, all ...maker) {
	b.Helper()
	runs := make([][]time.Duration, len(all))
	for b.Loop() {
		for i, m := range all {
			if m.ready != nil {
				m.ready()
			}
			start := time.Now()
			for range m.ids / m.each {
				m.call()
			}
			runs[i] = append(runs[i], time.Since(start))
		}
	}
	b.ReportMetric(0, "ns/op")
	first := float64(slices.Min(runs[0])) / float64(all[0].ids)
	for i, m := range all {
		each := float64(slices.Min(runs[i])) / float64(m.ids)
		rate := 1e9 / each
		allocs := testing.AllocsPerRun(100, m.call)
		fmt.Printf("%-36s %10.2f ns, %8.2f M/s, %.0f allocations a call, ratio %.3f\n", m.name, each, rate/1e6, allocs, first/each)
		if rate < m.least {
			b.Errorf("%s: %.2f M/s: %.2f are the least", m.name, rate/1e6, m.least/1e6)
		}
		if m.behind && first >= each {
			b.Errorf("%s: %.2f ns: %s took %.2f ns", m.name, each, all[0].name, first)
		}
		if m.bare && allocs > 0 {
			b.Errorf("%s: %.0f allocations a call", m.name, allocs)
		}
	}
}

// must ends the benchmark at an error.
func must[T any](is T, err error) T {
	if err != nil {
		panic(err)
	}
	return is
}

// capped is what 12 bits of a sequence allow: 4,096 IDs in a ms, or one in 244 ns.
const capped = 4096e3

// BenchmarkSnowflake is the steady state: the bits of the sequence are the limit, and a burst is used up.
func BenchmarkSnowflake(b *testing.B) {
	const burst = 50 * time.Millisecond
	g := newSnowflake(b, burst)
	borrowed := make([]int64, burst.Milliseconds()*4096)
	node := must(bwmarrin.NewNode(1))
	sony := must(sonyflake.New(sonyflake.Settings{MachineID: func() (uint16, error) { return 1, nil }}))
	beside(b,
		maker{name: "pawl snowflake", ids: 100_000, each: 1, call: func() { must(g.Next(ctx)) },
			ready: func() { must(g.NextN(ctx, borrowed)) }, least: 0.95 * capped, bare: true},
		maker{name: "bwmarrin/snowflake", ids: 100_000, each: 1, call: func() { node.Generate() }},
		maker{name: "sony/sonyflake", ids: 5000, each: 1, call: func() { must(sony.NextID()) }},
	)
}

// BenchmarkBurst is 4 million IDs that are borrowed from the time to come, by a new generator each time.
func BenchmarkBurst(b *testing.B) {
	const n = 4_000_000
	var g *snowflake.Generator
	ready := func() { g = newSnowflake(b, time.Second) }
	ids := make([]int64, 100)
	node := must(bwmarrin.NewNode(2))
	beside(b,
		maker{name: "pawl snowflake, a burst", ids: n, each: 1, call: func() { must(g.Next(ctx)) }, ready: ready, least: 10e6, bare: true},
		maker{name: "pawl snowflake, a burst by 100", ids: n, each: len(ids), call: func() { must(g.NextN(ctx, ids)) }, ready: ready, least: 10e6, bare: true},
		maker{name: "bwmarrin/snowflake", ids: 100_000, each: 1, call: func() { node.Generate() }},
		maker{name: "google/uuid, version 4", ids: 100_000, each: 1, call: func() { must(uuid.NewRandom()) }},
	)
}

// BenchmarkSegment: the floor is one addition to an atomic counter, which every such generator needs.
func BenchmarkSegment(b *testing.B) {
	_, registers := client(b)
	g := must(segment.New(registers.Counter("ids"), &segment.Options{MaxStep: 1_000_000_000}))
	b.Cleanup(func() { g.Close(ctx) }) //nolint:errcheck // in memory
	const n = 100_000
	ids := make([]int64, 100)
	var counter atomic.Int64
	beside(b,
		maker{name: "pawl segment", ids: n, each: 1, call: func() { must(g.Next(ctx)) }, least: 20e6, bare: true},
		maker{name: "pawl segment, by 100", ids: n, each: len(ids), call: func() { must(g.NextN(ctx, ids)) }, least: 20e6, bare: true},
		maker{name: "an atomic addition", ids: n, each: 1, call: func() { counter.Add(1) }},
		maker{name: "google/uuid, version 4", ids: n, each: 1, call: func() { must(uuid.NewRandom()) }},
		maker{name: "google/uuid, version 7", ids: n, each: 1, call: func() { must(uuid.NewV7()) }},
	)
}

// BenchmarkUUID: a generator costs nothing beside the library that it calls.
func BenchmarkUUID(b *testing.B) {
	const n = 100_000
	for name, versions := range map[string]struct {
		ours id.Generator[uuid.UUID]
		bare func() (uuid.UUID, error)
	}{"version 4": {uuids.V4(), uuid.NewRandom}, "version 7": {uuids.V7(), uuid.NewV7}} {
		b.Run(name, func(b *testing.B) {
			beside(b,
				maker{name: "pawl uuids, " + name, ids: n, each: 1, call: func() { must(versions.ours.Next(ctx)) }},
				maker{name: "google/uuid, " + name, ids: n, each: 1, call: func() { must(versions.bare()) }},
			)
		})
	}
}
