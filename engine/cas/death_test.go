package cas

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/turn"
)

const ttl = 10 * time.Second

var whole = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}

func newEngine(t *testing.T, store Store, opts Options) *Engine {
	t.Helper()
	opts.Caps.Name, opts.Caps.MinTTL = "map", time.Second
	e := New(store, opts)
	t.Cleanup(func() { e.Close() })
	return e
}

func openOn(t *testing.T, e *Engine) engine.Session {
	t.Helper()
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func claimOf(s engine.Session, name string, n int) *engine.Claim {
	id := fmt.Sprint(s.ID(), ".", n)
	return &engine.Claim{Spec: whole, Resource: name, ID: id, Owner: id, Weight: whole.Capacity}
}

func try(t *testing.T, s engine.Session, c *engine.Claim) (engine.Grant, error) {
	t.Helper()
	return s.Enter(t.Context(), c, false)
}

func mustHold(t *testing.T, s engine.Session, c *engine.Claim) fence.Token {
	t.Helper()
	g, err := try(t, s, c)
	if err != nil || !g.Held() {
		t.Fatal(g, err)
	}
	return g.Token
}

// alive renews a session until the test ends.
func alive(t *testing.T, s engine.Session) {
	go func() {
		for turn.Pause(t.Context(), ttl/3) == nil {
			s.Renew(t.Context(), nil) //nolint:errcheck // some are ended
		}
	}()
}

// Where the store does not tell the time, a client that tries must first have observed the dead
// holder for a TTL. With a clock, the first try of a new client is enough.
func TestTryBehindTheDead(t *testing.T) {
	for _, clock := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, caps := newInMemory(clock), engine.Caps{}
			if clock {
				caps.Expiry = engine.ExpiryMonotonic
			}
			dies := openOn(t, newEngine(t, store, Options{Caps: caps}))
			mustHold(t, dies, claimOf(dies, "x", 1))
			<-time.After(2 * ttl)
			late := openOn(t, newEngine(t, store, Options{Caps: caps}))
			if _, err := try(t, late, claimOf(late, "x", 1)); clock != (err == nil) || !clock && !errors.Is(err, engine.ErrBusy) {
				t.Errorf("the first try, with a clock %v: %v", clock, err)
			}
		})
	}
}

// TestTidyBesideADeadWaiter: other clients entered before an empty resource could be removed, and the first waiter among them has died. That
// is no error of the release.
func TestTidyBesideADeadWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newInMemory(true)
		e := newEngine(t, store, Options{Caps: engine.Caps{Expiry: engine.ExpiryMonotonic}})
		holds, waits := openOn(t, e), openOn(t, e)
		for i, s := range []engine.Session{holds, waits} {
			c := claimOf(s, "x", i)
			c.Spec, c.Weight = engine.Spec{Kind: engine.KindSemaphore, Capacity: 2}, int64(i+1)
			if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() != (s == holds) {
				t.Fatal(g, err)
			}
		}
		store.kill(waits.ID())
		if err := e.tidy(t.Context(), "x"); err != nil {
			t.Error(err)
		}
	})
}

// An observer that saw no heartbeat for a TTL ends the session. An observer that saw a heartbeat
// does not.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newInMemory(false)
		dies, lives, observer := openOn(t, newEngine(t, store, Options{})), openOn(t, newEngine(t, store, Options{})), newEngine(t, store, Options{})
		alive(t, lives)
		mustHold(t, dies, claimOf(dies, "of the dead", 1))
		mustHold(t, lives, claimOf(lives, "of the living", 1))
		s := openOn(t, observer)
		alive(t, s)
		for i, want := range []error{engine.ErrBusy, engine.ErrBusy, nil} {
			if _, err := try(t, s, claimOf(s, "of the dead", i)); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("try %d of what the dead hold: %v, want %v", i, err, want)
			}
			if _, err := try(t, s, claimOf(s, "of the living", i)); !errors.Is(err, engine.ErrBusy) {
				t.Errorf("try %d of what the living hold: %v", i, err)
			}
			<-time.After(ttl/2 + ttl/100)
		}
		if _, err := dies.Renew(t.Context(), nil); !errors.Is(err, engine.ErrGone) {
			t.Errorf("the dead renew: %v", err)
		}
	})
}

// Living clients remove everything that dead clients left, also in names that nobody uses again.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newInMemory(false)
		dies := openOn(t, newEngine(t, store, Options{}))
		for i := range 5 {
			mustHold(t, dies, claimOf(dies, fmt.Sprint("left/", i), 1))
		}
		alive(t, openOn(t, newEngine(t, store, Options{})))
		<-time.After(20 * sweepEvery)
		for key := range store.List(t.Context(), "") {
			if key != storeKey && key[:2] != sessionKey {
				t.Errorf("%s is still there", key)
			}
		}
		n := 0
		for range store.List(t.Context(), sessionKey) {
			n++
		}
		if n != 1 {
			t.Errorf("%d sessions, one lives", n)
		}
	})
}

