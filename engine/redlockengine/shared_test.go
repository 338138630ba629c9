package redlockengine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestSharedGrantOfARestartedNode: a node came back with a grant that its owner had released, and has forgotten the next holder.
// A new claim of the owner shares that grant there. That is no vote, however few nodes are in a grace, so the claim does not hold beside the next holder.
func TestSharedGrantOfARestartedNode(t *testing.T) {
	for name, wait := range map[string]bool{"try": false, "lock": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { sharesStale(t, wait) }) })
	}
}

func sharesStale(t *testing.T, wait bool) {
	all := newNodes(3)
	eng, links := all.client(t, nil)
	theirs, away := all.client(t, nil)
	s, other := sessiontest.Open(t, eng, time.Minute), sessiontest.Open(t, theirs, time.Minute)
	owned := func(id string) *engine.Claim {
		c := claimOf(s, id)
		c.Owner = "o"
		return c
	}
	if g, err := s.Enter(t.Context(), owned(".1"), true); err != nil || !g.Held() {
		t.Fatalf("before: %+v, %v", g, err)
	}
	r, err := all[0].eng.Show(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	was := owned(".1") // as the node knows that claim
	was.ID, was.Owner = r.Claims[0].ID, r.Claims[0].Owner
	leave(t, s, ".1")
	away[1].set(fails)
	enter(t, other, ".1", true)
	if r, err = all[0].eng.Show(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	if err := all[0].eng.Evict(t.Context(), "r", r.Claims[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := links[0].last.Session.Enter(t.Context(), was, true); err != nil {
		t.Fatal(err)
	}
	links[0].grace, links[0].knows = engine.Grace{Left: time.Minute}, true

	next := owned(".2")
	g, err := s.Enter(t.Context(), next, wait)
	if g.Held() || wait && err != nil || !wait && !errors.Is(err, engine.ErrBusy) && !errors.Is(err, engine.ErrGrace) {
		t.Errorf("beside the next holder: %+v, %v", g, err)
	}
	if !wait {
		if r, err := all[0].eng.Show(t.Context(), "r"); err != nil || len(r.Claims) != 1 {
			t.Errorf("the refused claim stays: %+v, %v", r.Claims, err)
		}
		return
	}
	soon, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	if g, err := s.Await(soon, next); g.Held() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("awaited beside the next holder: %+v, %v", g, err)
	}
	got := sessiontest.Awaiting(t, s, next)
	leave(t, other, ".1")
	sessiontest.Granted(t, got)
	links[2].set(fails) // the vote of the restarted node is needed
	if g, err := s.Enter(t.Context(), owned(".3"), false); err != nil || !g.Held() {
		t.Errorf("a re-entry of what is held: %+v, %v", g, err)
	}
}
