package redisengine

import (
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// rewinds runs a test on a server and on a cluster. The function that save returns brings the data of that moment back, with a grace.
func rewinds(t *testing.T, test func(t *testing.T, e *Engine, save func() (restore func()))) {
	t.Run("server", func(t *testing.T) {
		server := testservers.Redis(t)
		e := onServer(t, server, 0)
		isNew(t, e)
		test(t, e, func() func() {
			does(t, e, "SAVE")
			return func() {
				server.Kill()
				server.Restart()
			}
		})
	})
	t.Run("cluster", func(t *testing.T) {
		c := newCluster(t)
		e := New(c.client, &Options{Grace: 100 * time.Millisecond})
		awaitGrace(t, e)
		test(t, e, func() func() {
			restore, grace := c.snapshot("job"), e.keys("job", "")[4]
			return func() {
				restore()
				node, _ := c.node(grace)
				if err := c.ask(node, "SET", grace, "1", "PX", "60000").Error(); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
}

// TestSharedGrantTellsTheGrace: a grant that was released came back with old data, and a later holder still believes in its own grant.
// A new claim of the owner shares what came back. So that grant says that the server is in a grace, and the client knows better.
func TestSharedGrantTellsTheGrace(t *testing.T) {
	rewinds(t, func(t *testing.T, e *Engine, save func() func()) {
		a := sessiontest.Open(t, e, time.Minute).(*session)
		owned := func(id string) *engine.Claim {
			c := plainClaim(a, "job", id)
			c.Owner = "o"
			return c
		}
		stale := owned("stale")
		if g, err := a.Enter(t.Context(), stale, true); err != nil || !g.Held() || g.Grace.On() {
			t.Fatalf("before: %+v, %v", g, err)
		}
		if g, err := a.Enter(t.Context(), owned("inner"), true); err != nil || !g.Held() || g.Grace.On() {
			t.Fatalf("a re-entry before: %+v, %v", g, err)
		}
		sessiontest.Leave(t, a, owned("inner"))
		restore := save()
		sessiontest.Leave(t, a, stale)
		restore()
		for _, wait := range []bool{false, true} {
			var g engine.Grant
			err := again(t, func() (err error) { g, err = a.Enter(sessiontest.Soon(t), owned("next"), wait); return err })
			if err != nil || !g.Held() || !g.Grace.On() || g.Grace.Left > time.Minute {
				t.Errorf("wait %v: %+v, %v; want a shared grant, and the grace", wait, g, err)
			}
		}
	})
}

// TestUpgradeOfAStaleGrant: a grant that was released came back with old data, and weighs less than the next claim of its owner. In the grace
// nobody knows that the owner holds, so the claim is not refused as an upgrade.
func TestUpgradeOfAStaleGrant(t *testing.T) {
	rewinds(t, func(t *testing.T, e *Engine, save func() func()) {
		a := sessiontest.Open(t, e, time.Minute).(*session)
		owned := func(id string, weight int64) *engine.Claim {
			c := plainClaim(a, "job", id)
			c.Owner, c.Weight = "o", weight
			return c
		}
		stale := owned("stale", 1)
		sessiontest.Hold(t, a, stale)
		restore := save()
		sessiontest.Leave(t, a, stale)
		restore()
		for _, wait := range []bool{false, true} {
			err := again(t, func() error { _, err := a.Enter(sessiontest.Soon(t), owned("next", all), wait); return err })
			if grace := new(engine.GraceError); !errors.As(err, &grace) || grace.Left <= 0 || grace.Left > time.Minute {
				t.Errorf("wait %v: %v; want the grace", wait, err)
			}
		}
	})
}

// TestBargingWaiterSharesNothingInAGrace: a claim waits, and another claim of the same owner barged past, and was released. That grant came
// back with old data. A look of the waiter shares nothing in the grace, because an answer to a look tells no grace.
func TestBargingWaiterSharesNothingInAGrace(t *testing.T) {
	rewinds(t, func(t *testing.T, e *Engine, save func() func()) {
		a := sessiontest.Open(t, e, time.Minute).(*session)
		barging := func(id, owner string) *engine.Claim {
			c := plainClaim(a, "job", id)
			c.Barging = true
			if owner != "" {
				c.Owner = owner
			}
			return c
		}
		first, waits, stale := barging("first", ""), barging("waits", "o"), barging("stale", "o")
		enter := func(c *engine.Claim, held bool) {
			t.Helper()
			if g, err := a.Enter(t.Context(), c, true); err != nil || g.Held() != held {
				t.Fatalf("%s: %+v, %v", c.ID, g, err)
			}
		}
		enter(first, true)
		enter(waits, false)
		sessiontest.Leave(t, a, first)
		enter(stale, true)
		restore := save()
		sessiontest.Leave(t, a, stale)
		restore()
		var g engine.Grant
		err := again(t, func() (err error) { g, _, err = a.poll(sessiontest.Soon(t), waits); return err })
		if err != nil || g.Held() {
			t.Errorf("%+v, %v; want the claim to wait", g, err)
		}
	})
}
