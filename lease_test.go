package pawl_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
)

func TestUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		ctx, cancel := context.WithCancel(t.Context())
		lease := mustLock(t, ctx, c.Mutex("m"))
		cancel()
		for range 3 { // with a context that ended, and again
			if err := lease.Unlock(ctx); err != nil {
				t.Fatal(err)
			}
			wantFree(t, eng, "m")
		}
		wantErr(t, lease.Err(), pawl.ErrClosed)
		wantErr(t, context.Cause(lease.Context()), pawl.ErrClosed)
		mustUnlock(t, (*pawl.Lease)(nil))
	})
}

// TestUnlockOfTheLost: each Unlock of a lost lease says so, and leaves the next holder alone.
func TestUnlockOfTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, store := newFaultyClient(t, eng, nil)
		b := newClient(t, eng, nil)
		lost := mustLock(t, t.Context(), a.Mutex("m"))
		eng.Expire(show(t, eng, "m").Claims[0].Session)
		next := mustLock(t, t.Context(), b.Mutex("m"))
		for range 2 { // the first call finds out by itself
			wantErr(t, lost.Unlock(t.Context()), pawl.ErrLost)
		}
		if err := next.Err(); err != nil || len(show(t, eng, "m").Claims) != 1 {
			t.Errorf("the next holder: %v", err)
		}
		mustUnlock(t, next)

		// Once the loss is known, Unlock costs no request.
		again := mustLock(t, t.Context(), a.Mutex("m"))
		store.set(hangs, verbRenew)
		<-again.Context().Done()
		calls := len(store.called(verbLeave))
		wantErr(t, again.Unlock(t.Context()), pawl.ErrLost)
		if n := len(store.called(verbLeave)); n != calls {
			t.Errorf("asked %d times more", n-calls)
		}
	})
}

// TestUnlockInTrouble: Unlock is bounded and says that the store did not answer. The heartbeat
// repeats the release.
func TestUnlockInTrouble(t *testing.T) {
	for name, trouble := range map[string]fault{
		"fail": first(5, fails, nil), "hang": first(1, hangs, nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				lease := mustLock(t, t.Context(), c.Mutex("m"))
				store.set(trouble, verbLeave)
				start := time.Now()
				wantErr(t, lease.Unlock(context.Background()), pawl.ErrUnavailable)
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("it took %v", took)
				}
				wantErr(t, lease.Err(), pawl.ErrClosed)
				mustUnlock(t, lease) // the second call says nothing new
				synctest.Wait()      // the store learns at once, or with the next heartbeat
				pass(5 * time.Second)
				wantFree(t, eng, "m")
			})
		})
	}
}

// TestUnlockAsksTwice: a broken connection is often back at once. The store may have served a
// request although its reply was lost.
func TestUnlockAsksTwice(t *testing.T) {
	for name, f := range map[string]fault{"fail": fails, "lose reply": losesReply} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				lease := mustLock(t, t.Context(), c.Mutex("m"))
				store.set(first(1, f, nil), verbLeave)
				mustUnlock(t, lease)
				wantFree(t, eng, "m")
			})
		})
	}
}

// TestUnlockAcrossHeartbeat: a heartbeat that meets a release on its way does not take the release
// for a loss.
func TestUnlockAcrossHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		ended := lease.Context()
		pass(4500 * time.Millisecond)
		store.set(repliesLate(time.Second), verbLeave)
		time.AfterFunc(time.Millisecond, func() { // at the same time
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		mustUnlock(t, lease)
		if renewed, left := len(store.called(verbRenew)), len(store.called(verbLeave)); renewed != 1 || left != 1 {
			t.Fatalf("%d heartbeats, left %d times", renewed, left)
		}
		wantErr(t, context.Cause(ended), pawl.ErrClosed)
	})
}

// TestUnlockWhileTheSessionIsLost: the store did not answer while the lock was held. The lost
// session frees the lock without the release.
func TestUnlockWhileTheSessionIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, &pawl.Options{RequestTimeout: 15 * time.Second})
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, verbLeave, verbRenew)
		wantErr(t, lease.Unlock(t.Context()), pawl.ErrLost)
		pass(15 * time.Second)
		wantFree(t, eng, "m")
	})
}

// TestErrIsExact: Err looks at the clock, so it is right before any timer has fired.
func TestErrIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, verbRenew)
		until := lease.ValidUntil()
		pass(time.Until(until) - 1)
		if err := lease.Err(); err != nil {
			t.Errorf("a moment before: %v", err)
		}
		pass(1)
		wantErr(t, lease.Err(), pawl.ErrLost)
		if left := time.Until(lease.ValidUntil()); left > 0 {
			t.Errorf("lost, and valid for %v", left)
		}
	})
}

// TestErrIsExactAtMaxHold: Err is right also at the end of the longest hold, which ValidUntil
// tells.
func TestErrIsExactAtMaxHold(t *testing.T) {
	for range 20 { // whether the timer comes first is random
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, memengine.New(), nil)
			lease := mustLock(t, t.Context(), c.Mutex("m").With(pawl.LockOptions{MaxHold: time.Second}))
			pass(time.Until(lease.ValidUntil()))
			wantErr(t, lease.Err(), pawl.ErrLost)
			wantErr(t, lease.Unlock(t.Context()), pawl.ErrLost)
		})
	}
}

