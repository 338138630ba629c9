package pawl_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

var allVerbs = []string{verbOpen, verbEnter, verbAwait, verbLeave, verbRenew, verbClose, verbGet, verbPut, verbWatch, verbEvict, verbResize, verbShow, verbList}

// slack is how long after its ctx a call may come back.
const slack = 100 * time.Millisecond

// boundedCalls are calls with a ctx; held is a lease of the client.
var boundedCalls = map[string]func(context.Context, *pawl.Client, *pawl.Lease) error{
	"lock": func(ctx context.Context, c *pawl.Client, _ *pawl.Lease) error {
		_, err := c.Mutex("other").Lock(ctx)
		return err
	},
	"try": func(ctx context.Context, c *pawl.Client, _ *pawl.Lease) error {
		_, err := c.Mutex("other").TryLock(ctx)
		return err
	},
	"semaphore": func(ctx context.Context, c *pawl.Client, _ *pawl.Lease) error {
		_, err := c.Semaphore("permits", 3).Lock(ctx)
		return err
	},
	"all": func(ctx context.Context, c *pawl.Client, _ *pawl.Lease) error {
		_, err := pawl.LockAll(ctx, c.Mutex("x"), c.Mutex("y"))
		return err
	},
	"unlock": func(ctx context.Context, _ *pawl.Client, held *pawl.Lease) error {
		return held.Unlock(ctx)
	},
	"get": func(ctx context.Context, c *pawl.Client, _ *pawl.Lease) error {
		_, err := c.Value("v").Get(ctx)
		return err
	},
	"update": func(ctx context.Context, c *pawl.Client, _ *pawl.Lease) error {
		_, err := c.Value("v").Update(ctx, func(pawl.Snapshot) ([]byte, error) { return []byte("x"), nil })
		return err
	},
	"campaign": func(ctx context.Context, c *pawl.Client, _ *pawl.Lease) error {
		_, err := c.Election("e").Campaign(ctx, nil)
		return err
	},
}

// TestCallsEndWithTheirContext: on a store that hangs each call returns within its ctx and the
// slack. The heartbeat later repeats the requests that the store did not answer.
func TestCallsEndWithTheirContext(t *testing.T) {
	for name, call := range boundedCalls {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng, nil)
				kept, held := mustLock(t, t.Context(), c.Mutex("kept")), mustLock(t, t.Context(), c.Mutex("held"))
				store.set(hangs, allVerbs...)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				err := call(ctx, c, held)
				if took := time.Since(start); took > 50*time.Millisecond+slack {
					t.Errorf("took %v", took)
				}
				wantErr(t, err, pawl.ErrUnavailable)
				store.set(nil, allVerbs...)
				pass(10 * time.Second) // a renewal that met the trouble ends after half of the TTL
				for _, name := range []string{"other", "x", "y", "permits"} {
					wantFree(t, eng, name)
				}
				if name == "unlock" {
					wantFree(t, eng, "held")
				}
				mustUnlock(t, kept)
			})
		})
	}
}

// TestUnlockAfterTheContext: a deferred Unlock whose ctx has ended releases all the same, and
// returns nil if the store answers.
func TestUnlockAfterTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		pass(time.Second)
		for _, ended := range []context.Context{cancelled, late} {
			lease := mustLock(t, t.Context(), c.Mutex("m"))
			if err := lease.Unlock(ended); err != nil {
				t.Fatal(err)
			}
			wantFree(t, eng, "m")
			lease = mustLock(t, t.Context(), c.Mutex("m"))
			store.set(arrivesLate(50*time.Millisecond), verbLeave) // a distant store
			if err := lease.Unlock(ended); err != nil {
				t.Fatal(err)
			}
			wantFree(t, eng, "m")
			store.set(nil, verbLeave)
		}
	})
}

