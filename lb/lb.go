// Package lb chooses one node of a [Set] of nodes by request. The package has the policies
// that load balancers have in common: see [Policy]. Package lb does no I/O and starts no goroutine.
// Nodes come from a list of the user, or from live members, see package group.
//
//	set, err := lb.NewSet(nil, lb.Node{ID: "a", Addr: "10.0.0.1:80"}, lb.Node{ID: "b", Addr: "10.0.0.2:80"})
//	balancer, err := lb.New(set, lb.PowerOfTwo, nil)
//
//	pick, err := balancer.Pick(lb.Request{})
//	err = send(pick.Node().Addr)
//	pick.Done(lb.ResultOf(err))
//
// A pick costs no allocation. A pick takes no lock, with one exception: weighted round robin and weighted least connections over
// weights whose cycle has more than 65,536 picks. The first pick after a change of the set takes a lock as well.
//
// A caller that tries again at another node keeps a [Tried] for its request.
package lb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
)

// ErrNoNode says that there is no node to pick: the set is empty, or the request has tried all nodes.
var ErrNoNode = errors.New("no node to pick")

// Policy is a rule by which nodes are chosen. The names of [Policy.String] are those of settings.
type Policy int

const (
	// RoundRobin picks the nodes in turn. RoundRobin knows no weights.
	RoundRobin Policy = iota
	// WeightedRoundRobin picks a node as often as its weight says, exactly so in each cycle. The
	// picks of a node are spread over the cycle, in the order of nginx. The weights 5, 1 and 1 give
	// a a b a c a a. Where nodes times the length of the cycle are more than 2^20, the order is by
	// deadline instead, which is as exact.
	WeightedRoundRobin
	// LeastConnections picks the node with the fewest requests in flight, and among equals in turn.
	LeastConnections
	// WeightedLeastConnections picks the node with the fewest requests in flight for its weight, and
	// among equals as WeightedRoundRobin does.
	WeightedLeastConnections
	// Random picks any node, each with the same chance.
	Random
	// WeightedRandom picks any node, each with a chance in proportion to its weight.
	WeightedRandom
	// SourceHash picks the same node for the same [Request].Key, by rendezvous hashing: all
	// processes choose alike. When a node leaves, only the keys of that node move. When a node comes,
	// only the keys that it gets move. Shares are in proportion to the weights.
	SourceHash
	// PowerOfTwo draws two nodes by weight, and picks the one with fewer requests in flight for its
	// weight.
	PowerOfTwo
	// PeakEWMA draws two nodes by weight, and picks the one with the lower cost. The cost is the
	// latency, times the requests in flight and one, over the weight. The latency is a moving average
	// that rises with a slow answer at once, see [Options].Tau and [Pick.Answered].
	PeakEWMA
	policies
)

var policyNames = [policies]string{"round-robin", "weighted-round-robin", "least-connections", "weighted-least-connections",
	"random", "weighted-random", "source-hash", "power-of-two", "peak-ewma"}

// String returns the name of the policy, such as "round-robin".
func (p Policy) String() string {
	if p < 0 || p >= policies {
		return fmt.Sprintf("policy %d", int(p))
	}
	return policyNames[p]
}

// ParsePolicy returns the policy of this name. Another name is a [pawl.ErrInvalid] that lists all.
func ParsePolicy(name string) (Policy, error) {
	if i := slices.Index(policyNames[:], name); i >= 0 {
		return Policy(i), nil
	}
	return 0, fmt.Errorf("%w: policy is %q: one of %q is allowed", pawl.ErrInvalid, name, policyNames)
}

// Options change a [Balancer]. The zero value is the default.
type Options struct {
	// Bound limits the load of a node under SourceHash. A node has at most Bound times its share of
	// the requests in flight, with the new one, rounded up. The keys beyond that go to their next node. Picks at the same moment
	// may exceed the limit. So does a request that has tried all nodes with room. 0, the default: no limit. Else 1 to 100, such as 1.25.
	Bound float64

	// Tau is how fast PeakEWMA forgets, 1 ms to an hour. An answer that came Tau ago counts 37 %. Default 10 s.
	Tau time.Duration

	// Rand returns random numbers, and is safe for concurrent use. Default: [rand.Uint64]. Tests set Rand for picks
	// that come again.
	Rand func() uint64
}

