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
	"github.com/pawl-go/pawl/work"
)

func init() { serviceCases = append(serviceCases, workCases...) }

// workCases are the promises of a queue of work.
var workCases = []Case{
	{"an item of a queue of work goes to one worker", "two requests that pick any free task get the same one", oneWorker, needs(engine.FeatureValues)},
	{"a dead worker's item comes back", "a task stays claimed by the dead; a late worker takes it from its new worker", itemReturns, needs(engine.FeatureValues)},
	{"an item that cannot be done is a dead letter", "a task that fails is tried again at once and for ever, before all others", itemDies, needs(engine.FeatureValues, engine.FeatureMinHold, engine.FeatureDelay)},
}

func oneWorker(t *testing.T, h *Harness) {
	const workers, items = 4, 40
	var all sync.WaitGroup
	var mu sync.Mutex
	done := make(map[string]int)
	for i := range workers {
		p := work.New(h.steady(t, h.Open(t)), "one worker", &work.Options{Random: i%2 == 1})
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
	if n, err := work.New(h.steady(t, h.Open(t)), "one worker", nil).Len(t.Context()); err != nil || n != 0 || len(done) != items {
		t.Errorf("%d items are left, %v, and %d were done of %d", n, err, len(done), items)
	}
}

func itemReturns(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	mortal, heir := work.New(h.client(t, eng), "returns", nil), work.New(h.client(t, h.Open(t)), "returns", nil)
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
	if string(second.Data) != "item" || second.Name() != first.Name() || second.Token() <= first.Token() || second.Attempts != 2 {
		t.Errorf("attempt %d: %q as %q with token %v after %v", second.Attempts, second.Data, second.Name(), second.Token(), first.Token())
	}
	net.Heal()
	if err := first.Done(t.Context()); !errors.Is(err, pawl.ErrLost) {
		t.Errorf("done by the client that lost it: %v", err)
	}
	if err := second.Done(t.Context()); err != nil {
		t.Error(err)
	}
	if n, err := mortal.Len(t.Context()); err != nil || n != 0 {
		t.Errorf("%d items are left, %v", n, err)
	}
}

// itemDies gives an item back for later, and then for good.
func itemDies(t *testing.T, h *Harness) {
	c := h.client(t, h.Open(t))
	p, other := work.New(c, "dies", nil), work.New(h.client(t, h.Open(t)), "dies", &work.Options{MaxAttempts: 2})
	if err := p.Put(t.Context(), []byte("bad"), []byte("good")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next := func(p *work.Queue, data string, attempts int) *work.Item {
		t.Helper()
		item, err := p.Claim(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if string(item.Data) != data || item.Attempts != attempts {
			t.Errorf("attempt %d of %q, want %d of %q", item.Attempts, item.Data, attempts, data)
		}
		return item
	}
	ends := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	first := next(p, "bad", 1)
	began := time.Now()
	ends(first.ReturnAfter(ctx, h.TTL))
	ends(c.Close(ctx)) // the store keeps the item all the same
	ends(next(other, "good", 1).Done(ctx))
	second := next(other, "bad", 2)
	if took := time.Since(began); took < h.TTL || second.Token() <= first.Token() {
		t.Errorf("claimed %v after it was given back for %v, with token %v after %v", took, h.TTL, second.Token(), first.Token())
	}
	ends(second.Return(ctx))
	if _, err := other.TryClaim(ctx); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("after the last attempt: %v", err)
	}
	dead := other.DeadLetters()
	for letter, err := range dead.All(ctx) {
		if ends(err); string(letter.Data) != "bad" || letter.Attempts != 2 || letter.Name != first.Name() {
			t.Errorf("dead letter %+v", letter)
		}
		ends(dead.Retry(ctx, letter.ID))
	}
	ends(next(other, "bad", 1).Done(ctx))
	for what, count := range map[string]func(context.Context) (int, error){"items": other.Len, "dead letters": dead.Len} {
		if n, err := count(ctx); err != nil || n != 0 {
			t.Errorf("%d %s are left, %v", n, what, err)
		}
	}
}