// TestRequestTimeout: a request without a deadline ends after the request time-out, not after the
// TTL.
func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), &pawl.Options{TTL: time.Minute, RequestTimeout: time.Second})
		lease := mustLock(t, t.Context(), c.Mutex("m"))
		store.set(hangs, allVerbs...)
		for name, call := range map[string]func() error{
			"get":    func() error { _, err := c.Value("v").Get(t.Context()); return err },
			"try":    func() error { _, err := c.Mutex("x").TryLock(t.Context()); return err },
			"unlock": func() error { return lease.Unlock(t.Context()) },
		} {
			start := time.Now()
			wantErr(t, call(), pawl.ErrUnavailable)
			if took := time.Since(start); took > time.Second+slack {
				t.Errorf("%s took %v", name, took)
			}
		}
		start := time.Now()
		wantErr(t, c.Close(t.Context()), pawl.ErrUnavailable)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("close took %v", took)
		}
	})
}

// TestCloseOfMany: Close releases many leases side by side, and not one after the other.
func TestCloseOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		const held = 10_000
		for i := range held {
			mustLock(t, t.Context(), c.Mutex(fmt.Sprint("many/", i)))
		}
		var most, now atomic.Int64
		store.set(func(ctx context.Context, do func(context.Context) error) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			pass(10 * time.Millisecond)
			return do(ctx)
		}, verbLeave)
		start := time.Now()
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v of the store's time", took)
		}
		if most := most.Load(); most > 64 {
			t.Errorf("%d requests were under way at once", most)
		}
		if n := len(store.called(verbLeave)); n != held {
			t.Errorf("%d of %d were released", n, held)
		}
	})
}

// TestFoundClaims: the store may have a claim of the session that the client does not know, as
// after an old snapshot came back. The client leaves that claim. The client keeps the claims that it holds,
// waits for or is about to enter.
func TestFoundClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		store := &findingStore{Engine: eng}
		c := newClient(t, store, nil)
		other := newClient(t, eng, nil)
		blocker := mustLock(t, t.Context(), other.Mutex("waited"))
		held := mustLock(t, t.Context(), c.Mutex("held"))
		waits := lockSoon(t.Context(), c.Mutex("waited"))
		synctest.Wait()
		// An old snapshot brings back a claim of this session.
		old := &engine.Claim{Spec: engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}, Resource: "old", ID: "old.1", Owner: "old.1", Weight: 1}
		if _, err := store.session.Enter(t.Context(), old, true); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"old", "held", "waited"} {
			for _, cl := range show(t, eng, name).Claims {
				if cl.Session == store.session.ID() {
					store.mu.Lock()
					store.found = append(store.found, [2]string{name, cl.ID})
					store.mu.Unlock()
				}
			}
		}
		pass(10 * time.Second)
		wantFree(t, eng, "old")
		noErr(t, held.Err())
		mustUnlock(t, blocker)
		got := <-waits
		noErr(t, got.err)
		mustUnlock(t, got.lease)
		mustUnlock(t, held)
	})
}

// TestHeartbeatWithLockDelay: a lock-delay makes the session of the store longer. The engine is asked to let
// waiters look again after the same time as without it. Tests of the engines show that waiters do.
func TestHeartbeatWithLockDelay(t *testing.T) {
	store := &findingStore{Engine: memengine.New()}
	newClient(t, store, &pawl.Options{TTL: 9 * time.Second, LockDelay: 30 * time.Second})
	if o := store.opts; o.TTL != 39*time.Second || o.Belief() != 9*time.Second || o.Heartbeat != 3*time.Second {
		t.Errorf("the session was opened with %+v", o)
	}
}

// findingStore reports claims of its session with each renewal.
type findingStore struct {
	*memengine.Engine
	session engine.Session
	opts    engine.SessionOptions
	mu      sync.Mutex
	found   [][2]string
}

func (f *findingStore) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s, err := f.Engine.Open(ctx, opts)
	f.session, f.opts = s, opts
	return &findingSession{s, f}, err
}

type findingSession struct {
	engine.Session
	store *findingStore
}

func (s *findingSession) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, f := range s.store.found {
		s.store.opts.Found(f[0], f[1])
	}
	return s.Session.Renew(ctx, held)
}
