package lb

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	longestTable = 1 << 16 // picks in a cycle that is laid out before
	nginxSteps   = 1 << 20 // nodes times picks that smooth weighted round robin may take to lay a cycle out
)

// schedule is the order of weighted round robin. One cycle has as many picks as the weights have
// in sum, after division by their common divisor. A cycle is laid out in a table, so that a pick is
// a step of a counter. A longer cycle is made as it is used, under a lock.
type schedule struct {
	table []uint32
	mu    sync.Mutex
	line  *deadlines // where there is no table
}

func newSchedule(weights []uint64) *schedule {
	s := &schedule{}
	divisor, cycle := uint64(0), uint64(0)
	for _, w := range weights {
		divisor = gcd(divisor, w)
	}
	reduced := make([]uint64, len(weights))
	for i, w := range weights {
		reduced[i] = w / divisor
		cycle += reduced[i]
	}
	switch {
	case cycle > longestTable:
		s.line = newDeadlines(reduced)
	case cycle*uint64(len(weights)) <= nginxSteps:
		s.table = smooth(reduced, cycle)
	default:
		line := newDeadlines(reduced)
		s.table = make([]uint32, cycle)
		for i := range s.table {
			s.table[i] = uint32(line.next())
		}
	}
	return s
}

func (s *schedule) pick(counter *atomic.Uint64) int {
	if s.line == nil {
		return int(s.table[(counter.Add(1)-1)%uint64(len(s.table))])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.next()
}

// smooth is a cycle of the smooth weighted round robin of nginx.
func smooth(weights []uint64, cycle uint64) []uint32 {
	table, current := make([]uint32, cycle), make([]int64, len(weights))
	for k := range table {
		best := 0
		for i, w := range weights {
			if current[i] += int64(w); current[i] > current[best] {
				best = i
			}
		}
		current[best] -= int64(cycle)
		table[k] = uint32(best)
	}
	return table
}

// deadlines is a heap of nodes by the time of their next pick. The pick k of a node, from 0 on, is
// due at (2k+1)/2w of the cycle. So each node has w picks in a cycle, in even distances.
type deadlines struct {
	heap  []turn
	left  uint64 // of the cycle
	cycle uint64
}

type turn struct {
	odd    uint64 // 2k+1
	weight uint64
	node   int
}

func (t turn) before(o turn) bool {
	a, b := t.odd*o.weight, o.odd*t.weight // no overflow: both factors have less than 22 bits
	return a < b || a == b && t.node < o.node
}

func newDeadlines(weights []uint64) *deadlines {
	d := &deadlines{}
	for i, w := range weights {
		d.heap = append(d.heap, turn{1, w, i})
		d.cycle += w
	}
	d.left = d.cycle
	for i := len(d.heap)/2 - 1; i >= 0; i-- {
		d.sink(i)
	}
	return d
}

func (d *deadlines) next() int {
	top := &d.heap[0]
	node := top.node
	top.odd += 2
	d.sink(0)
	if d.left--; d.left == 0 { // each node has had its picks
		d.left = d.cycle
		for i := range d.heap {
			d.heap[i].odd -= 2 * d.heap[i].weight
		}
	}
	return node
}

func (d *deadlines) sink(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(d.heap); c++ {
			if d.heap[c].before(d.heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		d.heap[i], d.heap[least] = d.heap[least], d.heap[i]
		i = least
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// below returns a number in [0, n) from a random number.
func below(random uint64, n int) int {
	hi, _ := bits.Mul64(random, uint64(n))
	return int(hi)
}

// alias draws nodes by weight in one step, by the alias method of Walker and Vose. Each node has a
// column, which a threshold divides between that node and another node.
type alias struct {
	threshold []uint64 // below it the column's own node
	other     []uint32
}

func newAlias(weights []uint64) *alias {
	n := len(weights)
	a := &alias{make([]uint64, n), make([]uint32, n)}
	sum := uint64(0)
	for _, w := range weights {
		sum += w
	}
	left := make([]uint64, n) // of the weight, times n; a column has sum
	var small, large []int
	for i, w := range weights {
		if left[i] = w * uint64(n); left[i] < sum {
			small = append(small, i)
		} else {
			large = append(large, i)
		}
	}
	for len(small) > 0 {
		i, from := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		a.threshold[i], _ = bits.Div64(left[i], 0, sum)
		a.other[i] = uint32(from)
		if left[from] -= sum - left[i]; left[from] < sum {
			small, large = append(small, from), large[:len(large)-1]
		}
	}
	for _, i := range large {
		a.threshold[i], a.other[i] = ^uint64(0), uint32(i)
	}
	return a
}

// pick uses one random number for the column and for the place in it.
func (a *alias) pick(random uint64) int {
	column, place := bits.Mul64(random, uint64(len(a.threshold)))
	if place < a.threshold[column] {
		return int(column)
	}
	return int(a.other[column])
}
