package primitivetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

// forgetful loses the reply of the next Put when it is told to.
type forgetful struct {
	*memengine.Engine
	lose atomic.Bool
}

var errLost = errors.New("reply lost")

func (f *forgetful) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	written, err := f.Engine.Put(ctx, key, data, version)
	if err == nil && f.lose.CompareAndSwap(true, false) {
		return 0, engine.Unavailable("put", errLost)
	}
	return written, err
}

// latchStep is one of: a party counts down, perhaps without hearing the reply;
// somebody begins to wait; the latch is reset.
type latchStep struct {
	what  int // 0 to 5: the party counts down; 6: wait; 7: reset
	lose  bool
	party int
}

// TestLatch: after every step the latch counts what the model does, which is a set. Exactly the
// waiters of an open latch have come through.
func TestLatch(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		count := rapid.IntRange(1, 4).Draw(rt, "count")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) latchStep {
			return latchStep{rapid.IntRange(0, 7).Draw(rt, "what"), rapid.IntRange(0, 3).Draw(rt, "lose") == 0, rapid.IntRange(0, 5).Draw(rt, "party")}
		}), 1, 30).Draw(rt, "steps")
		if err := bubble(t, func(ctx context.Context) error { return compareLatch(ctx, count, steps) }); err != nil {
			rt.Fatal(err)
		}
	})
}

func compareLatch(ctx context.Context, count int, steps []latchStep) error {
	store := &forgetful{Engine: memengine.New()}
	c, err := pawl.New(ctx, store, nil)
	if err != nil {
		return err
	}
	defer c.Close(context.Background()) //nolint:errcheck // in memory
	latch := c.Latch("l", count)
	model, waiting, through := make(map[int]bool), 0, 0
	var came atomic.Int64
	for i, s := range steps {
		switch s.what {
		case 6:
			go func() {
				if latch.Wait(ctx) == nil {
					came.Add(1)
				}
			}()
			waiting++
		case 7:
			err = latch.Reset(ctx)
			clear(model)
		default:
			store.lose.Store(s.lose && len(model) < count && !model[s.party])
			err = latch.CountDown(ctx, fmt.Sprint("party ", s.party))
			if len(model) < count {
				model[s.party] = true
			}
		}
		synctest.Wait()
		if len(model) == count {
			through, waiting = through+waiting, 0
		}
		missing, countErr := latch.Count(ctx)
		if err := errors.Join(err, countErr); err != nil {
			return fmt.Errorf("step %d, %+v: %w", i, s, err)
		}
		if missing != count-len(model) || int(came.Load()) != through {
			return fmt.Errorf("after step %d, %+v: %d are missing and %d came through, the model %d and %d", i, s, missing, came.Load(), count-len(model), through)
		}
	}
	return nil
}
