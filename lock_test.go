package pawl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestWaitEnds: a wait that its context ends says so, holds nothing and leaves nothing.
func TestWaitEnds(t *testing.T) {
	mine := errors.New("mine")
	for _, tc := range []struct {
		name   string
		ctx    func(context.Context) (context.Context, context.CancelFunc)
		always []error
	}{
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Minute)
		}, []error{context.DeadlineExceeded}},
		{"deadline with a cause", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Minute, mine)
		}, []error{context.DeadlineExceeded, mine}},
		{"cancelled", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Minute, cancel)
			return ctx, cancel
		}, []error{context.Canceled}},
		{"cancelled before", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, []error{context.Canceled}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				a := newClient(t, eng, nil)
				b, store := newFaultyClient(t, eng, nil)
				store.set(hangs, verbAwait) // as any wait does until its context ends
				held := mustLock(t, t.Context(), a.Mutex("m"))
				ctx, cancel := tc.ctx(t.Context())
				defer cancel()
				start := time.Now()
				_, err := b.Mutex("m").Lock(ctx)
				wantErr(t, err, append(tc.always, pawl.ErrNotAcquired)...)
				if errors.Is(err, pawl.ErrUnavailable) {
					t.Errorf("%v: the store was well", err)
				}
				if took := time.Since(start); took != time.Minute && tc.name != "cancelled before" {
					t.Errorf("it took %v", took)
				}
				if n := waitersOf(t, eng, "m"); n != 0 {
					t.Errorf("%d claims still wait", n)
				}
				mustUnlock(t, held)
				wantFree(t, eng, "m")
			})
		})
	}
}

// TestGrantOnItsWay: a waiter that gave up while the grant was on its way gives the lock back at
// once. The next waiter gets it.
func TestGrantOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, c := newClient(t, eng, nil), newClient(t, eng, nil)
		b, store := newFaultyClient(t, eng, nil)
		store.set(repliesLate(2*time.Second), verbAwait)
		held := mustLock(t, t.Context(), a.Mutex("m"))
		ctx, cancel := context.WithCancel(t.Context())
		quitter := lockSoon(ctx, b.Mutex("m"))
		synctest.Wait()
		next := lockSoon(t.Context(), c.Mutex("m"))
		synctest.Wait()

		mustUnlock(t, held) // b has the lock now and does not know
		pass(time.Second)
		cancel()
		gaveUp := <-quitter
		wantErr(t, gaveUp.err, pawl.ErrNotAcquired, context.Canceled)
		got := <-next
		if got.err != nil || !got.at.Equal(gaveUp.at) {
			t.Fatalf("the next got it %v after, %v", got.at.Sub(gaveUp.at), got.err)
		}
		mustUnlock(t, got.lease)
		wantFree(t, eng, "m")
	})
}

// TestGiveUpWhileTheStoreHangs: a waiter that gives up returns at once, and the heartbeat withdraws
// the claim.
func TestGiveUpWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a := newClient(t, eng, nil)
		b, store := newFaultyClient(t, eng, nil)
		held := mustLock(t, t.Context(), a.Mutex("m"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		done := lockSoon(ctx, b.Mutex("m"))
		synctest.Wait()
		store.set(hangs, verbLeave)
		got := <-done
		wantErr(t, got.err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		if took := got.at.Sub(start); took > time.Minute+time.Second {
			t.Errorf("it returned after %v", took)
		}
		store.set(nil, verbLeave)
		pass(15 * time.Second)
		if n := waitersOf(t, eng, "m"); n != 0 {
			t.Errorf("%d claims still wait", n)
		}
		mustUnlock(t, held)
	})
}

// TestHoldOutlivesItsContext: the context of Lock bounds the waiting only.
func TestHoldOutlivesItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		c := newClient(t, memengine.New(), nil)
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Second)
		lease := mustLock(t, ctx, c.Mutex("m"))
		cancel()
		pass(24 * time.Hour)
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		hold := lease.Context()
		if _, bounded := hold.Deadline(); bounded || hold.Err() != nil || hold.Value(key{}) != "value" {
			t.Errorf("the context of the hold: %v", hold)
		}
		mustUnlock(t, lease)
		wantErr(t, context.Cause(hold), pawl.ErrClosed)
	})
}

// TestLostReply: the client repeats a request whose reply was lost, and the request counts once.
func TestLostReply(t *testing.T) {
	for name, contended := range map[string]bool{"free": false, "contended": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				a := newClient(t, eng, nil)
				b, store := newFaultyClient(t, eng, nil)
				if contended {
					held := mustLock(t, t.Context(), a.Mutex("m"))
					time.AfterFunc(time.Minute, func() {
						if err := held.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
				store.set(first(3, losesReply, nil), verbEnter)
				lease := mustLock(t, t.Context(), b.Mutex("m"))
				if n := len(show(t, eng, "m").Claims); n != 1 {
					t.Errorf("%d claims", n)
				}
				if n := len(store.called(verbEnter)); n != 4 {
					t.Errorf("asked %d times", n)
				}
				mustUnlock(t, lease)
				wantFree(t, eng, "m")
			})
		})
	}
}

func TestTryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a := newClient(t, eng, nil)
		b, store := newFaultyClient(t, eng, nil)
		held := mustLock(t, t.Context(), a.Mutex("m"))
		_, err := b.Mutex("m").TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		if n := len(show(t, eng, "m").Claims); n != 1 {
			t.Errorf("%d claims", n)
		}
		mustUnlock(t, held)

		store.set(losesReply, verbEnter)
		_, err = b.Mutex("m").TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		if errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("%v: it never means that the lock is taken", err)
		}
		if n := len(store.called(verbEnter)); n != 2 {
			t.Errorf("asked %d times", n)
		}
		wantFree(t, eng, "m") // the client gives back a claim that it may have got
		store.set(nil, verbEnter)
		lease, err := b.Mutex("m").TryLock(t.Context())
		if err != nil || lease.Token() <= held.Token() {
			t.Fatalf("token %v after %v, %v", lease.Token(), held.Token(), err)
		}
		mustUnlock(t, lease)
	})
}

// TestTryLockUnavailable: TryLock does not wait for the store either.
func TestTryLockUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(fails, verbOpen, verbRenew)
		<-lease.Context().Done()
		start := time.Now()
		_, err := c.Mutex("m").TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// TestLockThroughTrouble: trouble with the store that passes is not an error.
func TestLockThroughTrouble(t *testing.T) {
	for name, f := range map[string]fault{"fail": fails, "hang": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, store := newFaultyClient(t, memengine.New(), nil)
				all := []string{verbOpen, verbEnter, verbAwait, verbLeave, verbRenew}
				store.set(f, all...)
				time.AfterFunc(10*time.Second, func() { store.set(nil, all...) })
				mustUnlock(t, mustLock(t, t.Context(), c.Mutex("m")))
			})
		})
	}
}

// TestLockUnavailable: a store that does not answer for long is an error. That error does not say
// that the lock is taken.
func TestLockUnavailable(t *testing.T) {
	for name, f := range map[string]fault{"fail": fails, "hang": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, store := newFaultyClient(t, memengine.New(), nil)
				store.set(f, verbOpen, verbEnter, verbAwait, verbLeave, verbRenew)
				start := time.Now()
				_, err := c.Mutex("m").Lock(context.Background())
				wantErr(t, err, pawl.ErrUnavailable)
				if errors.Is(err, pawl.ErrNotAcquired) {
					t.Errorf("%v: it never means that the lock is taken", err)
				}
				if took := time.Since(start); took > 3*15*time.Second {
					t.Errorf("it took %v", took)
				}

				// A wait that its context ends meanwhile matches both errors.
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_, err = c.Mutex("m").Lock(ctx)
				wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded, pawl.ErrUnavailable)
			})
		})
	}
}

// TestWaitInTrouble: a wait that its context ends says why the store does not answer, although only
// heartbeats ask the store. A store that is well is not in the error.
func TestWaitInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
		wait := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
			defer cancel()
			_, err := c.Mutex("m").Lock(ctx)
			wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded)
			return err
		}
		if err := wait(); errors.Is(err, pawl.ErrUnavailable) {
			t.Errorf("the store is well: %v", err)
		}
		store.set(fails, verbRenew)
		wantErr(t, wait(), pawl.ErrUnavailable, errTrouble)
	})
}

// TestManyUnavailable: the error comes in the same time when many callers ask.
func TestManyUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, verbOpen, verbEnter, verbAwait, verbLeave, verbRenew)
		<-lease.Context().Done()
		start := time.Now()
		var waits []<-chan outcome
		for range 20 {
			waits = append(waits, lockSoon(context.Background(), c.Mutex("m")))
		}
		_, err := c.Mutex("m").TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		for _, w := range waits {
			got := <-w
			wantErr(t, got.err, pawl.ErrUnavailable)
		}
		if took := time.Since(start); took > 3*15*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestLockUnanswered: the same holds if the session lives and only this request is not answered.
// The time without an answer counts, not the time of the wait.
func TestLockUnanswered(t *testing.T) {
	for name, f := range map[string]fault{"fail": fails, "hang": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, store := newFaultyClient(t, memengine.New(), nil)
				store.set(f, verbEnter)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				_, err := c.Mutex("m").Lock(ctx)
				wantErr(t, err, pawl.ErrUnavailable)
				if ctx.Err() != nil || errors.Is(err, pawl.ErrNotAcquired) {
					t.Errorf("%v: not before its context ended", err)
				}

				store.set(nil, verbEnter)
				held := mustLock(t, t.Context(), c.Mutex("m"))
				store.set(func(context.Context, func(context.Context) error) error {
					pass(time.Hour)
					store.set(f, verbEnter)
					time.AfterFunc(8*time.Second, func() { store.set(nil, verbEnter, verbAwait) })
					return engine.Unavailable("await", errTrouble)
				}, verbAwait)
				waits := lockSoon(context.Background(), c.Mutex("m"))
				pass(time.Hour + time.Minute)
				mustUnlock(t, held)
				got := <-waits
				noErr(t, got.err)
				mustUnlock(t, got.lease)
			})
		})
	}
}

