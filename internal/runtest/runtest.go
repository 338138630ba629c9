// Package runtest starts a relay or a consumer in a test, and stops it at the end.
package runtest

import (
	"context"
	"sync"
	"testing"
)

// Start calls run in a goroutine. Stop ends the context of run and waits for its return, and the test fails if run fails. Stop
// may be called again, also at the same time. The end of the test calls stop.
func Start(t testing.TB, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}
