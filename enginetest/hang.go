package enginetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
)

// hangCase is for stores in which requests of one name may hang while others are served.
var hangCase = Case{"a name that hangs costs no heartbeat", "requests that hang take all connections, and an unrelated lock of the client is lost", nameHangs, nil}

// nameHangs has more waiters on a name that hangs than a client has requests under way. An unrelated lock of
// the client is held for three TTLs meanwhile, and released. Then the name answers, and serves all waiters.
func nameHangs(t *testing.T, h *Harness) {
	need(t, h.Hang != nil, "Hang", orSayWhy)
	c, ttl := h.steady(t, h.Open(t)), max(h.TTL, steadyTTL)
	mine := lock(t, c.Mutex("hang/mine"))
	release := sync.OnceFunc(h.Hang(t, "hang/stuck"))
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), patience+3*ttl)
	defer cancel()
	var waiters sync.WaitGroup
	var served atomic.Int64
	for range 64 {
		waiters.Go(func() {
			l, err := c.Mutex("hang/stuck").Lock(ctx)
			for errors.Is(err, pawl.ErrUnavailable) && ctx.Err() == nil { // a call gives a store one TTL
				l, err = c.Mutex("hang/stuck").Lock(ctx)
			}
			if err != nil {
				t.Errorf("a waiter of the name that hung: %v", err)
				return
			}
			served.Add(1)
			if err := l.Unlock(ctx); err != nil {
				t.Errorf("a holder of the name that hung: %v", err)
			}
		})
	}
	unlockAfter(ctx, t, mine, 3*ttl)
	if n := served.Load(); n > 0 {
		t.Errorf("the name did not hang: it served %d waiters", n)
	}
	release()
	waiters.Wait()
}

// unlockAfter releases a lock that heartbeats have kept for so long.
func unlockAfter(ctx context.Context, t *testing.T, l *pawl.Lease, kept time.Duration) {
	t.Helper()
	first := l.ValidUntil()
	for l.Err() == nil && ctx.Err() == nil && l.ValidUntil().Sub(first) < kept {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-l.Context().Done():
		}
	}
	if is := l.ValidUntil().Sub(first); l.Err() != nil || is < kept {
		t.Errorf("heartbeats kept the lock for %v, want %v: %v", is, kept, l.Err())
	}
	if err := l.Unlock(ctx); err != nil {
		t.Errorf("unlock beside a name that hangs: %v", err)
	}
}
