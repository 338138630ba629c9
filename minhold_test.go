package pawl_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// optionsStore keeps the options of its sessions.
type optionsStore struct {
	engine.Engine
	opened []engine.SessionOptions
}

func (o *optionsStore) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	o.opened = append(o.opened, opts)
	return o.Engine.Open(ctx, opts)
}

// A minimum hold lengthens no restart grace: nobody believes in its session.
func TestMinHoldIsNoBelief(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &optionsStore{Engine: memengine.New()}
		c := newClient(t, store, nil)
		mustUnlock(t, mustLock(t, t.Context(), c.Mutex("job").With(pawl.LockOptions{MinHold: time.Hour})))
		noErr(t, c.Close(t.Context()))
		var holds int
		for _, opts := range store.opened {
			if opts.TTL == time.Hour {
				holds++
			}
			if belief := opts.Belief(); belief > time.Minute || opts.TTL == time.Hour && belief != 0 {
				t.Errorf("a client may believe in a session of %v for %v", opts.TTL, belief)
			}
		}
		if holds != 1 {
			t.Errorf("%d sessions of %d keep the name", holds, len(store.opened))
		}
	})
}

// TestMinHold: the name stays taken from the grant on, whatever ends the hold.
func TestMinHold(t *testing.T) {
	const hold = 10 * time.Minute
	for name, end := range map[string]func(*testing.T, *pawl.Client, *faultyStore, *pawl.Lease){
		"released": func(t *testing.T, _ *pawl.Client, _ *faultyStore, l *pawl.Lease) { mustUnlock(t, l) },
		"closed":   func(t *testing.T, c *pawl.Client, _ *faultyStore, _ *pawl.Lease) { noErr(t, c.Close(t.Context())) },
		"dead": func(_ *testing.T, _ *pawl.Client, store *faultyStore, l *pawl.Lease) {
			store.set(hangs, allVerbs...)
			<-l.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				a, store := newFaultyClient(t, eng, nil)
				b := newClient(t, eng, nil)
				once := pawl.LockOptions{MinHold: hold}
				start := time.Now()
				lease := mustLock(t, t.Context(), a.Mutex("job").With(once))
				pass(time.Second)
				end(t, a, store, lease)
				_, err := b.Mutex("job").With(once).TryLock(t.Context())
				wantErr(t, err, pawl.ErrNotAcquired)
				next := mustLock(t, t.Context(), b.Mutex("job"))
				if took := time.Since(start); took < hold || took > hold+time.Second {
					t.Errorf("the next holder had it after %v", took)
				}
				if next.Token() <= lease.Token() {
					t.Errorf("token %v after %v", next.Token(), lease.Token())
				}
				mustUnlock(t, next)
				wantFree(t, eng, "job")
				store.set(nil, allVerbs...)
			})
		})
	}
}

// TestMinHoldOfALongJob: a job that takes longer keeps the name as any holder does.
func TestMinHoldOfALongJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		lease := mustLock(t, t.Context(), a.Mutex("job").With(pawl.LockOptions{MinHold: time.Minute}))
		claims := show(t, eng, "job").Claims
		if len(claims) != 2 || !strings.HasSuffix(claims[1].ID, ".kept") || claims[1].Token != claims[0].Token {
			t.Fatalf("claims %+v", claims)
		}
		pass(time.Hour)
		noErr(t, lease.Err())
		if n := len(show(t, eng, "job").Claims); n != 1 {
			t.Errorf("%d claims are left after the minimum hold", n)
		}
		_, err := b.Mutex("job").TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		mustUnlock(t, lease)
		mustUnlock(t, mustLock(t, t.Context(), b.Mutex("job")))
	})
}

// TestMinHoldIsAllOrNothing: if the claim of the minimum hold cannot be entered, Lock fails.
// Nothing is left once the store answers again.
func TestMinHoldIsAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(fails, verbOpen)
		_, err := c.Mutex("job").With(pawl.LockOptions{MinHold: time.Minute}).TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		wantFree(t, eng, "job")
		store.set(nil, verbOpen)
		store.set(first(1, nil, losesReply), verbEnter)
		_, err = c.Mutex("job").With(pawl.LockOptions{MinHold: time.Minute}).TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		synctest.Wait()
		wantFree(t, eng, "job")

		store.set(first(1, nil, hangs), verbEnter)
		store.set(hangs, verbClose, verbLeave)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err = c.Mutex("job").With(pawl.LockOptions{MinHold: time.Minute}).TryLock(ctx)
		wantErr(t, err, pawl.ErrUnavailable)
		if took := time.Since(began); took > time.Second+slack {
			t.Errorf("took %v", took)
		}
		store.set(nil, verbEnter, verbClose, verbLeave)
		pass(15 * time.Second)
		wantFree(t, eng, "job")
	})
}

