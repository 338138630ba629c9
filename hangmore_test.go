package pawl_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// preparedCalls need an answer of a healthy store before the store hangs.
var preparedCalls = map[string]func(*testing.T, *pawl.Client) func(context.Context) error{
	"unlock of many": func(t *testing.T, c *pawl.Client) func(context.Context) error {
		var locks []pawl.Locker
		for i := range 20 {
			locks = append(locks, c.Mutex(fmt.Sprint("many/", i)))
		}
		all, err := pawl.LockAll(t.Context(), locks...)
		noErr(t, err)
		return all.Unlock
	},
	"resign": func(t *testing.T, c *pawl.Client) func(context.Context) error {
		e := c.Election("e")
		term := campaign(t, e, "me")
		return func(ctx context.Context) error { return e.Resign(ctx, term) }
	},
	"leave a barrier": func(t *testing.T, c *pawl.Client) func(context.Context) error {
		m, err := c.Barrier("b", 2).Join(t.Context())
		noErr(t, err)
		return m.Leave
	},
	"lead": func(_ *testing.T, c *pawl.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			return c.Election("f").Lead(ctx, nil, func(context.Context) error { return nil })
		}
	},
	"try all": func(_ *testing.T, c *pawl.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := pawl.TryLockAll(ctx, c.Mutex("x"), c.Mutex("y"))
			return err
		}
	},
}

// TestPreparedCallsEndWithTheirContext is TestCallsEndWithTheirContext for calls that make
// several requests.
func TestPreparedCallsEndWithTheirContext(t *testing.T) {
	for name, prepare := range preparedCalls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				call := prepare(t, c)
				store.set(hangs, allVerbs...)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				err := call(ctx)
				if took := time.Since(start); took > 50*time.Millisecond+slack {
					t.Errorf("took %v", took)
				}
				wantErr(t, err, pawl.ErrUnavailable)
				store.set(nil, allVerbs...)
				pass(10 * time.Second)
				for name, err := range eng.List(t.Context(), "") {
					t.Errorf("%q is still held, %v", name, err)
				}
			})
		})
	}
}

// TestOperatorsCallsEndWithTheirContext: the same holds for calls that ask the store without a
// session.
func TestOperatorsCallsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		operator, store := newFaultyClient(t, eng, nil)
		mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
		for verb, call := range map[string]func(context.Context) error{
			verbGet: func(ctx context.Context) error { _, err := operator.Show(ctx, "m"); return err },
			verbPut: func(ctx context.Context) error {
				_, err := operator.Break(ctx, "m", pawl.BreakOptions{})
				return err
			},
			verbEvict: func(ctx context.Context) error {
				_, err := operator.Break(ctx, "m", pawl.BreakOptions{})
				return err
			},
		} {
			store.set(hangs, verb)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			start := time.Now()
			err := call(ctx)
			if took := time.Since(start); took > 50*time.Millisecond+slack {
				t.Errorf("%s took %v", verb, took)
			}
			wantErr(t, err, pawl.ErrUnavailable, context.DeadlineExceeded)
			cancel()
			store.set(nil, verb)
		}
	})
}

// queuedCalls update a value. The calls share the barrier b of two members and the election e.
var queuedCalls = map[string]func(*testing.T, *pawl.Client) func(context.Context) error{
	"update": func(_ *testing.T, c *pawl.Client) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Value("v").Update(ctx, func(pawl.Snapshot) ([]byte, error) { return []byte("x"), nil })
			return err
		}
	},
	"join": func(_ *testing.T, c *pawl.Client) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.Barrier("b", 2).Join(ctx); return err }
	},
	"wait": func(_ *testing.T, c *pawl.Client) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.Barrier("b", 2).Wait(ctx); return err }
	},
	"leave": preparedCalls["leave a barrier"],
	"campaign": func(_ *testing.T, c *pawl.Client) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.Election("e").Campaign(ctx, nil); return err }
	},
	"resign": preparedCalls["resign"],
}

// TestQueuedCallsEndWithTheirContext is TestCallsEndWithTheirContext for updates in conflict. The store hangs when they
// begin to queue, or when they have their turn.
func TestQueuedCallsEndWithTheirContext(t *testing.T) {
	for name, prepare := range queuedCalls {
		for _, conflicts := range []int{2, 3} {
			t.Run(fmt.Sprint(name, conflicts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := memengine.New()
					c, store := newFaultyClient(t, eng, nil)
					call := prepare(t, c)
					store.set(first(conflicts, conflictsAlways, func(context.Context, func(context.Context) error) error {
						store.set(hangs, allVerbs...)
						return engine.ErrConflict
					}), verbPut)
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					start := time.Now()
					if call(ctx) == nil {
						t.Error("no error")
					}
					if took := time.Since(start); took < time.Second || took > time.Second+slack {
						t.Errorf("took %v", took)
					}
					store.set(nil, allVerbs...)
					pass(10 * time.Second)
					for name, err := range eng.List(t.Context(), "") {
						t.Errorf("%q is still held, %v", name, err)
					}
				})
			})
		}
	}
}

