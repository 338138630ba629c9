package enginetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// reentryCases are the promises of the root about re-entry, on every store.
var reentryCases = []Case{
	{"a claim's id is an owner", "a lease of a plain lock is not re-entered by its own context", idIsOwner, nil},
	{"a lease is re-entered by its own context", "a function that locks what its caller holds waits for itself", ownContext, nil},
	{"goroutines under a lock exclude one another", "under one lock everybody holds every other", goroutinesExclude, nil},
	{"permits are not re-entered", "under one lock everybody has a permit", permitsCount, needs(engine.FeatureSemaphore)},
	{"candidates of one owner are two", "two leaders", candidatesAreTwo, needs(engine.FeatureValues)},
	{"a context re-enters in its own client", "the lock of one client lets another in", ownClient, nil},
	{"a reader that would write is refused", "a reader that locks to write waits for itself", readerIsRefused, needs(engine.FeatureShared)},
	{"both sides of a name are taken at once", "a call waits for itself", bothSides, needs(engine.FeatureShared)},
}

func idIsOwner(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	plain := a.claim("id owner", mutex)
	token := a.hold(plain).Token
	w := b.claim("id owner", mutex)
	got := b.wait(w)
	second := a.owned("id owner", mutex, mutex.Capacity, plain.ID)
	if g, err := a.Enter(a.ctx, second, true); err != nil || g.Token != token {
		t.Fatalf("re-entry by the id of the claim: %v, %v, want %v", g, err, token)
	}
	third := a.owned("id owner", mutex, mutex.Capacity, plain.ID)
	if g, err := a.Enter(a.ctx, third, false); err != nil || g.Token != token {
		t.Fatalf("re-entry that does not wait: %v, %v, want %v", g, err, token)
	}
	a.leave(plain) // the other claims still hold
	a.leave(third)
	b.until("two are out", "id owner", func(r engine.Resource) bool { return len(r.Claims) == 2 })
	b.stillWaits("waiter while the owner holds", w, got)
	fourth := a.owned("id owner", mutex, mutex.Capacity, plain.ID)
	if g := a.hold(fourth); g.Token != token {
		t.Fatalf("re-entry when the plain claim has left: %v, want %v", g.Token, token)
	}
	a.leave(second)
	b.stillWaits("waiter while the owner holds", w, got)
	a.leave(fourth)
	if r := getGrant(t, "waiter", got); r.Token <= token {
		t.Fatalf("token %v after %v", r.Token, token)
	}
}

