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

// owned is a claim of one owner, whichever claim.
func owned(s engine.Session, id string) *engine.Claim {
	c := claimOf(s, id)
	c.Owner = "o"
	return c
}

// released returns a claim of the owner, as the nodes knew that claim before its release.
func (all nodes) released(t *testing.T, s engine.Session) *engine.Claim {
	t.Helper()
	if g, err := s.Enter(t.Context(), owned(s, ".1"), true); err != nil || !g.Held() {
		t.Fatalf("before: %+v, %v", g, err)
	}
	r, err := all[0].eng.Show(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	was := owned(s, ".1")
	was.ID, was.Owner = r.Claims[0].ID, r.Claims[0].Owner
	leave(t, s, ".1")
	return was
}

// restart has a node come back in its grace: with a released claim, and without the first of the present claims.
func restart(t *testing.T, l *link, was *engine.Claim) {
	t.Helper()
	r, err := l.server.eng.Show(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.server.eng.Evict(t.Context(), "r", r.Claims[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := l.last.Session.Enter(t.Context(), was, true); err != nil {
		t.Fatal(err)
	}
	l.grace, l.knows = engine.Grace{Left: time.Minute}, true
}

func sharesStale(t *testing.T, wait bool) {
	all := newNodes(3)
	eng, links := all.client(t, nil)
	theirs, away := all.client(t, nil)
	s, other := sessiontest.Open(t, eng, time.Minute), sessiontest.Open(t, theirs, time.Minute)
	was := all.released(t, s)
	away[1].set(fails)
	enter(t, other, ".1", true)
	restart(t, links[0], was)

	next := owned(s, ".2")
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
	if g, err := s.Enter(t.Context(), owned(s, ".3"), false); g.Held() || !errors.Is(err, engine.ErrGrace) {
		t.Errorf("a re-entry by a node that shares another grant: %+v, %v", g, err)
	}
	links[0].grace = engine.Grace{}
	if g, err := s.Enter(t.Context(), owned(s, ".4"), false); err != nil || !g.Held() {
		t.Errorf("a re-entry after the grace: %+v, %v", g, err)
	}
}

// TestSharedGrantBesideAHeldOne: an owner holds on the other nodes when a restarted node shares a grant that the owner had released.
// That node had voted for a waiter, and forgot so. A re-entry that needs that node does not hold, because the owner may release
// the other nodes meanwhile.
func TestSharedGrantBesideAHeldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(3)
		eng, links := all.client(t, nil)
		theirs, _ := all.client(t, nil)
		s, other := sessiontest.Open(t, eng, time.Minute), sessiontest.Open(t, theirs, time.Minute)
		was := all.released(t, s)
		links[0].set(trouble{call: func(context.Context, func(context.Context) error) error {
			return &engine.GraceError{Grace: engine.Grace{Left: time.Minute}}
		}})
		if g, err := s.Enter(t.Context(), owned(s, ".0"), true); err != nil || !g.Held() {
			t.Fatalf("on two nodes: %+v, %v", g, err)
		}
		links[0].set(none)
		enter(t, other, ".1", false)
		restart(t, links[0], was)

		links[1].set(fails)
		if g, err := s.Enter(t.Context(), owned(s, ".2"), false); g.Held() || !errors.Is(err, engine.ErrGrace) {
			t.Errorf("beside the vote that the node forgot: %+v, %v", g, err)
		}
		links[1].set(none)
		if _, err := s.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if g, err := s.Enter(t.Context(), owned(s, ".3"), false); err != nil || !g.Held() {
			t.Errorf("a re-entry on the nodes that are held: %+v, %v", g, err)
		}
	})
}
