package pawl

import (
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/engine"
)

// What an operation of pawl can fail with. Test with errors.Is: every error
// says more than its sentinel, and may carry several.
var (
	// ErrNotAcquired says that the lock is held by others: it was contended,
	// and nothing is held. When a context ended the wait, the error matches
	// the context's error as well; and [ErrUnavailable] if the store did not
	// answer then, so that nobody knows whether it is held.
	ErrNotAcquired = errors.New("not acquired")

	// ErrGrace says that the store may have forgotten locks, as a Redis that was started
	// anew, and grants none before all that it may have forgotten have ended. It comes
	// with [ErrNotAcquired]: nobody knows whether the lock is held. Its text says when
	// the store grants again, and so does [engine.GraceError], by errors.As.
	ErrGrace = errors.New("restart grace")

	// ErrLost says that the lock was held and no longer is, without Unlock:
	// the store could not be told in time that the holder lives, or somebody
	// took the lock away. It is the cause of the lease's context.
	ErrLost = errors.New("lock lost")

	// ErrUnavailable says that the store could not be asked. It never means
	// that the lock is taken.
	ErrUnavailable = engine.ErrUnavailable

	// ErrMismatch says that the name is in use as something else: a lock and
	// a semaphore, two sizes of a semaphore, a fair and a barging lock.
	ErrMismatch = engine.ErrMismatch

	// ErrConflict says that a value is no longer at the version expected.
	// Nothing was written.
	ErrConflict = errors.New("version conflict")

	// ErrBroken says that a barrier is broken: a party gave up or died while
	// others waited, or the barrier was reset.
	ErrBroken = errors.New("barrier broken")

	// ErrUnsupported says that the store cannot honestly carry what was asked.
	ErrUnsupported = engine.ErrUnsupported

	// ErrClosed says that the client is closed or the lease was released.
	ErrClosed = errors.New("closed")

	// ErrInvalid says that an argument or option is out of its range. The
	// error names it and the range. Nothing was changed.
	ErrInvalid = errors.New("invalid")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
