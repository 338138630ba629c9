package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestReentry: locking with the context of Do or of a lease re-enters before all waiters, on both
// sides of a name. The token is shared.
func TestReentry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		m, rw := c.Mutex("m"), c.RWMutex("m")
		outer := mustLock(t, t.Context(), m)
		waiter := lockSoon(t.Context(), m)
		synctest.Wait()

		ctx := outer.Context()
		inner, reader := mustLock(t, ctx, rw), mustLock(t, ctx, rw.RLocker())
		err := m.Do(ctx, func(ctx context.Context) error {
			return m.Do(ctx, func(ctx context.Context) error {
				deep := mustLock(t, ctx, m)
				defer mustUnlock(t, deep)
				for _, l := range []*pawl.Lease{inner, reader, deep} {
					if l.Token() != outer.Token() || l.Owner() != outer.Owner() {
						t.Errorf("token %v of %s, not %v of %s", l.Token(), l.Owner(), outer.Token(), outer.Owner())
					}
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, outer) // the inner leases still hold
		mustUnlock(t, reader)
		if n := waitersOf(t, eng, "m"); n != 1 {
			t.Errorf("%d wait", n)
		}
		mustUnlock(t, inner)
		got := <-waiter
		if got.err != nil || got.lease.Token() <= outer.Token() {
			t.Fatal(got.err)
		}
		mustUnlock(t, got.lease)

		// Do makes an owner where the context has none.
		err = m.Do(t.Context(), func(ctx context.Context) error {
			return rw.RLocker().Do(ctx, func(context.Context) error { return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestReentryOfTheLost: the store checks the owner. An owner whose lock was lost waits like any
// other.
func TestReentryOfTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		lost := mustLock(t, t.Context(), a.Mutex("m"))
		ctx := pawl.WithOwner(t.Context(), lost.Owner())
		breakLock(t, eng, "m")
		next := mustLock(t, t.Context(), b.Mutex("m"))
		_, err := a.Mutex("m").TryLock(ctx)
		wantErr(t, err, pawl.ErrNotAcquired)
		_, err = a.Mutex("m").Lock(lost.Context()) // the lease has ended
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrLost)
		mustUnlock(t, next)
	})
}

// TestOwnerAcrossClients: an owner may be several processes. The owner's lock lives as long as one of them
// holds.
func TestOwnerAcrossClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b, c := newClient(t, eng, nil), newClient(t, eng, nil), newClient(t, eng, nil)
		ctx := pawl.WithOwner(t.Context(), pawl.NewOwner())
		first, second := mustLock(t, ctx, a.Mutex("m")), mustLock(t, ctx, b.Mutex("m"))
		if first.Token() != second.Token() || first.Owner() != second.Owner() {
			t.Errorf("tokens %v and %v", first.Token(), second.Token())
		}
		waiter := lockSoon(t.Context(), c.Mutex("m"))
		pass(time.Minute)
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := waitersOf(t, eng, "m"); n != 1 {
			t.Errorf("%d wait", n)
		}
		mustUnlock(t, second)
		got := <-waiter
		if got.err != nil {
			t.Fatal(got.err)
		}
		mustUnlock(t, got.lease)
	})
}

// TestNoReentryByDefault: two locks of one client exclude each other.
func TestNoReentryByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		_, err := c.Mutex("m").TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		mustUnlock(t, lease)
		if pawl.NewOwner() == pawl.NewOwner() {
			t.Error("two owners are one")
		}
	})
}