func ownContext(t *testing.T, h *Harness) {
	c, other := h.steady(t, h.Open(t)), h.steady(t, h.Open(t))
	m := c.Mutex("own context")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lease := lock(t, m)
	inner, stop := context.WithTimeout(lease.Context(), patience)
	defer stop()
	again, err := m.Lock(inner)
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	if again.Token() != lease.Token() {
		t.Errorf("re-entry has token %v, want %v", again.Token(), lease.Token())
	}
	if err := lease.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if _, err := other.Mutex("own context").TryLock(ctx); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("another while the inner one holds: %v", err)
	}
	if err := again.Unlock(ctx); err != nil {
		t.Error(err)
	}
	err = m.Do(ctx, func(ctx context.Context) error {
		return m.Do(ctx, func(ctx context.Context) error {
			if token, ok := fence.FromContext(ctx, "own context"); !ok || token <= lease.Token() {
				t.Errorf("token %v after %v", token, lease.Token())
			}
			one, err := m.TryLock(ctx)
			return errors.Join(err, one.Unlock(ctx))
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// inside counts how many goroutines are inside a section at once.
type inside struct{ now, most atomic.Int64 }

func (in *inside) enter() {
	n := in.now.Add(1)
	for most := in.most.Load(); n > most && !in.most.CompareAndSwap(most, n); most = in.most.Load() {
	}
}

func (in *inside) leave() { in.now.Add(-1) }

// under locks from many goroutines with the context of a lock of another name, and returns how many
// held at once. Each goroutine looks at the store while it holds.
func under(t *testing.T, c *pawl.Client, outer string, l pawl.Locker) int64 {
	t.Helper()
	var in inside
	err := c.Mutex(outer).Do(t.Context(), func(ctx context.Context) error {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				err := l.Do(ctx, func(ctx context.Context) error {
					in.enter()
					defer in.leave()
					_, err := c.Show(ctx, l.Name())
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return in.most.Load()
}

func goroutinesExclude(t *testing.T, h *Harness) {
	c := h.steady(t, h.Open(t))
	if n := under(t, c, "goroutines outer", c.Mutex("goroutines")); n != 1 {
		t.Errorf("%d hold a mutex", n)
	}
}

func permitsCount(t *testing.T, h *Harness) {
	c := h.steady(t, h.Open(t))
	if n := under(t, c, "permits outer", c.Semaphore("permits", 3)); n > 3 {
		t.Errorf("%d hold 3 permits", n)
	}
	s := c.Semaphore("permits of one", 2)
	err := s.Do(t.Context(), func(ctx context.Context) error {
		second, err := s.TryLock(ctx)
		if err != nil {
			return err
		}
		if _, err := s.TryLock(ctx); !errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("a third permit of 2: %v", err)
		}
		return second.Unlock(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

func candidatesAreTwo(t *testing.T, h *Harness) {
	a, b, watcher := h.client(t, h.Open(t)), h.client(t, h.Open(t)), h.party(t)
	owned, cancel := context.WithTimeout(pawl.WithOwner(t.Context(), pawl.NewOwner()), patience)
	defer cancel()
	term, err := a.Election("candidates").Campaign(owned, []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*pawl.Client{a, b} {
		for _, ctx := range []context.Context{owned, term.Context()} {
			ctx, cancel := context.WithCancel(ctx)
			second := make(chan error, 1)
			go func() {
				_, err := c.Election("candidates").Campaign(ctx, []byte("second"))
				second <- err
			}()
			watcher.until("a second candidate waits", "pawl:election/candidates", func(r engine.Resource) bool { return len(r.Claims) == 2 })
			cancel()
			if err := <-second; !errors.Is(err, pawl.ErrNotAcquired) {
				t.Errorf("a second candidate: %v", err)
			}
		}
	}
	if err := a.Election("candidates").Resign(owned, term); err != nil {
		t.Error(err)
	}
}

func ownClient(t *testing.T, h *Harness) {
	a, b := h.steady(t, h.Open(t)), h.steady(t, h.Open(t))
	err := a.Mutex("own client").Do(t.Context(), func(ctx context.Context) error {
		if _, err := b.Mutex("own client").TryLock(ctx); !errors.Is(err, pawl.ErrNotAcquired) {
			t.Errorf("another client, with the context of the holder: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func readerIsRefused(t *testing.T, h *Harness) {
	c := h.steady(t, h.Open(t))
	rw := c.RWMutex("reader refused")
	r, err := rw.RLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rw.Lock(r.Context()); !errors.Is(err, pawl.ErrNotAcquired) || !strings.Contains(err.Error(), "TryUpgrade") {
		t.Errorf("a reader that locks to write: %v", err)
	}
	again, err := rw.RLock(r.Context())
	if err != nil || again.Token() != r.Token() {
		t.Fatalf("a reader that reads again: %v", err)
	}
	if err := again.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	w, err := rw.TryUpgrade(r.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func bothSides(t *testing.T, h *Harness) {
	c := h.steady(t, h.Open(t))
	rw := c.RWMutex("both sides")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, take := range []func(context.Context, ...pawl.Locker) (pawl.Leases, error){pawl.LockAll, pawl.TryLockAll} {
		both, err := take(ctx, rw.RLocker(), c.Mutex("both sides, beside"), rw)
		if err != nil {
			t.Fatal(err)
		}
		if err := both.Unlock(ctx); err != nil {
			t.Error(err)
		}
	}
}
