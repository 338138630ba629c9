package pawl_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestMaxHoldPassesDuringUnlock: the holder has given up the lock before the maximum of its hold. The release is no loss.
func TestMaxHoldPassesDuringUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		var r recorder
		c, store := newFaultyClient(t, eng, &pawl.Options{Observe: r.observe})
		lease := mustLock(t, t.Context(), c.Mutex("m").With(pawl.LockOptions{MaxHold: 10 * time.Second}))
		store.set(repliesLate(3*time.Second), verbLeave)
		pass(8 * time.Second)
		time.AfterFunc(2*time.Second, func() {
			if err := lease.Err(); !errors.Is(err, pawl.ErrClosed) {
				t.Errorf("error during Unlock: %v", err)
			}
		})
		mustUnlock(t, lease)
		mustUnlock(t, lease)
		r.wantKinds(t, "attempt", "granted", "released")
		wantFree(t, eng, "m")
	})
}