// TestWaiterLosesItsSession: the waiter enters again with a new session.
func TestWaiterLosesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		held := mustLock(t, t.Context(), a.Mutex("m"))
		done := lockSoon(t.Context(), b.Mutex("m"))
		for range 3 {
			pass(time.Minute)
			waiter := show(t, eng, "m").Claims[1]
			eng.Expire(waiter.Session)
			pass(time.Minute)
			if after := show(t, eng, "m").Claims; len(after) != 2 || after[1].Session == waiter.Session {
				t.Fatalf("claims %+v", after)
			}
		}
		mustUnlock(t, held)
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		mustUnlock(t, got.lease)
		wantFree(t, eng, "m")
	})
}

// TestWaiterEvicted: an operator who evicts a waiting claim ends the wait.
func TestWaiterEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		held := mustLock(t, t.Context(), a.Mutex("m"))
		done := lockSoon(t.Context(), b.Mutex("m"))
		pass(time.Minute)
		breakLock(t, eng, "m")
		got := <-done
		wantErr(t, got.err, pawl.ErrNotAcquired)
		wantErr(t, held.Unlock(t.Context()), pawl.ErrLost)
	})
}

// TestUnbelievableGrant: a grant whose reply came too late is not trusted. The client asks again.
func TestUnbelievableGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(hangs, verbRenew)
		store.set(first(1, repliesLate(14*time.Second), nil), verbEnter)
		time.AfterFunc(10*time.Second, func() { store.set(nil, verbRenew) })
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		if left := time.Until(lease.ValidUntil()); left < time.Second {
			t.Errorf("valid for %v", left)
		}
		mustUnlock(t, lease)
	})
}

// TestBarging: a client that comes while the lock is free gets it although another waits.
func TestBarging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a := newClient(t, eng, nil)
		b, store := newFaultyClient(t, eng, nil)
		store.set(repliesLate(time.Second), verbAwait)
		unfair := pawl.LockOptions{Barging: true}
		held := mustLock(t, t.Context(), a.Mutex("m").With(unfair))
		waiter := lockSoon(t.Context(), b.Mutex("m").With(unfair))
		synctest.Wait()
		_, err := b.Mutex("m").Lock(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
		mustUnlock(t, held)
		lease, err := a.Mutex("m").With(unfair).TryLock(t.Context())
		if err == nil {
			mustUnlock(t, lease)
		}
		got := <-waiter // the waiter may have been faster
		if got.err != nil {
			t.Fatal(got.err)
		}
		mustUnlock(t, got.lease)
	})
}

func TestMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		held := mustLock(t, t.Context(), c.Semaphore("s", 3))
		for _, l := range []pawl.Locker{c.Mutex("s"), c.RWMutex("s").RLocker(), c.Semaphore("s", 4), c.Semaphore("s", 3).With(pawl.LockOptions{Barging: true})} {
			_, err := l.Lock(t.Context())
			wantErr(t, err, pawl.ErrMismatch)
			_, err = l.TryLock(t.Context())
			wantErr(t, err, pawl.ErrMismatch)
			wantErr(t, l.Do(t.Context(), func(context.Context) error { t.Error("it runs"); return nil }), pawl.ErrMismatch)
		}
		mustUnlock(t, held)
		mustUnlock(t, mustLock(t, t.Context(), c.Mutex("s"))) // free for another use
	})
}

// lacking is the memory engine without some features.
type lacking struct{ engine.Engine }

func (l lacking) Caps() engine.Caps {
	caps := l.Engine.Caps()
	caps.Lacks = map[engine.Feature]string{engine.FeatureShared: "one vote a node", engine.FeatureSemaphore: "two of three"}
	return caps
}

// TestUnsupported: a feature that the store lacks is refused with the reason, before any request.
func TestUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, lacking{memengine.New()}, nil)
		_, err := c.RWMutex("rw").RLock(t.Context())
		wantErr(t, err, pawl.ErrUnsupported)
		if !strings.Contains(err.Error(), "one vote a node") {
			t.Errorf("%v: without the reason", err)
		}
		_, err = c.Semaphore("s", 2).TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnsupported)
		if asked := len(store.called(verbEnter)); asked != 0 {
			t.Errorf("the store was asked %d times", asked)
		}
		mustUnlock(t, mustLock(t, t.Context(), c.RWMutex("rw")))
	})
}

// TestUnavailableBesideAnOpening: a call that waits for the session that another call opens has heard nothing of the store either.
func TestUnavailableBesideAnOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, verbOpen, verbEnter, verbAwait, verbLeave, verbRenew)
		<-lease.Context().Done()
		opens := lockSoon(context.Background(), c.Mutex("m"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := c.Mutex("m").Lock(ctx)
		wantErr(t, err, pawl.ErrUnavailable)
		wantErr(t, err, context.DeadlineExceeded)
		wantErr(t, (<-opens).err, pawl.ErrUnavailable)
	})
}