// TestMinHoldRefusedLate: the store grants the claim and refuses that of the minimum hold. The grant is
// given back at once.
func TestMinHoldRefusedLate(t *testing.T) {
	refuses := func(why error) fault {
		return func(context.Context, func(context.Context) error) error { return why }
	}
	for name, disturb := range map[string]func(*faultyStore) error{
		"the session": func(s *faultyStore) error {
			s.set(refuses(engine.ErrUnsupported), verbOpen)
			return pawl.ErrUnsupported
		},
		"the claim": func(s *faultyStore) error {
			s.set(first(1, nil, refuses(engine.ErrMismatch)), verbEnter)
			return pawl.ErrMismatch
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				want := disturb(store)
				_, err := c.Mutex("job").With(pawl.LockOptions{MinHold: 10 * time.Minute}).TryLock(t.Context())
				wantErr(t, err, want)
				synctest.Wait() // the claim of the minimum hold leaves with its session
				wantFree(t, eng, "job")
			})
		})
	}
}

// TestMinHoldBesideClose: the client is closed while a minimum hold begins. If the call fails, nothing is kept, and no session
// stays open.
func TestMinHoldBesideClose(t *testing.T) {
	lock := func(ctx context.Context, c *pawl.Client) error {
		_, err := c.Mutex("job").With(pawl.LockOptions{MinHold: time.Hour}).Lock(ctx)
		return err
	}
	keep := func(ctx context.Context, c *pawl.Client) error {
		lease, err := c.Mutex("job").Lock(ctx)
		if err != nil {
			return err
		}
		return lease.Keep(ctx, time.Hour)
	}
	all := func(ctx context.Context, c *pawl.Client) error {
		_, err := pawl.LockAll(ctx, c.Mutex("job").With(pawl.LockOptions{MinHold: time.Hour}))
		return err
	}
	for name, row := range map[string]struct {
		call    func(context.Context, *pawl.Client) error
		answers bool
	}{"lock without a reply": {lock, false}, "lock": {lock, true}, "keep without a reply": {keep, false}, "all": {all, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				closed := make(chan int, 1)
				store.set(first(1, nil, func(ctx context.Context, do func(context.Context) error) error {
					err := do(ctx)
					go func() {
						c.Close(context.Background()) //nolint:errcheck // checked elsewhere
						closed <- len(store.called(verbClose))
					}()
					if synctest.Wait(); !row.answers {
						<-ctx.Done()
						err = engine.Unavailable("reply", ctx.Err())
					}
					return err
				}), verbEnter)
				wantErr(t, row.call(t.Context(), c), pawl.ErrClosed)
				if n := <-closed; n != 2 {
					t.Errorf("%d of 2 sessions were closed when the client was", n)
				}
				wantFree(t, eng, "job")
			})
		})
	}
}

// TestMinHoldOfPermits: each permit is kept, and the others are not.
func TestMinHoldOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		s := c.Semaphore("s", 2)
		mustUnlock(t, mustLock(t, t.Context(), s.With(pawl.LockOptions{MinHold: time.Hour})))
		one := mustLock(t, t.Context(), s)
		_, err := s.TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		mustUnlock(t, one)
		pass(time.Hour)
		mustUnlock(t, mustLock(t, t.Context(), s.Weighted(2)))
	})
}

// TestMinHoldOfResizedPermits: an operator resizes the semaphore before the minimum hold begins. The holder keeps its place,
// and no permit is held twice.
func TestMinHoldOfResizedPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		operator := newClient(t, eng, nil).Semaphore("s", 2)
		store.set(first(1, nil, during(func() { mustResize(t, operator, 3) })), verbEnter)
		lease := mustLock(t, t.Context(), c.Semaphore("s", 2).With(pawl.LockOptions{MinHold: time.Minute}))
		if claims := show(t, eng, "s").Claims; len(claims) != 2 {
			t.Errorf("claims %+v", claims)
		}
		if n := len(store.called(verbEnter)); n != 3 {
			t.Errorf("%d claims were entered", n)
		}
		mustResize(t, operator, 1)
		noErr(t, lease.Keep(t.Context(), time.Hour))
		mustUnlock(t, lease)
		pass(time.Minute)
		_, err := operator.TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		pass(time.Hour)
		mustUnlock(t, mustLock(t, t.Context(), operator))
	})
}

