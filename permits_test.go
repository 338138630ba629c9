package pawl_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

func mustResize(t *testing.T, s *pawl.Semaphore, permits int) {
	t.Helper()
	if err := s.Resize(t.Context(), permits); err != nil {
		t.Fatal(err)
	}
}

func wantCapacity(t *testing.T, eng engine.Engine, name string, n int64) {
	t.Helper()
	if r := show(t, eng, name); r.Capacity != n {
		t.Fatalf("%q has %d permits, not %d", name, r.Capacity, n)
	}
}

// TestResize: the new number takes effect at once for all clients, and outlives the claims.
func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b, operator := newClient(t, eng, nil), newClient(t, eng, nil), newClient(t, eng, nil)
		one := mustLock(t, t.Context(), a.Semaphore("s", 1))
		waits := lockSoon(t.Context(), b.Semaphore("s", 1))
		synctest.Wait()
		mustResize(t, operator.Semaphore("s", 1), 2)
		two := <-waits
		noErr(t, two.err)
		late := newClient(t, eng, nil).Semaphore("s", 1) // it declares the old number
		_, err := late.TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		mustResize(t, operator.Semaphore("s", 1), 3)
		three := mustLock(t, t.Context(), late)
		mustResize(t, operator.Semaphore("s", 1), 1)
		for _, l := range []*pawl.Lease{one, two.lease, three} {
			noErr(t, l.Err())
			_, err := late.TryLock(t.Context())
			wantErr(t, err, pawl.ErrNotAcquired)
			mustUnlock(t, l)
		}
		wantFree(t, eng, "s")
		mustResize(t, operator.Semaphore("s", 1), 2) // while nobody uses it
		mustUnlock(t, pawl.Leases{mustLock(t, t.Context(), newClient(t, eng, nil).Semaphore("s", 1).Weighted(1))})
		c := newClient(t, eng, nil).Semaphore("s", 7)
		both := pawl.Leases{mustLock(t, t.Context(), c), mustLock(t, t.Context(), c)}
		wantCapacity(t, eng, "s", 2)
		mustUnlock(t, both)
		wantFree(t, eng, "s")
	})
}

// TestReset: after a reset the declared number counts, also beside a client that knows the old
// number and makes a free semaphore as large. Any other number is refused as ever.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		old, fresh, operator := newClient(t, eng, nil), newClient(t, eng, nil), newClient(t, eng, nil)
		s := operator.Semaphore("s", 1)
		mustResize(t, s, 3)
		if n, err := s.Resized(t.Context()); n != 3 || err != nil {
			t.Errorf("resized to %d, %v", n, err)
		}
		mustUnlock(t, mustLock(t, t.Context(), old.Semaphore("s", 1))) // now the client knows the number
		noErr(t, s.Reset(t.Context()))
		if n, err := s.Resized(t.Context()); n != 0 || err != nil {
			t.Errorf("resized to %d after a reset, %v", n, err)
		}
		lease := mustLock(t, t.Context(), old.Semaphore("s", 1))
		wantCapacity(t, eng, "s", 3)
		_, err := fresh.Semaphore("s", 2).TryLock(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
		_, err = fresh.Semaphore("s", 1).TryLock(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		wantCapacity(t, eng, "s", 1)
		mustUnlock(t, lease)
		lease = mustLock(t, t.Context(), fresh.Semaphore("s", 1))
		_, err = old.Semaphore("s", 1).TryLock(t.Context()) // the client has learned the new number
		wantErr(t, err, pawl.ErrNotAcquired)
		mustUnlock(t, lease)
		wantFree(t, eng, "s")
	})
}

// TestOldNumbers: a client that does not know the new number yet makes a free semaphore as large as
// the old number. A client that meets it corrects the size, and then both know.
func TestOldNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		old, operator := newClient(t, eng, nil), newClient(t, eng, nil)
		mustUnlock(t, mustLock(t, t.Context(), old.Semaphore("s", 1))) // now the client knows that there is no number
		mustResize(t, operator.Semaphore("s", 1), 3)
		first := mustLock(t, t.Context(), old.Semaphore("s", 1))
		wantCapacity(t, eng, "s", 1)
		second := mustLock(t, t.Context(), operator.Semaphore("s", 1))
		wantCapacity(t, eng, "s", 3)
		third := mustLock(t, t.Context(), old.Semaphore("s", 1))
		mustUnlock(t, pawl.Leases{first, second, third})
		mustResize(t, operator.Semaphore("s", 1), 2)
		pass(5*time.Second + 1) // the numbers are older than a third of the TTL: then every client asks
		mustUnlock(t, mustLock(t, t.Context(), old.Semaphore("s", 1).Weighted(1)))
		l := mustLock(t, t.Context(), old.Semaphore("s", 1))
		wantCapacity(t, eng, "s", 2)
		mustUnlock(t, l)
	})
}

