package pawl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// session is a client's liveness in the store, and alone knows how long the client may trust it.
//
// The trust window: a holder trusts its locks until the start of its last successful renewal
// request + TTL - margin. The store counts the TTL from when it handled that request, which is
// later. So the holder's trust ends first, whatever the network does. This holds as long as the
// rates of the two clocks differ by less than the margin. (river's leadership/doc.go and the Chubby
// paper, section 2.8, count the same way. etcd's lessor counts from the reply.)
type session struct {
	client *Client
	store  engine.Session
	watch  stopwatch

	life context.Context // ends when the session does; its cause says why
	end  context.CancelCauseFunc
	seq  atomic.Uint64

	mu      sync.Mutex
	renewed mark                        // start of the last successful renewal
	timer   *time.Timer                 // fires at the end of the trust window
	leases  map[*engine.Claim]*Lease    // the held locks
	orphans map[*engine.Claim]struct{}  // the heartbeat has yet to leave these claims
	strays  map[*engine.Claim]time.Time // until then a request that the client gave up may still enter the claim
	known   map[string]struct{}         // ids of the claims that a goroutine here holds, waits for or leaves
	nudge   chan struct{}               // renew now
	crowds  map[string]*crowd           // by name
	crowded atomic.Bool                 // there are crowds

	rounds   context.Context // see the method round
	endRound context.CancelFunc
	began    time.Time // of rounds
}

func openSession(ctx context.Context, c *Client) (*session, error) {
	s := &session{
		client:  c,
		watch:   newStopwatch(c.caps.Processes != engine.ReachProcess),
		leases:  make(map[*engine.Claim]*Lease),
		orphans: make(map[*engine.Claim]struct{}),
		strays:  make(map[*engine.Claim]time.Time),
		known:   make(map[string]struct{}),
		nudge:   make(chan struct{}, 1),
		crowds:  make(map[string]*crowd),
	}
	s.life, s.end = context.WithCancelCause(c.life)
	start := s.watch.now()
	store, err := c.engine.Open(ctx, engine.SessionOptions{
		TTL: c.opts.TTL + c.opts.LockDelay, Delay: c.opts.LockDelay, Heartbeat: c.opts.TTL / 3, Label: c.opts.Label, Gone: s.gone, Found: s.found,
	})
	if err != nil {
		s.end(err)
		return nil, unavailable(ctx, "open", err)
	}
	s.store = store
	s.mu.Lock()
	s.timer = time.AfterFunc(c.opts.TTL, s.expire)
	s.mu.Unlock()
	s.extend(start)
	c.tasks.Go(s.keep)
	return s, nil
}

// alive reports whether the client may trust the session, by the clock and not by a timer. alive
// does not count the sleep of the machine, because that costs a system call. alive is for a call that
// asks the store next. See left.
func (s *session) alive() bool {
	s.mu.Lock()
	renewed := s.renewed.at
	s.mu.Unlock()
	return s.life.Err() == nil && time.Since(renewed) < s.client.opts.TTL-s.client.margin
}

// left is what remains of the trust window.
func (s *session) left() time.Duration { return s.client.opts.TTL - s.client.margin - s.age() }

// age is the time since the start of the last successful renewal.
func (s *session) age() time.Duration {
	s.mu.Lock()
	renewed := s.renewed
	s.mu.Unlock()
	return s.watch.since(renewed)
}

func (s *session) validUntil() time.Time { return time.Now().Add(s.left()) }

// round returns a context for calls to the store, so that a call that hangs while the session lives
// ends as well. A call has at least two thirds of the request time-out, and at most all of it. Many
// calls share a context, because a timer for each would cost more than the rest.
func (s *session) round() context.Context {
	most := s.client.opts.RequestTimeout
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.rounds == nil || now.Sub(s.began) > most/3 {
		s.began = now
		s.rounds, s.endRound = context.WithTimeout(s.life, most) // ends by itself
	}
	return s.rounds
}

