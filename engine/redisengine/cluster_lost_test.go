package redisengine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestClusterEntersAgain: a node forgets that a session uses a name, whose claim enters again there. That
// costs the session no other lock.
func TestClusterEntersAgain(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	a, b := c.session(eng, time.Minute, 0), c.session(eng, time.Minute, 0)
	stays := plainClaim(a, c.on(0), "stays")
	sessiontest.Hold(t, a, stays)
	name := c.on(2)
	sessiontest.Hold(t, b, plainClaim(b, name, "holds"))
	waits := plainClaim(a, name, "waits")
	sessiontest.Wait(t, a, waits)
	c.ask(2, "FLUSHALL")
	sessiontest.Hold(t, a, waits)
	c.renews("asked again", a, []*engine.Claim{stays, waits}, nil)
	c.ask(2, "FLUSHALL")
	c.ask(0, "DEL", a.key)
	sessiontest.Refuse(t, a, waits, true, engine.ErrGone)
	if r, err := eng.Show(t.Context(), name); err != nil || len(r.Claims) > 0 {
		t.Errorf("a session that ended has %v, %v", r.Claims, err)
	}
}

// TestClusterRefusedIsForgotten: a client forgets a claim that the store has refused, so that no
// renewal proves the session alive for it.
func TestClusterRefusedIsForgotten(t *testing.T) {
	c := newCluster(t)
	e := New(c.client, &Options{Grace: time.Hour})
	s := c.session(e, time.Minute, 0)
	name := c.on(1)
	sessiontest.Refuse(t, s, plainClaim(s, name, "grace"), false, engine.ErrGrace)
	if n := len(s.members.byName[name].claims); n > 0 {
		t.Errorf("%d claims in the grace", n)
	}
	c.renews("all refused", s, nil, nil)
	if all := slices.Collect(maps.Keys(s.members.byName)); len(all) > 0 {
		t.Errorf("a member of %q", all)
	}
}

// TestClusterGrace: a young node gives nothing out for as long as a session of the engine may believe. A
// minimum hold, in which nobody believes, makes that no longer.
func TestClusterGrace(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, nil)
	awaitGrace(t, eng)
	s := c.session(eng, time.Second, 0)
	held, next := plainClaim(s, "evicted", "held"), plainClaim(s, "evicted", "next")
	keeps, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Hour, Delay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer keeps.Close(context.Background()) //nolint:errcheck // checked elsewhere
	sessiontest.Until(t, "the node is old enough", func() bool {
		_, err := s.Renew(t.Context(), nil)
		g, entered := s.Enter(t.Context(), held, false)
		if err != nil || entered != nil && !errors.Is(entered, engine.ErrGrace) {
			t.Fatal(err, entered)
		}
		return g.Held()
	})
	sessiontest.Wait(t, s, next)
	if err := eng.Evict(t.Context(), held.Resource, held.ID); err != nil {
		t.Fatal(err)
	}
	if r, err := eng.Show(t.Context(), held.Resource); err != nil || r.Grace.On() || len(r.Claims) != 1 || r.Claims[0].Token == 0 {
		t.Errorf("after the eviction: %+v, %v", r, err)
	}
	kept := plainClaim(keeps.(*session), "kept", "kept")
	sessiontest.Hold(t, keeps, kept)
	sessiontest.Leave(t, keeps, kept)
	c.session(eng, time.Minute, 0)
	sessiontest.Refuse(t, s, plainClaim(s, "late", "late"), false, engine.ErrGrace)
}
