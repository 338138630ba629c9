package enginetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// fullCase is for stores that a test can fill.
var fullCase = Case{"a full store takes releases", "a store without space keeps every lock taken, and its holders lose them", full, nil}

// full fills the store. The store still renews and releases each kind of lock, and hands it on. A new
// claim is refused with the reason, which is never that the lock is taken.
func full(t *testing.T, h *Harness) {
	need(t, h.Full != nil, "Full", orSayWhy)
	open, fill := h.Full(t)
	a, b := clientFor(t, open(t), steadyTTL), clientFor(t, open(t), steadyTTL)
	look := &party{t: t, engine: open(t), ctx: t.Context()}
	var leases []*pawl.Lease
	var next []<-chan held
	contend := func(holds, waits pawl.Locker) {
		leases, next = append(leases, lock(t, holds)), append(next, lockLater(t, waits))
		look.until("the next client waits", waits.Name(), func(r engine.Resource) bool { return len(r.Claims) == 2 })
	}
	contend(a.Mutex("full/mutex"), b.Mutex("full/mutex"))
	caps := look.engine.Caps()
	if caps.RefuseFeature(engine.FeatureSemaphore) == nil {
		contend(a.Semaphore("full/permits", 1), b.Semaphore("full/permits", 1))
	}
	if caps.RefuseFeature(engine.FeatureShared) == nil {
		contend(a.RWMutex("full/readers").RLocker(), b.RWMutex("full/readers"))
	}
	fill()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	for i := 0; err == nil && i < 2000; i++ { // there may be room in what the store has already
		_, err = a.Mutex(fmt.Sprint("full/late/", i)).TryLock(ctx)
	}
	if err == nil {
		t.Error("the store is not full: it grants 2,000 locks")
	} else if !errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("a new claim: %v", err)
	}
	for i, l := range leases {
		before := l.ValidUntil()
		look.until("it is renewed", l.Name(), func(engine.Resource) bool {
			return l.Err() != nil || l.ValidUntil().Sub(before) > time.Second
		})
		if err := errors.Join(l.Err(), l.Unlock(t.Context())); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
		}
		got := <-next[i]
		if got.err != nil {
			t.Fatalf("%s: the next client: %v", l.Name(), got.err)
		}
		if err := got.Unlock(t.Context()); err != nil {
			t.Errorf("%s: the next client: %v", l.Name(), err)
		}
		look.until("it is free", l.Name(), func(r engine.Resource) bool { return len(r.Claims) == 0 })
	}
}
