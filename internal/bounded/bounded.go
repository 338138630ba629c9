// Package bounded ends calls of client libraries that do not listen to a context.
package bounded

import "context"

// Call returns the result of do, or the cause of ctx as soon as ctx ends. Then do goes on in a
// goroutine of its own, which ends with do. If do succeeds after that, late gets its result, unless
// late is nil.
func Call[T any](ctx context.Context, do func() (T, error), late func(T)) (made T, err error) {
	if ctx.Done() == nil {
		return do()
	}
	if ctx.Err() != nil {
		return made, context.Cause(ctx)
	}
	var got T
	done := make(chan error)
	go func() {
		var failed error
		got, failed = do()
		select {
		case done <- failed:
		case <-ctx.Done():
			if late != nil && failed == nil {
				late(got)
			}
		}
	}()
	select {
	case err = <-done:
		return got, err
	case <-ctx.Done():
		return made, context.Cause(ctx)
	}
}
