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
	locks := func(c *pawl.Client) []pawl.Locker {
		return []pawl.Locker{c.Mutex("full/mutex"), c.Semaphore("full/permits", 1), c.RWMutex("full/readers")}
	}
	leases := []*pawl.Lease{lock(t, a.Mutex("full/mutex")), lock(t, a.Semaphore("full/permits", 1)), lock(t, a.RWMutex("full/readers").RLocker())}
	var next []<-chan held
	for _, l := range locks(b) {
		next = append(next, lockLater(t, l))
		look.until("the next client waits", l.Name(), func(r engine.Resource) bool { return len(r.Claims) == 2 })
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
