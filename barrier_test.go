package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
)

type arrival struct {
	index int
	err   error
}

func arrive(ctx context.Context, b *pawl.Barrier) <-chan arrival {
	done := make(chan arrival, 1)
	go func() {
		index, err := b.Wait(ctx)
		done <- arrival{index, err}
	}()
	return done
}

// arrived waits until so many parties wait.
func arrived(t *testing.T, eng engine.Engine, name string, n int) {
	t.Helper()
	present(t, eng, name, n, n)
}

// present waits until so many parties have a claim, and so many of them have arrived in this generation. A party has a claim first.
func present(t *testing.T, eng engine.Engine, name string, claims, arrived int) {
	t.Helper()
	for range 1000 {
		synctest.Wait()
		is, err := eng.(engine.Values).Get(t.Context(), "pawl:barrier/"+name)
		if err != nil {
			t.Fatal(err)
		}
		var s struct{ Arrived []string }
		if json.Unmarshal(is.Data, &s); len(s.Arrived) == arrived && len(show(t, eng, "pawl:barrier/"+name).Claims) == claims { //nolint:errcheck // at first there is no value
			return
		}
		pass(time.Millisecond)
	}
	t.Fatalf("never %d at the barrier, and %d of them arrived", claims, arrived)
}

func TestBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		const parties, rounds = 4, 20
		var all sync.WaitGroup
		var mu sync.Mutex
		indexes := make([][]int, rounds)
		for range parties {
			b := newClient(t, eng, nil).Barrier("b", parties)
			all.Go(func() {
				for round := range rounds {
					index, err := b.Wait(t.Context())
					noErr(t, err)
					mu.Lock()
					indexes[round] = append(indexes[round], index)
					if round > 0 && len(indexes[round-1]) != parties {
						t.Errorf("round %d is over before all left round %d", round, round-1)
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for round, is := range indexes {
			if slices.Sort(is); !slices.Equal(is, []int{0, 1, 2, 3}) {
				t.Errorf("round %d: %v", round, is)
			}
		}
		wantFree(t, eng, "pawl:barrier/b")
	})
}

func TestBarrierArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		for _, bad := range []int{0, -1, pawl.MaxBarrierParties + 1} {
			_, err := newClient(t, eng, nil).Barrier("bad", bad).Wait(t.Context())
			wantErr(t, err, pawl.ErrInvalid)
		}
		index, err := newClient(t, eng, nil).Barrier("one", 1).Wait(t.Context())
		if noErr(t, err); index != 0 {
			t.Errorf("alone: index %d", index)
		}
		_, err = newClient(t, eng, nil).Barrier("one", 2).Wait(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
	})
}

// TestBarrierBreaks: a party that gives up breaks the barrier for all, and for parties that come
// later, until a reset.
func TestBarrierBreaks(t *testing.T) {
	for name, breaks := range map[string]func(t *testing.T, c *pawl.Client, store *faultyStore, cancel func()){
		"cancelled": func(_ *testing.T, _ *pawl.Client, _ *faultyStore, cancel func()) { cancel() },
		"closed": func(t *testing.T, c *pawl.Client, _ *faultyStore, _ func()) {
			noErr(t, c.Close(context.Background()))
		},
		"crashed": func(_ *testing.T, _ *pawl.Client, store *faultyStore, _ func()) {
			store.set(fails, verbRenew, verbEnter, verbLeave, verbGet, verbPut, verbWatch, verbOpen, verbClose)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				quitter, store := newFaultyClient(t, eng, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				quits := arrive(ctx, quitter.Barrier("b", 3))
				arrived(t, eng, "b", 1)
				b := newClient(t, eng, nil).Barrier("b", 3)
				stays := arrive(t.Context(), b)
				arrived(t, eng, "b", 2)
				start := time.Now()
				breaks(t, quitter, store, cancel)
				wantErr(t, (<-quits).err, pawl.ErrBroken)
				wantErr(t, (<-stays).err, pawl.ErrBroken)
				if took := time.Since(start); took > 2*15*time.Second {
					t.Errorf("it took %v", took)
				}
				store.set(nil, verbRenew, verbEnter, verbLeave, verbGet, verbPut, verbWatch, verbOpen, verbClose)
				_, err := b.Wait(t.Context())
				wantErr(t, err, pawl.ErrBroken)
				resetBarrier(t, b)
				var again []<-chan arrival
				for range 3 {
					again = append(again, arrive(t.Context(), newClient(t, eng, nil).Barrier("b", 3)))
				}
				for _, a := range again {
					noErr(t, (<-a).err)
				}
			})
		})
	}
}

// TestBarrierOfTheDead: a party that died while nobody else waited is not counted.
func TestBarrierOfTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		died := arrive(t.Context(), c.Barrier("b", 3))
		arrived(t, eng, "b", 1)
		store.set(fails, verbRenew, verbEnter, verbLeave, verbGet, verbPut, verbWatch, verbOpen, verbClose)
		wantErr(t, (<-died).err, pawl.ErrBroken)
		pass(time.Minute)
		b := newClient(t, eng, nil).Barrier("b", 3)
		one, two := arrive(t.Context(), b), arrive(t.Context(), b)
		wantErr(t, (<-one).err, pawl.ErrBroken)
		wantErr(t, (<-two).err, pawl.ErrBroken)
	})
}

func TestBarrierReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		b := newClient(t, eng, nil).Barrier("b", 2)
		waits := arrive(t.Context(), b)
		arrived(t, eng, "b", 1)
		resetBarrier(t, b)
		wantErr(t, (<-waits).err, pawl.ErrBroken)
		first := arrive(t.Context(), b)
		arrived(t, eng, "b", 1)
		_, err := b.Wait(t.Context())
		noErr(t, err)
		noErr(t, (<-first).err)
	})
}