// TestMinHoldRefused: a minimum hold out of range is refused with the range.
func TestMinHoldRefused(t *testing.T) {
	c := newClient(t, memengine.New(), nil)
	for _, hold := range []time.Duration{-1, time.Millisecond, 8 * 24 * time.Hour} {
		_, err := c.Mutex("m").With(pawl.LockOptions{MinHold: hold}).Lock(context.Background())
		wantErr(t, err, pawl.ErrInvalid)
	}
}

// TestKeepOfTheLost: another client holds the name before the client knows of its loss. Keep says that the lock is lost.
func TestKeepOfTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, verbRenew)
		breakLock(t, eng, "m")
		next := mustLock(t, t.Context(), newClient(t, eng, nil).Mutex("m"))
		wantErr(t, lease.Keep(t.Context(), time.Minute), pawl.ErrLost)
		mustUnlock(t, next)
	})
}

// TestMinHoldEndsBeforeItsClaim: the request of the minimum hold takes longer than that hold. Nobody knows then whether the
// name stays taken.
func TestMinHoldEndsBeforeItsClaim(t *testing.T) {
	for name, call := range map[string]func(context.Context, *pawl.Client) error{
		"lock": func(ctx context.Context, c *pawl.Client) error {
			_, err := c.Mutex("job").With(pawl.LockOptions{MinHold: 100 * time.Millisecond}).Lock(ctx)
			return err
		},
		"keep": func(ctx context.Context, c *pawl.Client) error {
			lease, err := c.Mutex("job").Lock(ctx)
			if err != nil {
				return err
			}
			defer lease.Unlock(ctx) //nolint:errcheck // checked elsewhere
			return lease.Keep(ctx, 100*time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				store.set(first(1, nil, arrivesLate(200*time.Millisecond)), verbEnter)
				wantErr(t, call(t.Context(), c), pawl.ErrUnavailable)
				synctest.Wait()
				wantFree(t, eng, "job")
			})
		})
	}
}

// slow: the request takes 150 ms, and does not arrive if the caller gives up before.
func slow(ctx context.Context, do func(context.Context) error) error {
	select {
	case <-time.After(150 * time.Millisecond):
		return do(ctx)
	case <-ctx.Done():
		return engine.Unavailable("slow", ctx.Err())
	}
}

// TestMinHoldOfATurn: Downgrade and TryUpgrade begin a minimum hold before the old side is released. A turn whose old side was lost, or that fails, keeps
// no name taken.
func TestMinHoldOfATurn(t *testing.T) {
	for name, row := range map[string]struct {
		side func(*pawl.RWMutex) pawl.Locker
		turn func(*pawl.RWMutex, context.Context, *pawl.Lease) (*pawl.Lease, error)
	}{
		"downgrade": {func(rw *pawl.RWMutex) pawl.Locker { return rw }, (*pawl.RWMutex).Downgrade},
		"upgrade":   {(*pawl.RWMutex).RLocker, (*pawl.RWMutex).TryUpgrade},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				rw := c.RWMutex("m")
				kept := rw.With(pawl.LockOptions{MinHold: time.Hour})
				from := mustLock(t, t.Context(), row.side(rw))
				old := show(t, eng, "m").Claims[0].ID
				store.set(fails, verbOpen)
				_, err := row.turn(kept, t.Context(), from)
				wantErr(t, err, pawl.ErrUnavailable)
				noErr(t, from.Err())
				store.set(hangs, verbOpen, verbLeave)
				parent, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
				within, stop := from.Within(parent) // the releases outlast such a ctx, and the minimum hold does not
				defer stop()
				began := time.Now()
				_, err = row.turn(kept, within, from)
				wantErr(t, err, context.Canceled)
				if took := time.Since(began); took > 150*time.Millisecond {
					t.Errorf("the call returned %v after its begin, with a ctx of 50 ms", took)
				}
				store.set(nil, verbOpen, verbLeave)
				pass(10 * time.Second) // the heartbeat leaves the claim of that turn

				store.set(hangs, verbRenew)
				store.set(slow, verbClose)
				store.set(during(func() { noErr(t, eng.Evict(t.Context(), "m", old)) }), verbOpen)
				_, err = row.turn(kept, t.Context(), from)
				wantErr(t, err, pawl.ErrLost)
				pass(time.Second)
				wantFree(t, eng, "m")
				store.set(nil, verbRenew, verbClose, verbOpen)

				to, err := row.turn(kept, t.Context(), mustLock(t, t.Context(), row.side(rw)))
				noErr(t, err)
				mustUnlock(t, to)
				if claims := show(t, eng, "m").Claims; len(claims) != 1 || !strings.HasSuffix(claims[0].ID, ".kept") {
					t.Errorf("claims %+v", claims)
				}
			})
		})
	}
}
