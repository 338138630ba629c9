package redisengine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

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