// TestBarrierLostReplies: a party arrives once, whichever reply is lost.
func TestBarrierLostReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		for range 5 {
			store.set(first(1, losesReply, nil), verbPut)
			one, two := arrive(t.Context(), c.Barrier("b", 2)), arrive(t.Context(), newClient(t, eng, nil).Barrier("b", 2))
			noErr(t, (<-one).err)
			noErr(t, (<-two).err)
		}
	})
}

// TestBarrierMissesReset: a party may learn of a reset only when other parties have left after it.
// That party has not left with them. A party that did leave learns so, whatever came after.
func TestBarrierMissesReset(t *testing.T) {
	for name, resets := range map[string]bool{"reset first": true, "reset later": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				deaf, store := newFaultyClient(t, eng, nil)
				store.set(first(1, losesReply, fails), verbWatch)
				waits := arrive(t.Context(), deaf.Barrier("b", 2))
				arrived(t, eng, "b", 1)
				b := newClient(t, eng, nil).Barrier("b", 2)
				if resets {
					resetBarrier(t, b)
					other := arrive(t.Context(), b)
					present(t, eng, "b", 2, 1) // the first is of the generation before
					defer func() { noErr(t, (<-other).err) }()
				}
				_, err := b.Wait(t.Context())
				noErr(t, err)
				if !resets {
					resetBarrier(t, b)
				}
				store.set(nil, verbWatch)
				if err := (<-waits).err; resets != errors.Is(err, pawl.ErrBroken) {
					t.Error(err)
				}
			})
		})
	}
}

// TestBarrierStray: a party that gave up, and did not hear whether it had arrived, does not arrive
// later. Else others would leave without it.
func TestBarrierStray(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		waits := arrive(t.Context(), newClient(t, eng, nil).Barrier("b", 2))
		arrived(t, eng, "b", 1)
		store.set(first(1, arrivesLate(2*time.Second), nil), verbPut)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Barrier("b", 2).Wait(ctx)
		if wantErr(t, err, context.DeadlineExceeded); errors.Is(err, pawl.ErrBroken) {
			t.Errorf("a party that never arrived broke nothing: %v", err)
		}
		pass(2 * time.Second)
		index, err := c.Barrier("b", 2).Wait(t.Context())
		if noErr(t, err); index != 0 {
			t.Errorf("index %d", index)
		}
		noErr(t, (<-waits).err)
	})
}

// TestBarrierLeftUnawares: a party that gives up, and finds that all have left with it, gets the
// index with which it arrived.
func TestBarrierLeftUnawares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(first(1, repliesLate(2*time.Second), nil), verbPut)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		early := arrive(ctx, c.Barrier("b", 2))
		arrived(t, eng, "b", 1)
		index, err := newClient(t, eng, nil).Barrier("b", 2).Wait(t.Context())
		if noErr(t, err); index != 0 {
			t.Errorf("the last has index %d", index)
		}
		got := <-early
		if noErr(t, got.err); got.index != 1 {
			t.Errorf("the first has index %d", got.index)
		}
	})
}

// TestBarrierDisturbed lets parties meet while all verbs of each are disturbed at random. If one
// party leaves, all do, each with another index. The exceptions are parties that the store does not
// answer.
func TestBarrierDisturbed(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { meetDisturbed(t, rand.New(rand.NewPCG(seed, seed))) })
		})
	}
}

func meetDisturbed(t *testing.T, random *rand.Rand) {
	const parties, ttl = 3, 5 * time.Second
	eng := memengine.New()
	b := newClient(t, eng, nil).Barrier("b", parties)
	ctx, stop := context.WithCancel(t.Context())
	var disturbers sync.WaitGroup
	var barriers []*pawl.Barrier
	for range parties {
		c, store := newFaultyClient(t, eng, &pawl.Options{TTL: ttl})
		barriers = append(barriers, c.Barrier("b", parties))
		random := rand.New(rand.NewPCG(random.Uint64(), 1))
		disturbers.Go(func() { disturb(ctx, store, ttl, random, verbGet, verbPut, verbWatch) })
	}
	met := 0
	for range 40 {
		var waits []<-chan arrival
		for _, b := range barriers {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(4*ttl))))
			defer cancel()
			waits = append(waits, arrive(ctx, b))
			pass(time.Duration(random.Int64N(int64(time.Second))))
		}
		var indexes []int
		var broken []error
		for _, w := range waits {
			switch got := <-w; {
			case got.err == nil:
				indexes = append(indexes, got.index)
			case !errors.Is(got.err, pawl.ErrUnavailable):
				broken = append(broken, got.err)
			}
		}
		slices.Sort(indexes)
		if n := len(indexes); n > 0 && len(broken) > 0 || n > len(slices.Compact(indexes)) {
			t.Errorf("indexes %v, and %v", indexes, broken)
		}
		if len(indexes) == parties {
			met++
		}
		pass(3 * ttl)
		resetBarrier(t, b)
	}
	stop()
	disturbers.Wait()
	pass(4 * ttl)
	wantFree(t, eng, "pawl:barrier/b")
	if met == 0 {
		t.Errorf("they never met")
	}
}

// resetBarrier resets the present generation.
func resetBarrier(t *testing.T, b *pawl.Barrier) {
	t.Helper()
	generation, err := b.Generation(t.Context())
	noErr(t, err)
	noErr(t, b.Reset(t.Context(), generation))
}
