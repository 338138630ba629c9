package etcdengine

import (
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/modeltest"
)

func TestAgainstQueue(t *testing.T) {
	modeltest.Run(t, New(newClient(t), nil), func(s engine.Session, c *engine.Claim) bool {
		return s.(*session).find(c.ID, 0).blocker.key != ""
	})
}