// listing is a store that counts the lists of resources.
type listing struct {
	*inMemory
	lists atomic.Int64
}

func (l *listing) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	if prefix == resourceKey {
		l.lists.Add(1)
	}
	return l.inMemory.List(ctx, prefix)
}

// TestOneClears: of many clients that see a session die, one looks for its claims in all names. If the client that ended
// the session is gone as well, the sweeps of the others do.
func TestOneClears(t *testing.T) {
	for name, orphaned := range map[string]bool{"by a client": false, "by a client that is gone": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 20
				store := &listing{inMemory: newInMemory(false).Far()}
				dies := openOn(t, newEngine(t, store, Options{}))
				mustHold(t, dies, claimOf(dies, "x", 1))
				mustHold(t, dies, claimOf(dies, "nobody waits", 1))
				var engines []*Engine
				granted := make(chan error, n)
				for range n {
					e := newEngine(t, store, Options{})
					s := openOn(t, e)
					alive(t, s)
					c := claimOf(s, "x", 1)
					if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() {
						t.Fatal(g, err)
					}
					go func() {
						_, err := s.Await(t.Context(), c)
						granted <- errors.Join(err, s.Leave(t.Context(), "x", c.ID))
					}()
					engines = append(engines, e)
				}
				synctest.Wait()
				before := store.lists.Load()
				if version := store.items[sessionKey+dies.ID()].Version; orphaned {
					if _, err := store.Swap(t.Context(), sessionKey+dies.ID(), deadMark, version); err != nil {
						t.Fatal(err)
					}
				} else {
					store.kill(dies.ID())
				}
				for range n {
					if err := <-granted; err != nil {
						t.Error(err)
					}
				}
				<-time.After(100 * sweepEvery)
				if lists := store.lists.Load() - before; lists == 0 || lists > n/4 {
					t.Errorf("%d clients listed all names %d times", n, lists)
				}
				for key := range store.List(t.Context(), resourceKey) {
					t.Errorf("%s is still there", key)
				}
				<-time.After(400 * sweepEvery)
				for _, e := range engines {
					if dead := e.knownDead(); len(dead) > 0 {
						t.Errorf("%d dead sessions are remembered", len(dead))
					}
				}
			})
		})
	}
}

// A late read does not make a session dead: a write tells.
func TestLateRead(t *testing.T) {
	store := newInMemory(false)
	e := newEngine(t, store, Options{})
	s := openOn(t, e)
	if dead, _, err := e.judge(t.Context(), s.ID(), Item{}); dead || err != nil {
		t.Errorf("by a read of before it was opened: %v, %v", dead, err)
	}
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Tokens grow across deletion, also when one write grants more tokens than versions pass.
func TestTokensGrow(t *testing.T) {
	store := newInMemory(false)
	e := newEngine(t, store, Options{})
	s := openOn(t, e)
	last := mustHold(t, s, claimOf(s, "x", 0))
	const readers = 3 * tokensPerWrite
	for i := range readers {
		c := claimOf(s, "x", 1+i)
		c.Weight = 1
		if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() {
			t.Fatal(g, err)
		}
	}
	if err := s.Leave(t.Context(), "x", claimOf(s, "x", 0).ID); err != nil {
		t.Fatal(err)
	}
	r, err := e.Show(t.Context(), "x")
	if err != nil || len(r.Claims) != readers {
		t.Fatal(len(r.Claims), err)
	}
	for _, c := range r.Claims {
		if c.Token <= last {
			t.Fatalf("token %v after %v", c.Token, last)
		}
		last = c.Token
	}
	if err := s.Close(t.Context()); err != nil { // all waiters leave in one write
		t.Fatal(err)
	}
	for key := range store.List(t.Context(), resourceKey) {
		t.Errorf("%s is still there", key)
	}
	next := openOn(t, e)
	if token := mustHold(t, next, claimOf(next, "x", 1)); token <= last {
		t.Errorf("token %v after %v", token, last)
	}
}

// A name that is full refuses claims, and goes on.
func TestBounds(t *testing.T) {
	for bound, opts := range map[string]Options{"claims": {MaxClaims: 3}, "data": {MaxData: engine.MaxValue}} {
		e := newEngine(t, newInMemory(false), opts)
		s := openOn(t, e)
		if got := e.Caps().MaxClaims; bound == "claims" && got != 3 {
			t.Errorf("Caps say %d", got)
		}
		var err error
		n := 0
		for ; err == nil && n < MaxClaims; n++ {
			c := claimOf(s, "x", n)
			c.Label = fmt.Sprintf("%200d", n)
			_, err = s.Enter(t.Context(), c, true)
		}
		if !errors.Is(err, engine.ErrUnsupported) || bound == "claims" && n != 4 {
			t.Errorf("%s: refused after %d: %v", bound, n, err)
		}
		t.Log(err)
		if err := s.Leave(t.Context(), "x", claimOf(s, "x", 0).ID); err != nil {
			t.Error(err)
		}
		if _, err := s.Enter(t.Context(), claimOf(s, "x", n), true); err != nil {
			t.Errorf("%s: after one left: %v", bound, err)
		}
	}
}

// A store that differs from its options is a mistake of a program.
func TestNewRefuses(t *testing.T) {
	for what, opts := range map[string]Options{
		"MaxClaims": {MaxClaims: MaxClaims + 1}, "MaxData": {MaxData: 1}, "Forgets": {Caps: engine.Caps{Forgets: true}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is taken", what)
				}
			}()
			New(newInMemory(false), opts)
		}()
	}
}

