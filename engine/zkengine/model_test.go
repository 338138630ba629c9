package zkengine

import (
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/modeltest"
)

func TestAgainstQueue(t *testing.T) {
	modeltest.Run(t, shared(t), func(is engine.Session, c *engine.Claim) bool {
		s := is.(*session)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.places[c.ID].waits
	})
}
