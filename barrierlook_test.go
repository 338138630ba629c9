package pawl_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// shown is a store that counts how often a client reads all claims of a name.
type shown struct {
	*memengine.Engine
	n atomic.Int64
}

func (s *shown) Show(ctx context.Context, name string) (engine.Resource, error) {
	s.n.Add(1)
	return s.Engine.Show(ctx, name)
}

// TestBarrierLooks: of many parties that wait, a few read all claims in each heartbeat. The death of a party is noticed in
// time all the same.
func TestBarrierLooks(t *testing.T) {
	for parties, most := range map[int]int64{3: 2, 5: 4, 101: 12} {
		synctest.Test(t, func(t *testing.T) {
			const ttl, beats = 15 * time.Second, 30
			eng := memengine.New()
			store := &shown{Engine: eng}
			b := newClient(t, store, nil).Barrier("b", parties)
			c, mortal := newFaultyClient(t, store, nil)
			died := arrive(t.Context(), c.Barrier("b", parties))
			var waits []<-chan arrival
			for range parties - 2 {
				waits = append(waits, arrive(t.Context(), b))
			}
			arrived(t, eng, "b", parties-1)
			pass(ttl) // the first looks only learn the state
			before := store.n.Load()
			pass(beats * ttl / 3)
			if looks := store.n.Load() - before; looks > (beats+1)*most || looks < beats {
				t.Errorf("%d of %d parties looked %d times in %d heartbeats", parties-1, parties, looks, beats)
			}
			start := time.Now()
			mortal.set(fails, verbRenew, verbEnter, verbLeave, verbGet, verbPut, verbWatch, verbOpen, verbClose)
			for _, w := range waits {
				wantErr(t, (<-w).err, pawl.ErrBroken)
			}
			if took := time.Since(start); took > ttl+ttl/3+time.Second {
				t.Errorf("%d parties learned of a death after %v", parties-1, took)
			}
			wantErr(t, (<-died).err, pawl.ErrBroken)
		})
	}
}

// TestBarrierBreaksInConflict: a party sees that another has died, and other writers are always faster. When the ctx of the
// party ends, the party has broken the barrier all the same, and says so.
func TestBarrierBreaksInConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		mortal, dies := newFaultyClient(t, eng, nil)
		died := arrive(t.Context(), mortal.Barrier("b", 4))
		c, store := newFaultyClient(t, eng, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		waits := arrive(ctx, c.Barrier("b", 4))
		arrived(t, eng, "b", 2)
		store.set(func(put context.Context, do func(context.Context) error) error {
			if ctx.Err() == nil {
				return engine.ErrConflict
			}
			return do(put)
		}, verbPut)
		dies.Cut()
		wantErr(t, (<-waits).err, pawl.ErrBroken, context.DeadlineExceeded)
		start := time.Now()
		_, err := newClient(t, eng, nil).Barrier("b", 4).Wait(t.Context())
		wantErr(t, err, pawl.ErrBroken)
		if took := time.Since(start); took > 0 {
			t.Errorf("the next party learned of it after %v", took)
		}
		wantErr(t, (<-died).err, pawl.ErrBroken)
	})
}
