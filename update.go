package pawl

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl/engine"
)

const (
	eagerTries  = 3  // of an update, before it queues
	queuedTries = 64 // after it has queued
)

// ErrUnchanged is what the function of [Value.Update] returns when there is nothing to write.
var ErrUnchanged = errors.New("unchanged")

// errAgain is what the function of an update in this package returns when another read may show another state.
var errAgain = errors.New("another read may show another state")

// Idempotent returns the same value for changes that may be made twice. The function of such an
// update must see whether its change was made before. [Value.Update] then retries, at most for one
// TTL, an update whose outcome is unknown, or whose function returned an error that matches [ErrUnavailable].
func (v *Value) Idempotent() *Value {
	is := *v
	is.again = true
	return &is
}

// Update reads the value and writes the result of fn. If another writer was faster, Update begins
// again. So fn may be called several times, and should do nothing else. A nil result deletes the
// value. If fn returns [ErrUnchanged], Update returns the value that fn was given, and no error.
// Otherwise Update returns the version that it wrote.
//
// After three conflicts an update queues with all other updates in conflict, so that n updates at
// once take O(n) requests. Update returns any other error of fn unchanged. Update fails with
// [ErrConflict] when writers that do not use Update never let it through. After [ErrUnavailable]
// nobody knows whether the value was written.
func (v *Value) Update(ctx context.Context, fn func(Snapshot) ([]byte, error)) (Snapshot, error) {
	is, conflict, err := v.tryUpdate(ctx, fn, eagerTries)
	if !conflict {
		return is, err
	}
	return v.queueUpdate(ctx, fn)
}

// queueUpdate updates in the queue of all updates that were in conflict. Both the wait and the release end with ctx. So a call that
// still has a release of its own to make lingers once.
func (v *Value) queueUpdate(ctx context.Context, fn func(Snapshot) ([]byte, error)) (Snapshot, error) {
	turn, err := v.turn(ctx)
	if err != nil {
		return Snapshot{}, v.failed("update", err)
	}
	defer turn.unlockBy(ctx, ctx) //nolint:errcheck // the lock only keeps order: versions guard the value
	is, _, err := v.tryUpdate(ctx, fn, queuedTries)
	return is, err
}

// turn waits for the lock that orders the updates of the value after a conflict.
func (v *Value) turn(ctx context.Context) (*Lease, error) {
	l := v.turnLock()
	l.brief = true
	return l.Lock(ctx)
}

func (v *Value) turnLock() lock {
	l := newLock(v.client, scopedName("update", v.key), engine.KindLock, engine.LockCapacity, engine.LockCapacity)
	l.alone = true
	return l
}

// tryUpdate updates the value, and reports whether the last try was in conflict. The error of fn is a conflict only if it is errAgain.
func (v *Value) tryUpdate(ctx context.Context, fn func(Snapshot) ([]byte, error), tries int) (is Snapshot, conflict bool, err error) {
	pause, giveUp := newBackoff(v.client.opts.TTL), time.Now().Add(v.client.opts.TTL)
	for {
		is, conflict, err = v.updateOnce(ctx, fn)
		switch {
		case conflict:
			tries--
		case v.again && errors.Is(err, ErrUnavailable) && time.Now().Before(giveUp):
		default:
			return is, false, err
		}
		if tries == 0 {
			return is, conflict, err
		}
		if !pause.sleep(ctx, v.client.life) {
			return is, conflict, v.failed("update", v.client.ended(ctx, err)) // the wait for the turn ends at once
		}
	}
}

func (v *Value) updateOnce(ctx context.Context, fn func(Snapshot) ([]byte, error)) (is Snapshot, conflict bool, err error) {
	if is, err = v.Get(ctx); err != nil {
		return is, false, err
	}
	return v.updateAt(ctx, is, fn)
}

// updateAt writes the result of fn if the value still has the version of the read.
func (v *Value) updateAt(ctx context.Context, is Snapshot, fn func(Snapshot) ([]byte, error)) (at Snapshot, conflict bool, err error) {
	switch data, err := fn(is); {
	case errors.Is(err, ErrUnchanged):
		return is, false, nil
	case err != nil:
		return is, errors.Is(err, errAgain), err
	default:
		is, err = v.Put(ctx, data, is.Number)
		return is, errors.Is(err, ErrConflict), err
	}
}
