package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
)

// TestLockAllOrder: names decide the order, whatever the given order. So many callers that want
// some of the same locks all get them.
func TestLockAllOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		names := []string{"a", "b", "c", "d"}
		var done sync.WaitGroup
		for i := range 4 {
			c := newClient(t, eng, nil)
			random := rand.New(rand.NewPCG(uint64(i), 0))
			done.Go(func() {
				for range 100 {
					var locks []pawl.Locker
					for _, j := range random.Perm(len(names))[:2+random.IntN(3)] {
						locks = append(locks, c.Mutex(names[j]))
					}
					held, err := pawl.LockAll(t.Context(), locks...)
					if err != nil {
						t.Error(err)
						return
					}
					for k := range held[1:] {
						if held[k].Name() >= held[k+1].Name() {
							t.Errorf("%s before %s", held[k].Name(), held[k+1].Name())
						}
					}
					pass(time.Duration(random.Int64N(int64(time.Second))))
					if err := held.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		done.Wait()
		for _, name := range names {
			wantFree(t, eng, name)
		}
	})
}

// TestLockAllOrNone: when one lock cannot be had, the others are released. Trouble with the
// releases is reported too.
func TestLockAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, store := newFaultyClient(t, eng, nil)
		b := newClient(t, eng, nil)
		held := mustLock(t, t.Context(), b.Mutex("b"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		leases, err := pawl.LockAll(ctx, a.Mutex("c"), a.Mutex("b"), a.Mutex("a"))
		wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		if len(leases) != 0 {
			t.Errorf("%d leases", len(leases))
		}
		wantFree(t, eng, "a")
		wantFree(t, eng, "c")

		store.set(fails, verbLeave)
		_, err = pawl.LockAll(t.Context(), a.Mutex("a"), a.Semaphore("b", 2))
		wantErr(t, err, pawl.ErrMismatch, pawl.ErrUnavailable)
		store.set(nil, verbLeave)
		pass(6 * time.Second) // past the next heartbeat
		wantFree(t, eng, "a")
		mustUnlock(t, held)
	})
}

func TestLockAllTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, other := newClient(t, eng, nil), newClient(t, memengine.New(), nil)
		m := c.Mutex("m")
		for _, locks := range [][]pawl.Locker{
			{m, c.Mutex("a"), m},
			{m, c.Mutex("m")},
			{m, c.RWMutex("m")},
			{c.Semaphore("s", 2), c.Semaphore("s", 2)},
			{c.Semaphore("s", 3).Weighted(2), c.Semaphore("s", 3)}, // the second would wait for the first
			{m, other.Mutex("m"), m},
			{m, newClient(t, eng, nil).RWMutex("m").RLocker()},
		} {
			_, err := pawl.LockAll(t.Context(), locks...)
			wantErr(t, err, pawl.ErrInvalid)
			_, err = pawl.TryLockAll(t.Context(), locks...)
			wantErr(t, err, pawl.ErrInvalid)
		}
		wantFree(t, eng, "m")
		// Two sides of a name, and one name of two stores, are not the same.
		held, err := pawl.LockAll(t.Context(), c.RWMutex("m").RLocker(), other.Mutex("m"), m)
		if err != nil {
			t.Fatal(err)
		}
		if w, r := held[1], held[2]; w.Owner() != r.Owner() || w.Token() != r.Token() {
			t.Errorf("two sides of a name have tokens %v and %v", w.Token(), r.Token())
		}
		mustUnlock(t, held)

		// Both sides of a name, while a reader is there: the writing side comes first, because the
		// reading side could not be upgraded.
		reader := mustLock(t, t.Context(), c.RWMutex("m").RLocker())
		time.AfterFunc(time.Minute, func() {
			if err := reader.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		if held, err = pawl.LockAll(t.Context(), c.RWMutex("m").RLocker(), m); err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, held)
	})
}

// TestLeases: several leases are valid only as long as the first of them to end.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		held, err := pawl.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"), c.Mutex("c"))
		if err != nil || held.Err() != nil {
			t.Fatal(err, held.Err())
		}
		parent, end := context.WithCancel(t.Context())
		ctx, cancel := held.Context(parent)
		other, cancelOther := held.Context(t.Context())
		end()
		<-ctx.Done()
		cancel()

		breakLock(t, eng, "b")
		<-other.Done()
		cancelOther()
		wantErr(t, context.Cause(other), pawl.ErrLost)
		wantErr(t, held.Err(), pawl.ErrLost)
		wantErr(t, held.Unlock(t.Context()), pawl.ErrLost)
		for _, name := range []string{"a", "b", "c"} { // the others are released all the same
			wantFree(t, eng, name)
		}

		for range 2 {
			none, err := pawl.LockAll(t.Context())
			if err != nil || none.Err() != nil || none.Unlock(t.Context()) != nil {
				t.Error("no locks are a problem")
			}
		}
	})
}

// TestLeasesJoinErrors: the error names every lease that is in trouble.
func TestLeasesJoinErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		var held pawl.Leases
		for i := range 3 {
			held = append(held, mustLock(t, t.Context(), c.Mutex(fmt.Sprint(i))))
			breakLock(t, eng, fmt.Sprint(i))
		}
		err := held.Unlock(t.Context())
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok || len(joined.Unwrap()) != 3 || !errors.Is(err, pawl.ErrLost) {
			t.Errorf("%v", err)
		}
	})
}