// TestAllEndAtOnce: when the session is lost, every lease ends before the observer hears of the
// first. A slow observer delays no lease.
func TestAllEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leases pawl.Leases
		told := 0
		c, store := newFaultyClient(t, memengine.New(), &pawl.Options{Observe: func(_ context.Context, e pawl.Event) {
			if e.Kind != pawl.EventLost {
				return
			}
			told++
			for _, l := range leases {
				if l.Context().Err() == nil || l.Err() == nil {
					t.Errorf("%q goes on when the observer is told of %q", l.Name(), e.Name)
				}
			}
		}})
		for _, name := range []string{"a", "b", "c"} {
			leases = append(leases, mustLock(t, t.Context(), c.Mutex(name)))
		}
		store.set(fails, verbRenew)
		pass(time.Minute)
		synctest.Wait()
		if told != len(leases) {
			t.Errorf("told of %d", told)
		}
	})
}

// TestErrDuringUnlock: Err is right also while a release hangs, when the heartbeat no longer renews
// the lease.
func TestErrDuringUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, verbRenew)
		release, done := make(chan struct{}), make(chan error)
		store.set(func(context.Context, func(context.Context) error) error { <-release; return errTrouble }, verbLeave)
		go func() { done <- lease.Unlock(t.Context()) }()
		pass(14 * time.Second)
		if err := lease.Err(); !errors.Is(err, pawl.ErrLost) {
			t.Errorf("after the trust window: %v", err)
		}
		close(release)
		wantErr(t, <-done, pawl.ErrLost)
		wantErr(t, lease.Err(), pawl.ErrLost)
	})
}

// TestMaxHold: the holder learns first and has the margin to stop; then the store learns. The
// session goes on.
func TestMaxHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		start := time.Now()
		other := mustLock(t, t.Context(), a.Mutex("other"))
		lease := mustLock(t, t.Context(), a.Mutex("m").With(pawl.LockOptions{MaxHold: time.Hour}))
		if want := start.Add(time.Hour - time.Second); time.Until(lease.ValidUntil()) > 15*time.Second {
			t.Errorf("valid until %v, not at most %v", lease.ValidUntil(), want)
		}
		done := lockSoon(t.Context(), b.Mutex("m"))
		<-lease.Context().Done()
		wantErr(t, context.Cause(lease.Context()), pawl.ErrLost)
		if held := time.Since(start); held != time.Hour-time.Second {
			t.Errorf("told after %v", held)
		}
		got := <-done
		if held := got.at.Sub(start); got.err != nil || held != time.Hour {
			t.Errorf("the next got it after %v, %v", held, got.err)
		}
		wantErr(t, lease.Unlock(t.Context()), pawl.ErrLost)
		mustUnlock(t, got.lease)
		mustUnlock(t, other)

		short := mustLock(t, t.Context(), a.Mutex("m").With(pawl.LockOptions{MaxHold: 100 * time.Millisecond}))
		if left := time.Until(short.ValidUntil()); left != 90*time.Millisecond {
			t.Errorf("valid for %v", left)
		}
		mustUnlock(t, short)
		pass(time.Minute)
		wantErr(t, short.Err(), pawl.ErrClosed) // the bound has gone with the lease
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		m := c.Mutex("m")
		mine := errors.New("mine")

		err := m.Do(t.Context(), func(ctx context.Context) error {
			_, err := m.TryLock(t.Context())
			wantErr(t, err, pawl.ErrNotAcquired)
			return mine
		})
		wantErr(t, err, mine)
		wantFree(t, eng, "m")

		func() {
			defer func() {
				if recover() != mine {
					t.Error("the panic is another")
				}
			}()
			m.Do(t.Context(), func(context.Context) error { panic(mine) }) //nolint:errcheck // it does not return
		}()
		wantFree(t, eng, "m")

		ctx, cancel := context.WithCancel(t.Context())
		err = m.Do(ctx, func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() })
		wantErr(t, err, context.Canceled)
		if errors.Is(err, pawl.ErrLost) || errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("%v: it was held", err)
		}
		wantFree(t, eng, "m")
		wantErr(t, m.Do(ctx, func(context.Context) error { t.Error("it runs"); return nil }), pawl.ErrNotAcquired, context.Canceled)
	})
}

// TestDoLost: fn learns that the lock is lost, Do waits for fn, and both errors come back.
func TestDoLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, store := newFaultyClient(t, eng, nil)
		b := newClient(t, eng, nil)
		store.set(hangs, verbRenew, verbLeave, verbClose)
		mine := errors.New("mine")
		var next outcome
		err := a.Mutex("m").Do(t.Context(), func(ctx context.Context) error {
			ended := endOf(ctx)
			next = <-lockSoon(t.Context(), b.Mutex("m"))
			if end := <-ended; !end.Before(next.at) {
				t.Errorf("the context ended at %v, the lock went to another at %v", end, next.at)
			}
			wantErr(t, context.Cause(ctx), pawl.ErrLost)
			pass(time.Hour) // Do waits for fn
			return mine
		})
		wantErr(t, err, mine, pawl.ErrLost)
		if took := time.Since(next.at); took != time.Hour {
			t.Errorf("Do returned %v after the loss", took)
		}
		mustUnlock(t, next.lease)
	})
}

// TestTokenInContext: the context of a hold carries its token, which the guards read.
func TestTokenInContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		if token, ok := fence.FromContext(lease.Context(), "m"); !ok || token != lease.Token() {
			t.Errorf("token %v, %v, want %v", token, ok, lease.Token())
		}
		mustUnlock(t, lease)
		noErr(t, c.Mutex("m").Do(t.Context(), func(ctx context.Context) error {
			if token, ok := fence.FromContext(ctx, "m"); !ok || token <= lease.Token() {
				t.Errorf("token %v, %v, after %v", token, ok, lease.Token())
			}
			return nil
		}))
	})
}
