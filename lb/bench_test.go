package lb_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/lb"
)

// BenchmarkPick is a pick and its end. The floor is an atomic add, a remainder and an index.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("floor/n=%d", n), func(b *testing.B) {
			var next atomic.Uint64
			all := make([]*lb.Node, n)
			for i := range all {
				all[i] = &lb.Node{}
			}
			weight := 0
			for b.Loop() {
				weight += all[next.Add(1)%uint64(len(all))].Weight
			}
			if weight != 0 {
				b.Fatal(weight)
			}
		})
		b.Run(fmt.Sprintf("round-robin without Done/n=%d", n), func(b *testing.B) {
			balancer := newBalancer(b, newSet(b, nil, numbered(n, 1)...), lb.RoundRobin, nil)
			for b.Loop() {
				if _, err := balancer.Pick(lb.Request{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		for _, p := range all {
			for _, kind := range []string{"one", "all"} {
				b.Run(fmt.Sprintf("%v/n=%d/%s", p, n, kind), func(b *testing.B) {
					nodes := numbered(n, 1)
					for i := range nodes {
						nodes[i].Weight = 1 + i%7
					}
					balancer := newBalancer(b, newSet(b, nil, nodes...), p, nil)
					work := func(more func() bool) {
						for more() {
							pick, _ := balancer.Pick(lb.Request{Key: "10.1.2.3"})
							pick.Done(lb.Succeeded)
						}
					}
					b.ReportAllocs()
					if kind == "all" {
						b.RunParallel(func(pb *testing.PB) { work(pb.Next) })
					} else {
						work(b.Loop)
					}
				})
			}
		}
	}
}
