package lb

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
)

// MaxWeight is the largest weight of a [Node].
const MaxWeight = 65_535

// Node is a place to which requests go.
type Node struct {
	ID     string // tells the node apart, also when its address changes; "": Addr
	Addr   string // as the user needs it, such as host:port
	Weight int    // 1 to MaxWeight; 0 is 1
}

// SetOptions change a [Set]. The zero value is the default.
type SetOptions struct {
	// EjectAfter is how many failures one after another take a node out of the set, 1 to 1,000,000.
	// Default 5. -1: never.
	EjectAfter int

	// EjectFor is how long a node is out, 1 ms to an hour, the first time. Default 10 s. Each further time in a row is
	// longer by as much, up to ten times.
	EjectFor time.Duration

	// SlowStart is the time in which a node that comes rises to its full weight, in ten steps. The
	// range is 0 (none, the default) to an hour. Nodes of a set that was empty do not rise. RoundRobin, Random,
	// LeastConnections and SourceHash know no slow start.
	SlowStart time.Duration

	// Panic is the least part of the nodes that is trusted. When fewer are left, all nodes are used,
	// because the failures may have another cause than the nodes. The range is more than 0 to 1; default 0.5. -1: never.
	Panic float64

	// Returned is called after an ejected node has returned to a set without any other node to pick. Requests that wait for a
	// node can then be picked again. The call comes from a goroutine of its own.
	Returned func()
}

// Set is the nodes of balancers, with the state of each: requests in flight, latency, failures. The
// state of a node survives a [Set.Update] by the ID of the node. A Set is safe for concurrent use.
type Set struct {
	opts  SetOptions
	base  time.Time
	snap  atomic.Pointer[snapshot]
	mu    sync.Mutex
	all   []Node
	known map[string]*state
	timer *time.Timer // for the next node that returns or rises
}

// snapshot is the nodes that are picked, and never changes.
type snapshot struct {
	nodes []*entry
	equal bool // all weights
}

func (s *snapshot) weights() []uint64 {
	w := make([]uint64, len(s.nodes))
	for i, n := range s.nodes {
		w[i] = n.weight
	}
	return w
}

// entry is a node in a snapshot.
type entry struct {
	Node
	state  *state
	weight uint64 // in slowSteps of the weight
	seed   uint64 // of its ID
}

// state is of a node, also when its address changes.
type state struct {
	set      *Set
	inflight atomic.Int64
	latency  latency
	fails    atomic.Int64 // one after another

	// These are guarded by the lock of the set.
	id       string
	out      bool
	outs     int       // one after another
	returns  time.Time // where out
	rises    time.Time // since when; zero: at full weight
	lastBack time.Time
	_        [64]byte // requests of one node do not slow another node
}

func (s *state) load() uint64 { return uint64(max(s.inflight.Load(), 0)) }

// NewSet returns a set of these nodes, by the rules of [Set.Update]. Nil opts are the
// defaults. An option out of its range is a [pawl.ErrInvalid].
func NewSet(opts *SetOptions, nodes ...Node) (*Set, error) {
	s := &Set{base: time.Now(), known: make(map[string]*state)}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	o.EjectAfter, o.EjectFor, o.Panic = cmp.Or(o.EjectAfter, 5), cmp.Or(o.EjectFor, 10*time.Second), cmp.Or(o.Panic, 0.5)
	switch {
	case o.EjectAfter < -1 || o.EjectAfter > 1_000_000:
		return nil, fmt.Errorf("%w: SetOptions.EjectAfter is %d: 1 to 1000000 and -1 (never) are allowed", pawl.ErrInvalid, o.EjectAfter)
	case o.EjectFor < time.Millisecond || o.EjectFor > time.Hour:
		return nil, fmt.Errorf("%w: SetOptions.EjectFor is %v: 1ms to 1h are allowed", pawl.ErrInvalid, o.EjectFor)
	case o.SlowStart < 0 || o.SlowStart > time.Hour:
		return nil, fmt.Errorf("%w: SetOptions.SlowStart is %v: 0 (none) to 1h are allowed", pawl.ErrInvalid, o.SlowStart)
	case o.Panic != -1 && !(o.Panic > 0 && o.Panic <= 1):
		return nil, fmt.Errorf("%w: SetOptions.Panic is %v: more than 0 to 1, and -1 (never) are allowed", pawl.ErrInvalid, o.Panic)
	}
	s.snap.Store(&snapshot{equal: true})
	return s, s.Update(nodes...)
}

// now is the time on the clock of the set.
func (s *Set) now() time.Duration { return time.Since(s.base) }

