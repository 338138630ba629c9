package queue

import "github.com/pawl-go/pawl/engine"

// Line derives the holders from the claims that a store keeps in order. Engines that store no
// grants use it. Claims are added in the order of their tokens. Claims that were let in out of
// turn come before the others or among them. No later claim undoes a grant: claims ahead only
// go, a claim that shares adds no weight, and an upgrade passes no waiter. C is the engine's
// claim.
type Line[C any] struct {
	Spec  engine.Spec
	Waits bool // there is a claim that waits

	all    int64 // the weight that is held
	owners map[string]holding[C]
}

// holding is what an owner holds: the weight of its heaviest claim, and a claim with
// the largest of its tokens.
type holding[C any] struct {
	claim  *C
	weight int64
}

// Add adds the next claim and reports whether it holds: out of turn always, else
// if all before it do and it fits. A claim of the queue whose owner held as much already
// shares the grant of another claim.
func (l *Line[C]) Add(c *C, owner string, weight int64, inTurn bool) (holds bool, shares *C) {
	own, held := l.Held(owner)
	switch {
	case inTurn && (l.Waits || l.Spec.Barging || !l.Fits(owner, weight)):
		l.Waits = true
		return false, nil
	case inTurn && held >= weight:
		return true, own
	}
	if l.owners == nil {
		l.owners = make(map[string]holding[C])
	}
	l.all += max(0, weight-held)
	l.owners[owner] = holding[C]{c, max(weight, held)} // its token is no smaller than those before it
	return true, nil
}

// Held returns the claim of the owner whose grant is shared, which has the largest token,
// if the owner holds; and how much it holds.
func (l *Line[C]) Held(owner string) (*C, int64) {
	h := l.owners[owner]
	return h.claim, h.weight
}

// Fits reports whether a claim fits beside the holders.
func (l *Line[C]) Fits(owner string, weight int64) bool {
	_, held := l.Held(owner)
	return l.all-held+max(held, weight) <= l.Spec.Capacity
}