// Balancer picks nodes of a [Set] by one [Policy]. A Balancer is safe for concurrent use. Several
// balancers may share a set: then each sees the requests in flight that others of them count.
type Balancer struct {
	set    *Set
	policy Policy
	opts   Options
	mu     sync.Mutex // while a view is made
	view   atomic.Pointer[view]
	_      [64]byte // the counter has a cache line of its own
	next   atomic.Uint64
	_      [64]byte
}

// view is a snapshot of the set with what the policy has derived from it.
type view struct {
	*snapshot
	inTurn bool      // a step of the counter is all that a pick takes
	turns  *schedule // WeightedRoundRobin and WeightedLeastConnections
	draw   *alias    // WeightedRandom; PowerOfTwo and PeakEWMA, where weights differ
	hash   *rendezvous
}

// New returns a balancer of the set. Nil opts are the defaults. A policy or option out of its range
// is a [pawl.ErrInvalid]. Turns begin at a random place, so that processes that start together do
// not all begin with one node.
func New(set *Set, policy Policy, opts *Options) (*Balancer, error) {
	b := &Balancer{set: set, policy: policy}
	if opts != nil {
		b.opts = *opts
	}
	switch o := &b.opts; {
	case policy < 0 || policy >= policies:
		return nil, fmt.Errorf("%w: policy is %d: 0 to %d are allowed", pawl.ErrInvalid, policy, policies-1)
	case o.Bound != 0 && !(o.Bound >= 1 && o.Bound <= 100):
		return nil, fmt.Errorf("%w: Options.Bound is %v: 0 (no limit) and 1 to 100 are allowed", pawl.ErrInvalid, o.Bound)
	case o.Tau != 0 && (o.Tau < time.Millisecond || o.Tau > time.Hour):
		return nil, fmt.Errorf("%w: Options.Tau is %v: 1ms to 1h are allowed", pawl.ErrInvalid, o.Tau)
	case o.Tau == 0:
		o.Tau = 10 * time.Second
	}
	b.next.Store(b.random() >> 1) // far from the end of the numbers
	b.refresh()
	return b, nil
}

// Policy returns the policy of the balancer.
func (b *Balancer) Policy() Policy { return b.policy }

func (b *Balancer) random() uint64 {
	if b.opts.Rand != nil {
		return b.opts.Rand()
	}
	return rand.Uint64()
}

// refresh makes the view of the present snapshot.
func (b *Balancer) refresh() *view {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.set.snap.Load()
	if v := b.view.Load(); v != nil && v.snapshot == now {
		return v
	}
	v := &view{snapshot: now, inTurn: b.policy == RoundRobin && len(now.nodes) > 0}
	switch b.policy {
	case WeightedRoundRobin, WeightedLeastConnections:
		v.turns = newSchedule(now.weights())
	case WeightedRandom:
		v.draw = newAlias(now.weights())
	case PowerOfTwo, PeakEWMA:
		if !now.equal {
			v.draw = newAlias(now.weights())
		}
	case SourceHash:
		v.hash = newRendezvous(now)
	}
	b.view.Store(v)
	return v
}

// Request is what a pick may depend on.
type Request struct {
	Key   string // of SourceHash, such as the address of a client or a session
	Tried *Tried // nodes that are not picked again; nil: none
}

// Tried is the nodes that one request has tried. The zero value is none. Tried is not safe for
// concurrent use.
type Tried struct{ states []*state }

// Add notes the node of a pick.
func (t *Tried) Add(p Pick) { t.states = append(t.states, p.node.state) }

// Len returns how many nodes were tried.
func (t *Tried) Len() int { return len(t.states) }

func (t *Tried) has(n *entry) bool { return t != nil && slices.Contains(t.states, n.state) }

// Pick is a node that was chosen for a request. The caller calls [Pick.Done] once, when the request
// has ended. For a response with a body that is the end of the body.
type Pick struct {
	node     *entry
	by       *Balancer     // that counts the requests in flight; nil: the pick is not counted
	began    time.Duration // on the clock of the set; for PeakEWMA
	answered bool          // the latency is known
}

// Node returns the node.
func (p Pick) Node() Node { return p.node.Node }

// Result says how a request ended.
type Result int

const (
	// Succeeded: the node answered.
	Succeeded Result = iota
	// Failed: the node did not answer, or answered that it cannot serve.
	Failed
	// Canceled: the caller gave up, which says nothing about the node.
	Canceled
)

// ResultOf returns Succeeded for nil, Canceled for [context.Canceled], and else Failed.
func ResultOf(err error) Result {
	switch {
	case err == nil:
		return Succeeded
	case errors.Is(err, context.Canceled):
		return Canceled
	default:
		return Failed
	}
}