// forgetting is a Store with lives.
type forgetting struct {
	*inMemory
	life string
}

func (f *forgetting) Life(ctx context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.life, ctx.Err()
}

// forget begins another life.
func (f *forgetting) forget(life string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.items)
	f.last, f.life = 0, life
}

// In a new life nothing is granted for as long as earlier holders may trust their locks. All tokens
// are larger than before.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &forgetting{newInMemory(true), "first"}
		opts := Options{Caps: engine.Caps{Forgets: true}}
		e := newEngine(t, store, opts)
		if err := e.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := e.Init(t.Context()); !errors.Is(err, engine.ErrUsed) {
			t.Errorf("a second time: %v", err)
		}
		s := openOn(t, e)
		before := mustHold(t, s, claimOf(s, "x", 1))

		<-time.After(time.Minute)
		store.forget("second")
		operator := newEngine(t, store, opts)
		if r, err := operator.Show(t.Context(), "x"); err != nil || !r.Grace.On() || r.Grace.Age != engine.Unknown {
			t.Errorf("shown before the first client of this life: %+v, %v", r, err)
		}
		s = openOn(t, e)
		alive(t, s)
		var grace *engine.GraceError
		if _, err := try(t, s, claimOf(s, "x", 2)); !errors.As(err, &grace) || grace.Left > ttl || grace.Left < ttl/2 {
			t.Errorf("a try in the grace: %v", err)
		}
		c := claimOf(s, "x", 3)
		if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() || !g.Grace.On() {
			t.Errorf("a wait in the grace: %+v, %v", g, err)
		}
		start := time.Now()
		g, err := s.Await(t.Context(), c)
		if err != nil || g.Token <= before {
			t.Errorf("token %v after %v, %v", g.Token, before, err)
		}
		if took := time.Since(start); took < ttl-time.Second || took > ttl+time.Second {
			t.Errorf("granted after %v", took)
		}
		other := openOn(t, newEngine(t, store, opts)) // it finds the mark that the grace is over
		mustHold(t, other, claimOf(other, "y", 1))
		if r, err := operator.Show(t.Context(), "x"); err != nil || r.Grace.On() || len(r.Claims) != 1 {
			t.Errorf("shown after the grace: %+v, %v", r, err)
		}
	})
}

// TestShowBeginsNoGrace: an operator that looks at a new store is told of the grace, and marks nothing.
func TestShowBeginsNoGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &forgetting{newInMemory(true), "first"}
		r, err := newEngine(t, store, Options{Caps: engine.Caps{Forgets: true}}).Show(t.Context(), "x")
		store.mu.Lock()
		defer store.mu.Unlock()
		if err != nil || !r.Grace.On() || len(store.items) != 0 {
			t.Errorf("%+v, %v, and the store has %d keys", r, err, len(store.items))
		}
	})
}

// TestBrokenClaimsAreForgotten: a session forgets a claim that an operator took away, although nobody leaves that claim.
func TestBrokenClaimsAreForgotten(t *testing.T) {
	e := newEngine(t, newInMemory(false), Options{})
	s := openOn(t, e)
	c := claimOf(s, "x", 1)
	mustHold(t, s, c)
	if err := e.Evict(t.Context(), "x", c.ID); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Renew(t.Context(), []*engine.Claim{c}); err != nil || len(gone) != 1 {
		t.Fatal(gone, err)
	}
	if n := len(s.(*session).claims); n > 0 {
		t.Errorf("%d claims are remembered", n)
	}
}
