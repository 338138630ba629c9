package memengine

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
)

func claim(s engine.Session, resource string, n int) *engine.Claim {
	id := fmt.Sprint(s.ID(), ".", n)
	spec := engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}
	return &engine.Claim{Spec: spec, Resource: resource, ID: id, Owner: id, Weight: spec.Capacity}
}

// A hint is of a granted claim: a waiter is told by its Await.
func TestHints(t *testing.T) {
	e := New()
	var hinted []string
	s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Minute, Gone: func(claim string) { hinted = append(hinted, claim) }})
	if err != nil {
		t.Fatal(err)
	}
	held, waits := claim(s, "x", 1), claim(s, "x", 2)
	for _, c := range []*engine.Claim{held, waits} {
		if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() != (c == held) {
			t.Fatal(g, err)
		}
	}
	for _, c := range []*engine.Claim{waits, held} {
		if err := e.Evict(t.Context(), c.Resource, c.ID); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(hinted, []string{held.ID}) {
		t.Errorf("hints of %q, want %s", hinted, held.ID)
	}
}

// A session that dies without a word leaves nothing, also in names that nobody uses again.
func TestDeadSessionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New()
		for range 3 {
			s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			c := claim(s, "of "+s.ID(), 1)
			if g, err := s.Enter(t.Context(), c, true); err != nil || !g.Held() {
				t.Fatal(g, err)
			}
			e.mu.Lock()
			if len(e.sessions) != 1 || len(e.resources) != 1 {
				t.Errorf("%d sessions and %d resources, one of each lives", len(e.sessions), len(e.resources))
			}
			e.mu.Unlock()
			<-time.After(time.Minute)
		}
	})
}
