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

	all   int64 // the weight that is held
	heavy map[string]heaviest[C]
}

// heaviest is the claim by which an owner holds.
type heaviest[C any] struct {
	claim  *C
	weight int64
}

// Add adds the next claim and reports whether it holds: out of turn always, else
// if all before it do and it fits. If its owner held as much already it shares
// that claim's grant.
func (l *Line[C]) Add(c *C, owner string, weight int64, inTurn bool) (holds bool, shares *C) {
	own, held := l.Held(owner)
	switch {
	case inTurn && (l.Waits || l.Spec.Barging || !l.Fits(owner, weight)):
		l.Waits = true
		return false, nil
	case held < weight:
		if l.heavy == nil {
			l.heavy = make(map[string]heaviest[C])
		}
		l.all += weight - held
		l.heavy[owner] = heaviest[C]{c, weight}
		return true, nil
	}
	return true, own
}

// Held returns the claim by which the owner holds, if it does, and its weight.
func (l *Line[C]) Held(owner string) (*C, int64) {
	h := l.heavy[owner]
	return h.claim, h.weight
}

// Fits reports whether a claim fits beside the holders.
func (l *Line[C]) Fits(owner string, weight int64) bool {
	_, held := l.Held(owner)
	return l.all-held+max(held, weight) <= l.Spec.Capacity
}
