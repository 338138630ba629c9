package pawl_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// elsewhere is a store that does not sleep when this machine does.
type elsewhere struct{ *memengine.Engine }

func (e elsewhere) Caps() engine.Caps {
	caps := e.Engine.Caps()
	caps.Processes = engine.ReachNetwork
	return caps
}

// machine is a machine that a test can put to sleep. Fake time stands still then, as the monotonic
// clock does, and the boot clock does not.
type machine struct{ slept atomic.Int64 }

func newMachine(t *testing.T) *machine {
	m := &machine{}
	start := time.Now()
	t.Cleanup(pawl.SetBootTime(func() time.Duration {
		return 42*time.Hour + time.Since(start) + time.Duration(m.slept.Load())
	}))
	return m
}

func (m *machine) sleep(d time.Duration) { m.slept.Add(int64(d)) }

// TestSleep: the machine slept for longer than the trust window. Then the lease is not trusted,
// although no timer fired, and the context ends without a renewal.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		c, store := newFaultyClient(t, elsewhere{memengine.New()}, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		pass(time.Minute + time.Second) // renewed one second ago
		renewals := len(store.called(verbRenew))

		m.sleep(5 * time.Second)
		if err := lease.Err(); err != nil {
			t.Fatalf("after a short sleep: %v", err)
		}
		if left := time.Until(lease.ValidUntil()); left != 8*time.Second {
			t.Errorf("valid for %v", left)
		}
		m.sleep(8 * time.Second)
		wantErr(t, lease.Err(), pawl.ErrLost)
		wantErr(t, context.Cause(lease.Context()), pawl.ErrLost)
		if n := len(store.called(verbRenew)); n != renewals {
			t.Errorf("%d renewals more", n-renewals)
		}
	})
}

// TestSlowClock: when the timer of the trust window is set, the process stands still between its reads of
// the two clocks. The timer fires too early then. The context ends all the same, at the end of the window.
func TestSlowClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const still = 3 * time.Second
		start, reads := time.Now(), atomic.Int64{}
		t.Cleanup(pawl.SetBootTime(func() time.Duration {
			is := time.Since(start)
			if reads.Add(1) == 3 { // after the start of the session, and that of the request
				is += still
			}
			return is
		}))
		c, store := newFaultyClient(t, elsewhere{memengine.New()}, nil)
		release := make(chan struct{})
		t.Cleanup(func() { close(release) })
		store.set(func(context.Context, func(context.Context) error) error { <-release; return errTrouble }, verbRenew)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		window := time.Until(lease.ValidUntil())
		select {
		case <-lease.Context().Done():
		case <-time.After(time.Minute):
		}
		if took := time.Since(start); took != window {
			t.Errorf("the context ended after %v; the window was %v", took, window)
		}
	})
}

// TestSleepUnwatched: a holder that only watches the context learns of the loss with the next
// heartbeat at the latest. That heartbeat does not revive the session.
func TestSleepUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		c, store := newFaultyClient(t, elsewhere{memengine.New()}, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		m.sleep(time.Hour)
		start := time.Now()
		<-lease.Context().Done()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("told %v after it woke", took)
		}
		if n := len(store.called(verbRenew)); n != 0 {
			t.Errorf("%d renewals", n)
		}
	})
}

// TestSleepWhileLocking: a grant from before the sleep of the machine is not trusted after it.
func TestSleepWhileLocking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		c, store := newFaultyClient(t, elsewhere{memengine.New()}, nil)
		store.set(first(1, func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			m.sleep(time.Hour)
			return err
		}, nil), verbEnter)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		if n := len(store.called(verbEnter)); n != 2 {
			t.Errorf("asked %d times", n)
		}
		if n := len(store.called(verbOpen)); n != 2 {
			t.Errorf("opened %d sessions", n)
		}
		mustUnlock(t, lease)
	})
}

// TestStoreSleepsToo: a store inside the process stands still with it.
func TestStoreSleepsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		c := newClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		m.sleep(time.Hour)
		mustUnlock(t, lease)
	})
}

// TestBootTime: the system's clock counts at least as much time as the monotonic clock, or the
// system has no such clock.
func TestBootTime(t *testing.T) {
	start, boot := time.Now(), pawl.BootTime()
	timer := time.NewTimer(10 * time.Millisecond)
	<-timer.C
	passed, after := time.Since(start), pawl.BootTime()
	if boot == 0 && after == 0 {
		return // this system has none
	}
	if late := after - boot - passed; late < -time.Millisecond || late > time.Second {
		t.Errorf("%v by the boot clock, %v by the monotonic one", after-boot, passed)
	}
}

// TestSleepAtUnlock: the machine sleeps during a release that does not arrive, and the store ends the session. The next try finds the
// claim gone: the lock was lost, not released.
func TestSleepAtUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		c, store := newFaultyClient(t, elsewhere{memengine.New()}, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		sleeps := func(context.Context, func(context.Context) error) error {
			m.sleep(time.Hour)
			return engine.Unavailable("leave", errTrouble)
		}
		gone := func(context.Context, func(context.Context) error) error { return engine.ErrGone }
		store.set(first(1, sleeps, gone), verbLeave)
		wantErr(t, lease.Unlock(t.Context()), pawl.ErrLost)
	})
}
