package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// attempt is one claim on its way to a grant.
type attempt struct {
	session *session
	lock    *lock
	claim   *engine.Claim
	through *Lease       // the lease whose grant the claim is to share; nil: the claim may get its own grant
	stored  bool         // the store has said that it has the claim
	grace   engine.Grace // of the store, when it last said that the claim has to wait
	until   time.Time    // the end of grace
	told    []EventKind  // of the wait, also by earlier attempts
}

// lease gets the grant, keeps the name taken for the minimum hold, and lets the heartbeat renew the lease.
func (a *attempt) lease(ctx, values context.Context, wait bool) (*Lease, error) {
	grant, err := a.run(ctx, wait)
	if err != nil {
		return nil, err
	}
	if grant.Grace.On() && !a.session.believes(a.claim) { // the owner may have released the shared grant
		if a.through != nil { // released meanwhile
			return nil, a.fail(ctx, errApart)
		}
		a.refusedFor(ctx, grant.Grace, wait)
		return nil, a.fail(ctx, fmt.Errorf("%w: %w", ErrNotAcquired, a.graced()))
	}
	l := &Lease{session: a.session, lock: a.lock, claim: a.claim, token: grant.Token, values: values, since: time.Now()}
	if hold := a.lock.opts.MinHold; hold > 0 {
		again := false
		err = a.session.client.retryIf(ctx, wait, func() error { return l.keepTaken(ctx, hold, &again, l.start) })
	} else {
		err = l.start()
	}
	if err != nil {
		return nil, a.fail(ctx, err)
	}
	return l, nil
}

func (a *attempt) run(ctx context.Context, wait bool) (engine.Grant, error) {
	s := a.session
	ttl := s.client.opts.TTL
	asked := time.Now()
	heard := asked // when the store last answered; it has not answered yet
	grant, err := a.enter(ctx, wait)
	var others *crowd
	for pause := newBackoff(ttl); ; {
		if a.through != nil && err == nil && grant.Held() {
			err = s.shares(ctx, a.through, grant.Token)
		}
		switch {
		case a.through != nil && (errors.Is(err, errApart) || refused(err)):
			return grant, a.fail(ctx, errApart)
		case err == nil && grant.Held():
			if s.life.Err() == nil && s.left() > 0 { // also if the machine slept meanwhile
				return grant, nil
			}
			s.expire() // the reply came too late to be believed
			return grant, a.fail(ctx, errSession)
		case err == nil && !grant.Held():
			a.contended(ctx, grant.Grace)
			grant, err = a.await(ctx)
			if err == nil {
				continue
			}
			heard = time.Now()
		case errors.Is(err, engine.ErrGone): // on Enter: the store has ended the session
			s.lose(fmt.Errorf("%w: the store has ended the session", ErrLost))
		case refused(err):
			s.settle(a.claim)
			if grace := new(engine.GraceError); errors.As(err, &grace) {
				a.refusedFor(ctx, grace.Grace, wait)
			}
			if errors.Is(err, ErrGrace) {
				err = fmt.Errorf("%w: %w", ErrGrace, err)
			}
			why := ErrNotAcquired
			if ctx.Err() != nil {
				why = notAcquired(ctx, nil)
			}
			return grant, fmt.Errorf("%w: %w", why, err)
		}
		if others == nil {
			others = s.joinCrowd(a.claim.Resource)
			defer s.leaveCrowd(a.claim.Resource)
		}
		heard = s.heard(others, heard)
		if ctx.Err() != nil || s.life.Err() != nil || !wait || !errors.Is(err, engine.ErrUnavailable) || asked.Sub(heard) > ttl {
			return grant, a.fail(ctx, err)
		}
		// The outcome is unknown, and the session is still trusted. Ask again for the same claim,
		// which counts once.
		if !pause.sleep(ctx, s.life) {
			return grant, a.fail(ctx, err)
		}
		asked = time.Now()
		grant, err = a.enter(ctx, wait)
	}
}

// refused reports whether the store answered that a claim is not granted now.
func refused(err error) bool { return errors.Is(err, engine.ErrBusy) || errors.Is(err, ErrGrace) }

// contended tells the observer that the wait begins, and why: each reason once in an acquisition.
func (a *attempt) contended(ctx context.Context, g engine.Grace) {
	a.grace, a.until = g, time.Now().Add(g.Left)
	e := Event{Kind: EventContended}
	if g.On() {
		e = Event{Kind: EventGrace, Took: g.Left, Err: a.graced()}
	}
	if !slices.Contains(a.told, e.Kind) {
		a.told = append(a.told, e.Kind)
		a.lock.tell(ctx, e)
	}
}

// refusedFor notes the grace for which the store, or the client, refuses a claim. A call that waits asks again.
func (a *attempt) refusedFor(ctx context.Context, g engine.Grace, wait bool) {
	if a.grace, a.until = g, time.Now().Add(g.Left); wait {
		a.contended(ctx, g)
	}
}

