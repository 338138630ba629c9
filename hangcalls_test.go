package pawl_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// eachCall has the calls that no other table of this kind has. The client c sees the store.
var eachCall = map[string]func(t *testing.T, c *pawl.Client, store engine.Engine) func(context.Context) error{
	"New": func(_ *testing.T, _ *pawl.Client, store engine.Engine) func(context.Context) error {
		return func(ctx context.Context) error {
			c, err := pawl.New(ctx, store, nil)
			if err == nil {
				c.Close(ctx)
			}
			return err
		}
	},
	"Close": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		mustLock(t, t.Context(), c.Mutex("m"))
		return c.Close
	},
	"Close of many": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		for i := range 100 {
			mustLock(t, t.Context(), c.Mutex(fmt.Sprint(i)))
		}
		return c.Close
	},
	"Retry": with(func(ctx context.Context, c *pawl.Client) error {
		return c.Retry(ctx, 0, func() error { return errOf(c.Value("v").Get(ctx)) })
	}),
	"Show": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Show(ctx, "m")) }),
	"List": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		for i := range 40 {
			mustLock(t, t.Context(), c.Mutex(fmt.Sprint(i)))
		}
		return func(ctx context.Context) (err error) {
			for _, err = range c.List(ctx, "") {
			}
			return err
		}
	},
	"Break": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		mustLock(t, t.Context(), c.Mutex("m"))
		return func(ctx context.Context) error { return errOf(c.Break(ctx, "m", pawl.BreakOptions{})) }
	},
	"Do":    with(func(ctx context.Context, c *pawl.Client) error { return c.Mutex("m").Do(ctx, nothing) }),
	"RLock": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.RWMutex("m").RLock(ctx)) }),
	"TryRLock": with(func(ctx context.Context, c *pawl.Client) error {
		return errOf(c.RWMutex("m").TryRLock(ctx))
	}),
	"Downgrade": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		w := mustLock(t, t.Context(), c.RWMutex("m"))
		return func(ctx context.Context) error { return errOf(c.RWMutex("m").Downgrade(ctx, w)) }
	},
	"TryUpgrade": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		r := mustLock(t, t.Context(), c.RWMutex("m").RLocker())
		return func(ctx context.Context) error { return errOf(c.RWMutex("m").TryUpgrade(ctx, r)) }
	},
	"Keep": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		l := mustLock(t, t.Context(), c.Mutex("m"))
		return func(ctx context.Context) error { return l.Keep(ctx, time.Second) }
	},
	"MinHold": with(func(ctx context.Context, c *pawl.Client) error {
		m := c.Mutex("m").With(pawl.LockOptions{MinHold: time.Second})
		return errOf(m.Lock(ctx))
	}),
	"LockAll": with(func(ctx context.Context, c *pawl.Client) error {
		return errOf(c.Striped("s", 100).LockAll(ctx, "a", "b", "c"))
	}),
	"Proclaim": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		term := campaign(t, c.Election("e"), "me")
		return func(ctx context.Context) error { return c.Election("e").Proclaim(ctx, term, []byte("other")) }
	},
	"Leader": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		campaign(t, c.Election("e"), "me")
		return func(ctx context.Context) error { return errOf(c.Election("e").Leader(ctx)) }
	},
	"Observe": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		campaign(t, c.Election("e"), "me")
		return func(ctx context.Context) error {
			for _, err := range c.Election("e").Observe(ctx) {
				noErr(t, err)
			}
			return ctx.Err()
		}
	},
	"Generation": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Barrier("b", 2).Generation(ctx)) }),
	"Barrier.Reset": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		errOf(c.Barrier("b", 2).Join(t.Context()))
		return func(ctx context.Context) error { return c.Barrier("b", 2).Reset(ctx, 1) }
	},
	"Member.Wait": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		m, err := c.Barrier("b", 2).Join(t.Context())
		noErr(t, err)
		return func(ctx context.Context) error { return errOf(m.Wait(ctx)) }
	},
	"CountDown":  with(func(ctx context.Context, c *pawl.Client) error { return c.Latch("l", 2).CountDown(ctx, "me") }),
	"Count":      with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Latch("l", 2).Count(ctx)) }),
	"Latch.Wait": with(func(ctx context.Context, c *pawl.Client) error { return c.Latch("l", 2).Wait(ctx) }),
	"Latch.Reset": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		noErr(t, c.Latch("l", 2).CountDown(t.Context(), "me"))
		return c.Latch("l", 2).Reset
	},
	"Put":  with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Value("v").Put(ctx, []byte("x"), 0)) }),
	"Next": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Value("v").Next(ctx, 0)) }),
	"Watch": with(func(ctx context.Context, c *pawl.Client) error {
		for _, err := range c.Value("v").Watch(ctx) {
			if err != nil {
				return err
			}
		}
		return ctx.Err()
	}),
	"Semaphore.TryLock": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Semaphore("s", 2).TryLock(ctx)) }),
	"Semaphore.Do":      with(func(ctx context.Context, c *pawl.Client) error { return c.Semaphore("s", 2).Do(ctx, nothing) }),
	"Resize": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		mustLock(t, t.Context(), c.Semaphore("s", 2))
		return func(ctx context.Context) error { return c.Semaphore("s", 2).Resize(ctx, 3) }
	},
	"Resized": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Semaphore("s", 2).Resized(ctx)) }),
	"Semaphore.Reset": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		mustLock(t, t.Context(), c.Semaphore("s", 2))
		noErr(t, c.Semaphore("s", 2).Resize(t.Context(), 3))
		return c.Semaphore("s", 2).Reset
	},
	"Take":    with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Slots("s", 2).Take(ctx)) }),
	"TryTake": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Slots("s", 2).TryTake(ctx)) }),
	"Take of the full": func(t *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		take(t, c.Slots("s", 1), 0)
		return func(ctx context.Context) error { return errOf(c.Slots("s", 1).Take(ctx)) }
	},
	"Scope.Mutex": with(func(ctx context.Context, c *pawl.Client) error { return errOf(c.Scope("k").Mutex("m").Lock(ctx)) }),
	"Scope.Values": with(func(ctx context.Context, c *pawl.Client) (err error) {
		for _, err = range c.Scope("k").Values(ctx, "") {
		}
		return err
	}),
}

