package pawl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestStrayRequest: a request that the client gave up may still arrive after the claim was left.
// That claim must not hold for as long as the session lives.
func TestStrayRequest(t *testing.T) {
	for name, use := range map[string]func(*testing.T, pawl.Locker){
		"asked again": func(t *testing.T, l pawl.Locker) { mustUnlock(t, mustLock(t, t.Context(), l)) },
		"given up": func(t *testing.T, l pawl.Locker) {
			_, err := l.TryLock(t.Context())
			wantErr(t, err, pawl.ErrUnavailable)
		},
		"held for long": func(t *testing.T, l pawl.Locker) {
			lease := mustLock(t, t.Context(), l)
			pass(time.Minute)
			mustUnlock(t, lease)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				kept := mustLock(t, t.Context(), c.Mutex("kept")) // so does the session
				store.set(first(1, strays(7*time.Second), nil), verbEnter)
				use(t, c.Mutex("m"))
				pass(7*time.Second + 5*time.Second + time.Millisecond)
				wantFree(t, eng, "m")
				pass(time.Minute)
				calls := len(store.called(verbLeave))
				pass(time.Hour)
				if n := len(store.called(verbLeave)); n != calls {
					t.Errorf("left %d times more", n-calls)
				}
				mustUnlock(t, kept)
			})
		})
	}
}

// TestStrayRequestRefused: the same holds for a claim that was refused on the second request, or
// taken away: nobody else leaves it.
func TestStrayRequestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		stray int // number of the request
		use   func(*testing.T, *pawl.Client, *memengine.Engine)
	}{
		"busy": {3, func(t *testing.T, c *pawl.Client, _ *memengine.Engine) {
			rw := c.RWMutex("m")
			one, two := mustLock(t, t.Context(), rw.RLocker()), mustLock(t, t.Context(), rw.RLocker())
			_, err := rw.Lock(one.Context())
			wantErr(t, err, pawl.ErrNotAcquired)
			mustUnlock(t, two)
			pass(8 * time.Second) // the only reader is let write
			mustUnlock(t, one)
		}},
		"mismatch": {2, func(t *testing.T, c *pawl.Client, _ *memengine.Engine) {
			held := mustLock(t, t.Context(), c.Semaphore("m", 3))
			_, err := c.Mutex("m").Lock(t.Context())
			wantErr(t, err, pawl.ErrMismatch)
			mustUnlock(t, held)
			pass(8 * time.Second)
		}},
		"broken": {1, func(t *testing.T, c *pawl.Client, eng *memengine.Engine) {
			lease := mustLock(t, t.Context(), c.Mutex("m"))
			breakLock(t, eng, "m")
			<-lease.Context().Done()
			wantErr(t, lease.Unlock(t.Context()), pawl.ErrLost)
			pass(8 * time.Second)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				store.set(first(tc.stray-1, nil, first(1, strays(7*time.Second), nil)), verbEnter)
				tc.use(t, c, eng)
				pass(5 * time.Second)
				wantFree(t, eng, "m")
			})
		})
	}
}
