package enginetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// slotCases are the promises of numbered permits.
var slotCases = []Case{
	{"a slot has one holder", "worker ids from an address, a random number or a rank: two workers with one id", slotsHeld, needs(engine.FeatureSemaphore, engine.FeatureValues)},
	{"a dead holder's slot comes back", "Leaf, uid-generator: numbers of dead workers are never given again, until there are none", slotReturns, needs(engine.FeatureSemaphore, engine.FeatureValues)},
	{"takers at once have different slots", "a fleet that starts together disturbs one another until some give up", slotsAtOnce, needs(engine.FeatureSemaphore, engine.FeatureValues)},
}

func slotsHeld(t *testing.T, h *Harness) {
	const takers, n, rounds = 4, 2, 12
	var mu sync.Mutex
	var held [n]*pawl.Slot
	var last [n]fence.Token
	taken := func(s *pawl.Slot) {
		mu.Lock()
		defer mu.Unlock()
		if other := held[s.Number()]; other != nil {
			t.Errorf("slot %d is held with tokens %v and %v", s.Number(), other.Token(), s.Token())
		}
		if s.Token() <= last[s.Number()] {
			t.Errorf("slot %d: token %v after %v", s.Number(), s.Token(), last[s.Number()])
		}
		held[s.Number()], last[s.Number()] = s, s.Token()
	}
	leaves := func(s *pawl.Slot) {
		mu.Lock()
		defer mu.Unlock()
		held[s.Number()] = nil
	}
	var all sync.WaitGroup
	for i := range takers {
		slots := h.steady(t, h.Open(t)).Slots("slots", n)
		if i%2 == 1 {
			slots = slots.Prefer(1)
		}
		all.Go(func() {
			for range rounds {
				s, err := slots.Take(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				taken(s)
				time.Sleep(2 * time.Millisecond) // as work takes
				leaves(s)
				if err := s.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// slotReturns: one caller waits for the only slot. Another looks for a dead holder's number while
// other numbers are free.
func slotReturns(t *testing.T, h *Harness) {
	eng, net := h.troubled(t)
	mortal, heir := h.client(t, eng), h.client(t, h.Open(t))
	dead := []*pawl.Slot{takeSlot(t, mortal.Slots("one returns", 1)), takeSlot(t, mortal.Slots("of many returns", 2))}
	var ended [2]chan time.Time
	for i, s := range dead {
		ended[i] = make(chan time.Time, 1)
		context.AfterFunc(s.Context(), func() { ended[i] <- time.Now() })
	}
	if _, err := heir.Slots("one returns", 1).TryTake(t.Context()); !errors.Is(err, pawl.ErrNotAcquired) {
		t.Errorf("a slot that is held: %v", err)
	}
	net.Freeze()
	died := time.Now()
	slowest := h.slowest(t)
	var all sync.WaitGroup
	for i, slots := range []*pawl.Slots{heir.Slots("one returns", 1), heir.Slots("of many returns", 2)} {
		all.Go(func() {
			next := firstSlot(t, slots)
			if next == nil {
				return
			}
			took := time.Since(died)
			t.Logf("%q: back after %v, TTL %v", slots.Name(), took.Round(time.Millisecond), h.TTL)
			if step := slowest(); took > h.TTL+time.Second+5*step {
				t.Errorf("%q: back after %v, TTL %v, where the store took %v at most for a try", slots.Name(), took, h.TTL, step)
			}
			select {
			case <-ended[i]:
			default:
				t.Errorf("%q: slot 0 was given anew, and the first holder still believes", slots.Name())
			}
			if next.Token() <= dead[i].Token() {
				t.Errorf("%q: token %v after %v", slots.Name(), next.Token(), dead[i].Token())
			}
		})
	}
	all.Wait()
	net.Heal()
}

func takeSlot(t *testing.T, slots *pawl.Slots) *pawl.Slot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := slots.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// firstSlot takes slots until it has the first slot. firstSlot returns nil on an error.
func firstSlot(t *testing.T, slots *pawl.Slots) *pawl.Slot {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		s, err := slots.Take(ctx)
		if err != nil {
			t.Error(err)
			return nil
		}
		if s.Number() == 0 {
			return s
		}
		if err := s.Unlock(ctx); err != nil && !errors.Is(err, pawl.ErrUnavailable) { // the heartbeat retries it
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func slotsAtOnce(t *testing.T, h *Harness) {
	const takers = 12
	client := []*pawl.Client{h.steady(t, h.Open(t)), h.steady(t, h.Open(t)), h.steady(t, h.Open(t))}
	var all sync.WaitGroup
	numbers := make([]int, takers)
	for i := range takers {
		all.Go(func() {
			s, err := client[i%len(client)].Slots("at once", takers).TryTake(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			numbers[i] = s.Number()
		})
	}
	all.Wait()
	slices.Sort(numbers)
	for i, number := range numbers {
		if i != number {
			t.Fatalf("numbers %v", numbers)
		}
	}
}
