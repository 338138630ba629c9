package pawl_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

func TestRWMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		rw := c.RWMutex("m")
		r1, r2 := mustLock(t, t.Context(), rw.RLocker()), mustLock(t, t.Context(), rw.RLocker())
		writer := lockSoon(t.Context(), rw)
		synctest.Wait()
		late := lockSoon(t.Context(), rw.RLocker()) // waits for the writer that came before
		synctest.Wait()
		if _, err := rw.TryRLock(t.Context()); err == nil {
			t.Error("a reader overtook a writer")
		}
		mustUnlock(t, r1)
		mustUnlock(t, r2)
		w := <-writer
		if w.err != nil || w.lease.Token() <= r2.Token() {
			t.Fatal(w.err)
		}
		if n := waitersOf(t, eng, "m"); n != 1 {
			t.Errorf("%d wait", n)
		}
		mustUnlock(t, w.lease)
		r := <-late
		if r.err != nil {
			t.Fatal(r.err)
		}
		r3, err := rw.RLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, pawl.Leases{r.lease, r3})
		wantFree(t, eng, "m")
	})
}

// TestDowngrade: a writer that takes the reading side and leaves the writing
// side lets other readers in, and no writer in between.
func TestDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		rw := c.RWMutex("m")
		w := mustLock(t, t.Context(), rw)
		reader := lockSoon(t.Context(), rw.RLocker())
		synctest.Wait()
		writer := lockSoon(t.Context(), rw)
		synctest.Wait()
		mine := mustLock(t, w.Context(), rw.RLocker())
		mustUnlock(t, w)
		other := <-reader
		if other.err != nil || mine.Err() != nil || mine.Token() != w.Token() {
			t.Fatal(other.err, mine.Err(), mine.Token(), w.Token())
		}
		mustUnlock(t, mine)
		mustUnlock(t, other.lease)
		next := <-writer
		if next.err != nil || next.lease.Token() <= other.lease.Token() {
			t.Fatal(next.err)
		}
		mustUnlock(t, next.lease)
	})
}

// TestUpgrade: a lone reader becomes the writer at once, with a larger token. One of several
// readers is refused at once, because they would wait for each other.
func TestUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		rw := c.RWMutex("m")
		r1, r2 := mustLock(t, t.Context(), rw.RLocker()), mustLock(t, t.Context(), rw.RLocker())
		for _, r := range []*pawl.Lease{r1, r2} {
			_, err := rw.Lock(pawl.WithOwner(t.Context(), r.Owner()))
			wantErr(t, err, pawl.ErrNotAcquired)
		}
		mustUnlock(t, r2)
		w := mustLock(t, pawl.WithOwner(t.Context(), r1.Owner()), rw)
		if w.Token() <= r2.Token() {
			t.Errorf("token %v after %v", w.Token(), r2.Token())
		}
		if _, err := rw.TryRLock(t.Context()); err == nil {
			t.Error("a reader beside a writer")
		}
		mustUnlock(t, w)
		mustUnlock(t, r1)
	})
}

// TestRWMutexOptions: options hold for both sides.
func TestRWMutexOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		rw := c.RWMutex("m").With(pawl.LockOptions{Barging: true, Label: "mine"})
		for _, l := range []pawl.Locker{rw, rw.RLocker()} {
			lease := mustLock(t, t.Context(), l)
			if r := show(t, eng, "m"); !r.Barging || r.Claims[0].Label != "mine" || l.Name() != "m" || lease.Name() != "m" {
				t.Errorf("%+v", r)
			}
			mustUnlock(t, lease)
		}
	})
}

// TestTurn: Downgrade and TryUpgrade do with leases as owners do with claims, and leave the lease
// unchanged when they fail.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		rw := c.RWMutex("m")
		w := mustLock(t, t.Context(), rw)
		reader := lockSoon(t.Context(), rw.RLocker())
		synctest.Wait()
		r, err := rw.Downgrade(t.Context(), w)
		if err != nil || r.Token() != w.Token() || r.Err() != nil {
			t.Fatal(err)
		}
		wantErr(t, w.Err(), pawl.ErrClosed)
		other := <-reader
		noErr(t, other.err)
		_, err = rw.TryUpgrade(t.Context(), r)
		wantErr(t, err, pawl.ErrNotAcquired)
		noErr(t, r.Err())
		mustUnlock(t, other.lease)
		again, err := rw.TryUpgrade(t.Context(), r)
		if err != nil || again.Token() <= r.Token() {
			t.Fatal(err)
		}
		_, err = rw.TryRLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		_, err = rw.TryUpgrade(t.Context(), r) // r was released
		wantErr(t, err, pawl.ErrClosed)
		for name, bad := range map[string]*pawl.Lease{
			"the same side": again, "another name": mustLock(t, t.Context(), c.RWMutex("other").RLocker()),
			"another client": mustLock(t, t.Context(), newClient(t, eng, nil).RWMutex("third").RLocker()),
			"a lock alone":   mustLock(t, t.Context(), c.Mutex("fourth")),
			"nothing":        nil,
		} {
			t.Log(name)
			_, err := rw.TryUpgrade(t.Context(), bad)
			wantErr(t, err, pawl.ErrInvalid)
		}
		mustUnlock(t, again)
		wantFree(t, eng, "m")
	})
}

