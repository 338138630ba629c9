package pawl_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
)

// atOnce locks from n goroutines with ctx, and returns how many held at the same time.
func atOnce(t *testing.T, ctx context.Context, l pawl.Locker, n int) int64 {
	t.Helper()
	var in, most atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			lease, err := l.Lock(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			now := in.Add(1)
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
			pass(time.Millisecond)
			in.Add(-1)
			mustUnlock(t, lease)
		})
	}
	all.Wait()
	return most.Load()
}

// TestOwnersStayWithTheirNames: under the context of a held lock, other names exclude as ever, and
// permits are counted.
func TestOwnersStayWithTheirNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		exclude := func(under string, ctx context.Context) {
			if n := atOnce(t, ctx, c.Mutex("account/7"), 50); n != 1 {
				t.Errorf("under %s: %d goroutines hold a mutex", under, n)
			}
			if n := atOnce(t, ctx, c.Semaphore("api", 3), 50); n != 3 {
				t.Errorf("under %s: %d goroutines hold 3 permits", under, n)
			}
		}
		noErr(t, c.Mutex("job").Do(t.Context(), func(ctx context.Context) error {
			exclude("Do", ctx)
			return c.Semaphore("api", 3).Do(ctx, func(ctx context.Context) error {
				if n := atOnce(t, ctx, c.Semaphore("api", 3), 10); n != 2 {
					t.Errorf("under Do of a semaphore: %d goroutines hold the other 2 permits", n)
				}
				return nil
			})
		}))
		lease := mustLock(t, t.Context(), c.Mutex("plain"))
		exclude("a lease", lease.Context())
		mustUnlock(t, lease)
		term, err := c.Election("cron").Campaign(t.Context(), nil)
		noErr(t, err)
		exclude("a term", term.Context())
		mustUnlock(t, term)
		all, err := pawl.LockAll(t.Context(), c.Mutex("x"), c.Mutex("y"))
		noErr(t, err)
		ctx, cancel := all.Context(t.Context())
		exclude("LockAll", ctx)
		cancel()
		mustUnlock(t, all)
		noErr(t, c.Mutex("job").Do(t.Context(), func(ctx context.Context) error {
			one, err := pawl.TryLockAll(ctx, c.Mutex("x"), c.Mutex("y"))
			noErr(t, err)
			_, err = pawl.TryLockAll(ctx, c.Mutex("x"), c.Mutex("y"))
			wantErr(t, err, pawl.ErrNotAcquired)
			mustUnlock(t, one)
			return nil
		}))
	})
}

// TestReentryByGoroutines: all goroutines that have the context re-enter its lock before all
// waiters, because they hold through the same lease.
func TestReentryByGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		m := c.Mutex("m")
		var waiter <-chan outcome
		noErr(t, m.Do(t.Context(), func(ctx context.Context) error {
			waiter = lockSoon(t.Context(), m)
			synctest.Wait()
			if n := atOnce(t, ctx, m, 5); n != 5 {
				t.Errorf("%d re-enter", n)
			}
			if n := atOnce(t, ctx, c.RWMutex("m").RLocker(), 5); n != 5 {
				t.Errorf("%d re-enter to read", n)
			}
			return nil
		}))
		got := <-waiter
		noErr(t, got.err)
		mustUnlock(t, got.lease)
	})
}

// TestReentryEndsWithTheLease: a context whose lease was released grants nothing, also if the
// request to enter was under way then.
func TestReentryEndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		m := c.Mutex("m")
		lease := mustLock(t, t.Context(), m)
		ctx := context.WithoutCancel(lease.Context())
		mustUnlock(t, lease)
		if n := atOnce(t, ctx, m, 5); n != 1 {
			t.Errorf("%d hold through a lease that was released", n)
		}

		lease = mustLock(t, t.Context(), m)
		ctx = context.WithoutCancel(lease.Context())
		store.set(first(5, arrivesLate(time.Second), nil), verbEnter)
		time.AfterFunc(time.Second/2, func() { mustUnlock(t, lease) })
		if n := atOnce(t, ctx, m, 5); n != 1 {
			t.Errorf("%d hold through a lease that was released meanwhile", n)
		}
		wantFree(t, eng, "m")

		// The store has taken the lock away, and the client does not know yet.
		lease = mustLock(t, t.Context(), m)
		ctx = context.WithoutCancel(lease.Context())
		store.set(hangs, verbRenew)
		breakLock(t, eng, "m")
		next := mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
		_, err := m.TryLock(ctx)
		wantErr(t, err, pawl.ErrNotAcquired)
		time.AfterFunc(time.Second, func() { mustUnlock(t, next) })
		if n := atOnce(t, ctx, m, 5); n != 1 {
			t.Errorf("%d hold through a lease that was broken", n)
		}
		store.set(nil, verbRenew)
	})
}

