// Package queue is the semantics of pawl: the weighted claim queue as one pure function. This
// package decides holding, waiting, sharing and handing over. Engines either run this function
// inside a transaction of their store or are checked against it step by step.
//
// In first-in-first-out order a claim is granted iff the weights of everything ahead of it and
// its own fit in the capacity. A barging claim looks at granted claims only. Granted claims of
// one owner weigh as the heaviest of them. A claim that shares their grant gets the largest of
// their tokens, because a guard may have seen that token, and refuses a smaller token. Where an
// operator has made the capacity smaller, nobody is evicted: the resource shrinks as holders
// leave. A claim that weighs more than the capacity weighs all of it.
package queue

import (
	"fmt"
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// Claim is a claim in the queue.
type Claim struct {
	ID, Owner, Session, Label string
	Weight                    int64
	Token                     fence.Token // 0 while it waits
	Since                     int64       // when it entered, µs on the store's clock
	Granted                   int64       // time of the grant, also of a shared one; 0 while it waits
}

// State is one resource. The zero State is a resource without claims.
type State struct {
	Spec   engine.Spec
	Last   fence.Token // the last token given out, as far as the store remembers
	Claims []Claim     // in order of arrival
}

// Op is the kind of a request.
type Op int

const (
	// Enter adds Request.Claim, or repeats the request of a present claim.
	Enter Op = iota
	// Leave removes the claim Request.Claim.ID of any session.
	Leave
	// Poll asks again for the claim Request.Claim.ID, which waits.
	Poll
	// Resize gives a semaphore the capacity Request.Spec.Capacity.
	Resize
)

// Request is one step of one claim.
type Request struct {
	Op    Op
	Spec  engine.Spec // Enter and Resize
	Claim Claim       // Leave and Poll: only ID counts; Resize: nothing does
	Wait  bool        // Enter only: keep the claim when it is not granted
}

// Outcome is the result of a step.
type Outcome struct {
	Err     error       // engine.ErrBusy, ErrGone or ErrMismatch, wrapped
	Token   fence.Token // of the request's claim; 0 when it waits or left
	Granted []Claim     // claims that the step handed the resource to, in order
	Told    []Claim     // barging claims to be told that it is free
	Removed []string    // ids of claims that are no longer there
	Next    int64       // when a session that blocks the claim ends unless renewed, µs; 0: none does
}

// Clock is a step's knowledge of time and liveness.
type Clock struct {
	Now  int64       // µs on the store's clock
	Mint fence.Token // the least token to give out next
	// Ends returns when the session ends unless it is renewed, in µs on the store's clock. A
	// session whose end is not after Now has ended.
	Ends func(session string) int64
}

// Apply takes one step: it removes the claims of ended sessions, carries out the
// request, and grants the claims that then fit. Apply changes neither of its arguments.
func Apply(s State, r Request, c Clock) (State, Outcome) {
	q := &step{State: s, clock: c}
	q.Claims = make([]Claim, 0, len(s.Claims)+1)
	for _, cl := range s.Claims {
		if c.Ends(cl.Session) > c.Now {
			q.Claims = append(q.Claims, cl)
		} else {
			q.out.Removed = append(q.out.Removed, cl.ID)
		}
	}
	switch r.Op {
	case Enter:
		q.advance("")
		q.enter(r)
	case Leave:
		q.leave(r.Claim.ID)
		q.advance("")
	case Poll:
		q.advance(r.Claim.ID)
		q.poll(r.Claim.ID)
	case Resize:
		q.resize(r.Spec)
		q.advance("")
	}
	if len(q.Claims) == 0 {
		q.Spec = engine.Spec{}
	}
	return q.State, q.out
}

type step struct {
	State
	clock Clock
	out   Outcome
	all   int64            // the weight of all granted claims
	held  map[string]share // by owner; nil: to be counted
}

// share is what the granted claims of one owner weigh, which is as much as the heaviest of them, and the
// largest of their tokens.
type share struct {
	weight int64
	token  fence.Token
}

func (q *step) find(id string) int {
	return slices.IndexFunc(q.Claims, func(cl Claim) bool { return cl.ID == id })
}

// holds returns the share of an owner. The granted claims are counted once in a step, because a step may
// grant many.
func (q *step) holds(owner string) share {
	if q.held == nil {
		q.all, q.held = 0, make(map[string]share)
		for _, cl := range q.Claims {
			if cl.Token != 0 {
				q.count(cl)
			}
		}
	}
	return q.held[owner]
}

// count adds a granted claim to the share of its owner.
func (q *step) count(cl Claim) {
	before := q.held[cl.Owner]
	now := share{max(before.weight, cl.Weight), max(before.token, cl.Token)}
	q.held[cl.Owner] = now
	q.all += now.weight - before.weight
}

// fits returns the token that a claim gets if it fits beside the granted ones, else 0, and whether that
// token is new. A claim that was entered when the capacity was larger fits alone.
func (q *step) fits(cl Claim) (token fence.Token, isNew bool) {
	own := q.holds(cl.Owner)
	switch {
	case own.weight >= cl.Weight:
		return own.token, false
	case q.all-own.weight+min(cl.Weight, q.Spec.Capacity) <= q.Spec.Capacity:
		return max(q.Last+1, q.clock.Mint), true
	}
	return 0, false
}

// try grants a claim if it fits.
func (q *step) try(cl *Claim) bool {
	token, isNew := q.fits(*cl)
	if token == 0 {
		return false
	}
	if isNew {
		q.Last = token
	}
	cl.Token, cl.Granted = token, q.clock.Now
	q.count(*cl)
	return true
}

func (q *step) waiting() bool {
	return slices.ContainsFunc(q.Claims, func(cl Claim) bool { return cl.Token == 0 })
}

func (q *step) enter(r Request) {
	if i := q.find(r.Claim.ID); i >= 0 { // asked again: the reply was lost
		q.poll(r.Claim.ID)
		if !r.Wait && q.out.Token == 0 {
			q.out.Err = engine.ErrBusy
			q.leave(r.Claim.ID)
			q.advance("")
		}
		return
	}
	if len(q.Claims) == 0 {
		q.Spec = r.Spec
	}
	if q.Spec != r.Spec {
		q.out.Err = Mismatch(q.Spec, r.Spec)
		return
	}
	cl := r.Claim
	cl.Token, cl.Since, cl.Granted = 0, q.clock.Now, 0
	own := q.holds(cl.Owner).weight
	mayGrant := own >= cl.Weight || q.Spec.Barging || !q.waiting() // an upgrade passes nobody either
	granted := mayGrant && q.try(&cl)
	if !granted && (own > 0 || !r.Wait) {
		q.out.Err = engine.ErrBusy
		return
	}
	q.Claims = append(q.Claims, cl)
	q.out.Token = cl.Token
	q.setNext(cl.ID)
}

func (q *step) leave(id string) {
	i := q.find(id)
	if i < 0 {
		q.out.Err = engine.ErrGone
		return
	}
	q.Claims, q.held = append(q.Claims[:i], q.Claims[i+1:]...), nil
	q.out.Removed = append(q.out.Removed, id)
}

func (q *step) poll(id string) {
	i := q.find(id)
	if i < 0 {
		q.out.Err = engine.ErrGone
		return
	}
	if q.Spec.Barging && q.Claims[i].Token == 0 && q.try(&q.Claims[i]) {
		q.advance(id)
	}
	q.out.Token = q.Claims[i].Token
	q.setNext(id)
}

func (q *step) resize(to engine.Spec) {
	switch {
	case len(q.Claims) == 0:
		q.out.Err = engine.ErrGone
	case q.Spec.Kind != engine.KindSemaphore:
		q.out.Err = Mismatch(q.Spec, to)
	default:
		q.Spec.Capacity = to.Capacity
	}
}

// advance grants claims in order of arrival and stops at the first claim
// that does not fit. Of a barging resource it finds the first waiting claim, which
// is told to try, unless that claim made the request.
func (q *step) advance(asking string) {
	for i := range q.Claims {
		cl := &q.Claims[i]
		if cl.Token != 0 {
			continue
		}
		if q.Spec.Barging {
			if token, _ := q.fits(*cl); token != 0 && cl.ID != asking {
				q.out.Told = append(q.out.Told, *cl)
			}
			return
		}
		if !q.try(cl) {
			return
		}
		q.out.Granted = append(q.out.Granted, *cl)
	}
}

// setNext finds when a claim that waits should look again by itself: when the
// first of the sessions that block it ends. Re-entries stand behind the waiting claim
// and block it too.
func (q *step) setNext(id string) {
	ahead := true
	for _, cl := range q.Claims {
		switch {
		case cl.ID == id && cl.Token != 0:
			q.out.Next = 0
			return
		case cl.ID == id:
			ahead = false
		case ahead || cl.Token != 0 || q.Spec.Barging:
			if ends := q.clock.Ends(cl.Session); q.out.Next == 0 || ends < q.out.Next {
				q.out.Next = ends
			}
		}
	}
}

// Mismatch is the error for a claim that disagrees with its resource.
func Mismatch(is, want engine.Spec) error {
	return fmt.Errorf("%w: in use as %s, not as %s", engine.ErrMismatch, Describe(is), Describe(want))
}

// Describe names a spec for people.
func Describe(s engine.Spec) string {
	text := string(s.Kind)
	if s.Kind == engine.KindSemaphore {
		text = fmt.Sprintf("%s of %d", text, s.Capacity)
	}
	if s.Barging {
		text = "barging " + text
	}
	return text
}
