package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// recorder keeps the events of a client, in words.
type recorder struct {
	mu     sync.Mutex
	told   []string
	failed int
	late   time.Duration
}

func (r *recorder) observe(_ context.Context, e pawl.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Kind == pawl.EventRenewed {
		r.late = max(r.late, e.Took)
		if e.Err != nil {
			r.failed++
		}
		return
	}
	word := fmt.Sprintf("%v %s %s %v", e.Kind, e.Use, e.Name, e.Took)
	for _, sentinel := range []error{pawl.ErrNotAcquired, pawl.ErrLost} {
		if errors.Is(e.Err, sentinel) {
			word += " " + sentinel.Error()
		}
	}
	r.told = append(r.told, word)
}

func (r *recorder) want(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.told, want) {
		t.Errorf("told %q, want %q", r.told, want)
	}
	r.told = nil
}

// wantKinds is want without the details.
func (r *recorder) wantKinds(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var told []string
	for _, word := range r.told {
		kind, _, _ := strings.Cut(word, " ")
		told = append(told, kind)
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want the kinds %q", r.told, want)
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		var r recorder
		c, store := newFaultyClient(t, eng, &pawl.Options{Observe: r.observe})
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		pass(time.Minute)
		mustUnlock(t, lease)
		mustUnlock(t, lease)
		r.want(t, "attempt lock m 0s", "granted lock m 0s", "released lock m 1m0s")

		held := mustLock(t, t.Context(), newClient(t, eng, nil).Semaphore("s", 1))
		_, err := c.Semaphore("s", 1).TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		r.want(t, "attempt semaphore s 0s", "refused semaphore s 0s not acquired")
		waits := lockSoon(t.Context(), c.Semaphore("s", 1))
		pass(2 * time.Second)
		mustUnlock(t, held)
		got := <-waits
		noErr(t, got.err)
		r.want(t, "attempt semaphore s 0s", "contended semaphore s 0s", "granted semaphore s 2s")

		store.set(fails, verbRenew)
		<-got.lease.Context().Done()
		store.set(nil, verbRenew)
		synctest.Wait() // the holder is told first, the observer next
		r.mu.Lock()
		told, failed, late := r.told, r.failed, r.late
		r.mu.Unlock()
		if len(told) != 1 || told[0][:14] != "lost semaphore" || failed == 0 || late <= 0 {
			t.Errorf("told %q, %d renewals failed, at most %v late", told, failed, late)
		}
		if s := pawl.EventKind(99).String() + pawl.EventLost.String(); s != "unknownlost" {
			t.Error(s)
		}
	})
}

// TestWaitIsToldOnce: the first answer of the store may come late, and a wait may last longer than a session. The observer learns
// once why the lock has to wait, and an error says so, too.
func TestWaitIsToldOnce(t *testing.T) {
	t.Run("grace", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var r recorder
			store := newFaultyStore(&gracefulStore{Engine: memengine.New(), until: time.Now().Add(11 * time.Second)})
			c := newClient(t, store, &pawl.Options{Observe: r.observe})
			store.set(first(1, fails, nil), verbEnter)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Mutex("m").Lock(ctx)
			wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace, context.DeadlineExceeded)
			r.wantKinds(t, "attempt", "grace", "refused")
		})
	})
	t.Run("two sessions", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var r recorder
			eng := memengine.New()
			mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
			c, store := newFaultyClient(t, eng, &pawl.Options{Observe: r.observe})
			store.set(first(20, fails, nil), verbRenew)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := c.Mutex("m").Lock(ctx)
			wantErr(t, err, pawl.ErrNotAcquired)
			if n := len(store.called(verbOpen)); n != 2 {
				t.Errorf("%d sessions", n)
			}
			r.wantKinds(t, "attempt", "contended", "refused")
		})
	})
}