// conflictsAlways answers each write as if another writer had been faster.
func conflictsAlways(context.Context, func(context.Context) error) error { return engine.ErrConflict }

// TestBarrierWaitIsBounded: the store hangs while a party waits. The party tells the others and leaves its claim in the time of one call.
func TestBarrierWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		waits := arrive(ctx, c.Barrier("b", 2))
		arrived(t, eng, "b", 1)
		store.set(hangs, allVerbs...)
		wantErr(t, (<-waits).err, pawl.ErrBroken, pawl.ErrUnavailable)
		if took := time.Since(start); took > time.Second+slack {
			t.Errorf("took %v", took)
		}
		store.set(nil, allVerbs...)
		pass(10 * time.Second)
		wantFree(t, eng, "pawl:barrier/b")
	})
}

// TestEvictedWaiterIsBounded: a waiter asks why its claim is gone, and the store hangs. The end of its ctx ends the call.
func TestEvictedWaiterIsBounded(t *testing.T) {
	for name, row := range map[string]struct {
		verbs []string
		at    time.Duration
	}{
		"renewal": {[]string{verbRenew}, 500 * time.Millisecond},
		"note":    {[]string{verbGet, verbLeave}, 950 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				held := mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
				c, store := newFaultyClient(t, eng, nil)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start, waits := time.Now(), lockSoon(ctx, c.Mutex("m"))
				synctest.Wait()
				store.set(hangs, row.verbs...)
				pass(row.at)
				breakLock(t, eng, "m")
				got := <-waits
				wantErr(t, got.err, pawl.ErrNotAcquired)
				if took := got.at.Sub(start); took > time.Second+slack {
					t.Errorf("it took %v", took)
				}
				<-held.Context().Done()
			})
		})
	}
}

// TestReleasesLingerTogether: several releases with the context of Linger are over 100 ms after the end of ctx.
func TestReleasesLingerTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		first, second := mustLock(t, t.Context(), c.Mutex("first")), mustLock(t, t.Context(), c.Mutex("second"))
		store.set(hangs, allVerbs...)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		ends, end := pawl.Linger(ctx)
		defer end()
		start := time.Now()
		wantErr(t, first.Unlock(ends), pawl.ErrUnavailable)
		wantErr(t, second.Unlock(ends), pawl.ErrUnavailable)
		again, stop := pawl.Linger(ends)
		defer stop()
		<-again.Done()
		if took := time.Since(start); took > 50*time.Millisecond+slack {
			t.Errorf("took %v", took)
		}
		store.set(nil, allVerbs...)
	})
}

// TestUnlockOfALossLingers: a heartbeat found that a lock was taken away, and the operator's note cannot be read. An Unlock with the context of
// Linger returns when that context ends.
func TestUnlockOfALossLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, verbGet)
		operator := newClient(t, eng, nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		ends, end := pawl.Linger(ended)
		defer end()
		start := time.Now()
		<-time.After(slack - 10*time.Millisecond)
		if _, err := operator.Break(t.Context(), "m", pawl.BreakOptions{}); err != nil {
			t.Fatal(err)
		}
		<-lease.Context().Done()
		err := lease.Unlock(ends)
		if took := time.Since(start); took > slack {
			t.Errorf("took %v", took)
		}
		wantErr(t, err, pawl.ErrLost, context.Cause(lease.Context()))
		store.set(nil, verbGet)
	})
}

// TestLocksLingerTogether: a call that locks with the context of Linger returns when that context ends.
func TestLocksLingerTogether(t *testing.T) {
	for name, enter := range map[string]fault{
		"hangs": hangs,
		"fails late": func(ctx context.Context, do func(context.Context) error) error {
			pass(140 * time.Millisecond)
			return fails(ctx, do)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				store.set(hangs, allVerbs...)
				store.set(enter, verbEnter)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				ends, end := pawl.Linger(ctx)
				defer end()
				start := time.Now()
				_, err := c.Mutex("m").TryLock(ends)
				wantErr(t, err, pawl.ErrUnavailable)
				if took := time.Since(start); took > 50*time.Millisecond+slack {
					t.Errorf("took %v", took)
				}
				store.set(nil, allVerbs...)
			})
		})
	}
}