// TestOldNumbersAgain: a client that knows an old number may come again and again, each time before
// another client enters.
func TestOldNumbersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		mustResize(t, c.Semaphore("s", 1), 4)
		old, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		meets := func(ctx context.Context, do func(context.Context) error) error {
			n++
			claim := engine.Claim{Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: 2}, Resource: "s", ID: strconv.Itoa(n), Owner: strconv.Itoa(n), Weight: 1}
			_, err := old.Enter(ctx, &claim, false)
			noErr(t, err)
			defer func() { noErr(t, old.Leave(ctx, "s", claim.ID)) }()
			return do(ctx)
		}
		store.set(first(6, meets, nil), verbEnter)
		mustUnlock(t, mustLock(t, t.Context(), c.Semaphore("s", 1)))
		store.set(first(100, meets, nil), verbEnter)
		_, err = c.Semaphore("s", 1).TryLock(t.Context()) // does not wait for the end of that
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrMismatch)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Semaphore("s", 1).Lock(ctx)
		wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		noErr(t, old.Close(t.Context()))
		wantFree(t, eng, "s")
	})
}

// TestMismatchInTrouble: a client asks how a semaphore is used, because the semaphore has another size. A request that fails is asked again,
// and where the store hangs the wait ends with its context.
func TestMismatchInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		for name, trouble := range map[string]fault{"fails": first(1, fails, nil), "hangs": hangs} {
			old, operator := newClient(t, eng, nil), newClient(t, eng, nil)
			c, store := newFaultyClient(t, eng, nil)
			mustUnlock(t, mustLock(t, t.Context(), old.Semaphore(name, 1))) // now the client knows that there is no number
			mustResize(t, operator.Semaphore(name, 1), 3)
			held := mustLock(t, t.Context(), old.Semaphore(name, 1))
			wantCapacity(t, eng, name, 1)
			store.set(trouble, verbShow)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			l, err := c.Semaphore(name, 1).Lock(ctx)
			cancel()
			if name == "hangs" {
				wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrUnavailable, context.DeadlineExceeded)
				store.Heal()
			} else if noErr(t, err); err == nil {
				mustUnlock(t, l)
			}
			mustUnlock(t, held)
		}
	})
}

// TestMismatchStays: without an operator's number, two sizes are a mistake. With a number, two
// disciplines still are.
func TestMismatchStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil), newClient(t, eng, nil)
		start := time.Now()
		l := mustLock(t, t.Context(), a.Semaphore("s", 1))
		_, err := b.Semaphore("s", 2).Lock(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
		mustResize(t, a.Semaphore("s", 1), 2)
		_, err = b.Semaphore("s", 2).With(pawl.LockOptions{Barging: true}).Lock(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
		mustUnlock(t, l)
		l = mustLock(t, t.Context(), a.Mutex("s"))
		_, err = b.Semaphore("s", 2).Lock(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
		mustUnlock(t, l)
		if d := time.Since(start); d > 0 {
			t.Errorf("it took %v to say so", d)
		}
	})
}

func TestResizeRefused(t *testing.T) {
	eng := memengine.New()
	c := newClient(t, eng, nil)
	for _, n := range []int{0, -1, pawl.MaxPermits + 1} {
		wantErr(t, c.Semaphore("s", 1).Resize(t.Context(), n), pawl.ErrInvalid)
	}
	wantErr(t, c.Semaphore("", 1).Resize(t.Context(), 1), pawl.ErrInvalid)
	l := mustLock(t, t.Context(), c.Mutex("s"))
	wantErr(t, c.Semaphore("s", 1).Resize(t.Context(), 2), pawl.ErrMismatch)
	mustUnlock(t, l)
	if is, err := eng.Get(t.Context(), "pawl:permits/s"); err != nil || is.Version != 0 {
		t.Errorf("a number was stored: %q, %v", is.Data, err)
	}
	mustResize(t, c.Semaphore("s", 3), 2)
	_, err := c.Semaphore("s", 3).Weighted(3).Lock(t.Context())
	wantErr(t, err, pawl.ErrInvalid)
	mustUnlock(t, mustLock(t, t.Context(), c.Semaphore("s", 3).Weighted(2)))
	c.Close(t.Context()) //nolint:errcheck // checked elsewhere
	wantErr(t, c.Semaphore("s", 3).Resize(t.Context(), 2), pawl.ErrClosed)
}

// lackingStore lacks a feature.
type lackingStore struct {
	*faultyStore
	lacks engine.Feature
}

func (s lackingStore) Caps() engine.Caps {
	caps := s.Engine.Caps()
	caps.Lacks = map[engine.Feature]string{s.lacks: "it is a test"}
	return caps
}

