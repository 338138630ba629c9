package pawl

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

type scopeKey struct{}

// scope is the part of a context about owners, innermost first. A scope has a lease that is held
// with the context, or an owner that WithOwner named. An owner hides the rest.
type scope struct {
	lease *Lease
	owner string // of WithOwner
	outer *scope
}

func scopeOf(ctx context.Context) *scope {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	return s
}

// WithOwner returns a context with which every lock is taken for owner, whatever its name. Claims
// of one owner on one name share a grant and its token. That is wider than the re-entry by a
// lease's context, which covers only the lock held through that lease. All users of the same owner
// share its locks, in other goroutines, clients and processes too. So goroutines that lock with
// this context do not exclude one another. Of a semaphore they all share the permits of the
// goroutine that takes most of them.
//
// In a restart grace an owner shares only what its own client holds. A claim of the owner that no lease of its own client covers waits
// until the grace ends, and TryLock fails with [ErrGrace]. A lighter lease covers nothing. So Lock of an owner that wants more than it
// holds succeeds or fails at the end of the grace, and not at once. A store that has forgotten the last seconds may show a lock that the owner has released.
//
// The store checks owners: an owner whose lock was lost waits like any other. An owner may want
// more than it holds: to write while it reads, or more permits. The owner gets that at once if the
// lock is free and nobody waits, else [ErrNotAcquired]. If an owner waits in two places, each of
// its claims waits by itself. In row mode both claims have the lock when one of them is granted. [Election], [Value], [Barrier] and the locks of a [Scope] take no
// owner: two candidates are two.
//
// An owner follows the rules of names. Make it unguessable, or use [NewOwner]. With the empty owner
// nothing re-enters, not even locks held through ctx.
func WithOwner(ctx context.Context, owner string) context.Context {
	return context.WithValue(ctx, scopeKey{}, &scope{owner: owner, outer: scopeOf(ctx)})
}

// NewOwner returns an owner that nobody else has.
func NewOwner() string { return rand.Text() }

// withLease returns a context that carries a lease, to re-enter its lock, and its token.
func withLease(ctx context.Context, l *Lease) context.Context {
	ctx = context.WithValue(ctx, scopeKey{}, &scope{lease: l, outer: scopeOf(ctx)})
	return fence.WithToken(ctx, l.Name(), l.token)
}

// party finds the party for which a lock is taken with a context. The party is a lease that holds
// at least as much of the lock, or the owner that WithOwner named; "" is no party. party fails if a
// lease holds less, because the lock would wait for that lease. Leases in apart do not count.
func (l *lock) party(ctx context.Context, apart []*Lease) (through *Lease, owner string, err error) {
	if l.alone {
		return nil, "", nil
	}
	of := "" // the owner of the lease that holds less
	for s := scopeOf(ctx); s != nil; s = s.outer {
		switch {
		case s.lease == nil && err != nil && s.owner != of: // which would not share, and wait
			return nil, "", err
		case s.lease == nil:
			if s.owner != "" {
				err = checkText("owner", s.owner)
			}
			return nil, s.owner, err
		case !s.lease.of(l) || slices.Contains(apart, s.lease):
		case s.lease.lock.weight >= l.weight:
			return s.lease, s.lease.claim.Owner, nil
		default:
			of = s.lease.claim.Owner
			err = fmt.Errorf("%w: this context holds its reading side and would wait for itself: RWMutex.TryUpgrade makes the writer of a reader", ErrNotAcquired)
		}
	}
	return nil, "", err
}

// outlasting returns ctx, without its end if ctx carries one of the leases. The release of a lease ends the context of that lease,
// and would end the wait for its own answer. A deadline stays. A context of Linger stays if that lingers after a context that has ended.
func outlasting(ctx context.Context, leases ...*Lease) (lasting context.Context, cancel context.CancelFunc) {
	if after, _ := ctx.Value(lingers{}).(context.Context); ctx.Err() != nil || after != nil && after.Err() != nil {
		return ctx, func() {}
	}
	for s := scopeOf(ctx); s != nil; s = s.outer {
		if s.lease == nil || !slices.Contains(leases, s.lease) {
			continue
		}
		lasting = context.WithoutCancel(ctx)
		if ends, ok := ctx.Deadline(); ok {
			return context.WithDeadline(lasting, ends)
		}
		return lasting, func() {}
	}
	return ctx, func() {}
}

// of reports whether the lease is held, and belongs to this lock. Permits are not re-entered.
func (l *Lease) of(lock *lock) bool {
	if l.lock.client != lock.client || l.lock.name != lock.name || l.lock.spec.Kind != engine.KindLock || lock.spec.Kind != engine.KindLock {
		return false
	}
	if l.endedIf(func() bool { return !l.session.alive() }) != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.done
}
