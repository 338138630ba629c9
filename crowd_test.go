package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// inLine serves one request after another, each in so much time. A request that the client gives up
// before its turn never arrives.
func inLine(each time.Duration) fault {
	turn := make(chan struct{}, 1)
	return func(ctx context.Context, do func(context.Context) error) error {
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return engine.Unavailable("wait", ctx.Err())
		}
		defer func() { <-turn }()
		<-time.After(each)
		return do(ctx)
	}
}

// TestCrowdOfCallers: a store that answers one caller after another is not unavailable, although
// the last caller's turn comes after more than a TTL.
func TestCrowdOfCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil) // its TTL is 15 s
		blocker := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(inLine(time.Second), verbEnter)
		const callers = 60
		failed := make(chan error, callers)
		for range callers {
			go func() {
				l, err := c.Mutex("m").Lock(t.Context())
				if err == nil {
					err = l.Unlock(t.Context())
				}
				failed <- err
			}()
		}
		pass(2 * callers * time.Second)
		mustUnlock(t, blocker)
		for range callers {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestNameThatHangs: answers to requests for another name do not count.
func TestNameThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		store.set(hangs, verbEnter+" hangs")
		began := time.Now()
		for range 3 {
			go func() {
				for time.Since(began) < time.Minute {
					noErr(t, c.Mutex("well").Do(t.Context(), func(context.Context) error { pass(time.Second); return nil }))
				}
			}()
		}
		_, err := c.Mutex("hangs").Lock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		if took := time.Since(began); took > 25*time.Second {
			t.Errorf("took %v", took)
		}
		pass(time.Minute)
	})
}
