package open_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/open"
)

// TestRedlockFull: a full node has no vote for a new lock, and all full nodes refuse a new lock by the reason. Held locks are
// renewed and released all the same, and nothing of them stays.
func TestRedlockFull(t *testing.T) {
	servers, addrs := redlockServers(t, 3)
	eng := connect(t, redlockURL(addrs))
	if _, err := open.Init(t.Context(), eng); err != nil {
		t.Fatal(err)
	}
	c := clientOf(t, eng, 6*time.Second)
	held := mustLock(t, c.Mutex("held"))
	fillRedis(t, servers[0])
	beside := mustLock(t, c.Mutex("beside a full node")) // by the two others
	fillRedis(t, servers[1:]...)
	eventually(t, "the nodes say why, in time also on a busy machine", func() bool {
		l, err := c.Mutex("late").TryLock(t.Context())
		if !errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrNotAcquired) {
			t.Fatalf("a new lock of full nodes: %v, %v", l, err)
		}
		return strings.Contains(err.Error(), "maxmemory")
	})
	full := held.ValidUntil() // of all locks of the client
	for _, l := range []*pawl.Lease{held, beside} {
		eventually(t, "it is renewed", func() bool { return l.Err() != nil || l.ValidUntil().Sub(full) > time.Second })
		if err := errors.Join(l.Err(), l.Unlock(t.Context())); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
		}
	}
	for _, addr := range addrs {
		node := connect(t, redisURL(addr))
		for _, name := range []string{"held", "beside a full node", "late"} {
			eventually(t, "the node has no claim of it", func() bool {
				r, err := node.Show(t.Context(), name)
				return err == nil && len(r.Claims) == 0
			})
		}
	}
}
