package memengine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Who dies without a word leaves nothing, also in names that nobody uses again.
func TestDeadSessionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New()
		for range 3 {
			s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			c := &engine.Claim{
				Spec: engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}, Resource: "of " + s.ID(),
				ID: s.ID() + ".1", Owner: s.ID() + ".1", Weight: 1,
			}
			if g, err := s.Enter(t.Context(), c, true); err != nil || !g.Held() {
				t.Fatal(g, err)
			}
			if len(e.sessions) != 1 || len(e.resources) != 1 {
				t.Errorf("%d sessions and %d resources, one of each lives", len(e.sessions), len(e.resources))
			}
			<-time.After(time.Minute)
		}
	})
}
