package engine

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// The classes of engine errors. An engine returns the store's own error
// wrapped with its class; the root package decides what it means to a user.
var (
	// ErrBusy says that others hold the resource or wait for it, and the claim may not wait.
	// Nothing was stored.
	ErrBusy = errors.New("busy")

	// ErrGrace says that the store is in its restart grace: no holder is known, but a forgotten
	// holder may exist. The claim may not wait, and nothing was stored. The error is a
	// [GraceError].
	ErrGrace = errors.New("restart grace")

	// ErrConflict says that a versioned value is no longer at the expected version.
	// Nothing was written.
	ErrConflict = errors.New("version conflict")

	// ErrUsed says that a store is known to be used, so that nobody may call it new.
	ErrUsed = errors.New("used before")

	// ErrGone says that the named claim or session is not in the store. The claim or session expired, was evicted,
	// left before, or was never there.
	ErrGone = errors.New("gone")

	// ErrMismatch says that the resource is in use with another kind, capacity or discipline.
	// Nothing was stored.
	ErrMismatch = errors.New("mismatch")

	// ErrUnavailable says that the store could not be asked, or that its
	// answer was lost: the outcome of the verb is unknown.
	ErrUnavailable = errors.New("store unavailable")

	// ErrUnsupported says that this store cannot honestly keep the promise of the call, and never
	// will.
	ErrUnsupported = errors.New("unsupported")
)

// GraceError is an [ErrGrace] that says when the store grants again.
type GraceError struct{ Grace }

// Error says how long ago the store started or lost its claims, and when it grants again. A store
// does not tell which of both happened: a server that is new to pawl may have run for long.
func (e *GraceError) Error() string {
	age, later := "", " or later" // the grace waits for a client
	if e.Age >= 0 {
		age, later = " "+e.Age.Round(time.Second).String()+" ago", ""
	}
	left := min(e.Left, math.MaxInt64-time.Second) + time.Second - 1
	return fmt.Sprintf("the store was started, emptied or first used by pawl%s and may have forgotten locks; it grants again in %v%s", age, left.Truncate(time.Second), later)
}

// Is makes a GraceError match [ErrGrace], and not [ErrBusy].
func (e *GraceError) Is(target error) bool { return target == ErrGrace }

// Unavailable wraps the store's own error as [ErrUnavailable], with the action
// that failed. Unavailable returns nil for a nil err.
func Unavailable(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUnavailable): // the text says so already
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
}