// TestUnconfirmedReleaseIsTold: the event of a release has the error of Unlock. The event of a release by Close has none.
func TestUnconfirmedReleaseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released []error
		store := newFaultyStore(memengine.New())
		c := newClient(t, store, &pawl.Options{Observe: func(_ context.Context, e pawl.Event) {
			if e.Kind == pawl.EventReleased {
				released = append(released, e.Err)
			}
		}})
		first, second := mustLock(t, t.Context(), c.Mutex("first")), mustLock(t, t.Context(), c.Mutex("second"))
		mustLock(t, t.Context(), c.Mutex("third"))
		mustUnlock(t, first)
		store.set(hangs, verbLeave, verbClose)
		err := second.Unlock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		wantErr(t, c.Close(t.Context()), pawl.ErrUnavailable)
		if len(released) != 3 || released[0] != nil || !errors.Is(err, released[1]) || released[2] != nil {
			t.Errorf("released %v", released)
		}
	})
}

// TestCloseIsNoFailure: a renewal that Close interrupts has not failed.
func TestCloseIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		c, store := newFaultyClient(t, memengine.New(), &pawl.Options{Observe: r.observe})
		store.set(hangs, verbRenew)
		pass(6 * time.Second)
		if n := len(store.called(verbRenew)); n != 1 {
			t.Fatalf("%d renewals", n)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if r.failed != 0 {
			t.Errorf("%d renewals failed", r.failed)
		}
	})
}

// TestLockDelay: the locks of a dead client are free a delay later than its TTL. A released lock is
// free at once.
func TestLockDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		const delay = 30 * time.Second
		mortal, store := newFaultyClient(t, eng, &pawl.Options{TTL: 10 * time.Second, LockDelay: delay})
		c := newClient(t, eng, nil)
		lease := mustLock(t, t.Context(), mortal.Mutex("m"))
		next := lockSoon(t.Context(), c.Mutex("m"))
		synctest.Wait()
		start := time.Now()
		mustUnlock(t, lease)
		got := <-next
		noErr(t, got.err)
		if took := time.Since(start); took > 0 {
			t.Errorf("a release took %v", took)
		}
		mustUnlock(t, got.lease)

		lease = mustLock(t, t.Context(), mortal.Mutex("m"))
		next = lockSoon(t.Context(), c.Mutex("m"))
		synctest.Wait()
		start = time.Now()
		store.set(fails, verbRenew)
		<-lease.Context().Done()
		if told := time.Since(start); told > 10*time.Second {
			t.Errorf("told after %v", told)
		}
		store.set(nil, verbRenew)
		got = <-next
		noErr(t, got.err)
		if took := time.Since(start); took < delay+5*time.Second || took > delay+11*time.Second {
			t.Errorf("free after %v", took)
		}
		mustUnlock(t, mustLock(t, t.Context(), mortal.Mutex("other"))) // with a new session
		for _, bad := range []time.Duration{-1, time.Hour} {
			_, err := pawl.New(t.Context(), eng, &pawl.Options{LockDelay: bad})
			wantErr(t, err, pawl.ErrInvalid)
		}
	})
}

// TestLockDelayOfTheClosed: a client loses its session and is then closed. No lock is free earlier,
// because requests of the client may still be under way.
func TestLockDelayOfTheClosed(t *testing.T) {
	for _, after := range []time.Duration{0, 500 * time.Millisecond, 3 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				mortal, store := newFaultyClient(t, eng, &pawl.Options{LockDelay: time.Minute})
				lease := mustLock(t, t.Context(), mortal.Mutex("m"))
				store.set(fails, verbRenew)
				<-lease.Context().Done()
				lost := time.Now()
				pass(after)
				noErr(t, mortal.Close(t.Context()))
				next := mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
				if took := time.Since(lost); took < time.Minute {
					t.Errorf("free after %v", took)
				}
				mustUnlock(t, next)
				if n := len(store.called(verbClose)); n != 1 {
					t.Errorf("the session was closed %d times", n)
				}
			})
		})
	}
}
