package sqlengine

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

// Statements are all that a verb uses.
var Statements = statements

// Step takes one step of a resource, as a session does.
func Step(ctx context.Context, s engine.Session, resource string, r queue.Request) (fence.Token, time.Duration, error) {
	grant, pause, err := s.(*session).engine.store.step(ctx, "step", s.ID(), resource, r)
	return grant.Token, pause, err
}

// SetWindow changes how many of the waiting claims a step loads.
func SetWindow(t *testing.T, n int) {
	before := window
	window = n
	t.Cleanup(func() { window = before })
}

// SetMany changes from how many holders on the sum is noted, in tables that are made from then on.
func SetMany(t *testing.T, n int) {
	before := many
	many = n
	t.Cleanup(func() { many = before })
}

// News returns the claims of a client whose state the client may not know.
func News(ctx context.Context, s engine.Session, all bool) (claims []string, err error) {
	answers, err := s.(*session).engine.store.news(ctx, nil, all)
	return slices.Sorted(maps.Keys(answers)), err
}
