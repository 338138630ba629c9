package lb

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// leastLoaded looks at all nodes, from the node on whose turn it is.
func (b *Balancer) leastLoaded(v *view, tried *Tried) *entry {
	weighted := b.policy == WeightedLeastConnections
	start := 0
	if weighted {
		start = v.turns.pick(&b.next)
	} else {
		start = int((b.next.Add(1) - 1) % uint64(len(v.nodes)))
	}
	var best *entry
	var load, weight uint64
	for _, part := range [2][]*entry{v.nodes[start:], v.nodes[:start]} {
		for _, n := range part {
			l, w := n.state.load(), uint64(1)
			if weighted {
				w = n.weight
			}
			if best != nil && l*weight >= load*w || tried.has(n) {
				continue
			}
			if best, load, weight = n, l, w; l == 0 {
				return n
			}
		}
	}
	return best
}

// lighter draws two nodes, and returns the node with the smaller load.
func (b *Balancer) lighter(v *view, now time.Duration) *entry {
	i, j := b.two(v)
	one, other := v.nodes[i], v.nodes[j]
	if i == j {
		return one
	}
	a, c := one.state.load(), other.state.load()
	if b.policy == PeakEWMA {
		x, y := one.state.latency.at(now, b.opts.Tau), other.state.latency.at(now, b.opts.Tau)
		if x > 0 && y > 0 { // a node without a latency is judged by its load, so that it gets no burst
			if x*float64(a+1)*float64(other.weight) <= y*float64(c+1)*float64(one.weight) {
				return one
			}
			return other
		}
	}
	if (a+1)*other.weight <= (c+1)*one.weight {
		return one
	}
	return other
}

// two draws two nodes. With weights both may be the same, because the second draw is repeated three times only.
func (b *Balancer) two(v *view) (int, int) {
	if len(v.nodes) == 1 {
		return 0, 0
	}
	if v.draw == nil {
		i, rest := bits.Mul64(b.random(), uint64(len(v.nodes)))
		j := below(rest, len(v.nodes)-1)
		if j >= int(i) {
			j++
		}
		return int(i), j
	}
	i := v.draw.pick(b.random())
	j := i
	for try := 0; j == i && try < 3; try++ {
		j = v.draw.pick(b.random())
	}
	return i, j
}

// latency is a moving average in one word: the nanoseconds as a float32, and the time of the last
// answer in units of 2^20 ns. Zero: there was no answer yet.
type latency struct{ word atomic.Uint64 }

const latencyUnit = 20

func packLatency(ns float64, stamp uint32) uint64 {
	return uint64(math.Float32bits(float32(ns)))<<32 | uint64(stamp)
}

func unpackLatency(word uint64) (ns float64, stamp uint32) {
	return float64(math.Float32frombits(uint32(word >> 32))), uint32(word)
}

// at returns the latency now, which decays without answers. So a node that was slow is tried again.
func (l *latency) at(now, tau time.Duration) float64 {
	word := l.word.Load()
	if word == 0 {
		return 0
	}
	ns, stamp := unpackLatency(word)
	if age := uint32(now>>latencyUnit) - stamp; int32(age) > 0 {
		ns *= decay(age, tau)
	}
	return ns
}

func decay(age uint32, tau time.Duration) float64 {
	return math.Exp(-float64(uint64(age)<<latencyUnit) / float64(tau))
}

// longestLatency bounds what failures make of a latency.
const longestLatency = float64(time.Minute)

// observe notes an answer. A slow answer counts in full at once. A failure counts as twice the
// average at least, because a node that fails fast would look fast.
func (l *latency) observe(now, took, tau time.Duration, r Result) {
	stamp := uint32(now >> latencyUnit)
	for {
		word := l.word.Load()
		was, last := unpackLatency(word)
		weight := 1.0
		if age := stamp - last; int32(age) > 0 {
			weight = decay(age, tau)
		}
		seen := max(float64(took), 1)
		if r == Failed {
			seen = max(seen, min(2*was, longestLatency), float64(time.Millisecond))
		}
		switch {
		case r == Canceled && (seen <= was || word == 0): // what the node would have taken is not known
			return
		case seen < was:
			seen = was*weight + seen*(1-weight)
		}
		if l.word.CompareAndSwap(word, packLatency(seen, stamp)) {
			return
		}
	}
}
