package pawl_test

import (
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

func TestSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		one, two := mustLock(t, t.Context(), a.Semaphore("s", 3)), mustLock(t, t.Context(), b.Semaphore("s", 3))
		large := lockSoon(t.Context(), a.Semaphore("s", 3).Weighted(2))
		synctest.Wait()
		_, err := b.Semaphore("s", 3).TryLock(t.Context()) // one permit is free, but not yet for a later client
		wantErr(t, err, pawl.ErrNotAcquired)
		mustUnlock(t, one)
		got := <-large
		if got.err != nil {
			t.Fatal(got.err)
		}
		if err := b.Close(t.Context()); err != nil { // a holder that is gone gives its permits back
			t.Fatal(err)
		}
		wantErr(t, two.Err(), pawl.ErrClosed)
		three := mustLock(t, t.Context(), a.Semaphore("s", 3))
		mustUnlock(t, pawl.Leases{got.lease, three})
		all := mustLock(t, t.Context(), a.Semaphore("s", 3).Weighted(3))
		mustUnlock(t, all)
		wantFree(t, eng, "s")
	})
}

// TestSemaphoreOfAnOwner: the acquisitions of an owner share their permits and weigh as the
// heaviest of them.
func TestSemaphoreOfAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		s := c.Semaphore("s", 3)
		ctx := pawl.WithOwner(t.Context(), pawl.NewOwner())
		two, one := mustLock(t, ctx, s.Weighted(2)), mustLock(t, ctx, s)
		if one.Token() != two.Token() {
			t.Errorf("tokens %v and %v", one.Token(), two.Token())
		}
		other := mustLock(t, t.Context(), s)
		_, err := s.Weighted(3).Lock(ctx)
		wantErr(t, err, pawl.ErrNotAcquired)
		mustUnlock(t, two)
		rest := mustLock(t, t.Context(), s)
		mustUnlock(t, pawl.Leases{one, other, rest})
	})
}

// TestFailedTriesAreForgotten: a try that asks for more permits than there are leaves nothing in memory.
func TestFailedTriesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		noErr(t, c.Semaphore("s", 10).Resize(t.Context(), 3))
		for range 100 {
			_, err := c.Semaphore("s", 10).Weighted(5).TryLock(t.Context())
			wantErr(t, err, pawl.ErrInvalid)
		}
		if n := pawl.ClaimsKnown(c); n != 0 {
			t.Errorf("%d claims are known", n)
		}
	})
}
