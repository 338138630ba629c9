// Package primitivetest compares the primitives of the root with models of
// them, on random steps in fake time.
package primitivetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/semaphore"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// step is what one of several processes does: what that means depends on what
// it is doing.
type step struct {
	proc   int
	weight int  // 0 and less: it reads
	try    bool // it does not wait
}

const procs = 6

// bubble runs a test in fake time and returns what went wrong, because a test that ends in a
// bubble ends rapid's, too.
func bubble(t *testing.T, run func(ctx context.Context) error) (err error) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err = run(ctx)
	})
	return err
}

// clients are of one store in this process.
func clients(ctx context.Context, n int) (all []*pawl.Client, closeAll func(), err error) {
	eng := memengine.New()
	closeAll = func() {
		for _, c := range all {
			c.Close(context.Background()) //nolint:errcheck // in memory
		}
	}
	for range n {
		c, err := pawl.New(ctx, eng, nil)
		if err != nil {
			return nil, closeAll, err
		}
		all = append(all, c)
	}
	return all, closeAll, nil
}

// holders is what processes do with one lock: each waits for it, holds it, or
// does nothing.
type holders struct {
	acquire func(ctx context.Context, proc int, s step) (release func(), err error)

	all  sync.WaitGroup
	mu   sync.Mutex
	held [procs]func()
	wait [procs]context.CancelFunc
}

// do takes a step: a holder releases, a waiter gives up, an idle client acquires. do returns
// when nothing moves any more.
func (h *holders) do(ctx context.Context, s step) {
	h.mu.Lock()
	held, wait := h.held[s.proc], h.wait[s.proc]
	h.held[s.proc], h.wait[s.proc] = nil, nil
	h.mu.Unlock()
	switch {
	case held != nil:
		held()
	case wait != nil:
		wait()
	default:
		ctx, cancel := context.WithCancel(ctx)
		h.mu.Lock()
		h.wait[s.proc] = cancel
		h.mu.Unlock()
		h.all.Go(func() {
			release, err := h.acquire(ctx, s.proc, s)
			h.mu.Lock()
			defer h.mu.Unlock()
			switch {
			case err == nil && ctx.Err() != nil: // given up, and granted all the same
				release()
			case err == nil:
				h.held[s.proc], h.wait[s.proc] = release, nil
			case ctx.Err() == nil: // a try that failed
				h.wait[s.proc] = nil
			}
		})
	}
	synctest.Wait()
}

func (h *holders) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := ""
	for i := range procs {
		switch {
		case h.held[i] != nil:
			text += "H"
		case h.wait[i] != nil:
			text += "w"
		default:
			text += "."
		}
	}
	return text
}

// end releases everything.
func (h *holders) end(ctx context.Context) {
	for i := range procs {
		for h.String()[i] != '.' {
			h.do(ctx, step{proc: i})
		}
	}
	h.all.Wait()
}

// TestSemaphore: after every step the same processes hold a weighted semaphore
// as hold one of golang.org/x/sync.
func TestSemaphore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		permits := rapid.IntRange(1, 6).Draw(rt, "permits")
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{rapid.IntRange(0, procs-1).Draw(rt, "proc"), rapid.IntRange(1, permits).Draw(rt, "weight"), rapid.IntRange(0, 3).Draw(rt, "try") == 0}
		}), 1, 40).Draw(rt, "steps")
		if err := bubble(t, func(ctx context.Context) error { return compareSemaphores(ctx, permits, steps) }); err != nil {
			rt.Fatal(err)
		}
	})
}

func compareSemaphores(ctx context.Context, permits int, steps []step) error {
	all, closeAll, err := clients(ctx, 3)
	defer closeAll()
	if err != nil {
		return err
	}
	model := semaphore.NewWeighted(int64(permits))
	theirs := &holders{acquire: func(ctx context.Context, _ int, s step) (func(), error) {
		release := func() { model.Release(int64(s.weight)) }
		if !s.try {
			return release, model.Acquire(ctx, int64(s.weight))
		}
		if !model.TryAcquire(int64(s.weight)) {
			return nil, pawl.ErrNotAcquired
		}
		return release, nil
	}}
	ours := &holders{acquire: func(ctx context.Context, proc int, s step) (func(), error) {
		return acquire(ctx, all[proc%len(all)].Semaphore("s", permits).Weighted(s.weight), s.try)
	}}
	defer ours.end(ctx)
	defer theirs.end(ctx)
	for i, s := range steps {
		ours.do(ctx, s)
		theirs.do(ctx, s)
		if is, want := ours.String(), theirs.String(); is != want {
			return fmt.Errorf("after step %d, %+v: %s, the model %s", i, s, is, want)
		}
	}
	return nil
}

func acquire(ctx context.Context, l pawl.Locker, try bool) (func(), error) {
	lock := l.Lock
	if try {
		lock = l.TryLock
	}
	lease, err := lock(ctx)
	if err != nil {
		return nil, err
	}
	return func() { lease.Unlock(context.Background()) }, nil //nolint:errcheck // in memory
}
