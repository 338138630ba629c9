package cas

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/turn"
)

// outcome is that of a step, and the resource after the step.
type outcome struct {
	queue.Outcome
	after record
	grace engine.Grace
}

// errAgain says that a step must be repeated at once: it learned that a session is dead.
var errAgain = errors.New("a session has ended")

// errRestarted says that the store may have forgotten the state under a step.
var errRestarted = errors.New("the store was restarted meanwhile")

// step takes a step of a resource, and repeats it while other clients are faster. own is the
// session that enters.
func (e *Engine) step(ctx context.Context, name string, r queue.Request, own *session) (outcome, error) {
	release, err := e.turns.Take(ctx, name)
	if err != nil {
		return outcome{}, err
	}
	defer release()
	for lost := 0; ; {
		if err := ctx.Err(); err != nil {
			return outcome{}, err
		}
		out, err := e.attempt(ctx, name, r, own)
		switch {
		case errors.Is(err, errAgain):
		case errors.Is(err, engine.ErrConflict):
			lost++
			most := min(time.Millisecond<<min(lost, 6), 50*time.Millisecond)
			if err := turn.Pause(ctx, rand.N(most)); err != nil {
				return outcome{}, err
			}
		case err == nil && out.after.version != 0 && len(out.after.Claims) == 0:
			return out, e.tidy(ctx, name)
		default:
			return out, err
		}
	}
}

// tidy removes a resource without claims, once its last token is smaller than the tokens of the
// next write. Until then its record stays.
func (e *Engine) tidy(ctx context.Context, name string) error {
	for {
		out, err := e.attempt(ctx, name, queue.Request{Op: queue.Poll}, nil)
		if errors.Is(err, engine.ErrConflict) || errors.Is(err, errAgain) || err == nil && len(out.after.Claims) > 0 {
			return nil // another client goes on with the resource
		}
		if err != nil || out.after.version == 0 {
			return err
		}
	}
}

// attempt takes a step. If another client is faster, attempt fails with [engine.ErrConflict].
func (e *Engine) attempt(ctx context.Context, name string, r queue.Request, own *session) (outcome, error) {
	l, grace, err := e.alive(ctx)
	if err != nil {
		return outcome{}, err
	}
	alive := make(chan error, 1)
	if own == nil {
		alive <- nil
	} else { // at the same time as the other load
		go func() { alive <- own.check(ctx) }()
	}
	was, item, err := e.load(ctx, name)
	if err := errors.Join(<-alive, err); err != nil {
		return outcome{}, err
	}
	minted := firstToken(was.Last, l.base, was.version+1)
	next, out := e.apply(was.asked(r, l, grace), r, queue.Clock{Now: item.Now, Mint: minted}, grace.On(), own)
	if r.Op == queue.Poll && r.Claim.ID == "" {
		out.Err = nil // the error belongs to no claim
	}
	if died, err := e.look(ctx, doubtful(was, next, r, out, own)); died || err != nil {
		return outcome{}, errors.Join(err, againIf(died))
	}
	if errors.Is(out.Err, engine.ErrBusy) && grace.On() {
		out.Err = &engine.GraceError{Grace: grace}
	}
	after := was
	if next.Spec != was.Spec || !slices.Equal(next.Claims, was.Claims) || len(next.Claims) == 0 && was.version != 0 {
		if after, err = e.write(ctx, name, was, next, minted, l); err != nil {
			return outcome{}, err
		}
	}
	if out.Err != nil { // with dead claims removed, or the claim of a client that asked again and may not wait
		return outcome{after: after}, out.Err
	}
	if is, _, err := e.alive(ctx); err != nil || is.name != l.name {
		return outcome{}, engine.Unavailable("step", errors.Join(err, errRestarted))
	}
	if c, is := after.find(r.Claim.ID); is {
		out.Token = c.Token
	}
	return outcome{out, after, grace}, nil
}

func againIf(is bool) error {
	if is {
		return errAgain
	}
	return nil
}

// unsure reports whether a grant in the record may be that of a step over a restart. The client that took such a step did
// not know of the new life, and did not see the holders that the store forgot. Only its own holder may believe an unsure grant.
func (r *record) unsure(l life, grace engine.Grace) bool { return grace.On() || r.base != l.base }

// asked returns the state for a request. The client of a claim that asks does not know of a grant. So where a
// grant is unsure, the claim waits again, and gets a token of this life.
func (r *record) asked(by queue.Request, l life, grace engine.Grace) queue.State {
	s := r.State
	if by.Op == queue.Leave || !r.unsure(l, grace) {
		return s
	}
	if i := slices.IndexFunc(s.Claims, func(c queue.Claim) bool { return c.ID == by.Claim.ID }); i >= 0 {
		s.Claims = slices.Clone(s.Claims)
		s.Claims[i].Token, s.Claims[i].Granted = 0, 0
	}
	return s
}