// extend moves the end of the trust window after a successful request sent at start. extend does
// nothing if a later request was answered before.
func (s *session) extend(start mark) {
	left := s.client.opts.TTL - s.client.margin - s.watch.since(start)
	s.mu.Lock()
	defer s.mu.Unlock()
	if start.at.Before(s.renewed.at) {
		return
	}
	s.renewed = start
	s.timer.Reset(max(left, 0))
}

// expire runs when the timer fires: at the end of the trust window, even if a
// renewal hangs. The timer is early if a renewal has extended the window. The timer is also early if the process
// stood still between two clocks when it set the timer.
func (s *session) expire() {
	if left := s.left(); left > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.life.Err() == nil {
			s.timer.Reset(left)
		}
		return
	}
	s.lose(fmt.Errorf("%w: no renewal reached the store within the TTL of %v", ErrLost, s.client.opts.TTL))
}

// lose ends the session and all leases. After that it tells the observer, because that takes time.
func (s *session) lose(cause error) {
	s.end(cause)
	s.mu.Lock()
	leases := s.leases
	s.leases = make(map[*engine.Claim]*Lease)
	s.timer.Stop()
	s.mu.Unlock()
	cause = context.Cause(s.life)
	var ended []*Lease
	for _, l := range leases {
		if l.end(cause) {
			ended = append(ended, l)
		}
	}
	for _, l := range ended {
		l.tell(cause, nil)
	}
}

// keep renews the session until it ends, and closes it in the store, unless Client.Close does that.
func (s *session) keep() {
	ttl := s.client.opts.TTL
	pause := newBackoff(ttl)
	next := max(ttl/3-s.age(), 0)
	for {
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-s.nudge:
		case <-s.life.Done():
		}
		timer.Stop()
		if s.life.Err() != nil {
			if !s.closed() {
				s.closeLost()
			}
			return
		}
		if s.left() <= 0 { // also after the machine slept
			s.expire()
			continue
		}
		switch err := s.renew(); {
		case err == nil:
			s.leaveOrphans()
			next = max(ttl/3-s.age(), 0)
			pause = newBackoff(ttl)
		case errors.Is(err, engine.ErrGone):
			s.lose(fmt.Errorf("%w: the store has ended the session", ErrLost))
		default: // the session is lost only at the end of the trust window: retry soon
			next = pause.next()
		}
	}
}

// renew asks the store once, in at most half of the remaining time. A request that hangs leaves
// time for another.
func (s *session) renew() error {
	s.mu.Lock()
	held := slices.Collect(maps.Keys(s.leases))
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.life, max(s.left()/2, time.Millisecond))
	defer cancel()
	start := s.watch.now()
	late := s.age() - s.client.opts.TTL/3
	gone, err := s.store.Renew(ctx, held)
	err = unavailable(ctx, "renew", err)
	s.client.hears(err)
	if err != nil {
		if !s.closed() {
			s.client.observe(s.life, Event{Kind: EventRenewed, Took: late, Err: err})
		}
		return err
	}
	s.extend(start)
	s.client.observe(s.life, Event{Kind: EventRenewed, Took: late})
	s.loseLeases(gone)
	return nil
}

// gone is called by the engine when a claim is gone. That is a hint: the session asks the store.
func (s *session) gone(string) { s.renewSoon() }

func (s *session) renewSoon() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// loseLeases ends leases that the store no longer has, and only then tells the observer. The heartbeat does not wait for
// the observer, because the text of the cause waits for the operator's note.
func (s *session) loseLeases(gone []*engine.Claim) {
	const how = "the store no longer has the claim: it was broken by an operator or forgotten"
	var lost []*Lease
	for _, claim := range gone {
		s.mu.Lock()
		l := s.leases[claim]
		delete(s.leases, claim)
		s.mu.Unlock()
		if l == nil {
			continue
		}
		s.settle(claim)
		cause := fmt.Errorf("%w: %s", ErrLost, how)
		if len(lost) < notesRead {
			cause = s.takenCause(how, claim, l.token)
		}
		if l.end(cause) {
			lost = append(lost, l)
		}
	}
	tell := func() {
		for _, l := range lost {
			l.tell(l.Err(), nil)
		}
	}
	if len(lost) > 0 && !s.client.spawn(tell) {
		tell()
	}
}