// TestResizeLacking: clients send no request for numbers to a store that cannot resize.
func TestResizeLacking(t *testing.T) {
	for _, lacks := range []engine.Feature{engine.FeatureResize, engine.FeatureValues, engine.FeatureSemaphore} {
		store := newFaultyStore(memengine.New())
		s := newClient(t, lackingStore{store, lacks}, nil).Semaphore("s", 1)
		wantErr(t, s.Resize(t.Context(), 2), pawl.ErrUnsupported)
		if lacks != engine.FeatureSemaphore {
			mustUnlock(t, mustLock(t, t.Context(), s))
		}
		for _, verb := range []string{verbGet, verbPut, verbResize} {
			if n := len(store.called(verb)); n > 0 {
				t.Errorf("no %s: %d calls of %s", lacks, n, verb)
			}
		}
	}
}

// TestNumberIsReadOnce: a client reads the number once in a third of the TTL, however many calls
// use the semaphore. Locks have no number.
func TestNumberIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		store.set(repliesLate(10*time.Millisecond), verbGet)
		use := func() {
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					noErr(t, c.Semaphore("s", 3).Do(t.Context(), func(context.Context) error { return nil }))
				})
			}
			all.Wait()
		}
		for i := range 3 {
			use()
			use()
			if n := len(store.called(verbGet)); n != i+1 {
				t.Fatalf("the number was read %d times in %d thirds of the TTL", n, i+1)
			}
			pass(5 * time.Second)
		}
		before := len(store.called(verbGet))
		mustUnlock(t, mustLock(t, t.Context(), c.Mutex("m")))
		mustUnlock(t, mustLock(t, t.Context(), c.RWMutex("m").RLocker()))
		if n := len(store.called(verbGet)); n != before {
			t.Errorf("locks have read %d values", n-before)
		}
	})
}

// TestNumbersAreForgotten: a client that uses a million names does not remember all of them.
func TestNumbersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, memengine.New(), nil)
		for i := range 2000 {
			mustUnlock(t, mustLock(t, t.Context(), c.Semaphore(strconv.Itoa(i), 1)))
			pass(100 * time.Millisecond)
		}
		if n := pawl.NumbersKnown(c); n > 200 { // 50 are young
			t.Errorf("it remembers %d", n)
		}
	})
}

// TestNumberInTrouble: trouble with the number is trouble with the store.
func TestNumberInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New(), nil)
		store.set(first(3, fails, nil), verbGet)
		_, err := c.Semaphore("s", 1).TryLock(t.Context())
		wantErr(t, err, pawl.ErrUnavailable)
		mustUnlock(t, mustLock(t, t.Context(), c.Semaphore("s", 1)))
		store.set(hangs, verbGet)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Semaphore("other", 1).Lock(ctx)
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrUnavailable, context.DeadlineExceeded)
		start := time.Now()
		slow := []<-chan outcome{lockSoon(t.Context(), c.Semaphore("other", 1)), lockSoon(t.Context(), c.Semaphore("other", 1))}
		for _, l := range slow {
			got := <-l
			wantErr(t, got.err, pawl.ErrUnavailable)
			if d := got.at.Sub(start); d > 31*time.Second {
				t.Errorf("it took %v to say that the store is away", d)
			}
		}
		waits := lockSoon(t.Context(), c.Semaphore("third", 1))
		synctest.Wait()
		noErr(t, c.Close(t.Context()))
		wantErr(t, (<-waits).err, pawl.ErrClosed)
	})
}

// TestResizesAtOnce: two operators resize at once. The number that stays belongs to the operator
// whose size takes effect.
func TestResizesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		holder, quick := newClient(t, eng, nil), newClient(t, eng, nil)
		slow, store := newFaultyClient(t, eng, nil)
		l := mustLock(t, t.Context(), holder.Semaphore("s", 1))
		store.set(first(1, arrivesLate(time.Second), nil), verbResize)
		done := make(chan error, 1)
		go func() { done <- slow.Semaphore("s", 1).Resize(t.Context(), 4) }()
		synctest.Wait()
		mustResize(t, quick.Semaphore("s", 1), 8)
		wantCapacity(t, eng, "s", 8)
		noErr(t, <-done)
		wantCapacity(t, eng, "s", 8)
		mustUnlock(t, l)
	})
}

// TestResizeInTrouble: the operator may repeat the call, and then the number takes effect.
func TestResizeInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		l := mustLock(t, t.Context(), c.Semaphore("s", 1))
		store.set(first(1, losesReply, nil), verbPut, verbResize)
		mustResize(t, c.Semaphore("s", 1), 2)
		wantCapacity(t, eng, "s", 2)
		store.set(fails, verbResize)
		wantErr(t, c.Semaphore("s", 1).Resize(t.Context(), 3), pawl.ErrUnavailable)
		store.set(nil, verbResize)
		other := newClient(t, eng, nil)
		two := mustLock(t, t.Context(), other.Semaphore("s", 1)) // this holder finishes the resize
		wantCapacity(t, eng, "s", 3)
		mustUnlock(t, pawl.Leases{l, two})
	})
}
