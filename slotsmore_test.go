package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestTakeBesideClose: Close refuses the first requests of a taker, and the session still gets a permit. Take returns.
func TestTakeBesideClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		pawl.Closing(c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := c.Slots("s", 2).Take(ctx)
		wantErr(t, err, pawl.ErrClosed)
		if took := time.Since(start); took > 0 {
			t.Errorf("took %v", took)
		}
	})
}

// TestSlotKeepsAllOrNone: a permit that gets no number is free again. The minimum hold has not begun.
func TestSlotKeepsAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		s := c.Slots("s", 1).With(pawl.LockOptions{MinHold: time.Hour})
		store.set(fails, verbPut)
		_, err := s.TryTake(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		synctest.Wait()
		wantFree(t, eng, "pawl:slots/s")
		store.set(nil, verbPut)
		store.set(fails, verbOpen)
		_, err = s.Take(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		wantFree(t, eng, "pawl:slots/s")

		store.set(nil, verbOpen)
		slot := take(t, s, 0)
		mustUnlock(t, slot)
		_, err = s.TryTake(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		pass(time.Hour)
		mustUnlock(t, take(t, s, 0))
	})
}

// TestTakeEnds: ctx ends while the store has no answer to the number of a permit. The error is that of a wait.
func TestTakeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		s := c.Slots("s", 1)
		store.set(hangs, verbPut)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Take(ctx)
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrUnavailable, context.DeadlineExceeded)
		synctest.Wait()
		wantFree(t, eng, "pawl:slots/s")

		parent, stop := context.WithCancel(t.Context())
		store.set(during(func() { // the permit is lost, and ctx ends before another try
			breakLock(t, eng, "pawl:slots/s")
			synctest.Wait()
			stop()
		}), verbPut)
		_, err = s.Take(parent)
		wantErr(t, err, pawl.ErrNotAcquired, context.Canceled)
	})
}