// TestTwoClientsOfOneName: a context re-enters in the client of its lease only.
func TestTwoClientsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, same, other := newClient(t, eng, nil), newClient(t, eng, nil), newClient(t, memengine.New(), nil)
		noErr(t, a.Mutex("m").Do(t.Context(), func(ctx context.Context) error {
			_, err := same.Mutex("m").TryLock(ctx)
			wantErr(t, err, pawl.ErrNotAcquired)
			if n := atOnce(t, ctx, other.Mutex("m"), 5); n != 1 {
				t.Errorf("%d hold that name of another store", n)
			}
			return other.Mutex("m").Do(ctx, func(ctx context.Context) error {
				all, err := pawl.TryLockAll(ctx, a.Mutex("m"), other.Mutex("m")) // both sides
				noErr(t, err)
				mustUnlock(t, all)
				return nil
			})
		}))
	})
}

// TestStrongerIsRefused: a reader that locks to write with that context would wait for itself. The
// error says so at once, and names the way out.
func TestStrongerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := newFaultyStore(memengine.New())
		c := newClient(t, eng, nil)
		rw := c.RWMutex("m")
		noErr(t, rw.RLocker().Do(t.Context(), func(ctx context.Context) error {
			asked := len(eng.called(verbEnter))
			for _, lock := range []func(context.Context) (*pawl.Lease, error){rw.Lock, rw.TryLock, c.Mutex("m").Lock} {
				_, err := lock(ctx)
				wantErr(t, err, pawl.ErrNotAcquired)
				if !strings.Contains(err.Error(), "RWMutex.TryUpgrade") {
					t.Error(err)
				}
			}
			if n := len(eng.called(verbEnter)) - asked; n != 0 {
				t.Errorf("the store was asked %d times", n)
			}
			return nil
		}))
		// A writer that also reads may write again, as long as the writing side is held.
		w := mustLock(t, t.Context(), rw)
		r := mustLock(t, w.Context(), rw.RLocker())
		mustUnlock(t, mustLock(t, r.Context(), rw))
		ctx := context.WithoutCancel(r.Context())
		mustUnlock(t, w)
		_, err := rw.Lock(ctx)
		wantErr(t, err, pawl.ErrNotAcquired)
		up, err := rw.TryUpgrade(r.Context(), r)
		noErr(t, err)
		mustUnlock(t, mustLock(t, up.Context(), rw))
		mustUnlock(t, up)
	})
}

// TestStrongerInAnOwnersContext: the refusal holds also where an outer context has an owner, because the reader is not of that owner.
// A reader of the owner asks the store, which does not let it wait either.
func TestStrongerInAnOwnersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rw := newClient(t, memengine.New(), nil).RWMutex("m")
		owned := pawl.WithOwner(t.Context(), "web-1")
		for reads, says := range map[context.Context]string{t.Context(): "RWMutex.TryUpgrade", owned: ""} {
			r := mustLock(t, reads, rw.RLocker())
			other := mustLock(t, t.Context(), rw.RLocker())
			bound, cancel := context.WithTimeout(owned, time.Minute)
			ctx, end := r.Within(bound)
			start := time.Now()
			_, err := rw.Lock(ctx)
			wantErr(t, err, pawl.ErrNotAcquired)
			if waited := time.Since(start); waited != 0 || !strings.Contains(err.Error(), says) {
				t.Errorf("after %v: %v", waited, err)
			}
			end()
			cancel()
			mustUnlock(t, other)
			mustUnlock(t, r)
		}
	})
}

// TestCandidatesAreTwo: an election takes no owner.
func TestCandidatesAreTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		second := func(ctx context.Context, c *pawl.Client, name string) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := c.Election(name).Campaign(ctx, nil)
			wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		}
		ctx := pawl.WithOwner(t.Context(), "web-1")
		term, err := a.Election("e").Campaign(ctx, nil)
		noErr(t, err)
		second(ctx, a, "e")
		second(ctx, b, "e")
		second(term.Context(), a, "e")
		mustUnlock(t, term)
		noErr(t, a.Mutex("boot").Do(t.Context(), func(ctx context.Context) error {
			term, err := a.Election("f").Campaign(ctx, nil)
			noErr(t, err)
			second(ctx, a, "f")
			mustUnlock(t, term)
			return nil
		}))
	})
}

// TestUpdatesOfAnOwnerQueue: an owner does not spoil the queue of updates.
func TestUpdatesOfAnOwnerQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		const n = 500
		ctx := pawl.WithOwner(t.Context(), pawl.NewOwner())
		var calls atomic.Int64
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				_, err := c.Value("v").Update(ctx, func(pawl.Snapshot) ([]byte, error) {
					calls.Add(1)
					pass(time.Millisecond) // a round trip
					return []byte("x"), nil
				})
				if errors.Is(err, pawl.ErrConflict) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if most := int64(6 * n); calls.Load() > most {
			t.Errorf("%d updates took %d tries, more than %d", n, calls.Load(), most)
		}
	})
}

