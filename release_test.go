package pawl_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestReleaseEndsTheTrustFirst: the store serves a release, and hands on, long before its answer comes. The holder does not trust the lock
// beside the next holder.
func TestReleaseEndsTheTrustFirst(t *testing.T) {
	type release func(ctx context.Context, c *pawl.Client) (held context.Context, trusted func() error, release func() error)
	for name, prepare := range map[string]release{
		"Unlock": func(ctx context.Context, c *pawl.Client) (context.Context, func() error, func() error) {
			l := mustLock(t, ctx, c.Mutex("m"))
			return l.Context(), l.Err, func() error { return l.Unlock(ctx) }
		},
		"Unlock with its own context": func(ctx context.Context, c *pawl.Client) (context.Context, func() error, func() error) {
			l := mustLock(t, ctx, c.Mutex("m"))
			return l.Context(), l.Err, func() error { return l.Unlock(pawl.WithOwner(l.Context(), "")) }
		},
		"Leases": func(ctx context.Context, c *pawl.Client) (context.Context, func() error, func() error) {
			all, err := pawl.LockAll(ctx, c.Mutex("l"), c.Mutex("m"))
			if err != nil {
				t.Fatal(err)
			}
			held, _ := all.Context(ctx)
			return held, all.Err, func() error { return all.Unlock(held) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				held, trusted, release := prepare(t.Context(), c)
				next := lockSoon(t.Context(), newClient(t, eng, nil).Mutex("m"))
				synctest.Wait()
				store.set(repliesLate(2*time.Second), verbLeave)
				ended, released := endOf(held), make(chan error, 1)
				go func() { released <- release() }()
				got := <-next
				if got.err != nil {
					t.Fatal(got.err)
				}
				synctest.Wait()
				select {
				case at := <-ended:
					if at.After(got.at) {
						t.Errorf("the context ended %v after the next grant", at.Sub(got.at))
					}
				default:
					t.Error("the context is alive beside the next holder")
				}
				wantErr(t, trusted(), pawl.ErrClosed)
				wantErr(t, context.Cause(held), pawl.ErrClosed)
				if err := <-released; err != nil {
					t.Errorf("the release did not wait for its answer: %v", err)
				}
				mustUnlock(t, got.lease)
			})
		})
	}
}

// TestContextAfterRelease: a context that is asked for later has ended.
func TestContextAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		l := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(repliesLate(2*time.Second), verbLeave)
		released := make(chan error, 1)
		go func() { released <- l.Unlock(t.Context()) }()
		synctest.Wait()
		wantErr(t, context.Cause(l.Context()), pawl.ErrClosed)
		if err := <-released; err != nil {
			t.Error(err)
		}
	})
}

// TestReleaseOfTheTakenIsBounded: the lock was taken away, and the store says so late. Unlock does not wait for the note of the operator after the
// bound of its ctx.
func TestReleaseOfTheTakenIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		store := newFaultyStore(eng)
		c := newClient(t, store, &pawl.Options{Observe: printed})
		l := mustLock(t, t.Context(), c.Mutex("m"))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		store.set(hangs, verbRenew, verbGet)
		breakLock(t, eng, "m")
		store.set(arrivesLate(90*time.Millisecond), verbLeave)
		start := time.Now()
		err := l.Unlock(ended)
		if took := time.Since(start); took > slack {
			t.Errorf("took %v", took)
		}
		wantErr(t, err, pawl.ErrLost)
	})
}

// printed is an observer that prints errors.
func printed(_ context.Context, e pawl.Event) { _ = fmt.Sprint(e.Err) }

// TestHeartbeatDoesNotWaitForObservers: an observer prints why a lock was taken away, and the text waits for the note of the operator. The
// next loss is told in time all the same.
func TestHeartbeatDoesNotWaitForObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		store := newFaultyStore(eng)
		c := newClient(t, store, &pawl.Options{Observe: printed})
		a, b := mustLock(t, t.Context(), c.Mutex("a")), mustLock(t, t.Context(), c.Mutex("b"))
		store.set(hangs, verbGet)
		start := time.Now()
		breakLock(t, eng, "a")
		<-a.Context().Done()
		breakLock(t, eng, "b")
		<-b.Context().Done()
		if took := time.Since(start); took > 0 {
			t.Errorf("took %v", took)
		}
	})
}
