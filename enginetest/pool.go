package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
)

// poolCases are the promises of a pool of work.
var poolCases = []Case{
	{"an item of a pool goes to one worker", "two requests that pick any free task get the same one", oneWorker, needs(engine.FeatureValues)},
	{"a dead worker's item comes back", "a task stays claimed by the dead; a late worker takes it off the next one's hands", itemReturns, needs(engine.FeatureValues)},
}

func oneWorker(t *testing.T, h *Harness) {
	const workers, items = 4, 40
	var all sync.WaitGroup
	var mu sync.Mutex
	done := make(map[string]int)
	for i := range workers {
		p := h.client(t, h.Open(t)).Pool("one worker", &pawl.PoolOptions{Random: i%2 == 1})
		all.Go(func() {
			var mine [][]byte
			for n := i; n < items; n += workers {
				mine = append(mine, fmt.Append(nil, n))
			}
			if err := p.Put(t.Context(), mine...); err != nil {
				t.Error(err)
			}
			for {
				item, err := p.TryClaim(t.Context())
				if errors.Is(err, pawl.ErrNotAcquired) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				done[string(item.Data)]++
				mu.Unlock()
				if err := item.Done(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for item, times := range done {
		if times != 1 {
			t.Errorf("item %s was done %d times", item, times)
		}
	}
	if n, err := h.client(t, h.Open(t)).Pool("one worker", nil).Len(t.Context()); err != nil || n != 0 || len(done) != items {
		t.Errorf("%d items are left, %v, and %d were done of %d", n, err, len(done), items)
	}
}

func itemReturns(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	mortal, heir := h.client(t, eng).Pool("returns", nil), h.client(t, h.Open(t)).Pool("returns", nil)
	if err := heir.Put(t.Context(), []byte("item")); err != nil {
		t.Fatal(err)
	}
	first, err := mortal.Claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan time.Time, 1)
	context.AfterFunc(first.Context(), func() { ended <- time.Now() })
	if _, err := heir.TryClaim(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("an item that is claimed: %v", err)
	}
	net.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	second, err := heir.Claim(ctx)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	default:
		t.Error("the item was claimed anew, and the first still believes")
	}
	if string(second.Data) != "item" || second.Name() != first.Name() || second.Token() <= first.Token() {
		t.Errorf("%q as %q with token %v after %v", second.Data, second.Name(), second.Token(), first.Token())
	}
	net.Heal()
	if err := first.Done(t.Context()); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("done by who lost it: %v", err)
	}
	if err := second.Done(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := mortal.Len(t.Context()); err != nil || n != 0 {
		t.Errorf("%d items are left, %v", n, err)
	}
}
