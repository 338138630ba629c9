package pawl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// Lease is a lock that is held. Lease is safe for concurrent use. The session of its client keeps the
// lease alive; its holder watches [Lease.Context].
type Lease struct {
	session *session
	lock    *lock
	claim   *engine.Claim
	token   fence.Token
	values  context.Context
	since   time.Time

	mu      sync.Mutex
	ended   error // the reason why the lease is no longer held
	done    bool  // Unlock was called
	ctx     context.Context
	cancel  context.CancelCauseFunc
	maximum *time.Timer
	until   time.Time // the end by MaxHold; zero: no bound
}

// start lets the heartbeat renew the lease.
func (l *Lease) start() error {
	if hold := l.lock.opts.MaxHold; hold > 0 {
		l.until = time.Now().Add(hold - l.margin())
		l.mu.Lock()
		l.maximum = time.AfterFunc(hold-l.margin(), l.exhaust)
		l.mu.Unlock()
	}
	if l.session.hold(l) {
		return nil
	}
	l.stopTimer()
	return errSession
}

// margin is the time that the holder has to stop at the maximum of its hold.
func (l *Lease) margin() time.Duration {
	return min(l.lock.opts.MaxHold/10, l.session.client.margin)
}

// exhaust ends the hold at its maximum, unless a release has begun. The holder learns first; the store learns one margin later.
func (l *Lease) exhaust() {
	l.mu.Lock()
	released := l.done
	l.mu.Unlock()
	if released {
		return
	}
	l.session.drop(l)
	if l.lose(fmt.Errorf("%w: maximum hold of %v reached", ErrLost, l.lock.opts.MaxHold)) {
		time.AfterFunc(l.margin(), func() { l.session.orphan(l.claim) })
	}
}

// Name returns the name of the lock.
func (l *Lease) Name() string { return l.lock.name }

// Owner returns the owner for which the lock is held; see [WithOwner].
func (l *Lease) Owner() string { return l.claim.Owner }

// Token returns the fencing token of the grant. The token never changes, and the re-entries of one
// owner share it. A later grant of the name has a larger token. Send the token to the protected
// resource and let that resource refuse smaller tokens. This is the only protection from a holder
// that was frozen.
func (l *Lease) Token() fence.Token { return l.token }

// Err returns nil while the holder may trust the lock. Err returns an error that matches [ErrLost]
// once the lock was lost, and [ErrClosed] from the beginning of Unlock on. Err needs no I/O and looks at the clock, so
// Err is right at once also after the process was stopped.
func (l *Lease) Err() error {
	if ended := l.endedIf(func() bool { return l.session.left() <= 0 }); ended != nil {
		return ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return ErrClosed
	}
	return nil
}

// endedIf returns the reason why the lease ended. The lease ends now if expired says so, or at its
// maximum.
func (l *Lease) endedIf(expired func() bool) error {
	if !l.until.IsZero() && !time.Now().Before(l.until) {
		l.exhaust() // its timer may be late
	}
	l.mu.Lock()
	ended := l.ended
	l.mu.Unlock()
	if ended == nil && expired() {
		l.session.expire()
		if cause := context.Cause(l.session.life); cause != nil {
			l.lose(cause) // now, although its turn may come later, or a release is under way
		}
		l.mu.Lock()
		ended = l.ended
		l.mu.Unlock()
	}
	return ended
}

// ValidUntil returns until when the holder may trust the lock if no further renewal succeeds. This
// time moves with each heartbeat. The store gives the lock to no other client before. Once Err
// returns an error, the time means nothing.
func (l *Lease) ValidUntil() time.Time {
	until := l.session.validUntil()
	if !l.until.IsZero() && l.until.Before(until) {
		until = l.until
	}
	return until
}

// Context returns a context that ends when the lock is lost, or when its release begins. A loss has a cause that
// matches [ErrLost], and ends the context before the store can give the lock to another client. A
// lock that an operator broke, or that the store forgot, is the exception: see the package
// documentation. The context has the values of the context given to Lock, but neither its deadline
// nor its cancellation.
//
// The context carries the token under the lock's name, which the guards under package fence read.
// The context also carries the lease: locking that name with it is re-entry as long as the lease is
// held.
//
// Re-entry is for this name in this client, and never for permits of a semaphore. Re-entry takes
// the lock in the same mode or a weaker mode. A reader that asks for the writing side is refused at
// once, see [RWMutex.TryUpgrade].
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		l.ctx, l.cancel = context.WithCancelCause(withLease(context.WithoutCancel(l.values), l))
		switch {
		case l.ended != nil:
			l.cancel(l.ended)
		case l.done:
			l.cancel(ErrClosed)
		}
	}
	return l.ctx
}

