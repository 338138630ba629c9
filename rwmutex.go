package pawl

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/engine"
)

// RWMutex is a lock that many readers or one writer hold. An RWMutex's own methods are those of the writer.
// First come, first served: a writer waits for the readers before it, and later readers wait for
// that writer. So neither side starves. An RWMutex is a description, as [Mutex] is.
//
// A writer may go on as a reader, see [RWMutex.Downgrade]. A reader that is alone may go on as a
// writer, see [RWMutex.TryUpgrade]. Both begin MaxHold and MinHold of [LockOptions] anew.
type RWMutex struct {
	lock
	readers Mutex
}

// RWMutex returns the read-write lock of this name; see [Client.Mutex] for
// names.
func (c *Client) RWMutex(name string) *RWMutex {
	return &RWMutex{
		newLock(c, name, engine.KindLock, engine.LockCapacity, engine.LockCapacity),
		Mutex{newLock(c, name, engine.KindLock, engine.LockCapacity, 1)},
	}
}

// With returns the same lock, both sides taken with opts as well, see [LockOptions].
func (m *RWMutex) With(opts LockOptions) *RWMutex {
	return &RWMutex{m.with(opts), Mutex{m.readers.with(opts)}}
}

// RLocker returns the reading side. Tokens of readers grow too, but several readers hold at once.
// So their tokens do not fence readers from one another.
func (m *RWMutex) RLocker() Locker { return &m.readers }

// RLock is Lock of the reading side.
func (m *RWMutex) RLock(ctx context.Context) (*Lease, error) { return m.readers.Lock(ctx) }

// TryRLock is TryLock of the reading side.
func (m *RWMutex) TryRLock(ctx context.Context) (*Lease, error) { return m.readers.TryLock(ctx) }

// Downgrade makes a reader of the writer that has the lease w. Nobody writes in between. Readers
// that come later, or that are next in line, are let in. Downgrade returns the lease of the reader,
// which has the token of the writer, and releases w. When Downgrade fails, w is unchanged, or lost.
//
// The release ends a context of w. Of such a ctx only the deadline counts from then on. With MinHold the name may stay taken after a
// failure, as in [LockAll].
func (m *RWMutex) Downgrade(ctx context.Context, w *Lease) (*Lease, error) {
	return m.turn(ctx, "downgrade", w, &m.readers.lock)
}

// TryUpgrade makes a writer of the reader that has the lease r, if it is the only reader and nobody
// waits. Else TryUpgrade fails with [ErrNotAcquired] at once, and r is unchanged: two readers that
// wait to write would wait for each other for ever. TryUpgrade returns the lease of the writer,
// which has a new token, and releases r. Before that, one more request (Show) tells whether the store still has the claim of r. TryUpgrade fails with
// [ErrLost] if that claim is gone, because another client may have written in between. After an error that does not match [ErrLost], r is
// unchanged. A ctx of r, and MinHold, count as in [RWMutex.Downgrade].
func (m *RWMutex) TryUpgrade(ctx context.Context, r *Lease) (*Lease, error) {
	return m.turn(ctx, "upgrade", r, &m.lock)
}

// turn takes the other side for the same owner and releases the lease.
func (m *RWMutex) turn(ctx context.Context, doing string, from *Lease, to *lock) (*Lease, error) {
	if from == nil || from.lock.client != m.client || from.lock.name != m.name || from.lock.weight == to.weight {
		return nil, m.failed(fmt.Errorf("%s: %w", doing, invalid("lease is not one of the other side of this RWMutex")))
	}
	if err := from.Err(); err != nil {
		return nil, m.failed(fmt.Errorf("%s: %w", doing, err))
	}
	lease, err := to.unkept().acquire(WithOwner(ctx, from.claim.Owner), from.values, false)
	if err != nil {
		return nil, err
	}
	releasing, stop := outlasting(ctx, from)
	defer stop()
	ends, cancel := Linger(releasing) // bounds both releases together
	defer cancel()
	between := lease.token != from.token // another client may have held the lock
	if to.weight > from.lock.weight {    // the token of a writer is new
		err = from.session.shares(ctx, from, 0)
		between = errors.Is(err, errApart)
	}
	var lost error
	release := func() error {
		lost = from.unlockBy(releasing, ends)
		switch {
		case errors.Is(lost, ErrLost):
		case between: // the release does not tell after a lost reply
			lost = m.failed(fmt.Errorf("%s: %w: another client may have held the lock in between", doing, ErrLost))
		default:
			lost = nil // the heartbeat repeats a release that the store did not confirm
		}
		return lost
	}
	switch {
	case between || err == nil && to.opts.MinHold == 0:
		err = release()
	case err != nil:
		err = m.failed(fmt.Errorf("%s: %w", doing, m.client.stopped(ctx, err)))
	default:
		err = to.keepHeld(ctx, lease, false, release)
	}
	if err != nil {
		if ctx.Err() != nil && from.Err() == nil { // the caller gave up
			ends, cancel = Linger(ctx)
			defer cancel()
		}
		return nil, errors.Join(cmp.Or(lost, err), lease.unlockBy(releasing, ends))
	}
	return lease, nil
}
