package open_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestBurstOnEtcd: 200 waiters of one client begin at once on one name. No lock is lost, of that client and of another. Then each
// waiter has the name once.
func TestBurstOnEtcd(t *testing.T) {
	const n, ttl = 200, 10 * time.Second // a busy machine answers a request of such a burst late
	addr := testservers.Etcd(t).Addr
	crowd, other := clientOf(t, connect(t, etcdURL(addr)), ttl), clientOf(t, connect(t, etcdURL(addr)), ttl)
	blocker, beside, inside := mustLock(t, other.Mutex("burst")), mustLock(t, other.Mutex("beside")), mustLock(t, crowd.Mutex("inside"))
	var waiters sync.WaitGroup
	var granted atomic.Int64
	for range n {
		waiters.Go(func() {
			l, err := crowd.Mutex("burst").Lock(t.Context())
			if err == nil {
				granted.Add(1)
				err = l.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	queued(t, etcdURL(addr), "burst", n+1)
	began := blocker.ValidUntil()
	eventually(t, "the locks are renewed beside the waiters", func() bool {
		return errors.Join(blocker.Err(), inside.Err()) != nil || blocker.ValidUntil().Sub(began) > ttl
	})
	for what, l := range map[string]*pawl.Lease{"that they wait for": blocker, "of another client": beside, "of their client": inside} {
		if err := errors.Join(l.Err(), l.Unlock(t.Context())); err != nil {
			t.Errorf("the lock %s: %v", what, err)
		}
	}
	waiters.Wait()
	if granted.Load() != n {
		t.Errorf("%d of %d had the lock", granted.Load(), n)
	}
}

// TestIdleWaiters counts in the server what waiters ask for from one heartbeat to the next. A client looks once for all of its waiters. In
// Redis that look is a script, whose commands for each waiter count.
func TestIdleWaiters(t *testing.T) {
	for name, store := range counted {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url, requests := store(t)
			known(t, url)
			const n = 100
			each := map[string]float64{"Redis": 8}[name]
			one, many := idleWaiters(t, url, requests, 1), idleWaiters(t, url, requests, n)
			t.Logf("%.1f requests a heartbeat of one waiter, %.1f of %d", one, many, n)
			if one > 20 || many > 2*one+5+each*n {
				t.Errorf("%.1f requests a heartbeat of one waiter, %.1f of %d", one, many, n)
			}
		})
	}
}

// idleWaiters has n waiters of one client wait for a lock of another. The requests are those of both clients in a heartbeat.
func idleWaiters(t *testing.T, url string, requests func() float64, n int) float64 {
	t.Helper()
	var beats atomic.Int64
	waits, err := pawl.New(t.Context(), connect(t, url), &pawl.Options{TTL: 3 * time.Second, Observe: func(_ context.Context, e pawl.Event) {
		if e.Kind == pawl.EventRenewed && e.Err == nil {
			beats.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close(context.Background()) //nolint:errcheck // the session ends by itself
	name := fmt.Sprintf("waiters/%d", n)
	held := mustLock(t, clientOf(t, connect(t, url), time.Minute).Mutex(name))
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	for i := range n {
		waiters.Go(func() {
			if _, err := waits.Mutex(name).Lock(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		if i%10 == 9 || i == n-1 { // a burst would be late on a busy machine
			queued(t, url, name, i+2)
		}
	}
	after := func(more int64) (beat int64, asked float64) {
		last := beats.Load() + more
		eventually(t, "heartbeats", func() bool { return beats.Load() >= last })
		return beats.Load(), requests()
	}
	least := math.Inf(1) // a busy machine, and PostgreSQL, counts what the waiters asked for at first in a later part
	first, start := after(2)
	for range 3 {
		last, end := after(2)
		least, first, start = min(least, (end-start)/float64(last-first)), last, end
	}
	cancel()
	waiters.Wait()
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	return least
}