func nothing(context.Context) error { return nil }

// with is a call that needs no preparation.
func with(call func(context.Context, *pawl.Client) error) func(*testing.T, *pawl.Client, engine.Engine) func(context.Context) error {
	return func(_ *testing.T, c *pawl.Client, _ engine.Engine) func(context.Context) error {
		return func(ctx context.Context) error { return call(ctx, c) }
	}
}

// TestEachCallEndsWithItsContext is TestCallsEndWithTheirContext for all other calls. The store hangs, or is slow, from the first
// request on or later. A ctx has ended before the call, or ends while the store hangs.
func TestEachCallEndsWithItsContext(t *testing.T) {
	for name, prepare := range eachCall {
		for served := range 8 {
			for _, most := range []time.Duration{0, 50 * time.Millisecond} {
				for trouble, f := range map[string]fault{"hangs": hangs, "slow": arrivesLate(90 * time.Millisecond)} {
					t.Run(fmt.Sprint(name, served, most, trouble), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { eachCallEnds(t, prepare, first(served, nil, f), trouble == "hangs", most) })
					})
				}
			}
		}
	}
}

func eachCallEnds(t *testing.T, prepare func(*testing.T, *pawl.Client, engine.Engine) func(context.Context) error, trouble fault, hanging bool, most time.Duration) {
	eng := memengine.New()
	c, store := newFaultyClient(t, eng, nil)
	call := prepare(t, c, store)
	before := claimsOf(t, eng)
	store.set(trouble, allVerbs...)
	if !hanging {
		store.set(nil, verbWatch, verbAwait) // these would wait for ever after the end of the client
	}
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	start := time.Now()
	err := call(ctx)
	if took := time.Since(start); took > most+slack {
		t.Errorf("took %v", took)
	}
	store.set(nil, allVerbs...)
	if err == nil {
		return
	}
	pass(20 * time.Second)
	for _, claim := range claimsOf(t, eng) {
		if !slices.Contains(before, claim) {
			t.Errorf("%s is left after %v", claim, err)
		}
	}
}

func claimsOf(t *testing.T, eng *memengine.Engine) (ids []string) {
	for name, err := range eng.List(t.Context(), "") {
		noErr(t, err)
		for _, claim := range show(t, eng, name).Claims {
			ids = append(ids, name+" "+claim.ID)
		}
	}
	return ids
}
