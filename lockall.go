package pawl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/engine"
)

// Leases are several locks held together, in the order in which they were taken.
type Leases []*Lease

// LockAll takes all locks or none. LockAll takes them in the order of their names, whatever the
// order given. So callers that want some of the same locks do not deadlock. Locks of several stores
// must not have the same names, because stores have no order.
//
// ctx bounds the whole wait. If a lock cannot be had, or a held lock is lost meanwhile, LockAll
// releases all that it holds. LockAll joins the errors of the releases to the reason.
//
// Minimum holds begin when LockAll holds all locks. If a minimum hold cannot begin, or a lock is lost meanwhile, LockAll fails. Then the names of other minimum
// holds may stay taken, as after [ErrUnavailable].
//
// Both sides of an [RWMutex] may be among the locks: LockAll takes the writing side first and the
// reading side with it. Locks held through ctx are re-entered, as by Lock. These arguments are an
// [ErrInvalid]:
//
//   - a lock that is given twice, also by two values that describe it, because the call would wait
//     for itself;
//   - a semaphore that is given twice: [Semaphore.Weighted] takes several permits at once;
//   - a name of one store that is given by two clients, if both clients have one engine. LockAll does not see that two
//     engines have one server;
//   - a [Locker] of another package.
func LockAll(ctx context.Context, locks ...Locker) (Leases, error) {
	return lockAll(ctx, true, "lock all", locks)
}

// TryLockAll is [LockAll] without waiting: it fails with [ErrNotAcquired] if any of the locks is
// not free now.
func TryLockAll(ctx context.Context, locks ...Locker) (Leases, error) {
	return lockAll(ctx, false, "try to lock all", locks)
}

func lockAll(ctx context.Context, wait bool, doing string, locks []Locker) (Leases, error) {
	wanted, err := inOrder(locks)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	ends, cancel := Linger(ctx) // bounds the releases together
	defer cancel()
	held := make(Leases, 0, len(wanted))
	inner := ctx // carries the leases held already, so that both sides of a name have one owner
	for _, l := range wanted {
		var lease *Lease
		if lease, err = l.unkept().acquire(inner, ctx, wait); err == nil {
			held = append(held, lease)
			inner = withLease(inner, lease)
			err = held.Err() // of the locks that were lost while the call waited for this lock
		}
		if err != nil {
			break
		}
	}
	for i, lease := range held {
		if err == nil {
			err = wanted[i].keepHeld(ctx, lease, wait, held.Err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, errors.Join(err, held.unlock(ctx, ends)))
	}
	return held, nil
}

// inOrder returns the locks in the order in which all callers take them. inOrder refuses locks with
// which the caller would wait for itself.
func inOrder(locks []Locker) (wanted []*lock, err error) {
	for i, l := range locks {
		ours, ok := l.(interface{ base() *lock })
		if !ok {
			return nil, invalid("lock %d is a %T: locks of this package are allowed", i, l)
		}
		wanted = append(wanted, ours.base())
	}
	slices.SortStableFunc(wanted, func(a, b *lock) int {
		// Among equal names the heavier lock comes first.
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(b.weight, a.weight))
	})
	for i, l := range wanted {
		for j := i - 1; j >= 0 && wanted[j].name == l.name; j-- {
			o := wanted[j]
			switch {
			case !l.client.shares(o.client):
			case l.client != o.client:
				return nil, invalid("%q is given by two clients of one store", l.name)
			case l.spec.Kind == engine.KindSemaphore && o.spec.Kind == engine.KindSemaphore:
				return nil, invalid("semaphore %q is given twice: Semaphore.Weighted takes several permits at once", l.name)
			case l.weight == o.weight:
				return nil, invalid("%q is given twice", l.name)
			}
		}
	}
	return wanted, nil
}

// shares reports whether both clients use one store, as far as one engine tells.
func (c *Client) shares(o *Client) bool {
	return c == o || reflect.TypeOf(c.engine).Comparable() && c.engine == o.engine
}

// Err returns nil while the holder may trust every lock. Else Err returns the errors of the lost or
// released locks, joined.
func (ls Leases) Err() error {
	var errs []error
	for _, l := range ls {
		errs = append(errs, l.Err())
	}
	return errors.Join(errs...)
}

// Context returns parent, which then also ends when a lock is lost or released, with the cause that
// its lease gives. As [Lease.Within] that context carries every lease, to re-enter its lock, and
// every token under the name of its lock. cancel frees the context.
func (ls Leases) Context(parent context.Context) (ctx context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(parent)
	stops := make([]func() bool, 0, len(ls))
	for _, l := range ls {
		ctx = withLease(ctx, l)
		lease := l.Context()
		stops = append(stops, context.AfterFunc(lease, func() { end(context.Cause(lease)) }))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		end(nil)
	}
}

// Unlock releases every lock, the last taken first, also when a release fails, and joins the
// errors. Like [Lease.Unlock], it returns soon after ctx ended, however many locks there are.
func (ls Leases) Unlock(ctx context.Context) error {
	ctx, stop := outlasting(ctx, ls...)
	defer stop()
	ends, cancel := Linger(ctx)
	defer cancel()
	return ls.unlock(ctx, ends)
}

func (ls Leases) unlock(ctx, ends context.Context) error {
	var errs []error
	for _, l := range slices.Backward(ls) {
		errs = append(errs, l.unlockBy(ctx, ends))
	}
	return errors.Join(errs...)
}