// Within returns ctx, which then also ends when the lock is lost or released, with the cause that
// [Lease.Context] gives. Both contexts carry the lease and the token. cancel frees this context.
func (l *Lease) Within(ctx context.Context) (within context.Context, cancel func()) {
	within, end := context.WithCancelCause(withLease(ctx, l))
	lease := l.Context()
	stop := context.AfterFunc(lease, func() { end(context.Cause(lease)) })
	return within, func() { stop(); end(nil) }
}

// Unlock releases the lock. Unlock sends the request also after ctx ended, so a deferred Unlock
// keeps its promise. ctx bounds only the wait for the answer: Unlock returns within 100 ms of its
// end. A context of this lease ends when Unlock begins, so of such a ctx only the deadline counts.
//
// Unlock returns [ErrLost] if the client knew of a loss, or if the first answer of the store tells of a loss. After a lost answer a claim that
// is gone counts as released. Unlock returns [ErrUnavailable] if the
// store did not answer in time; then each heartbeat repeats the release until the session ends.
// Unlock of a nil lease does nothing. A second Unlock returns the error of an earlier loss, else
// nil.
func (l *Lease) Unlock(ctx context.Context) error {
	if l == nil {
		return nil
	}
	ctx, stop := outlasting(ctx, l)
	defer stop()
	bound, cancel := linger(l.session.round(), ctx)
	defer cancel()
	return l.unlock(ctx, bound)
}

// unlockBy releases the lock as Unlock does, and waits for the store until ends. ends bounds several releases together.
func (l *Lease) unlockBy(ctx, ends context.Context) error {
	bound, stop := join(l.session.round(), ends)
	defer stop()
	return l.unlock(ctx, bound)
}

// unlock releases the lock, and waits for the store no longer than bound.
func (l *Lease) unlock(ctx, bound context.Context) error {
	expired := l.endedIf(func() bool { return !l.session.alive() }) // the store itself counts sleep
	first := l.retire()
	if errors.Is(expired, ErrLost) {
		if found := new(taken); errors.As(expired, &found) { // by a heartbeat
			expired = retold{found, bound.Done()}
		}
		return l.lock.failed(expired)
	}
	if !first || expired != nil { // released already, perhaps by Client.Close
		return nil
	}
	l.session.drop(l) // no heartbeat may find the claim gone
	err := l.session.leave(bound, ctx, l.claim)
	cause := ErrClosed
	switch lost := context.Cause(l.session.life); {
	case err != nil && errors.Is(lost, ErrClosed): // Close releases the lock, and says so if it cannot
		err = nil
	case errors.Is(err, engine.ErrGone):
		cause = retold{l.session.takenCause("the store no longer had it at unlock", l.claim, l.token), bound.Done()}
		err = cause
	case err != nil && errors.Is(lost, ErrLost): // the session ended meanwhile
		cause, err = lost, lost
	}
	if l.end(cause) {
		l.tell(cause, err)
	}
	if err != nil {
		return l.lock.failed(err)
	}
	return nil
}

// retire ends the trust of the holder before a release, because the store may serve the release long before its answer comes.
func (l *Lease) retire() (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return false
	}
	l.done = true
	if l.cancel != nil {
		l.cancel(ErrClosed)
	}
	return true
}

// lose ends the lease and its context, and tells the observer. Only the first cause counts.
func (l *Lease) lose(cause error) bool {
	first := l.end(cause)
	if first {
		l.tell(cause, nil)
	}
	return first
}

func (l *Lease) end(cause error) (first bool) {
	l.stopTimer()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return false
	}
	l.ended = cause
	if l.cancel != nil {
		l.cancel(cause)
	}
	return true
}

// tell tells the observer why the lease ended. The store did not confirm its release if trouble is not nil.
func (l *Lease) tell(cause, trouble error) {
	if errors.Is(cause, ErrLost) {
		l.lock.observe(l.values, EventLost, l.token, l.since, cause)
	} else {
		l.lock.observe(l.values, EventReleased, l.token, l.since, trouble)
	}
}

func (l *Lease) stopTimer() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.maximum != nil {
		l.maximum.Stop()
	}
}