// graced says how long the grace still lasts, also long after the store reported it.
func (a *attempt) graced() error {
	g := a.grace
	g.Left = time.Until(a.until)
	if g.Age >= 0 {
		g.Age += a.grace.Left - g.Left
	}
	return fmt.Errorf("%w: %w", ErrGrace, &engine.GraceError{Grace: g})
}

// tellGrace adds the grace to the error of a wait that its context ended, because the store may still be in that grace.
func (a *attempt) tellGrace(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ErrNotAcquired) && time.Now().Before(a.until) {
		return fmt.Errorf("%w: %w", err, a.graced())
	}
	return err
}

// enter asks once, and ends also when the store hangs.
func (a *attempt) enter(ctx context.Context, wait bool) (engine.Grant, error) {
	bound, cancel := join(ctx, a.session.round())
	defer cancel()
	grant, err := a.session.store.Enter(bound, a.claim, wait)
	if !refused(err) { // a late refusal is an answer, too
		err = unavailable(bound, "enter", err)
	}
	if errors.Is(err, engine.ErrUnavailable) {
		a.session.stray(a.claim)
	} else {
		a.session.answered(a.claim.Resource)
	}
	a.stored = a.stored || err == nil
	return grant, err
}

// await waits as long as the session lives. A re-entry waits as long as the lease that it
// re-enters, because a store of several nodes may not grant a re-entry at once.
func (a *attempt) await(ctx context.Context) (engine.Grant, error) {
	bound, cancel := join(ctx, a.session.life)
	defer cancel()
	if a.through != nil {
		var stop context.CancelFunc
		bound, stop = join(bound, a.through.Context())
		defer stop()
	}
	grant, err := a.session.store.Await(bound, a.claim)
	switch {
	case err == nil:
	case a.through != nil && a.through.Context().Err() != nil:
		err = errApart
	case bound.Err() != nil:
		err = bound.Err() // no trouble: the store said that the claim has to wait
	case errors.Is(err, engine.ErrGone):
		err = a.evicted(ctx)
	}
	return grant, err
}

// evicted finds out why a waiting claim is gone: did the session end, or did an operator evict the
// claim? The renewal that tells may take longer than ctx.
func (a *attempt) evicted(ctx context.Context) (err error) {
	told := make(chan error, 1)
	if !a.session.client.spawn(func() { told <- a.session.renew() }) {
		return ErrClosed
	}
	select {
	case err = <-told:
	case <-ctx.Done():
		return ctx.Err()
	}
	if errors.Is(err, engine.ErrGone) {
		a.session.lose(fmt.Errorf("%w: the store has ended the session", ErrLost))
		return err
	}
	if err != nil {
		return err
	}
	bound, cancel := a.session.client.bounded(ctx, farewellTime)
	defer cancel()
	if note, err := a.lock.client.broken(bound, a.lock.name); err == nil && note != nil && note.of(a.claim.ID, 0) {
		return fmt.Errorf("%w: the waiting claim was %v", ErrNotAcquired, note)
	}
	return fmt.Errorf("%w: the waiting claim was evicted", ErrNotAcquired)
}

// fail withdraws the claim, which may be in the store, and returns the reason.
func (a *attempt) fail(ctx context.Context, err error) error {
	s := a.session
	if !a.stored && (errors.Is(err, engine.ErrMismatch) || errors.Is(err, engine.ErrUnsupported)) {
		s.settle(a.claim)
	} else {
		a.withdraw(ctx)
	}
	return a.reason(ctx, err)
}

// reason is why an attempt ended, if err is what ended that attempt.
func (a *attempt) reason(ctx context.Context, err error) error {
	s := a.session
	if ctx.Err() != nil && !errors.Is(err, ErrUnavailable) {
		err = s.client.unheard() // the wait itself asks nothing
	}
	cause := context.Cause(s.life)
	switch {
	case errors.Is(cause, ErrClosed):
		return ErrClosed
	case ctx.Err() != nil:
		return a.tellGrace(ctx, notAcquired(ctx, err))
	case cause != nil:
		return errors.Join(errSession, err)
	}
	return err
}

// withdraw leaves the claim. withdraw takes a short time only, because the caller has waited long enough.
// The heartbeat does the rest.
func (a *attempt) withdraw(ctx context.Context) {
	s := a.session
	left := make(chan struct{})
	leave := func() {
		defer close(left)
		bound, cancel := context.WithTimeout(s.life, min(s.left()/2, farewellTime))
		defer cancel()
		s.leave(bound, ctx, a.claim) //nolint:errcheck // kept as an orphan, or the session is gone
	}
	if !s.client.spawn(leave) {
		leave() // at once, because the session has ended
	}
	var ended <-chan struct{} // nil: the caller waits for the withdrawal
	if a.lock.brief || ctx.Value(lingers{}) != nil {
		ended = ctx.Done()
	}
	select {
	case <-left:
	case <-ended:
	}
}
