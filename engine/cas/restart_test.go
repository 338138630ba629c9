package cas

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// lose begins another life, in which the store has forgotten the last write, that of a key.
func (f *forgetting) lose(key, life string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.life = f.items[key].Version-1, life
	delete(f.items, key)
}

// crossing is a store that is restarted while a client takes a step.
type crossing struct {
	*forgetting
	restart atomic.Pointer[func()] // before the next read of a resource
	knows   atomic.Value           // a string: the life that the client still believes in
	wrote   atomic.Pointer[[]byte] // the last data that the client wrote
}

func (c *crossing) Swap(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	c.wrote.Store(&data)
	return c.forgetting.Swap(ctx, key, data, version)
}

func (c *crossing) Load(ctx context.Context, key string) (Item, error) {
	if strings.HasPrefix(key, resourceKey) {
		if restart := c.restart.Swap(nil); restart != nil {
			(*restart)()
		}
	}
	return c.forgetting.Load(ctx, key)
}

func (c *crossing) Life(ctx context.Context) (string, error) {
	if life, _ := c.knows.Load().(string); life != "" {
		return life, ctx.Err()
	}
	return c.forgetting.Life(ctx)
}

// restarts returns a store in its first life, and a store for a client that takes a step over a restart. That restart
// loses the last write of "x".
func restarts(t *testing.T) (store *forgetting, over *crossing, restart func()) {
	store = &forgetting{newInMemory(true), "first"}
	if err := newEngine(t, store, forgets).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store, &crossing{forgetting: store}, func() { store.lose(resourceKey+"x", "second") }
}

// TestEnterOverARestart: the store forgets a holder while another client takes the lock, and that client asks again. That
// client waits for the end of the grace, because the holder may still believe. The new token is larger than that of the holder.
func TestEnterOverARestart(t *testing.T) {
	for name, graced := range map[string]bool{"asks in the grace": true, "asks after the grace": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, over, restart := restarts(t)
				<-time.After(time.Minute)
				s, holder := openOn(t, newEngine(t, over, forgets)), openOn(t, newEngine(t, store, forgets))
				alive(t, s)
				alive(t, holder)
				c, held := claimOf(s, "x", 1), claimOf(holder, "x", 1)
				before := mustHold(t, holder, held)
				over.restart.Store(&restart)
				if _, err := s.Enter(t.Context(), c, true); !errors.Is(err, engine.ErrUnavailable) {
					t.Fatal("over the restart:", err)
				}
				start := time.Now()
				if !graced {
					<-time.After(2 * ttl)
				}
				g, err := s.Enter(t.Context(), c, true)
				if err != nil || g.Held() == graced || g.Grace.On() != graced {
					t.Fatalf("asked again: %+v, %v", g, err)
				}
				if gone, err := holder.Renew(t.Context(), []*engine.Claim{held}); err != nil || len(gone) != 1 {
					t.Error("the holder is told", gone, err)
				}
				if graced {
					g, err = s.Await(t.Context(), c)
				}
				if err != nil || g.Token <= before || time.Since(start) < ttl-time.Second {
					t.Errorf("token %v after %v, granted after %v, %v", g.Token, before, time.Since(start), err)
				}
			})
		})
	}
}

// TestTryOverARestart: as TestEnterOverARestart, with a claim that may not wait.
func TestTryOverARestart(t *testing.T) {
	store, over, restart := restarts(t)
	e := newEngine(t, over, forgets)
	s, holder := openOn(t, e), openOn(t, newEngine(t, store, forgets))
	c := claimOf(s, "x", 1)
	mustHold(t, holder, claimOf(holder, "x", 1))
	over.restart.Store(&restart)
	if _, err := try(t, s, c); !errors.Is(err, engine.ErrUnavailable) {
		t.Fatal("over the restart:", err)
	}
	if g, err := try(t, s, c); !errors.Is(err, engine.ErrGrace) {
		t.Errorf("tried again: %+v, %v", g, err)
	}
	if r, err := e.Show(t.Context(), "x"); err != nil || len(r.Claims) > 0 {
		t.Errorf("%+v, %v", r.Claims, err)
	}
}

// TestHandOverOverARestart: a client that does not know of the restart hands the resource on to a client that waits for
// the end of the grace. That client goes on waiting.
func TestHandOverOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, over, restart := restarts(t)
		late, holder := newEngine(t, over, forgets), openOn(t, newEngine(t, store, forgets))
		if _, err := late.Show(t.Context(), "x"); err != nil { // it knows that the first grace is over
			t.Fatal(err)
		}
		before := mustHold(t, holder, claimOf(holder, "x", 1))
		restart()
		s := openOn(t, newEngine(t, store, forgets))
		alive(t, s)
		c := claimOf(s, "x", 1)
		if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() {
			t.Fatal(g, err)
		}
		start, got := time.Now(), make(chan engine.Grant, 1)
		go func() {
			g, err := s.Await(t.Context(), c)
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		synctest.Wait()
		over.knows.Store("first")
		if err := late.Evict(t.Context(), "x", "another"); !errors.Is(err, engine.ErrGone) {
			t.Fatal(err)
		}
		// The waiter may have given the grant back by now, so the store may not show the grant.
		if r, err := decode(Item{Data: *over.wrote.Load(), Version: 1}); err != nil || r.Claims[0].Token == 0 {
			t.Fatalf("nothing was handed on: %+v, %v", r, err)
		}
		if g := <-got; g.Token <= before || time.Since(start) < ttl-time.Second {
			t.Errorf("token %v after %v, granted after %v", g.Token, before, time.Since(start))
		}
	})
}
