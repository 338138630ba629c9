// Package turn has a lock inside a process for which a caller waits no longer than its context lasts.
package turn

import "context"

// Turn is for as many callers at once as it has places. Create it with [New]. It is safe for
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
