package pawl_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

func TestOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			opts  pawl.Options
			names string // the field at fault; "" for none
		}{
			{pawl.Options{}, ""},
			{pawl.Options{TTL: 100 * time.Millisecond, Label: strings.Repeat("x", 512)}, ""},
			{pawl.Options{TTL: 24 * time.Hour}, ""},
			{pawl.Options{TTL: -1}, "Options.TTL"},
			{pawl.Options{TTL: 99 * time.Millisecond}, "Options.TTL"},
			{pawl.Options{TTL: 24*time.Hour + 1}, "Options.TTL"},
			{pawl.Options{Label: strings.Repeat("x", 513)}, "Options.Label"},
			{pawl.Options{Label: "two\nlines"}, "Options.Label"},
		} {
			c, err := pawl.New(t.Context(), memengine.New(), &tc.opts)
			if tc.names != "" {
				wantInvalid(t, err, tc.names)
				continue
			}
			if err != nil {
				t.Fatalf("%+v: %v", tc.opts, err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// wantInvalid fails unless err is an ErrInvalid that names the field.
func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	wantErr(t, err, pawl.ErrInvalid)
	if !strings.Contains(err.Error(), field) {
		t.Errorf("%v does not name %s", err, field)
	}
}

// slowest is a store that keeps no short TTL.
type slowest struct{ engine.Engine }

func (s slowest) Caps() engine.Caps {
	caps := s.Engine.Caps()
	caps.MinTTL = time.Second
	return caps
}

func TestTTLOfTheStore(t *testing.T) {
	_, err := pawl.New(t.Context(), slowest{memengine.New()}, &pawl.Options{TTL: 500 * time.Millisecond})
	wantInvalid(t, err, "Options.TTL")
}

// TestDefaults: an operator can tell which machine and process a client is.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		if label := show(t, eng, "m").Claims[0].Label; !strings.Contains(label, " pid ") {
			t.Errorf("label %q", label)
		}
		mustUnlock(t, lease)
	})
}

// TestNewUnavailable: a store that does not answer is known at once.
func TestNewUnavailable(t *testing.T) {
	for name, f := range map[string]fault{"fails": fails, "hangs": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFaultyStore(memengine.New())
				store.set(f, verbOpen)
				start := time.Now()
				_, err := pawl.New(context.Background(), store, nil)
				wantErr(t, err, pawl.ErrUnavailable)
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("it took %v", took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err = pawl.New(ctx, store, nil); err == nil {
					t.Error("no error")
				}
			})
		})
	}
}

// TestClose: Close ends the client, its leases and its waits.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, store := newFaultyClient(t, eng, nil)
		b := newClient(t, eng, nil)
		held := mustLock(t, t.Context(), a.Mutex("held"))
		other := mustLock(t, t.Context(), b.Mutex("other"))
		waiter := lockSoon(t.Context(), a.Mutex("other"))
		next := lockSoon(t.Context(), b.Mutex("held"))
		pass(time.Minute)

		start := time.Now()
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, held.Err(), pawl.ErrClosed)
		wantErr(t, context.Cause(held.Context()), pawl.ErrClosed)
		got := <-waiter
		wantErr(t, got.err, pawl.ErrClosed)
		after := <-next
		if after.err != nil || !got.at.Equal(start) || !after.at.Equal(start) {
			t.Errorf("the next got it %v after, %v", after.at.Sub(start), after.err)
		}
		if n := waitersOf(t, eng, "other"); n != 0 {
			t.Errorf("%d claims still wait", n)
		}
		if n := len(store.called(verbLeave)); n != 2 { // the held claim and the waiting claim
			t.Errorf("%d claims were left", n)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Errorf("unlock of what Close released: %v", err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Errorf("a second close: %v", err)
		}
		for _, err := range []error{
			errOf(a.Mutex("m").Lock(t.Context())), errOf(a.Mutex("m").TryLock(t.Context())),
			a.Mutex("m").Do(t.Context(), func(context.Context) error { t.Error("it runs"); return nil }),
			errOf(pawl.LockAll(t.Context(), a.Mutex("m"))),
		} {
			wantErr(t, err, pawl.ErrClosed)
		}
		for range 50 { // the choice between two ready channels is random
			wantErr(t, errOf(a.Mutex("m").Lock(t.Context())), pawl.ErrClosed)
		}
		if n := len(store.called(verbOpen)); n != 1 {
			t.Errorf("%d sessions were opened", n)
		}
		mustUnlock(t, pawl.Leases{after.lease, other})
		wantFree(t, eng, "held")
		wantFree(t, eng, "other")
	})
}

