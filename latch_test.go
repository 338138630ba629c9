package pawl_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// waitSoon waits for a latch in the background.
func waitSoon(ctx context.Context, l *pawl.Latch) <-chan error {
	done := make(chan error, 1)
	go func() { done <- l.Wait(ctx) }()
	return done
}

func wantCount(t *testing.T, l *pawl.Latch, want int) {
	t.Helper()
	if n, err := l.Count(t.Context()); err != nil || n != want {
		t.Errorf("count %d, %v, want %d", n, err, want)
	}
}

func TestLatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		l, other := newClient(t, eng, nil).Latch("l", 2), newClient(t, eng, nil).Latch("l", 2)
		wantCount(t, l, 2) // nobody has come, and the latch is not open
		opened := waitSoon(t.Context(), other)
		noErr(t, l.CountDown(t.Context(), "a"))
		noErr(t, other.CountDown(t.Context(), "a")) // counts the same party again
		wantCount(t, other, 1)
		synctest.Wait()
		select {
		case err := <-opened:
			t.Fatalf("open after one of two: %v", err)
		default:
		}
		noErr(t, l.CountDown(t.Context(), "b"))
		noErr(t, <-opened)
		noErr(t, l.Wait(t.Context()))
		noErr(t, l.CountDown(t.Context(), "c")) // comes too late to matter
		wantCount(t, l, 0)
		wantErr(t, newClient(t, eng, nil).Latch("l", 3).Wait(t.Context()), pawl.ErrMismatch)
		wantErr(t, newClient(t, eng, nil).Latch("l", 3).CountDown(t.Context(), "d"), pawl.ErrMismatch)
		noErr(t, l.Reset(t.Context()))
		noErr(t, l.Reset(t.Context()))
		wantCount(t, l, 2)
		for _, bad := range []int{0, -1, pawl.MaxLatchParties + 1} {
			wantErr(t, newClient(t, eng, nil).Latch("bad", bad).CountDown(t.Context(), "a"), pawl.ErrInvalid)
		}
		wantErr(t, l.CountDown(t.Context(), ""), pawl.ErrInvalid)
	})
}

// TestLatchLostReply: a party whose reply was lost counts once.
func TestLatchLostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(first(1, losesReply, nil), verbPut)
		noErr(t, c.Latch("l", 3).CountDown(t.Context(), "a"))
		wantCount(t, newClient(t, eng, nil).Latch("l", 3), 2)
	})
}

// TestLatchWait: a wait tolerates an outage of the store, and ends with its context.
func TestLatchWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantErr(t, c.Latch("never", 1).Wait(ctx), context.DeadlineExceeded)
		store.set(fails, verbWatch, verbGet)
		opened := waitSoon(t.Context(), c.Latch("l", 1))
		pass(time.Minute)
		noErr(t, newClient(t, eng, nil).Latch("l", 1).CountDown(t.Context(), "a"))
		store.set(nil, verbWatch, verbGet)
		noErr(t, <-opened)
	})
}

// TestLatchOfMany: a thousand parties at once take O(n) requests.
func TestLatchOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		const parties, clients = 1000, 8
		var all sync.WaitGroup
		var stores []*faultyStore
		for i := range clients {
			c, store := newFaultyClient(t, eng, nil)
			stores = append(stores, store)
			for j := i; j < parties; j += clients {
				all.Go(func() { noErr(t, c.Latch("l", parties).CountDown(t.Context(), fmt.Sprint("party ", j))) })
			}
			all.Go(func() { noErr(t, c.Latch("l", parties).Wait(t.Context())) })
		}
		all.Wait()
		requests := 0
		for _, s := range stores {
			for _, verb := range []string{verbGet, verbPut, verbEnter, verbAwait, verbLeave} {
				requests += len(s.called(verb))
			}
		}
		if requests > 15*parties {
			t.Errorf("%d parties took %d requests", parties, requests)
		}
		t.Logf("%d parties took %d requests", parties, requests)
	})
}