// apply is queue.Apply without the dead sessions. During a restart grace a claim that is not stored
// holds everything. Then a claim may share a grant that its own session believes, and no other claim is granted
// anything. A grant that is stored may be older than a later one, which the store has forgotten.
func (e *Engine) apply(s queue.State, r queue.Request, c queue.Clock, grace bool, own *session) (queue.State, queue.Outcome) {
	var believes map[string]bool
	if grace {
		believes = own.held()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c.Ends = func(session string) int64 {
		if e.dead[session] {
			return 0
		}
		return c.Now + 1
	}
	if !grace {
		return queue.Apply(s, r, c)
	}
	if len(s.Claims) == 0 {
		s.Spec = r.Spec
	}
	if r.Op == queue.Enter && r.Spec == s.Spec && upgrades(s, r.Claim) {
		return s, queue.Outcome{Err: engine.ErrBusy} // which attempt makes the grace
	}
	const stranger = "?" // before an owner, so that nobody shares the grant
	unknown := queue.Claim{Weight: math.MaxInt64 / 4, Token: 1}
	s.Claims = slices.Concat([]queue.Claim{unknown}, s.Claims)
	for i := range s.Claims {
		if cl := &s.Claims[i]; cl.Token != 0 && !believes[cl.ID] {
			cl.Owner = stranger + cl.Owner
		}
	}
	next, out := queue.Apply(s, r, c)
	if next.Claims = next.Claims[1:]; len(next.Claims) == 0 {
		next.Spec = engine.Spec{}
	}
	for i := range next.Claims {
		if cl := &next.Claims[i]; cl.Token != 0 && !believes[cl.ID] {
			cl.Owner = strings.TrimPrefix(cl.Owner, stranger)
		}
	}
	return next, out
}

// upgrades reports whether a claim that is not stored wants more than its owner holds.
func upgrades(s queue.State, c queue.Claim) bool {
	var own int64
	for _, cl := range s.Claims {
		switch {
		case cl.ID == c.ID:
			return false
		case cl.Token != 0 && cl.Owner == c.Owner:
			own = max(own, cl.Weight)
		}
	}
	return own != 0 && own < c.Weight
}

// most is how many sessions on each end of a line are watched.
const most = 8

// doubtful returns the sessions that a step has to check. The step hands the resource to them, or
// they make a claim busy. Or it is the session of the waiter at which the hand-over stops although
// there is room.
func doubtful(was record, next queue.State, r queue.Request, out queue.Outcome, own *session) (ids []string) {
	for _, c := range out.Granted {
		ids = append(ids, c.Session)
	}
	full := slices.ContainsFunc(next.Claims, func(c queue.Claim) bool { return c.Token != 0 && c.Weight >= next.Spec.Capacity })
	if r.Op != queue.Enter && !full && !next.Spec.Barging {
		if i := slices.IndexFunc(next.Claims, func(c queue.Claim) bool { return c.Token == 0 }); i >= 0 {
			ids = append(ids, next.Claims[i].Session)
		}
	}
	if errors.Is(out.Err, engine.ErrBusy) {
		ids = append(ids, ends(was.Claims, "")...)
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return own != nil && id == own.id })
}

// ends returns the sessions of the first claims, and of the last claims before a claim. For a claim
// that is not in the line, they are the last of all claims. Each session comes once.
func ends(claims []queue.Claim, before string) (ids []string) {
	if i := slices.IndexFunc(claims, func(c queue.Claim) bool { return c.ID == before }); i >= 0 {
		claims = claims[:i]
	}
	add := func(c queue.Claim, room int) {
		if len(ids) < room && !slices.Contains(ids, c.Session) {
			ids = append(ids, c.Session)
		}
	}
	for _, c := range claims {
		add(c, most)
	}
	for _, c := range slices.Backward(claims) {
		add(c, 2*most)
	}
	return ids
}

// grantBytes is what a grant adds to a stored claim at most: its token and its time. A name that is full can still be handed over.
const grantBytes = 16

// write stores a resource that changed.
func (e *Engine) write(ctx context.Context, name string, was record, next queue.State, minted fence.Token, l life) (record, error) {
	if len(next.Claims) == 0 && (was.version == 0 || next.Last < firstToken(0, l.least, was.version+1)) {
		if was.version == 0 {
			return record{}, nil
		}
		return record{}, e.store.Delete(ctx, resourceKey+name, was.version)
	}
	data := encode(next, was.Last, minted, l.base)
	if most := len(data) + grantBytes*len(next.Claims); len(next.Claims) > len(was.Claims) && (len(next.Claims) > e.opts.MaxClaims || e.opts.MaxData > 0 && most > e.opts.MaxData) {
		bound := fmt.Sprintf("%d claims", e.opts.MaxClaims)
		if e.opts.MaxData > 0 {
			bound += fmt.Sprintf(" and %d bytes", e.opts.MaxData)
		}
		return record{}, fmt.Errorf("%w: %q has %d claims already, and with one more needs %d bytes: %s keeps at most %s for a name",
			engine.ErrUnsupported, name, len(was.Claims), most, e.caps.Name, bound)
	}
	version, err := e.store.Swap(ctx, resourceKey+name, data, was.version)
	if err != nil {
		return record{}, err
	}
	return decode(Item{Data: data, Version: version})
}

// Evict implements [engine.Engine].
func (e *Engine) Evict(ctx context.Context, resource, claim string) error {
	if err := e.knowFormat(ctx, false); err != nil {
		return fmt.Errorf("evict: %w", err)
	}
	return e.remove(ctx, "evict", resource, claim)
}

func (e *Engine) remove(ctx context.Context, verb, resource, claim string) error {
	if _, err := e.step(ctx, resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}}, nil); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}

// Resize implements [engine.Resizer].
func (e *Engine) Resize(ctx context.Context, name string, capacity int64) error {
	if err := e.knowFormat(ctx, false); err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	r := queue.Request{Op: queue.Resize, Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: capacity}}
	if _, err := e.step(ctx, name, r, nil); err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	return nil
}