// TestDowngradeOfTheLost: a writer was evicted and did not hear so, because a reply was lost.
// Downgrade fails, because another writer may have written in between. Both releases end in the time of one.
func TestDowngradeOfTheLost(t *testing.T) {
	for name, row := range map[string]struct {
		fault fault
		left  int // claims after the call
	}{
		"lost reply": {first(1, losesReply, nil), 0},
		"late reply": {first(1, arrivesLate(140*time.Millisecond), hangs), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				rw := c.RWMutex("m")
				w := mustLock(t, t.Context(), rw)
				store.set(hangs, verbRenew)
				breakLock(t, eng, "m")
				mustUnlock(t, mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m")))
				store.set(row.fault, verbLeave)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, err := rw.Downgrade(ctx, w)
				if took := time.Since(start); took > 50*time.Millisecond+slack {
					t.Errorf("took %v", took)
				}
				wantErr(t, err, pawl.ErrLost)
				if n := len(show(t, eng, "m").Claims); n != row.left {
					t.Errorf("%d claims are left", n)
				}
				store.set(nil, verbLeave, verbRenew)
			})
		})
	}
}

// TestUpgradeOfTheLost: a reader was evicted and did not hear so, because a reply was lost. TryUpgrade fails, because another client may
// have written in between.
func TestUpgradeOfTheLost(t *testing.T) {
	for name, fault := range map[string]fault{"lost reply": first(1, losesReply, nil), "no reply": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				rw := c.RWMutex("m")
				r := mustLock(t, t.Context(), rw.RLocker())
				store.set(hangs, verbRenew)
				breakLock(t, eng, "m")
				mustUnlock(t, mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m")))
				store.set(fault, verbLeave)
				_, err := rw.TryUpgrade(t.Context(), r)
				wantErr(t, err, pawl.ErrLost)
				store.set(nil, verbLeave, verbRenew)
			})
		})
	}
}

// TestUpgradeOfTheBroken: TryUpgrade ends the lease of a reader that an operator evicted, and says who did so.
func TestUpgradeOfTheBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		rw := c.RWMutex("m")
		r := mustLock(t, t.Context(), rw.RLocker())
		store.set(hangs, verbRenew)
		_, err := newClient(t, eng, &pawl.Options{Label: "an operator"}).Break(t.Context(), "m", pawl.BreakOptions{})
		noErr(t, err)
		_, err = rw.TryUpgrade(t.Context(), r)
		wantErr(t, err, pawl.ErrLost)
		wantErr(t, r.Err(), pawl.ErrLost)
		if !strings.Contains(err.Error(), "broken by an operator") {
			t.Error(err)
		}
		wantFree(t, eng, "m")
		store.set(nil, verbRenew)
	})
}

// TestUpgradeInTrouble: the store does not answer whether the reader is still there. The reader is unchanged.
func TestUpgradeInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		rw := c.RWMutex("m")
		r := mustLock(t, t.Context(), rw.RLocker())
		store.set(first(1, fails, hangs), verbShow)
		_, err := rw.TryUpgrade(t.Context(), r)
		wantErr(t, err, pawl.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = rw.TryUpgrade(ctx, r)
		wantErr(t, err, pawl.ErrUnavailable, pawl.ErrNotAcquired, context.DeadlineExceeded)
		if n := len(show(t, eng, "m").Claims); n != 1 || r.Err() != nil {
			t.Errorf("%d claims, and the reader has %v", n, r.Err())
		}
		store.set(nil, verbShow)
		w, err := rw.TryUpgrade(t.Context(), r)
		noErr(t, err)
		mustUnlock(t, w)
	})
}
