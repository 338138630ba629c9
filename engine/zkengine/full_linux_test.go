package zkengine

import (
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestFullDisk: a ZooKeeper without room for its log ends itself. Nothing is granted by that, and no holder is forgotten. When there is
// room, a server that starts again knows the session, its claims and the order of the waiters.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	signal.Ignore(syscall.SIGXFSZ)                        // which the server inherits
	server := testservers.ZooKeeper(t, "preAllocSize=64") // KiB by which the log grows
	e := New([]string{server.Addr}, &Options{Tick: tick})
	holder, waiter := open(t, e, time.Minute), open(t, e, time.Minute)
	held, next := sessiontest.Whole(t, sessiontest.Fair), sessiontest.Whole(t, sessiontest.Fair)
	before := sessiontest.Hold(t, holder, held)
	sessiontest.Wait(t, waiter, next)
	server.Full(256 << 10)
	var err error
	for i := 0; err == nil; i++ {
		c := sessiontest.Whole(t, sessiontest.Fair)
		c.Resource = fmt.Sprint("filler/", i)
		_, err = holder.Enter(sessiontest.Soon(t), c, false)
	}
	if !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("a claim without room: %v", err)
	}
	if g, err := waiter.Enter(sessiontest.Soon(t), next, true); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("the waiter: %v, %v", g, err)
	}
	server.Restart() // a process of its own, which has room
	sessiontest.Until(t, "the session is renewed", func() bool {
		gone, err := holder.Renew(sessiontest.Soon(t), []*engine.Claim{held})
		return err == nil && len(gone) == 0
	})
	sessiontest.Leave(t, holder, held)
	if token := sessiontest.Await(t, waiter, next); token <= before {
		t.Errorf("token %v after %v", token, before)
	}
}
