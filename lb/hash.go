package lb

import (
	"math"
)

// rendezvous gives each pair of a key and a node a number that looks random. The node with the best
// number for its weight is picked. So a node that leaves or comes moves no key between others.
type rendezvous struct {
	seeds []uint64
	share []float64 // the weights; nil: all weights are equal
	sum   float64   // of the weights
}

func newRendezvous(s *snapshot) *rendezvous {
	r := &rendezvous{}
	equal := true
	for _, n := range s.nodes {
		r.seeds = append(r.seeds, n.seed)
		r.share = append(r.share, float64(n.Weight)) // not the weight of a slow start, which would move keys twice
		r.sum += float64(n.Weight)
		equal = equal && n.Weight == s.nodes[0].Weight
	}
	if equal {
		r.share = nil
	}
	return r
}

// hashText is FNV-1a of 64 bits, mixed: the same in all processes and versions.
func hashText(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the last step of SplitMix64.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// pick returns the node of the key, or nil where all nodes were tried.
func (r *rendezvous) pick(nodes []*entry, req Request) *entry {
	key := hashText(req.Key)
	if req.Tried != nil {
		return r.best(key, func(i int) bool { return !req.Tried.has(nodes[i]) }, nodes)
	}
	if r.share != nil {
		return r.best(key, nil, nodes)
	}
	best, most := 0, uint64(0)
	for i, seed := range r.seeds {
		if h := mix(key ^ seed); h > most {
			best, most = i, h
		}
	}
	return nodes[best]
}

// best compares -ln(u)/weight, the times of arrival of nodes that arrive at random at the rate of
// their weights. As 1-u is never more than -ln(u), few logarithms are taken.
func (r *rendezvous) best(key uint64, allowed func(int) bool, nodes []*entry) *entry {
	best, least := -1, math.Inf(1)
	for i, seed := range r.seeds {
		if allowed != nil && !allowed(i) {
			continue
		}
		u, w := (float64(mix(key^seed)>>11)+0.5)/(1<<53), 1.0
		if r.share != nil {
			w = r.share[i]
		}
		if 1-u >= least*w {
			continue
		}
		if at := -math.Log(u) / w; at < least {
			best, least = i, at
		}
	}
	if best < 0 {
		return nil
	}
	return nodes[best]
}

// bounded picks among the nodes that stay below their share of the load times bound.
func (r *rendezvous) bounded(nodes []*entry, req Request, bound float64) *entry {
	total := uint64(1) // with this request
	for _, n := range nodes {
		total += n.state.load()
	}
	perWeight := bound * float64(total) / r.sum
	key := hashText(req.Key)
	n := r.best(key, func(i int) bool {
		most := math.Ceil(perWeight * float64(nodes[i].Weight))
		return float64(nodes[i].state.load()+1) <= most && !req.Tried.has(nodes[i])
	}, nodes)
	if n == nil { // other requests took the room meanwhile, or this request tried the nodes with room
		return r.pick(nodes, req)
	}
	return n
}