// The rest of this file is the reconciliation: each renewal makes the claims of this session in the
// store equal to those the client knows. So it repairs the work of requests that arrive late, on
// every store; see package engine.

// found is called by the engine, during a renewal, with a claim of this session that is in the
// store. An unknown claim came back with an old snapshot of the store, or by a late request. The
// session keeps that claim alive, so the session must leave it.
func (s *session) found(resource, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.known[id]; known || s.life.Err() != nil {
		return
	}
	s.known[id] = struct{}{}
	s.orphans[&engine.Claim{Resource: resource, ID: id}] = struct{}{}
}

// hold registers a lease. hold fails if the session has ended meanwhile.
func (s *session) hold(l *Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	s.leases[l.claim] = l
	return true
}

// drop takes a lease off the heartbeat, before its release.
func (s *session) drop(l *Lease) {
	s.mu.Lock()
	delete(s.leases, l.claim)
	s.mu.Unlock()
}

// shares returns errApart unless a grant of a later claim is that of the lease through, or of another lease of its owner. Such leases share
// their grants, and a later claim gets the largest of their tokens. That may also be the token of another client, or of a lease on its
// way out. Then, and if got is 0, the store says whether the claim of the lease through still stands.
func (s *session) shares(ctx context.Context, through *Lease, got fence.Token) error {
	if got == through.token || s.granted(through.claim, got) {
		return nil
	}
	is, err := s.client.claims(ctx, through.claim.Resource)
	if err == nil && !slices.ContainsFunc(is.Claims, func(c engine.ClaimInfo) bool { return c.ID == through.claim.ID && c.Token != 0 }) {
		err = errApart
	}
	return err
}

// granted reports whether a lease of the claim's owner has this token.
func (s *session) granted(claim *engine.Claim, token fence.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for held, l := range s.leases {
		if l.token == token && held.Resource == claim.Resource && held.Owner == claim.Owner {
			return true
		}
	}
	return false
}

// believes reports whether the grant of a claim stands on this client alone. Either the claim has an owner of its own, or a lease of
// the claim's owner has at least as much.
func (s *session) believes(claim *engine.Claim) bool {
	if claim.Owner == claim.ID {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for held := range s.leases {
		if held.Resource == claim.Resource && held.Owner == claim.Owner && held.Weight >= claim.Weight {
			return true
		}
	}
	return false
}

// leaveTries is how often a call leaves a claim; then the heartbeat does.
const leaveTries = 5

// leave gives a claim up. The call is bounded by bound, which the session's own life bounds, and
// has the values of ctx. Each heartbeat repeats a Leave that the store did not confirm. Otherwise
// the session would keep that claim alive for ever.
func (s *session) leave(bound, ctx context.Context, claim *engine.Claim) error {
	err := s.store.Leave(&scoped{bound, ctx}, claim.Resource, claim.ID)
	pause := newBackoff(s.client.opts.TTL)
	for try := 1; try < leaveTries && errors.Is(err, engine.ErrUnavailable) && bound.Err() == nil; try++ {
		// A broken connection is often back at once, and a pool may have several of them. If an
		// earlier request did arrive, the claim is gone now.
		pause.sleep(bound, s.life)
		if err = s.store.Leave(&scoped{bound, ctx}, claim.Resource, claim.ID); errors.Is(err, engine.ErrGone) && s.left() > 0 {
			err = nil // after a sleep of the machine the session may have ended before
		}
	}
	if err != nil && !errors.Is(err, engine.ErrGone) {
		s.orphan(claim)
		return unavailable(bound, "leave", err)
	}
	s.settle(claim)
	return err
}

// settle forgets a claim that the client left, or that the store refused or took away. A stray
// request may still enter that claim. Then the next heartbeats leave it again, because the session
// would keep the claim alive.
func (s *session) settle(claim *engine.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until, ok := s.strays[claim]; ok && time.Now().Before(until) {
		s.orphans[claim] = struct{}{}
		return
	}
	delete(s.strays, claim)
	delete(s.orphans, claim)
	delete(s.known, claim.ID)
}

// stray notes that the client gave up a request to enter a claim. A store that serves the request
// after more than a TTL is not considered.
func (s *session) stray(claim *engine.Claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strays[claim] = time.Now().Add(s.client.opts.TTL)
}

// orphan hands a claim to the heartbeat, which leaves it.
func (s *session) orphan(claim *engine.Claim) {
	s.mu.Lock()
	s.orphans[claim] = struct{}{}
	s.mu.Unlock()
	s.renewSoon()
}

// leaveOrphans repeats each Leave that the store did not confirm. However many there are, this
// takes at most half the time to the next renewal.
func (s *session) leaveOrphans() {
	s.mu.Lock()
	orphans := slices.Collect(maps.Keys(s.orphans))
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.life, s.client.opts.TTL/6)
	defer cancel()
	s.leaveEach(ctx, orphans)
}

