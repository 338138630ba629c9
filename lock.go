package pawl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Locker is the common interface of [Mutex], both sides of [RWMutex] and [Semaphore]. A test may
// have its own Locker, which fails as the test wants; its [Lease] comes from a client on package
// memengine. [LockAll] takes only the Lockers of this package.
type Locker interface {
	// Name returns the name of the lock or semaphore.
	Name() string
	// Lock waits until the lock is held or ctx ends.
	Lock(ctx context.Context) (*Lease, error)
	// TryLock takes the lock if that needs no waiting.
	TryLock(ctx context.Context) (*Lease, error)
	// Do holds the lock while fn runs.
	Do(ctx context.Context, fn func(context.Context) error) error
}

// LockOptions change how a lock is taken. The zero value is the default. With adds options to the
// earlier options: a zero or false field leaves them unchanged. To take an option back, describe
// the lock anew.
type LockOptions struct {
	// Barging makes the lock unfair: a client that comes while the lock is free gets it, even if
	// others wait. That gives more throughput, and no order. All users of a name must agree on
	// Barging.
	Barging bool

	// MaxHold ends the lease after this time even if its holder lives. MaxHold is for holders that may
	// get stuck. At least 100 ms; 0 is no bound.
	MaxHold time.Duration

	// MinHold keeps the name taken for this time from the grant on, also when the holder releases
	// the lock before, or dies. In [LockAll] and [Slots.Take] the time begins when the call holds all. In
	// [RWMutex.Downgrade] and [RWMutex.TryUpgrade] the time begins just before the release of the other side.
	// MinHold is for a job that may start on many machines, and runs once in a period. Unlock and
	// Close return at once. The name is taken for all other owners. The same owner of [WithOwner] shares it, with the same token.
	//
	// MinHold is 100 ms (or the least TTL of the store) to 7 days; 0 is no minimum. The name is
	// free earlier only when an operator breaks it, or the store forgets: a restart grace does not
	// cover a minimum hold. After [ErrUnavailable] the name may stay taken until the store serves the client again, and for the whole
	// time if the client closes before. Stores without minimum holds refuse: [ErrUnsupported].
	MinHold time.Duration

	// Label tells an operator the purpose of the lock; up to 512 bytes without
	// control characters. Default: the label of the client.
	Label string
}

// lock describes a lock and how to acquire it. lock does no I/O; any number of goroutines may share
// it.
type lock struct {
	client  *Client
	name    string
	spec    engine.Spec
	weight  int64
	opts    LockOptions
	resizes bool  // an operator may have set another capacity
	alone   bool  // owners of contexts do not count
	brief   bool  // after the end of ctx nobody waits for the withdrawal, see Linger
	err     error // the mistake in the description, returned at the first use
}

func newLock(c *Client, name string, kind engine.Kind, capacity, weight int64) lock {
	l := lock{
		client: c, name: name, weight: weight,
		spec: engine.Spec{Kind: kind, Capacity: capacity},
		err:  checkText("name", name),
	}
	if l.err == nil {
		l.err = c.caps.Refuse(l.spec, weight)
	}
	return l
}

func (l lock) with(opts LockOptions) lock {
	l.opts = l.opts.and(opts)
	l.spec.Barging = l.opts.Barging
	if opts.MaxHold != 0 && opts.MaxHold < minTTL && l.err == nil {
		l.err = invalid("LockOptions.MaxHold is %v: 0 (none) or at least %v is allowed", opts.MaxHold, minTTL)
	}
	if opts.MinHold != 0 && l.err == nil {
		l.err = l.client.checkMinHold("LockOptions.MinHold", opts.MinHold, "0 (none) or ")
	}
	if opts.Label != "" && l.err == nil {
		l.err = checkText("LockOptions.Label", opts.Label)
	}
	return l
}

// and returns o with the fields of more that are set.
func (o LockOptions) and(more LockOptions) LockOptions {
	return LockOptions{
		Barging: o.Barging || more.Barging,
		MaxHold: cmp.Or(more.MaxHold, o.MaxHold),
		MinHold: cmp.Or(more.MinHold, o.MinHold),
		Label:   cmp.Or(more.Label, o.Label),
	}
}

func (l *lock) label() string {
	if l.opts.Label != "" {
		return l.opts.Label
	}
	return l.client.opts.Label
}

// Name returns the name of the lock or semaphore.
func (l *lock) Name() string { return l.name }

func (l *lock) base() *lock { return l }

// Lock waits until the lock is held or ctx ends; ctx bounds the waiting only, not the hold. The
// errors of Lock:
//
//   - [ErrNotAcquired], joined with ctx's error: ctx ended first. If the store was in trouble then,
//     the error matches [ErrUnavailable] as well.
//   - [ErrNotAcquired] without an error of ctx: an operator evicted the waiting claim. Or the caller would wait for
//     itself: ctx holds the reading side of this lock, or its owner wants more than it holds, see [WithOwner].
//   - [ErrUnavailable]: the store answered no request of the client for that name for a whole TTL, or no request of the
//     minimum hold.
//   - [ErrMismatch], [ErrUnsupported], [ErrInvalid] or [ErrClosed], at once.
//
// While the store may have forgotten locks, Lock waits, too. If ctx ends then, the error matches [ErrGrace] as well.
//
// When Lock fails, nothing is held and nothing waits in the store. If the store does not answer, the
// heartbeat sees to that later.
func (l *lock) Lock(ctx context.Context) (*Lease, error) { return l.acquire(ctx, ctx, true) }

