package enginetest

import (
	"errors"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

func needs(all ...engine.Feature) []engine.Feature { return all }

// refusals is the behaviour of a store that lacks a feature. The store says so at once, with the
// reason, and nothing changes in the store.
var refusals = map[engine.Feature]func(*testing.T, *Harness){
	engine.FeatureOrder:     everyoneHasATurn,
	engine.FeatureShared:    noReaders,
	engine.FeatureSemaphore: noPermits,
	engine.FeatureResize:    noResize,
	engine.FeatureValues:    noValues,
	engine.FeatureDelay:     noDelay,
	engine.FeatureMinHold:   noMinHold,
}

// everyoneHasATurn is the rest of the order of arrival: no waiter is forgotten.
func everyoneHasATurn(t *testing.T, h *Harness) {
	a, b := h.steadyParty(t), h.steadyParty(t)
	name := "turns/" + t.Name()[len(t.Name())-12:]
	first := a.claim(name, mutex)
	a.hold(first)
	const waiters = 5
	out := make(chan error, waiters)
	for i := range waiters {
		p := []*party{a, b}[i%2]
		c := p.claim(name, mutex)
		go func() {
			g, err := p.Enter(p.ctx, c, true)
			if err == nil && !g.Held() {
				g, err = p.Await(p.ctx, c)
			}
			if err == nil && !g.Held() {
				err = errors.New("woken without a grant")
			}
			if err == nil {
				err = p.Leave(p.ctx, c.Resource, c.ID)
			}
			out <- err
		}()
	}
	a.leave(first)
	for range waiters {
		if err := <-out; err != nil {
			t.Fatal(err)
		}
	}
}

func noReaders(t *testing.T, h *Harness) {
	p := h.party(t)
	for _, wait := range []bool{false, true} {
		p.refuses(p.weigh("refused", mutex, 1), wait)
	}
	c := h.client(t, h.Open(t))
	l, err := c.RWMutex("refused").RLock(t.Context())
	refused(t, "a reader", l, err)
	if err := lock(t, c.RWMutex("refused")).Unlock(t.Context()); err != nil {
		t.Errorf("the writing side: %v", err)
	}
}

func noPermits(t *testing.T, h *Harness) {
	p := h.party(t)
	for _, wait := range []bool{false, true} {
		p.refuses(p.weigh("refused", semaphore(3), 1), wait)
		p.refuses(p.weigh("refused", semaphore(3), 3), wait)
	}
	c := h.client(t, h.Open(t))
	l, err := c.Semaphore("refused", 2).TryLock(t.Context())
	refused(t, "a semaphore", l, err)
	if s, err := c.Slots("refused", 2).TryTake(t.Context()); s != nil || !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("slots: %v, %v", s, err)
	}
}

func (p *party) refuses(c *engine.Claim, wait bool) {
	p.t.Helper()
	p.tryFails(c, wait, engine.ErrUnsupported)
}

func refused(t *testing.T, what string, l *pawl.Lease, err error) {
	t.Helper()
	if l != nil || !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("%s: %v, %v", what, l, err)
	}
}

func noDelay(t *testing.T, h *Harness) {
	c, err := pawl.New(t.Context(), h.Open(t), &pawl.Options{TTL: h.TTL, LockDelay: h.TTL})
	if c != nil || !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("a client with a lock-delay: %v, %v", c, err)
	}
}

func noValues(t *testing.T, h *Harness) {
	eng := h.Open(t)
	if _, has := eng.(engine.Values); has {
		t.Error("the engine implements engine.Values")
	}
	if _, err := h.client(t, eng).Value("refused").Get(t.Context()); !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("a value: %v", err)
	}
	if s, err := h.client(t, h.Open(t)).Slots("refused", 2).TryTake(t.Context()); s != nil || !errors.Is(err, pawl.ErrUnsupported) {
		t.Errorf("slots: %v, %v", s, err)
	}
}
