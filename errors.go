package pawl

import (
	"context"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/engine"
)

// The errors of pawl's operations. Test them with errors.Is: every error says more than its
// sentinel, and may match several sentinels.
var (
	// ErrNotAcquired says that others hold the lock, and the caller holds nothing. When a context
	// ended the wait, the error matches the context's error as well. If the store did not answer
	// then, the error also matches [ErrUnavailable]: nobody knows whether the lock is held.
	ErrNotAcquired = errors.New("not acquired")

	// ErrGrace says that the store may have forgotten locks, as a restarted Redis may. The store
	// grants no lock before all forgotten locks have ended. ErrGrace comes with [ErrNotAcquired]:
	// nobody knows whether the lock is held. The text says when the store grants again.
	// [engine.GraceError] says so too, by errors.As.
	ErrGrace = engine.ErrGrace

	// ErrLost says that the lock was held and no longer is, without Unlock. Either no renewal
	// reached the store in time, or somebody took the lock away. ErrLost is the cause of the
	// lease's context.
	ErrLost = errors.New("lock lost")

	// ErrUnavailable says that the store could not be asked. ErrUnavailable never means that the lock is taken.
	ErrUnavailable = engine.ErrUnavailable

	// ErrMismatch says that the name is in use as something else. A lock meets a semaphore, a
	// semaphore has another size, or a fair lock meets a barging lock.
	ErrMismatch = engine.ErrMismatch

	// ErrConflict says that a value is no longer at the expected version. Nothing was written.
	ErrConflict = engine.ErrConflict

	// ErrBroken says that a barrier is broken: a party gave up or died while
	// others waited, or the barrier was reset.
	ErrBroken = errors.New("barrier broken")

	// ErrUnsupported says that the store cannot honestly keep the promise of the call.
	ErrUnsupported = engine.ErrUnsupported

	// ErrClosed says that the client is closed or the lease was released.
	ErrClosed = errors.New("closed")

	// ErrInvalid says that an argument or option is out of its range. The
	// error names it and the range. Nothing was changed.
	ErrInvalid = errors.New("invalid")
)

// Unavailable classes the error of a request to a store; packages that are built on this package
// need it. The result matches err, [ErrUnavailable], and the error of ctx if ctx has ended.
// Unavailable returns nil for a nil err.
func Unavailable(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrUnavailable) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if ended := context.Cause(ctx); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", err, ended)
	}
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", err, ended)
	}
	return err
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
