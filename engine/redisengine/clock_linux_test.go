package redisengine

import (
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// freshHolder holds names of a node that no session has used, so that each has its grace still
// before it.
type freshHolder struct {
	c    *clusterUnderTest
	used map[string]bool
}

func (h *freshHolder) fresh(node int) string {
	for name := h.c.on(node); ; name = name + "+" {
		if is, _ := h.c.node("pawl:{" + name + "}"); is == node && !h.used[name] {
			h.used[name] = true
			return name
		}
	}
}

// hold waits for the grace of a node that was just started.
func (h *freshHolder) hold(t *testing.T, s *session, node int, id string) *engine.Claim {
	t.Helper()
	claim := plainClaim(s, h.fresh(node), id)
	sessiontest.Until(t, id, func() bool {
		g, err := s.Enter(t.Context(), claim, false)
		if err != nil && !errors.Is(err, engine.ErrGrace) {
			t.Fatal(err)
		}
		return g.Held()
	})
	return claim
}

// TestNodeClockSetBack: a node of a cluster whose clock is set back to before it was started keeps
// each of its names for one grace, once. Held locks stay held, the waiter gets its lock with a
// larger token, and names of other nodes notice nothing.
func TestNodeClockSetBack(t *testing.T) {
	c := clusterOf(t, testservers.RedisClusterWithClocks(t))
	const grace, ttl = time.Second, time.Minute
	eng := New(c.client, &Options{Grace: grace})
	a, b := c.session(eng, ttl, 2), c.session(eng, ttl, 0)
	h := &freshHolder{c, make(map[string]bool)}
	hold := func(s *session, node int, id string) *engine.Claim { t.Helper(); return h.hold(t, s, node, id) }
	held, stays, there := hold(a, 2, "held"), hold(a, 2, "stays"), hold(b, 0, "there")
	first := sessiontest.Hold(t, a, held)
	next := plainClaim(b, held.Resource, "next")
	waits := c.wait(b, next)

	began := time.Now()
	c.nodes[2].SetClock(-time.Hour)
	c.renews("set back", a, []*engine.Claim{held, stays}, nil)
	c.renews("set back", b, []*engine.Claim{there}, nil)
	if again := sessiontest.Hold(t, a, held); again != first {
		t.Errorf("asked again: %v, was %v", again, first)
	}
	sessiontest.Leave(t, a, held)
	free := plainClaim(a, h.fresh(2), "free")
	var kept *engine.GraceError
	if g, err := a.Enter(t.Context(), free, false); !errors.As(err, &kept) || kept.Left > 2*grace {
		t.Errorf("a free name there: %v, %v; want the grace", g, err)
	}
	sessiontest.Leave(t, a, hold(a, 2, "free after the grace"))
	sessiontest.Leave(t, a, hold(a, 0, "elsewhere"))
	sessiontest.Until(t, "the grace ends", func() bool {
		g, err := a.Enter(t.Context(), free, false)
		return err == nil && g.Held()
	})
	sessiontest.Leave(t, a, free)
	g := <-waits
	if took := time.Since(began); g.err != nil || g.Token <= first || took > 15*grace {
		t.Errorf("the waiter got %v after %v, %v, within %v", g.Grant, first, g.err, took)
	}
	sessiontest.Leave(t, b, next)
	for _, name := range []string{free.Resource, held.Resource} { // once
		again := plainClaim(b, name, "once more")
		sessiontest.Hold(t, b, again)
		sessiontest.Leave(t, b, again)
	}
	c.renews("later", a, []*engine.Claim{stays}, nil)
	c.renews("later", b, []*engine.Claim{there}, nil)
	if r, err := eng.Show(t.Context(), stays.Resource); err != nil || len(r.Claims) != 1 || r.Claims[0].ID != stays.ID {
		t.Errorf("%+v, %v, want %s", r, err, stays.ID)
	}
}