// Answered notes that the node began to answer, and how long the answer took; 0: that is not known. From then on
// the request is in flight, but adds nothing to the latency of PeakEWMA. So a stream or a long download does not make its
// node look slow. Call Done of the Pick that Answered returns. Without Answered, the latency is the time to Done.
func (p Pick) Answered(took time.Duration) Pick {
	if p.by != nil && p.by.policy == PeakEWMA && !p.answered {
		if p.answered = true; took > 0 {
			s := p.node.state
			s.latency.observe(s.set.now(), took, p.by.opts.Tau, Succeeded)
		}
	}
	return p
}

// Done ends the request. A second Done of a pick, also of a copy, would count the request twice.
func (p Pick) Done(r Result) {
	if p.by != nil || r != Succeeded || p.node.state.fails.Load() != 0 {
		p.done(r)
	}
}

func (p Pick) done(r Result) {
	n := p.node.state
	if p.by != nil {
		n.inflight.Add(-1)
		if p.by.policy == PeakEWMA {
			now := n.set.now()
			if p.answered {
				p.began = now
			}
			if r == Failed || !p.answered {
				n.latency.observe(now, now-p.began, p.by.opts.Tau, r)
			}
		}
	}
	switch {
	case r == Failed:
		n.set.failed(n)
	case r == Succeeded && n.fails.Load() != 0:
		n.fails.Store(0)
	}
}

// Pick picks a node for a request. The node is of the set as [Set.Update] left it last. Pick fails with [ErrNoNode]
// only, and never waits.
func (b *Balancer) Pick(r Request) (Pick, error) {
	if v := b.view.Load(); v.inTurn && r.Tried == nil && v.snapshot == b.set.snap.Load() {
		return Pick{node: v.nodes[(b.next.Add(1)-1)%uint64(len(v.nodes))]}, nil
	}
	return b.pick(r)
}

// draws is how often a policy that draws is asked, before a request gets any node that it has not tried.
const draws = 4

func (b *Balancer) pick(r Request) (Pick, error) {
	v := b.view.Load()
	if v.snapshot != b.set.snap.Load() {
		v = b.refresh()
	}
	if len(v.nodes) == 0 {
		return Pick{}, ErrNoNode
	}
	switch b.policy {
	case LeastConnections, WeightedLeastConnections:
		return b.counted(b.leastLoaded(v, r.Tried))
	case SourceHash:
		if b.opts.Bound > 0 {
			return b.counted(v.hash.bounded(v.nodes, r, b.opts.Bound))
		}
		return uncounted(v.hash.pick(v.nodes, r))
	}
	var now time.Duration
	if b.policy == PeakEWMA {
		now = b.set.now()
	}
	n := b.one(v, now)
	for i := 1; r.Tried.has(n); i++ {
		if i == draws {
			n = untried(v.nodes, r.Tried, b.random())
			break
		}
		n = b.one(v, now)
	}
	switch b.policy {
	case PowerOfTwo:
		return b.counted(n)
	case PeakEWMA:
		p, err := b.counted(n)
		p.began = now
		return p, err
	}
	return uncounted(n)
}

// one returns the next node of a policy that draws.
func (b *Balancer) one(v *view, now time.Duration) *entry {
	switch b.policy {
	case WeightedRoundRobin:
		return v.nodes[v.turns.pick(&b.next)]
	case Random:
		return v.nodes[below(b.random(), len(v.nodes))]
	case WeightedRandom:
		return v.nodes[v.draw.pick(b.random())]
	case PowerOfTwo, PeakEWMA:
		return b.lighter(v, now)
	default:
		return v.nodes[(b.next.Add(1)-1)%uint64(len(v.nodes))]
	}
}

// untried returns a node that the request has not tried, or nil.
func untried(nodes []*entry, t *Tried, random uint64) *entry {
	start := below(random, len(nodes))
	for i := range nodes {
		if n := nodes[(start+i)%len(nodes)]; !t.has(n) {
			return n
		}
	}
	return nil
}

func (b *Balancer) counted(n *entry) (Pick, error) {
	if n == nil {
		return Pick{}, ErrNoNode
	}
	n.state.inflight.Add(1)
	return Pick{node: n, by: b}, nil
}

func uncounted(n *entry) (Pick, error) {
	if n == nil {
		return Pick{}, ErrNoNode
	}
	return Pick{node: n}, nil
}