// TestEmptyOwner: nothing re-enters with the empty owner.
func TestEmptyOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		noErr(t, c.Mutex("m").Do(t.Context(), func(ctx context.Context) error {
			_, err := c.Mutex("m").TryLock(pawl.WithOwner(ctx, ""))
			wantErr(t, err, pawl.ErrNotAcquired)
			return nil
		}))
	})
}

// TestWithin: a context within a lease ends with the lease, with its parent, or when it is freed.
// That context carries the values of the parent.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		parent, end := context.WithCancel(mustLock(t, t.Context(), c.Mutex("outer")).Context())
		freed, cancel := lease.Within(parent)
		cancel()
		<-freed.Done()
		noErr(t, parent.Err())
		ended, cancel := lease.Within(parent)
		defer cancel()
		for _, name := range []string{"m", "outer"} {
			mustUnlock(t, mustLock(t, ended, c.Mutex(name)))
			if _, ok := fence.FromContext(ended, name); !ok {
				t.Errorf("no token of %q", name)
			}
		}
		end()
		<-ended.Done()
		lost, cancel := lease.Within(t.Context())
		defer cancel()
		breakLock(t, eng, "m")
		<-lost.Done()
		wantErr(t, context.Cause(lost), pawl.ErrLost)
		late, cancel := lease.Within(t.Context()) // the lease ended before
		defer cancel()
		<-late.Done()
	})
}

// TestReentryBesideAnUpgrade: an outer lease is held, and re-enters, also after another lease of its owner became the writer. The
// re-entry gets the token of that writer.
func TestReentryBesideAnUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		rw := c.RWMutex("m")
		outer := mustLock(t, t.Context(), rw.RLocker())
		inner := mustLock(t, outer.Context(), rw.RLocker())
		w, err := rw.TryUpgrade(t.Context(), inner)
		noErr(t, err)
		again, err := rw.TryRLock(outer.Context())
		noErr(t, err)
		mustUnlock(t, again)
		noErr(t, outer.Keep(t.Context(), time.Second))

		r, err := rw.Downgrade(t.Context(), w)
		noErr(t, err)
		writer := lockSoon(t.Context(), newClient(t, eng, nil).RWMutex("m"))
		synctest.Wait()
		again, err = rw.TryRLock(outer.Context())
		noErr(t, err)
		for _, l := range []*pawl.Lease{again, r, outer} {
			mustUnlock(t, l)
		}
		got := <-writer
		noErr(t, got.err)
		mustUnlock(t, got.lease)
	})
}

// TestReentryBesideALeavingWriter: an owner writes beside its reader, and the release of the writer is on its way. The reader
// is re-entered all the same.
func TestReentryBesideALeavingWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		m, ctx := c.RWMutex("m"), pawl.WithOwner(t.Context(), "o")
		reader, err := m.RLock(ctx)
		noErr(t, err)
		writer, err := m.TryLock(ctx)
		noErr(t, err)
		store.set(arrivesLate(time.Second), verbLeave)
		released := make(chan error, 1)
		go func() { released <- writer.Unlock(context.Background()) }()
		synctest.Wait()
		work, stop := reader.Within(t.Context())
		defer stop()
		again, err := m.TryRLock(work)
		if err != nil {
			t.Fatal(err)
		}
		noErr(t, <-released)
		mustUnlock(t, again)
		mustUnlock(t, reader)
	})
}

// TestReentryBesideAnotherClient: a second client of the owner writes. The reader of the first client is re-entered, and kept.
func TestReentryBesideAnotherClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		m, ctx := c.RWMutex("m"), pawl.WithOwner(t.Context(), "o")
		reader, err := m.RLock(ctx)
		noErr(t, err)
		writer, err := newClient(t, eng, nil).RWMutex("m").TryLock(ctx)
		noErr(t, err)
		work, stop := reader.Within(t.Context())
		defer stop()
		again, err := m.TryRLock(work)
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, again)
		noErr(t, reader.Keep(t.Context(), time.Minute))
		store.set(first(1, fails, nil), verbShow) // a question that fails says nothing of the lease
		more, err := m.RLock(work)
		noErr(t, err)
		mustUnlock(t, more)
		store.set(fails, verbShow)
		err = reader.Keep(t.Context(), time.Minute)
		if wantErr(t, err, pawl.ErrUnavailable); errors.Is(err, pawl.ErrLost) {
			t.Error(err)
		}
		store.Heal()
		for _, lease := range []*pawl.Lease{reader, writer} {
			mustUnlock(t, lease)
		}
		pass(time.Minute)
		wantFree(t, eng, "m")
	})
}
