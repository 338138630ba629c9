// Package lines decides about the claims of a resource in stores that keep claims in order and
// store no grants, as etcd and ZooKeeper. Package lines tells which claims hold, the next step of a claim,
// and the claim that a waiter watches. All of it is pure. The engine reads the claims, and has
// its store compare, in the step that changes something, what a decision rests on.
//
// Claims are in the order of their tokens. A claim in turn holds if all claims before it do and
// it fits. A claim out of turn holds whatever is before it: a re-entry, an upgrade, or any
// holder of a barging resource. No later claim undoes a grant: claims ahead only go, a claim
// that shares adds no weight, and an upgrade passes no waiter.
package lines

import (
	"cmp"
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// Note is the data that a store keeps of a claim for operators, as JSON.
type Note struct {
	ID      string `json:"id"`
	Owner   string `json:"owner,omitempty"` // empty: the ID, which is long
	Session string `json:"session"`
	Label   string `json:"label,omitempty"`
}

// NoteOf returns the note of a claim of this session.
func NoteOf(c *engine.Claim, session string) Note {
	n := Note{c.ID, c.Owner, session, c.Label}
	if c.Owner == c.ID {
		n.Owner = ""
	}
	return n
}

// Claim is a claim as the store has it. N is what else the engine knows of it.
type Claim[N any] struct {
	ID, Owner string // or what the store writes in their place
	Spec      engine.Spec
	Weight    int64
	InTurn    bool
	Token     int64 // that it has by itself or was stored with; 0 while it is not known
	Node      N

	// Found by [New].
	Holds  bool
	Shares *Claim[N] // the claim whose grant a claim in turn shares

	at int
}

// Grant returns the token by which the claim holds; 0 if it waits, or if that is not known.
func (c *Claim[N]) Grant() int64 {
	switch {
	case c.Shares != nil:
		return c.Shares.Grant()
	case !c.Holds:
		return 0
	}
	return c.Token
}

// Info returns the claim as an operator sees it, without times.
func (c *Claim[N]) Info(n Note) engine.ClaimInfo {
	return engine.ClaimInfo{
		ID: n.ID, Owner: cmp.Or(n.Owner, n.ID), Session: n.Session, Label: n.Label, Weight: c.Weight, Token: fence.Token(c.Grant()),
		Age: engine.Unknown, Held: engine.Unknown, Left: engine.Unknown,
	}
}

// Line is a resource at one time. The zero Line has no claims. A Line does not change, so it
// is safe for concurrent use.
type Line[N any] struct {
	Spec   engine.Spec // that of the first claim
	Claims []*Claim[N] // in the order of their tokens

	ids    map[string]*Claim[N]
	owners map[string]holding[N]
	all    int64 // the weight that is held

	waits, mixed bool // there is a claim that waits, and a claim that uses the resource as something else
}

// holding is what an owner holds: the weight of the heaviest of its claims, and a claim with
// the largest of its tokens.
type holding[N any] struct {
	claim  *Claim[N]
	weight int64
}

// New finds which claims hold. The claims are in order already. A claim that uses the resource as
// something else than the first claim is about to go, and holds nothing in its turn.
func New[N any](claims []*Claim[N]) Line[N] {
	l := Line[N]{Claims: claims, ids: make(map[string]*Claim[N], len(claims)), owners: make(map[string]holding[N])}
	for i, c := range claims {
		if i == 0 {
			l.Spec = c.Spec
		}
		c.at, l.ids[c.ID] = i, c
		own := l.owners[c.Owner]
		l.mixed = l.mixed || c.Spec != l.Spec
		l.waits = l.waits || l.mixed
		switch {
		case c.InTurn && (l.waits || l.Spec.Barging || !l.fits(c.Owner, c.Weight)):
			l.waits = true
		case c.InTurn && own.weight >= c.Weight:
			c.Holds, c.Shares = true, own.claim
		default:
			c.Holds = true
			l.all += max(0, c.Weight-own.weight)
			l.owners[c.Owner] = holding[N]{c, max(c.Weight, own.weight)} // its token is no smaller than those before it
		}
	}
	return l
}

// Find returns the claim with this id, or nil.
func (l *Line[N]) Find(id string) *Claim[N] { return l.ids[id] }

// Behind reports whether another claim comes after this one.
func (l *Line[N]) Behind(c *Claim[N]) bool { return c.at < len(l.Claims)-1 }

// First reports whether no other claim comes before this one.
func (l *Line[N]) First(c *Claim[N]) bool { return c.at == 0 }

// fits reports whether a claim fits beside the holders.
func (l *Line[N]) fits(owner string, weight int64) bool {
	held := l.owners[owner].weight
	return len(l.Claims) == 0 || l.all-held+max(held, weight) <= l.Spec.Capacity
}

// Step is what a claim does about the line that was read.
type Step int

const (
	// Stay leaves the claim where it is: it holds there, or waits.
	Stay Step = iota
	// Append puts a claim that is not in the line at its end. Nothing has to be compared.
	Append
	// Take puts the claim where it holds, if no claim came since the line was read. That a
	// claim went can only help: no other claim is let in by that.
	Take
	// Share gives the claim the token of another claim of its owner, if that is still there.
	Share
)

// Next decides, as package queue does, what a claim does. Own is the claim in the line, nil if it
// is not there; owner is what the store writes for c.Owner. A claim is new until its client was
// told that it waits. A new claim may share past the waiters, or be refused with
// [engine.ErrMismatch] or [engine.ErrBusy]. A claim that is not in the line is new. With is the
// claim of the same owner that must still be there when the step is taken, nil if there is none.
func (l *Line[N]) Next(c *engine.Claim, owner string, own *Claim[N], isNew, wait bool) (step Step, with *Claim[N], err error) {
	held := l.owners[owner]
	switch {
	case isNew && len(l.Claims) > 0 && l.Spec != c.Spec:
		return Stay, nil, queue.Mismatch(l.Spec, c.Spec)
	case own != nil && own.Shares != nil:
		return Share, own.Shares, nil
	case own != nil && own.Holds:
		return Stay, nil, nil
	case (isNew || c.Barging) && held.weight >= c.Weight:
		return Share, held.claim, nil
	case !l.mixed && l.fits(owner, c.Weight) && (c.Barging || own == nil && !l.waits): // the other use may be granted before it looks
		return Take, held.claim, nil
	case isNew && held.claim != nil || !wait:
		return Stay, nil, engine.ErrBusy
	case own == nil:
		return Append, nil, nil
	}
	return Stay, nil, nil
}

// Blocker is what a waiting claim watches. The zero Blocker says that any claim that goes may
// let it in.
type Blocker[N any] struct {
	Claim *Claim[N] // another claim, which has to go
	// Tells says that the other claim waits, too, and that it is enough if it holds. See [Tells].
	Tells bool
	// Direct says that the claim holds by its own token as soon as the other claim releases. The
	// other claim must hold all of the resource, with no claim ahead of it or beside it.
	Direct bool
}

// Blocker returns the claim that a waiting claim watches. Only the next waiter for permits, or to
// barge, waits for any of the holders. So each release wakes the waiters that it grants, and at
// most one more.
func (l *Line[N]) Blocker(own *Claim[N]) Blocker[N] {
	between, shares := int64(0), false
	for _, ahead := range slices.Backward(l.Claims[:own.at]) {
		switch {
		case own.Spec.Barging:
			if ahead.InTurn { // it waits
				return Blocker[N]{Claim: ahead}
			}
			continue
		case ahead.Spec != own.Spec || ahead.Owner != own.Owner && ahead.Weight+own.Weight > own.Spec.Capacity:
			fits := between+own.Weight <= own.Spec.Capacity && !shares && !Tells(own.Spec, own.Weight)
			return Blocker[N]{Claim: ahead, Direct: fits && ahead.Spec == own.Spec && ahead.Weight == own.Spec.Capacity}
		case !ahead.Holds && Tells(ahead.Spec, ahead.Weight):
			return Blocker[N]{Claim: ahead, Tells: true}
		}
		between += ahead.Weight
		shares = shares || ahead.Owner == own.Owner // the token is not that of its own node
	}
	return Blocker[N]{}
}

// Tells reports whether a claim that waited has to tell the next waiter when it holds, because
// both may hold. The claim is for permits, and not for all of them.
func Tells(spec engine.Spec, weight int64) bool {
	return spec.Kind == engine.KindSemaphore && !spec.Barging && weight < spec.Capacity
}