func errOf[T any](_ T, err error) error { return err }

// TestCloseInTrouble: Close ends in time whatever the store does, with an error if the store did
// not answer.
func TestCloseInTrouble(t *testing.T) {
	for name, f := range map[string]fault{"fails": fails, "hangs": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				held := mustLock(t, t.Context(), c.Mutex("m"))
				waiter := lockSoon(t.Context(), c.Mutex("m"))
				synctest.Wait()
				store.set(f, verbOpen, verbEnter, verbAwait, verbLeave, verbRenew, verbClose)
				start := time.Now()
				wantErr(t, c.Close(context.Background()), pawl.ErrUnavailable)
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("it took %v", took)
				}
				wantErr(t, held.Err(), pawl.ErrClosed)
				wantErr(t, (<-waiter).err, pawl.ErrClosed)
				pass(15 * time.Second)
				wantFree(t, eng, "m")
			})
		})
	}
}

// TestCloseDuringOutage: callers that wait for a session to open get an error.
func TestCloseDuringOutage(t *testing.T) {
	for name, f := range map[string]fault{"fails": fails, "hangs": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				lease := mustLock(t, t.Context(), c.Mutex("m"))
				store.set(f, verbOpen, verbEnter, verbAwait, verbLeave, verbRenew, verbClose)
				<-lease.Context().Done()
				waiters := []<-chan outcome{lockSoon(t.Context(), c.Mutex("a")), lockSoon(t.Context(), c.Mutex("b"))}
				pass(5 * time.Second)
				start := time.Now()
				c.Close(t.Context()) //nolint:errcheck // the store is in trouble
				for _, w := range waiters {
					got := <-w
					wantErr(t, got.err, pawl.ErrClosed)
				}
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestCloseWhileOpening: a session that is being opened is closed as well.
func TestCloseWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(func(ctx context.Context, do func(context.Context) error) error {
			<-time.After(3 * time.Second) // whatever becomes of ctx
			return do(context.WithoutCancel(ctx))
		}, verbOpen)
		store.set(func(ctx context.Context, do func(context.Context) error) error {
			if err := ctx.Err(); err != nil {
				t.Errorf("a session stays in the store: %v", err)
			}
			return do(ctx)
		}, verbClose)
		eng.Expire(show(t, eng, "m").Claims[0].Session)
		<-lease.Context().Done()
		waiter := lockSoon(t.Context(), c.Mutex("m"))
		pass(2 * time.Second)
		if err := c.Close(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if opened, closed := len(store.called(verbOpen)), len(store.called(verbClose)); opened != 2 || closed != 2 {
			t.Errorf("%d sessions were opened and %d closed", opened, closed)
		}
		wantErr(t, (<-waiter).err, pawl.ErrClosed)
	})
}

// TestCloseRaces closes while several goroutines lock. Nothing may be left in the store except
// claims that expire.
func TestCloseRaces(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			eng := memengine.New()
			c := newClient(t, eng, nil)
			var done sync.WaitGroup
			for range 4 {
				done.Go(func() {
					for {
						lease, err := c.Mutex("m").Lock(context.Background())
						if err != nil {
							if !errors.Is(err, pawl.ErrClosed) {
								t.Error(err)
							}
							return
						}
						if err := lease.Unlock(context.Background()); err != nil { // released is released
							t.Error(err)
						}
					}
				})
			}
			for range 2 {
				done.Go(func() {
					if err := c.Close(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			done.Wait()
			wantFree(t, eng, "m")
		})
	}
}

// TestMissingParts: a part that an engine does not implement is refused, also where its
// capabilities give no reason.
func TestMissingParts(t *testing.T) {
	c := newClient(t, struct{ engine.Engine }{memengine.New()}, nil)
	_, err := c.Value("v").Get(t.Context())
	wantErr(t, err, pawl.ErrUnsupported)
	wantErr(t, c.Semaphore("s", 1).Resize(t.Context(), 2), pawl.ErrUnsupported)
	mustUnlock(t, mustLock(t, t.Context(), c.Mutex("m")))
}
