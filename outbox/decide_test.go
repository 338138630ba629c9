package outbox

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// relays is a fleet in memory, in which each relay decides by itself.
type relays struct {
	held, hold []int
	waits      []bool
	free       int
}

func (r *relays) see(i int) fleet {
	f := fleet{held: r.held[i], hold: r.hold[i], free: r.free}
	for j := range r.held {
		if r.held[j] > 0 || r.waits[j] || j == i {
			f.relays++
		}
		if j != i && r.waits[j] {
			f.waiting++
		}
	}
	return f
}

// step lets a relay look and move, and returns how many partitions it gave up.
func (r *relays) step(i int) int {
	m := r.see(i).decide()
	r.held[i] -= m.give
	r.free += m.give
	r.waits[i] = m.wait
	if m.try && r.free > 0 {
		r.held[i], r.free = r.held[i]+1, r.free-1
	}
	r.grant()
	return m.give
}

// grant gives free partitions to the relays that wait. Each of them looks again when it has one.
func (r *relays) grant() {
	for granted := true; granted && r.free > 0; {
		granted = false
		for i := range r.held {
			if r.waits[i] && r.free > 0 {
				r.held[i], r.free, granted = r.held[i]+1, r.free-1, true
				r.waits[i] = r.see(i).decide().wait
			}
		}
	}
}

// There may be any number of relays, with any partitions at first. After a few looks of each, nothing moves any more. All partitions
// have a relay if the relays may hold so many. No relay is above its share while another is below its own.
func TestDecide(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20_000) {
		lot := rand.New(rand.NewPCG(seed, 1))
		n := 1 + lot.IntN(20)
		r := &relays{held: make([]int, n), hold: make([]int, n), waits: make([]bool, n), free: Partitions}
		may := 0
		for i := range n {
			r.hold[i] = []int{Partitions, Partitions, Partitions, 1, 2, 5}[lot.IntN(6)]
			r.held[i] = min(r.free, lot.IntN(r.hold[i]+1))
			r.free -= r.held[i]
			may += r.hold[i]
		}
		began := fmt.Sprint(r.held, r.hold)
		gave := 0
		const looks = 25
		for range looks {
			gave = 0
			for _, i := range lot.Perm(n) {
				gave += r.step(i)
			}
		}
		share := (Partitions + n - 1) / n
		fault := ""
		if gave > 0 {
			fault = "partitions move for ever"
		}
		if r.free > max(0, Partitions-may) {
			fault = fmt.Sprint(r.free, " partitions have no relay")
		}
		for i := range n {
			for j := range n {
				if r.held[i] > share && r.held[j] < min(share, r.hold[j]) {
					fault = fmt.Sprintf("relay %d has more than its share, and relay %d has less", i, j)
				}
			}
		}
		if fault != "" {
			t.Fatalf("seed %d from %s: %s: %+v", seed, began, fault, r)
		}
	}
}