// TryLock takes the lock if it is free now, and fails with [ErrNotAcquired] if it is not. TryLock
// asks the store once.
func (l *lock) TryLock(ctx context.Context) (*Lease, error) { return l.acquire(ctx, ctx, false) }

// Do holds the lock while fn runs. The context given to fn ends when ctx ends or when the lock is
// lost, with cause [ErrLost]. Do waits for fn, also after a loss, then releases. Do returns the
// errors of fn and of the release joined. A panic of fn releases too.
//
// The context given to fn is the context of [Lease.Within]. Locking the same name with that
// context, in the same mode or a weaker mode, is re-entry. This holds also for goroutines that fn
// starts, because all of them hold through this one lock.
func (l *lock) Do(ctx context.Context, fn func(context.Context) error) (err error) {
	lease, err := l.acquire(ctx, ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Unlock(ctx)) }()
	work, stop := lease.Within(ctx)
	defer stop()
	return fn(work)
}

// unkept returns the same lock without a minimum hold. Such a call keeps the name later, when the call holds all that it wants.
func (l lock) unkept() *lock {
	l.opts.MinHold = 0
	return &l
}

// acquire gets a lease. values are the context values of the hold.
func (l *lock) acquire(ctx, values context.Context, wait bool) (*Lease, error) {
	start := time.Now()
	l.observe(ctx, EventAttempt, 0, start, nil)
	lease, err := l.attempts(ctx, values, wait)
	if err != nil {
		l.observe(ctx, EventRefused, 0, start, err)
		return nil, err
	}
	l.observe(ctx, EventGranted, lease.token, start, nil)
	return lease, nil
}

// attempts asks until the lock is held, with one session after the other.
func (l *lock) attempts(ctx, values context.Context, wait bool) (*Lease, error) {
	if l.err != nil {
		return nil, l.failed(l.err)
	}
	if err := ctx.Err(); err != nil {
		return nil, l.failed(notAcquired(ctx, nil))
	}
	size := sizing{lock: l, wait: wait}
	var apart []*Lease // the store says that these hold no more
	var last attempt   // which tells the next one what the caller was told
	for pause := newBackoff(l.client.opts.TTL); ; {
		through, owner, err := l.party(ctx, apart)
		if err != nil {
			return nil, l.failed(err)
		}
		s, err := l.client.session(ctx, wait)
		if err != nil {
			return nil, l.failed(last.tellGrace(ctx, l.client.stopped(ctx, err)))
		}
		permits, err := size.capacity(ctx)
		if err != nil {
			return nil, l.failed(last.tellGrace(ctx, err))
		}
		a := attempt{session: s, lock: l, through: through, claim: s.newClaim(l, owner), grace: last.grace, until: last.until, told: last.told}
		a.claim.Capacity = permits
		lease, err := a.lease(ctx, values, wait)
		if err == nil {
			return lease, nil
		}
		last = a
		if wait && a.grace.On() && errors.Is(err, ErrGrace) && !errors.Is(err, ctx.Err()) {
			if nap(ctx, s.life, min(pause.next(), time.Until(a.until))) {
				continue
			}
			err = a.reason(ctx, nil)
		}
		if errors.Is(err, errApart) {
			apart = append(apart, through)
			continue
		}
		if errors.Is(err, ErrMismatch) {
			again, trouble := size.mismatch(ctx, a.claim.Capacity)
			if again {
				continue
			}
			err = cmp.Or(last.tellGrace(ctx, trouble), err)
		}
		if !errors.Is(err, errSession) {
			return nil, l.failed(err)
		}
		if !pause.sleep(ctx, l.client.life) { // the session was lost: retry with a new session
			return nil, l.failed(last.tellGrace(ctx, l.client.stopped(ctx, err)))
		}
	}
}

func (l *lock) failed(err error) error { return fmt.Errorf("%s %q: %w", l.spec.Kind, l.name, err) }

// errSession says that an attempt failed only because its session ended.
var errSession = errors.New("session ended")

// errApart says that an attempt failed only because the lease that it was to re-enter holds no
// more.
var errApart = errors.New("nothing to re-enter")

// notAcquired is the error of a wait that its context ended. If the store was in trouble then, the
// error says so as well: nobody knows whether the lock was free.
func notAcquired(ctx context.Context, trouble error) error {
	err := fmt.Errorf("%w: %w", ErrNotAcquired, ctx.Err())
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if errors.Is(trouble, ErrUnavailable) {
		err = fmt.Errorf("%w: %w", err, trouble)
	}
	return err
}

// unavailable classes the error of a call. If ctx ended the call, the store did not answer,
// whatever the engine returned.
func unavailable(ctx context.Context, doing string, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrUnavailable) {
		return engine.Unavailable(doing, err)
	}
	return err
}