// TestLockAllLost: LockAll fails if a lock was lost while the call waited for another.
func TestLockAllLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, other := newClient(t, eng, nil), newClient(t, eng, nil)
		held := mustLock(t, t.Context(), other.Mutex("b"))
		done := make(chan error, 1)
		go func() {
			_, err := pawl.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"))
			done <- err
		}()
		synctest.Wait()
		eng.Expire(show(t, eng, "a").Claims[0].Session)
		pass(time.Minute) // LockAll waits for b with a new session
		mustUnlock(t, held)
		wantErr(t, <-done, pawl.ErrLost)
		wantFree(t, eng, "a")
		wantFree(t, eng, "b")
	})
}

// TestTryLockAll: TryLockAll takes all locks if they are free now, or none.
func TestTryLockAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, other := newClient(t, eng, nil), newClient(t, eng, nil)
		held := mustLock(t, t.Context(), other.Mutex("b"))
		began := time.Now()
		_, err := pawl.TryLockAll(t.Context(), c.Mutex("c"), c.Mutex("b"), c.Mutex("a"))
		wantErr(t, err, pawl.ErrNotAcquired)
		wantFree(t, eng, "a")
		wantFree(t, eng, "c")
		mustUnlock(t, held)
		all, err := pawl.TryLockAll(t.Context(), c.Mutex("c"), c.Mutex("b"), c.RWMutex("b").RLocker())
		if err != nil || len(all) != 3 || time.Since(began) != 0 {
			t.Fatalf("%d, %v after %v", len(all), err, time.Since(began))
		}
		mustUnlock(t, all)
	})
}

// TestLeasesContext: the context re-enters each lock, and carries each token.
func TestLeasesContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		held, err := pawl.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b"))
		noErr(t, err)
		ctx, cancel := held.Context(t.Context())
		defer cancel()
		for _, l := range held {
			again := mustLock(t, ctx, c.Mutex(l.Name()))
			if token, ok := fence.FromContext(ctx, l.Name()); !ok || token != l.Token() || again.Token() != token {
				t.Errorf("tokens %v, %v, %v", token, l.Token(), again.Token())
			}
			mustUnlock(t, again)
		}
		mustUnlock(t, held)
		<-ctx.Done()
	})
}

// TestLockAllKeepsAllOrNone: a lock that cannot be had ends the call. The minimum holds of the other locks have not begun.
func TestLockAllKeepsAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		a, b := c.Mutex("a").With(pawl.LockOptions{MinHold: time.Hour}), c.Mutex("b")
		held := mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("b"))
		_, err := pawl.TryLockAll(t.Context(), a, b)
		wantErr(t, err, pawl.ErrNotAcquired)
		wantFree(t, eng, "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = pawl.LockAll(ctx, a, b)
		wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		wantFree(t, eng, "a")

		mustUnlock(t, held)
		all, err := pawl.TryLockAll(t.Context(), a, b)
		noErr(t, err)
		mustUnlock(t, all)
		_, err = a.TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		pass(time.Hour)
		wantFree(t, eng, "a")
		wantFree(t, eng, "b")
	})
}

// TestLockAllLosesBesideKeep: an operator breaks a lock of LockAll while the minimum hold of another lock begins. LockAll fails, and keeps
// no name.
func TestLockAllLosesBesideKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		operator := newClient(t, eng, nil)
		c, store := newFaultyClient(t, eng, nil)
		mustUnlock(t, mustLock(t, t.Context(), c.Mutex("a"))) // the session is open
		store.set(func(ctx context.Context, do func(context.Context) error) error {
			_, err := operator.Break(ctx, "a", pawl.BreakOptions{})
			noErr(t, err)
			synctest.Wait()
			return do(ctx)
		}, verbOpen)
		_, err := pawl.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b").With(pawl.LockOptions{MinHold: time.Hour}))
		wantErr(t, err, pawl.ErrLost)
		synctest.Wait() // the session of the minimum hold ends
		wantFree(t, eng, "b")
	})
}

// TestKeepAtTheEndOfAContext: the context of LockAll, or of Take, ends while a minimum hold begins. The error is that of Lock.
func TestKeepAtTheEndOfAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		keeps := pawl.LockOptions{MinHold: time.Hour}
		mustUnlock(t, mustLock(t, t.Context(), c.Mutex("m"))) // the session is open
		store.set(hangs, verbOpen)
		for name, call := range map[string]func(context.Context) error{
			"LockAll": func(ctx context.Context) error { _, err := pawl.LockAll(ctx, c.Mutex("m").With(keeps)); return err },
			"Take":    func(ctx context.Context) error { _, err := c.Slots("s", 2).With(keeps).Take(ctx); return err },
		} {
			t.Log(name)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			wantErr(t, call(ctx), pawl.ErrNotAcquired, pawl.ErrUnavailable, context.DeadlineExceeded)
			cancel()
		}
	})
}

// TestLockAllKeepFails: the store does not answer when the minimum hold begins. The call holds nothing.
func TestLockAllKeepFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(fails, verbOpen)
		_, err := pawl.LockAll(t.Context(), c.Mutex("a"), c.Mutex("b").With(pawl.LockOptions{MinHold: time.Hour}))
		wantErr(t, err, pawl.ErrUnavailable)
		wantFree(t, eng, "a")
		wantFree(t, eng, "b")
	})
}
