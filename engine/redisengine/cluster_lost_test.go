package redisengine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// snapshot returns a function that brings back what the claims of a name are now. The sessions of
// the name go on.
func (c *clusterUnderTest) snapshot(name string) (restore func()) {
	c.t.Helper()
	node, _ := c.node("pawl:{" + name + "}")
	dumps := make(map[string]string)
	for _, end := range []string{"", ":c", ":q"} {
		key := "pawl:{" + name + "}" + end
		if n, err := c.ask(node, "EXISTS", key).AsInt64(); err != nil || n == 0 {
			continue
		}
		dump, err := c.ask(node, "DUMP", key).ToString()
		if err != nil {
			c.t.Fatal(err)
		}
		dumps[key] = dump
	}
	return func() {
		c.t.Helper()
		c.ask(node, "DEL", "pawl:{"+name+"}", "pawl:{"+name+"}:c", "pawl:{"+name+"}:q")
		for key, dump := range dumps {
			c.ask(node, "RESTORE", key, time.Hour.Milliseconds(), dump)
		}
	}
}

// TestClusterClaimsComeBack: the data of a node before a claim left comes back, and the session has other
// claims on that name. The next renewal finds the claim, and finds no other.
func TestClusterClaimsComeBack(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	for name, leaves := range map[string]func(s *session, old, next *engine.Claim){
		"a lock held again": func(s *session, old, next *engine.Claim) {
			sessiontest.Leave(t, s, old)
			sessiontest.Hold(t, s, next)
		},
		"a lock handed over": func(s *session, old, next *engine.Claim) {
			sessiontest.Leave(t, s, old)
			sessiontest.Await(t, s, next)
		},
		"a permit": func(s *session, old, _ *engine.Claim) { sessiontest.Leave(t, s, old) },
		"an evicted permit": func(s *session, old, _ *engine.Claim) {
			sessiontest.Evict(t, eng, old)
			if gone, err := s.Renew(t.Context(), []*engine.Claim{old}); err != nil || len(gone) != 1 {
				t.Fatal(gone, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			opened, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Found: func(at, claim string) {
				if at == name {
					found = append(found, claim)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			s := opened.(*session)
			defer s.Close(t.Context()) //nolint:errcheck // checked elsewhere
			old, next, third := plainClaim(s, name, "old"), plainClaim(s, name, "next"), plainClaim(s, name, "third")
			if name == "a permit" || name == "an evicted permit" {
				for _, claim := range []*engine.Claim{old, next, third} {
					claim.Spec, claim.Weight = sessiontest.Five, 1
				}
			}
			sessiontest.Hold(t, s, old)
			if name != "a lock held again" {
				sessiontest.Enter(t, s, next)
			}
			restore := c.snapshot(name)
			leaves(s, old, next)
			restore()
			if _, err := s.Renew(t.Context(), []*engine.Claim{next}); err != nil || !slices.Equal(found, []string{old.ID}) {
				t.Fatalf("found %q, %v, want %q", found, err, old.ID)
			}
			sessiontest.Leave(t, s, old) // as the client does then
			if name == "a lock held again" {
				sessiontest.Hold(t, s, third)
			}
		})
	}
}

// TestClusterHandOverUndone: the data of a node before a hand-over comes back, so a held claim waits there. The
// claim is gone, and its session keeps its other claims.
func TestClusterHandOverUndone(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	for name, weight := range map[string]int64{"exclusive": sessiontest.Five.Capacity, "most": sessiontest.Five.Capacity - 1} {
		a, b := c.session(eng, time.Minute, 0), c.session(eng, time.Minute, 0)
		first, next, stays := plainClaim(a, name, "first"), plainClaim(b, name, "next"), plainClaim(b, name+" 2", "stays")
		first.Spec, first.Weight, next.Spec, next.Weight = sessiontest.Five, weight, sessiontest.Five, weight
		sessiontest.Hold(t, a, first)
		sessiontest.Hold(t, b, stays)
		sessiontest.Wait(t, b, next)
		restore := c.snapshot(name)
		sessiontest.Leave(t, a, first)
		sessiontest.Await(t, b, next)
		restore()
		if gone, err := b.Renew(t.Context(), []*engine.Claim{stays, next}); err != nil || len(gone) != 1 || gone[0] != next {
			t.Errorf("%s: gone %v, %v", name, gone, err)
		}
	}
}

// TestClusterClaimEndsAlone: a claim that came back on a name where its session has no other claim ends
// with its membership.
func TestClusterClaimEndsAlone(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	const ttl = time.Second
	s := c.session(eng, ttl, 0)
	name := c.on(1)
	old, next := plainClaim(s, name, "old"), plainClaim(s, name, "next")
	sessiontest.Hold(t, s, old)
	restore := c.snapshot(name)
	sessiontest.Leave(t, s, old)
	restore()
	came := time.Now()
	c.renews("nothing is left", s, nil, nil)
	got := c.wait(s, next)
	for beat := time.NewTicker(ttl / 5); ; <-beat.C {
		c.renews("it waits", s, nil, nil)
		select {
		case g := <-got:
			if g.err != nil || time.Since(came) > 2*ttl {
				t.Errorf("%v after %v, %v", g.Grant, time.Since(came), g.err)
			}
			return
		default:
		}
	}
}

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

// TestClusterLooksAtParts: a claim that came back among many is found too, in parts of bounded size.
func TestClusterLooksAtParts(t *testing.T) {
	c := newCluster(t)
	eng := New(c.client, &Options{Grace: 100 * time.Millisecond})
	awaitGrace(t, eng)
	const many = 1000
	name := c.on(1)
	permit := func(s *session, id string) *engine.Claim {
		claim := plainClaim(s, name, id)
		claim.Spec, claim.Weight = engine.Spec{Kind: engine.KindSemaphore, Capacity: 2 * many}, 1
		return claim
	}
	others := c.session(eng, time.Minute, 0)
	for i := range many {
		sessiontest.Hold(t, others, permit(others, fmt.Sprint("other", i)))
	}
	var found []string
	opened, err := eng.Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Found: func(_, claim string) { found = append(found, claim) }})
	if err != nil {
		t.Fatal(err)
	}
	s := opened.(*session)
	defer s.Close(t.Context()) //nolint:errcheck // checked elsewhere
	old, stays := permit(s, "old"), permit(s, "stays")
	sessiontest.Hold(t, s, old)
	sessiontest.Hold(t, s, stays)
	restore := c.snapshot(name)
	sessiontest.Leave(t, s, old)
	restore()
	c.renews("the first look", s, []*engine.Claim{stays}, nil)
	if at := s.members.byName[name].looked; at == "0" || at == "" {
		t.Errorf("one look has read all, and ended at %q", at)
	}
	for looks := 1; len(found) == 0 && looks < many; looks++ {
		c.renews("a further look", s, []*engine.Claim{stays}, nil)
	}
	if !slices.Equal(found, []string{old.ID}) {
		t.Errorf("found %q", found)
	}
}
