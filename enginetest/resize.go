package enginetest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// resizeCases are about semaphores whose size an operator changes.
var resizeCases = []Case{
	{"a semaphore grows and lets waiters in", "more permits take effect only when everybody is restarted", grows, needs(engine.FeatureSemaphore, engine.FeatureResize)},
	{"a semaphore shrinks as holders leave", "Redisson: fewer permits than are held make the count negative, or evict", shrinks, needs(engine.FeatureSemaphore, engine.FeatureResize)},
	{"an operator's number outlives the claims", "Redisson trySetPermits: gone with the key, or ignored when the key is there", numberOutlives, needs(engine.FeatureSemaphore, engine.FeatureResize, engine.FeatureValues)},
	{"a size that changes all the time is nobody's error", "users of a semaphore fail while its size is being changed", sizesChange, needs(engine.FeatureSemaphore, engine.FeatureResize, engine.FeatureValues)},
	{"only a semaphore that is in use has a size", "a lock is made a semaphore by mistake", sizeOfNothing, needs(engine.FeatureSemaphore, engine.FeatureResize)},
}

func grows(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	two := semaphore(2)
	held := a.hold(a.weigh("grows", two, 2))
	heavy := b.weigh("grows", two, 2)
	small, large := b.wait(b.weigh("grows", two, 1)), b.wait(heavy)
	a.resize("grows", 3)
	first := getGrant(t, "the small one", small)
	b.stillWaits("the large one", heavy, large)
	a.tryFails(a.weigh("grows", two, 1), true, engine.ErrMismatch) // this client does not know the new size
	last := a.wait(a.weigh("grows", semaphore(3), 1))
	a.resize("grows", 6)
	second, third := getGrant(t, "the large one", large), getGrant(t, "the last one", last)
	if first.Token <= held.Token || second.Token <= first.Token || third.Token <= second.Token {
		t.Errorf("tokens %v, %v, %v, %v", held.Token, first.Token, second.Token, third.Token)
	}
	r, err := b.engine.Show(b.ctx, "grows")
	if err != nil || r.Spec != semaphore(6) || len(r.Claims) != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

func shrinks(t *testing.T, h *Harness) {
	a, b := h.party(t), h.party(t)
	three := semaphore(3)
	var held []*engine.Claim
	for range 3 {
		c := a.weigh("shrinks", three, 1)
		a.hold(c)
		held = append(held, c)
	}
	heavy, light := b.weigh("shrinks", three, 3), b.weigh("shrinks", three, 1)
	first, second := b.wait(heavy), b.wait(light)
	b.resize("shrinks", 1)
	b.resize("shrinks", 1) // its reply was lost
	if gone, err := a.Renew(a.ctx, held); err != nil || len(gone) != 0 {
		t.Errorf("%d holders were evicted, %v", len(gone), err)
	}
	for i, c := range held {
		r, err := b.engine.Show(b.ctx, "shrinks")
		if err != nil || len(r.Claims) != 5-i || r.Claims[3-i].Token != 0 {
			t.Fatalf("after %d have left: %+v, %v", i, r, err)
		}
		still(t, "the waiter", first)
		a.leave(c)
	}
	getGrant(t, "one that weighs more than is left, alone", first)
	b.stillWaits("the later waiter", light, second)
	b.leave(heavy)
	getGrant(t, "the later waiter", second)
	b.leave(light)
	a.hold(a.weigh("shrinks", three, 1)) // nobody was there, so the first claim sets the size
}

func sizeOfNothing(t *testing.T, h *Harness) {
	p := h.party(t)
	if err := resizerOf(p.t, p.engine).Resize(p.ctx, "size of nothing", 3); !errors.Is(err, engine.ErrGone) {
		t.Errorf("a name that nobody uses: %v", err)
	}
	c := p.claim("size of a lock", mutex)
	p.hold(c)
	if err := resizerOf(p.t, p.engine).Resize(p.ctx, c.Resource, 3); !errors.Is(err, engine.ErrMismatch) {
		t.Errorf("a lock: %v", err)
	}
	if gone, err := p.Renew(p.ctx, []*engine.Claim{c}); err != nil || len(gone) != 0 {
		t.Errorf("the lock is gone: %v, %v", gone, err)
	}
	p.leave(c)
}

func (p *party) resize(name string, capacity int64) {
	p.t.Helper()
	if err := resizerOf(p.t, p.engine).Resize(p.ctx, name, capacity); err != nil {
		p.t.Fatalf("resize %q to %d: %v", name, capacity, err)
	}
}

// numberOutlives: all clients declare one permit all the time.
func numberOutlives(t *testing.T, h *Harness) {
	name := "outlives"
	a, b, operator := h.steady(t, h.Open(t)), h.steady(t, h.Open(t)), h.steady(t, h.Open(t)).Semaphore(name, 1)
	first, later := lock(t, a.Semaphore(name, 1)), lockLater(t, b.Semaphore(name, 1))
	h.queued(t, name, 2)
	if err := operator.Resize(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	second := <-later
	if second.err != nil {
		t.Fatal(second.err)
	}
	if err := errors.Join(first.Unlock(t.Context()), second.Unlock(t.Context())); err != nil {
		t.Fatal(err)
	}
	h.queued(t, name, 0)
	eng := h.Open(t)
	late := h.client(t, eng).Semaphore(name, 1)
	leases := pawl.Leases{lock(t, late), lock(t, b.Semaphore(name, 1))}
	if _, err := late.TryLock(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("a third permit of two: %v", err)
	}
	if err := leases.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	forgetNumber(t, eng, name, "2")
}

// forgetNumber removes the stored number of an operator.
func forgetNumber(t *testing.T, eng engine.Engine, name, want string) {
	t.Helper()
	key := "pawl:permits/" + name
	v, err := valuesOf(t, eng).Get(t.Context(), key)
	if err == nil && string(v.Data) != want {
		t.Errorf("the number is %q, not %q", v.Data, want)
	}
	if err == nil {
		_, err = valuesOf(t, eng).Put(t.Context(), key, nil, v.Version)
	}
	if err != nil {
		t.Error(err)
	}
}

// sizesChange: some clients know an older number than others most of the time, and the resource is
// often free.
func sizesChange(t *testing.T, h *Harness) {
	const name, most = "changes", 4
	var working, resizing sync.WaitGroup
	var holders atomic.Int32
	stop := make(chan struct{})
	for range 3 {
		s := h.steady(t, h.Open(t)).Semaphore(name, 2)
		for range 2 {
			working.Go(func() {
				for {
					if err := s.Do(t.Context(), func(context.Context) error {
						if n := holders.Add(1); n > most {
							t.Errorf("%d hold %d permits", n, most)
						}
						holders.Add(-1)
						return nil
					}); err != nil {
						t.Error(err)
						return
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
	}
	for i := range 2 {
		s := h.steady(t, h.Open(t)).Semaphore(name, 2)
		resizing.Go(func() {
			for n := range 10 {
				if err := s.Resize(t.Context(), 1+(n+2*i)%most); err != nil {
					t.Error(err)
				}
			}
		})
	}
	resizing.Wait()
	eng := h.Open(t)
	s := h.client(t, eng).Semaphore(name, 2)
	if err := s.Resize(t.Context(), 3); err != nil {
		t.Error(err)
	}
	close(stop)
	working.Wait()
	l := lock(t, s)
	if r, err := eng.Show(t.Context(), name); err != nil || r.Capacity != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := l.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	forgetNumber(t, eng, name, "3")
}

// noResize: the users of a semaphore declare its size.
func noResize(t *testing.T, h *Harness) {
	p := h.party(t)
	name := "refused/" + rand.Text() // several rows have two permits for themselves
	if _, resizes := p.engine.(engine.Resizer); resizes {
		t.Error("the engine implements engine.Resizer")
	}
	s := h.steady(t, h.Open(t)).Semaphore(name, 2)
	if err := s.Resize(t.Context(), 3); !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("a semaphore: %v", err)
	}
	if err := (pawl.Leases{lock(t, s), lock(t, s)}).Unlock(t.Context()); err != nil {
		t.Errorf("its own permits: %v", err)
	}
}
