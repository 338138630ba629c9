package pawl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Leases are several locks held together, in the order in which they were
// taken.
type Leases []*Lease

// LockAll takes all locks or none. It takes them in the order of their names,
// whatever the order given, so callers that want some of the same locks do not
// deadlock; in several stores they must not have the same names, for between those there is no
// order. ctx bounds the whole wait. When one cannot be had, or is lost while the call waits
// for another, those already held are released, and the errors of the releases are joined to
// the reason. A lock that is given twice is an [ErrInvalid], also where two values describe
// it. What one call takes belongs to one owner; see [WithOwner].
func LockAll(ctx context.Context, locks ...Locker) (Leases, error) {
	if ownerOf(ctx) == "" {
		ctx = WithOwner(ctx, NewOwner())
	}
	locks = slices.Clone(locks)
	slices.SortStableFunc(locks, func(a, b Locker) int {
		if c := strings.Compare(a.Name(), b.Name()); c != 0 {
			return c
		}
		return int(b.base().weight - a.base().weight) // among equal names the heavier comes first
	})
	for i, l := range locks[min(1, len(locks)):] {
		if l.base().same(locks[i].base()) {
			return nil, fmt.Errorf("lock all: %w", invalid("%q is given twice", l.Name()))
		}
	}
	held := make(Leases, 0, len(locks))
	for _, l := range locks {
		lease, err := l.Lock(ctx)
		if err == nil {
			held = append(held, lease)
			err = held.Err() // of those that were lost while it waited for this one
		}
		if err != nil {
			return nil, fmt.Errorf("lock all: %w", errors.Join(err, held.Unlock(ctx)))
		}
	}
	return held, nil
}

// Err returns nil while every lock may be believed to be held, else the errors
// of those that are not, joined.
func (ls Leases) Err() error {
	var errs []error
	for _, l := range ls {
		errs = append(errs, l.Err())
	}
	return errors.Join(errs...)
}

// Context returns parent, ended also when one of the locks is lost or
// released, with the cause that its lease gives. cancel frees it.
func (ls Leases) Context(parent context.Context) (ctx context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(parent)
	stops := make([]func() bool, 0, len(ls))
	for _, l := range ls {
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

// Unlock releases every lock, the last taken first, whatever happens to the
// others, and joins the errors.
func (ls Leases) Unlock(ctx context.Context) error {
	var errs []error
	for _, l := range slices.Backward(ls) {
		errs = append(errs, l.Unlock(ctx))
	}
	return errors.Join(errs...)
}
