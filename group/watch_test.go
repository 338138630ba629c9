package group

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// graceful is a store in its restart grace until a time.
type graceful struct {
	*memengine.Engine
	until time.Time
}

func (g graceful) Show(ctx context.Context, name string) (engine.Resource, error) {
	r, err := g.Engine.Show(ctx, name)
	r.Grace.Left = max(time.Until(g.until), 0)
	return r, err
}

// TestWatchInGrace: a watcher that begins in a restart grace does not believe an empty list before the grace has ended.
func TestWatchInGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = time.Minute
		began := time.Now()
		var stale []bool
		for view, err := range New(dial(t, graceful{memengine.New(), began.Add(grace)}), "g").Watch(t.Context()) {
			if err != nil || len(view.Members) > 0 {
				t.Fatal(view, err)
			}
			if stale = append(stale, view.Stale); !view.Stale {
				break
			}
		}
		if after := time.Since(began); !slices.Equal(stale, []bool{true, false}) || after < grace || after > grace+time.Second {
			t.Errorf("stale: %v, after %v", stale, after)
		}
	})
}
