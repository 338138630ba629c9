package pawl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// A minimum hold is a second claim of the holder's owner, which shares its grant. That claim
// belongs to a session of its own, which lives for the minimum hold and is never renewed. So the
// claim ends at its time, whatever becomes of the client. No holder trusts that session, so a
// restart grace neither covers the session nor grows by it.

const maxMinHold = 7 * 24 * time.Hour

// checkMinHold checks that the store can keep a name for so long. The error names the option or
// argument, and says how to have no minimum hold.
func (c *Client) checkMinHold(what string, hold time.Duration, none string) error {
	for _, f := range []engine.Feature{engine.FeatureMinHold, engine.FeatureDelay} {
		if err := c.caps.RefuseFeature(f); err != nil {
			return err
		}
	}
	if least := max(minTTL, c.caps.MinTTL); hold < least || hold > maxMinHold {
		return invalid("%s is %v: %s%v to %v are allowed on %s", what, hold, none, least, maxMinHold, c.caps.Name)
	}
	return nil
}

// Keep keeps the name of the lease taken for the time d from now on, on the clock of the store. The
// end of the lease or of its client changes nothing. [LockOptions].MinHold does the same from the
// grant on. A holder that calls Keep and unlocks gives the name back for later. d is 100 ms (or the
// least TTL of the store) to 7 days, else Keep fails with [ErrInvalid].
//
// Keep fails with [ErrUnsupported] on a store that keeps no sessions for so long. For a lease that
// has ended, Keep fails with the error of [Lease.Err]. After [ErrUnavailable] the name may stay
// taken, as with [LockOptions].MinHold.
func (l *Lease) Keep(ctx context.Context, d time.Duration) error {
	if err := l.keepFor(ctx, d, new(bool), func() error { return nil }); err != nil {
		return l.lock.failed(err)
	}
	return nil
}

func (l *Lease) keepFor(ctx context.Context, d time.Duration, again *bool, then func() error) error {
	err := l.Err()
	if err == nil {
		err = l.session.client.checkMinHold("d", d, "")
	}
	if err != nil {
		return err
	}
	work, stop := l.Within(ctx)
	defer stop()
	if err = l.keepTaken(work, d, again, then); errors.Is(err, errSession) {
		return fmt.Errorf("%w: %w", ErrLost, err) // the next heartbeat tells the lease
	} else if err != nil {
		return errors.Join(l.Err(), err)
	}
	return nil
}

// keepHeld begins the minimum hold of a lock in a call that holds all that it wants. holds tells what the call has lost meanwhile.
func (l *lock) keepHeld(ctx context.Context, lease *Lease, wait bool, holds func() error) error {
	if l.opts.MinHold == 0 {
		return nil
	}
	again := false
	err := l.client.retryIf(ctx, wait, func() error {
		return lease.keepFor(ctx, l.opts.MinHold, &again, func() error {
			if l.client.life.Err() != nil {
				return ErrClosed
			}
			return holds()
		})
	})
	if err != nil {
		return l.failed(l.client.stopped(ctx, err))
	}
	return nil
}

// keepTaken keeps the name of a grant taken for the minimum hold. If then fails, nothing is kept. A second call for the same hold does no
// harm: what an earlier request still keeps shares the grant. again says that such a request may keep the grant also without the lease.
func (l *Lease) keepTaken(ctx context.Context, hold time.Duration, again *bool, then func() error) error {
	c := l.session.client
	if !c.begin() { // Close waits for the session of the minimum hold
		return ErrClosed
	}
	defer c.tasks.Done()
	ctx, cancel := c.bounded(ctx, c.opts.RequestTimeout)
	defer cancel()
	s, err := c.engine.Open(ctx, engine.SessionOptions{TTL: hold, Delay: hold, Label: l.lock.label()})
	if err != nil {
		return fmt.Errorf("minimum hold: %w", unavailable(ctx, "open session", err))
	}
	stays := *l.claim
	stays.ID = s.ID() + keptSuffix
	is, err := s.Enter(ctx, &stays, false)
	if errors.Is(err, engine.ErrMismatch) && l.lock.resizes { // an operator has resized the semaphore since the grant
		var now engine.Resource
		if now, err = c.claims(ctx, l.Name()); err == nil {
			stays.Capacity = max(now.Capacity, 1)
			is, err = s.Enter(ctx, &stays, false)
		}
	}
	if err = unavailable(ctx, "enter", err); errors.Is(err, engine.ErrGone) { // the session ended before the request arrived
		err = engine.Unavailable("enter", err)
	}
	if *again {
		is.Token = 0 // does not show that the lease stands
	}
	*again = true
	if err == nil {
		err = l.session.shares(ctx, l, is.Token)
	}
	if errors.Is(err, errApart) || refused(err) {
		err = fmt.Errorf("%w: another client holds the name", errSession)
	}
	if err == nil {
		err = then()
	}
	if err != nil {
		c.tasks.Go(func() { c.giveBack(context.WithoutCancel(ctx), s, &stays, hold) })
		return fmt.Errorf("minimum hold: %w", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	s.Close(ended) //nolint:errcheck // only the local part is freed
	return nil
}

// giveBack ends a minimum hold whose call has failed. Else the client itself would wait behind that hold with its next session. If the
// session cannot be closed, giveBack evicts the claim. An eviction needs no session, and may be repeated when the store is back.
func (c *Client) giveBack(ctx context.Context, s engine.Session, stays *engine.Claim, hold time.Duration) {
	began := time.Now()
	whole, stop := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer stop()
	bound, cancel := linger(whole, c.life)
	defer cancel()
	if s.Close(bound) == nil {
		return
	}
	c.Retry(ctx, hold, func() error { //nolint:errcheck // the hold ends by itself
		err := c.ask(ctx, "evict", func(ctx context.Context) error { return c.engine.Evict(ctx, stays.Resource, stays.ID) })
		if errors.Is(err, engine.ErrGone) && time.Since(began) <= c.opts.TTL { // the request to enter may still arrive
			err = engine.Unavailable("evict", err)
		}
		return err
	})
}