// Update makes these the nodes of the set. No pick that begins after Update has returned picks a node that is gone.
// A weight out of its range, or an ID that two nodes share, is a [pawl.ErrInvalid], and nothing is changed.
func (s *Set) Update(nodes ...Node) error {
	all, ids := make([]Node, len(nodes)), make(map[string]bool, len(nodes))
	for i, n := range nodes {
		n.ID, n.Weight = cmp.Or(n.ID, n.Addr), cmp.Or(n.Weight, 1)
		if n.Weight < 1 || n.Weight > MaxWeight {
			return fmt.Errorf("%w: Weight of node %q is %d: 0 (the same as 1) to %d are allowed", pawl.ErrInvalid, n.ID, n.Weight, MaxWeight)
		}
		if ids[n.ID] {
			return fmt.Errorf("%w: ID %q is of two nodes: each node has an ID of its own", pawl.ErrInvalid, n.ID)
		}
		ids[n.ID], all[i] = true, n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rises := time.Time{}
	if s.opts.SlowStart > 0 && len(s.all) > 0 {
		rises = time.Now()
	}
	for id := range s.known {
		if !ids[id] {
			delete(s.known, id)
		}
	}
	for id := range ids {
		if s.known[id] == nil {
			s.known[id] = &state{set: s, id: id, rises: rises}
		}
	}
	s.all = all
	s.publish()
	return nil
}

// Status is a node and its state.
type Status struct {
	Node
	InFlight int           // requests that balancers count: those of LeastConnections, PowerOfTwo and the like
	Latency  time.Duration // of PeakEWMA, at the last answer; 0: not known
	Ejected  bool          // after failures; see SetOptions.Panic
}

// Nodes returns all nodes in the order of the last Update, with the state of each.
func (s *Set) Nodes() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, len(s.all))
	for i, n := range s.all {
		is := s.known[n.ID]
		ns, _ := unpackLatency(is.latency.word.Load())
		all[i] = Status{n, int(is.load()), time.Duration(ns), is.out}
	}
	return all
}

// failed counts a failure, and takes the node out when there were too many.
func (s *Set) failed(n *state) {
	if fails := n.fails.Add(1); s.opts.EjectAfter < 0 || fails < int64(s.opts.EjectAfter) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.out || s.known[n.id] != n || n.fails.Load() < int64(s.opts.EjectAfter) {
		return
	}
	now := time.Now()
	if now.Sub(n.lastBack) > 10*s.opts.EjectFor { // the node was well for long
		n.outs = 0
	}
	n.outs = min(n.outs+1, 10)
	n.out, n.returns = true, now.Add(time.Duration(n.outs)*s.opts.EjectFor)
	s.publish()
}

// slowSteps is how many steps a node rises to its full weight.
const slowSteps = 10

// publish makes the snapshot of the present time, and sets the timer for the next. The caller of publish has the lock.
func (s *Set) publish() {
	now := time.Now()
	var next time.Time
	wake := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	step, returned := s.opts.SlowStart/slowSteps, false
	entries, trusted := make([]*entry, 0, len(s.all)), make([]*entry, 0, len(s.all))
	for _, n := range s.all {
		is := s.known[n.ID]
		if is.out && !now.Before(is.returns) {
			is.out, is.lastBack, returned = false, now, true
			if is.fails.Store(0); step > 0 {
				is.rises = now
			}
		}
		e := &entry{Node: n, state: is, weight: uint64(n.Weight) * slowSteps, seed: hashText(n.ID)}
		switch {
		case is.out:
			wake(is.returns)
		case !is.rises.IsZero():
			if done := int64(now.Sub(is.rises)/max(step, 1)) + 1; done >= slowSteps {
				is.rises = time.Time{}
			} else {
				e.weight = uint64(n.Weight) * uint64(done)
				wake(is.rises.Add(time.Duration(done) * step))
			}
		}
		entries = append(entries, e)
		if !is.out {
			trusted = append(trusted, e)
		}
	}
	if s.opts.Panic >= 0 && float64(len(trusted)) < s.opts.Panic*float64(len(entries)) {
		trusted = entries
	}
	snap := &snapshot{trusted, true}
	for _, e := range trusted {
		snap.equal = snap.equal && e.weight == trusted[0].weight
	}
	if returned && len(s.snap.Load().nodes) == 0 && s.opts.Returned != nil {
		defer func() { go s.opts.Returned() }()
	}
	s.snap.Store(snap)
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if !next.IsZero() {
		s.timer = time.AfterFunc(next.Sub(now), s.wake)
	}
}

func (s *Set) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.publish()
}