// leavesAtOnce is how many claims are left side by side.
const leavesAtOnce = 32

// leaveEach leaves claims, until a request fails. A later heartbeat leaves the rest, or the end of
// the session frees them.
func (s *session) leaveEach(ctx context.Context, claims []*engine.Claim) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(leavesAtOnce, len(claims)) {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(claims) {
					return
				}
				bound, end := context.WithTimeout(ctx, s.client.opts.RequestTimeout)
				err := s.store.Leave(bound, claims[i].Resource, claims[i].ID)
				end()
				if err != nil && !errors.Is(err, engine.ErrGone) {
					cancel() // the others would fail, too
					return
				}
				s.settle(claims[i])
			}
		})
	}
	workers.Wait()
}

// closed reports whether Client.Close ended the session.
func (s *session) closed() bool { return errors.Is(context.Cause(s.life), ErrClosed) }

// closeStore leaves all claims and closes the session in the store; Client.Close calls it.
// closeLost closes the sessions that were lost before.
func (s *session) closeStore(ctx context.Context) error {
	s.mu.Lock()
	claims := slices.Collect(maps.Keys(s.leases))
	s.mu.Unlock()
	s.lose(ErrClosed)
	if !s.closed() {
		return nil
	}
	s.leaveEach(ctx, claims) // the session's end frees the rest
	ctx, cancel := context.WithTimeout(ctx, s.client.opts.RequestTimeout)
	defer cancel()
	return unavailable(ctx, "close session", s.store.Close(ctx))
}

// closeLost closes the store's session after a loss, so that its remaining claims are free before
// its TTL. closeLost waits for the margin first. That time belongs to the holders: they have just learned
// of the loss and have to stop.
func (s *session) closeLost() {
	timer := time.NewTimer(s.client.margin)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.client.life.Done():
	}
	ctx, cancel := context.WithTimeout(s.client.life, s.client.opts.TTL)
	defer cancel()
	if s.client.opts.LockDelay > 0 {
		cancel() // frees only the local part: the store must keep the rest
	}
	s.store.Close(ctx) //nolint:errcheck // expires by itself
}

// newClaim makes a claim with an id that no other claim has.
func (s *session) newClaim(l *lock, owner string) *engine.Claim {
	id := s.store.ID() + "." + strconv.FormatUint(s.seq.Add(1), 36)
	owner = cmp.Or(owner, id) // other claims of the owner may enter all the same, see lock.party
	s.mu.Lock()
	s.known[id] = struct{}{}
	s.mu.Unlock()
	return &engine.Claim{
		Spec: l.spec, Resource: l.name, ID: id, Owner: owner, Weight: l.weight, Label: l.label(),
	}
}
