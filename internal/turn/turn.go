// Package turn has waits inside of a process. A wait for a lock, or for a while, ends with a context.
// A bell ends a wait early.
package turn

import (
	"context"
	"time"
)

// Pause waits for d, or returns the cause of ctx.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Turn is for as many callers at once as it has places. Create it with [New]. A Turn is safe for
// concurrent use.
type Turn chan struct{}

// New returns a Turn of so many places. A Turn of one place is a mutex.
func New(places int) Turn { return make(Turn, places) }

// Take waits for a place, or returns the cause of ctx. The caller gives the place back with Give.
func (t Turn) Take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TryTake takes a place that is free, or reports false.
func (t Turn) TryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give gives a place back.
func (t Turn) Give() { <-t }

// Bell wakes the goroutine that reads it, or has it look once more. Create it with make(Bell, 1). Nobody
// hears the nil Bell.
type Bell chan struct{}

// Ring wakes the reader, now or when it reads next.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default: // it has rung already
	}
}
