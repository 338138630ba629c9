package pawl_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestMinHoldAfterALostRequest: a call that waits asks again when the store answers no request of its minimum hold.
func TestMinHoldAfterALostRequest(t *testing.T) {
	kept := pawl.LockOptions{MinHold: time.Hour}
	for name, row := range map[string]struct {
		of   string // the name that is kept
		call func(context.Context, *pawl.Client) (*pawl.Lease, error)
	}{
		"lock": {"m", func(ctx context.Context, c *pawl.Client) (*pawl.Lease, error) {
			return c.Mutex("m").With(kept).Lock(ctx)
		}},
		"all": {"m", func(ctx context.Context, c *pawl.Client) (*pawl.Lease, error) {
			leases, err := pawl.LockAll(ctx, c.Mutex("m").With(kept))
			return append(leases, nil)[0], err
		}},
		"slot": {"pawl:slots/m", func(ctx context.Context, c *pawl.Client) (*pawl.Lease, error) {
			slot, err := c.Slots("m", 1).With(kept).Take(ctx)
			if err != nil {
				return nil, err
			}
			return slot.Lease, nil
		}},
	} {
		for verb, lost := range map[string]fault{verbOpen: first(1, fails, nil), verbEnter + " " + row.of: first(1, nil, first(1, losesReply, nil))} {
			t.Run(name+" "+verb, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := memengine.New()
					c, store := newFaultyClient(t, eng, nil)
					store.set(lost, verb)
					lease, err := row.call(t.Context(), c)
					if err != nil {
						t.Fatal(err)
					}
					mustUnlock(t, lease)
					synctest.Wait() // the first session of the minimum hold is closed
					if claims := show(t, eng, row.of).Claims; len(claims) != 1 || !strings.HasSuffix(claims[0].ID, ".kept") {
						t.Errorf("claims %+v", claims)
					}
				})
			})
		}
	}
}

// TestMinHoldAfterAnOutage: the store keeps the first request of a minimum hold, and then is away until the client trusts its session no
// more. The call asks with a new session, and does not wait behind what it kept itself.
func TestMinHoldAfterAnOutage(t *testing.T) {
	kept := pawl.LockOptions{MinHold: time.Hour}
	for name, row := range map[string]struct {
		of   string // the name that is kept
		call func(context.Context, *pawl.Client) error
	}{
		"lock": {"m", func(ctx context.Context, c *pawl.Client) error {
			_, err := c.Mutex("m").With(kept).Lock(ctx)
			return err
		}},
		"slot": {"pawl:slots/m", func(ctx context.Context, c *pawl.Client) error {
			_, err := c.Slots("m", 1).With(kept).Take(ctx)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, store := newFaultyClient(t, memengine.New(), nil)
				enter := verbEnter + " " + row.of
				outage := func(ctx context.Context, do func(context.Context) error) error {
					store.set(nil, enter)
					store.set(fails, allVerbs...)
					time.AfterFunc(20*time.Second, func() { store.set(nil, allVerbs...) })
					return losesReply(ctx, do)
				}
				store.set(first(1, nil, outage), enter)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				noErr(t, row.call(ctx, c))
			})
		})
	}
}

// TestMinHoldOfTheEvicted: an operator evicts the holder while the first request of the minimum hold gets no answer. The claim
// of that request is no grant of the holder: the call asks for a new grant.
func TestMinHoldOfTheEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(first(1, nil, first(1, func(ctx context.Context, do func(context.Context) error) error {
			holder := show(t, eng, "m").Claims[0].ID
			return errors.Join(losesReply(ctx, do), eng.Evict(ctx, "m", holder))
		}, nil)), verbEnter)
		store.set(first(1, hangs, nil), verbClose)
		lease := mustLock(t, t.Context(), c.Mutex("m").With(pawl.LockOptions{MinHold: time.Hour}))
		pass(15 * time.Second)
		noErr(t, lease.Err())
		if claims := show(t, eng, "m").Claims; len(claims) != 2 {
			t.Errorf("claims %+v", claims)
		}
	})
}

// TestMinHoldArrivesLate: the store serves a request of a minimum hold after the call has failed, and nobody could close its session.
func TestMinHoldArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(first(1, nil, strays(10*time.Second)), verbEnter)
		store.set(first(1, fails, nil), verbClose)
		_, err := c.Mutex("m").With(pawl.LockOptions{MinHold: time.Hour}).TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		pass(20 * time.Second)
		wantFree(t, eng, "m")
		if n := len(store.called(verbEvict)); n > 20 {
			t.Errorf("the claim was evicted with %d requests", n)
		}
	})
}

// TestCloseBesideAFailedMinHold: Close does not wait for a minimum hold that the client gives back while the store does not answer.
func TestCloseBesideAFailedMinHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		store.set(first(1, nil, fails), verbEnter)
		store.set(first(1, hangs, nil), verbClose)
		store.set(hangs, verbEvict)
		_, err := c.Mutex("m").With(pawl.LockOptions{MinHold: time.Hour}).TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		synctest.Wait()
		began := time.Now()
		noErr(t, c.Close(t.Context()))
		if took := time.Since(began); took > slack {
			t.Errorf("took %v", took)
		}
	})
}
