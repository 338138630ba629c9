package pawl_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
)

// TestBarrierResetByAll: all parties that find the barrier broken may reset it. The barrier is reset once,
// and parties that wait since then are not disturbed.
func TestBarrierResetByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		const parties = 5
		var waits []<-chan arrival
		var barriers []*pawl.Barrier
		ctx, quit := context.WithCancel(t.Context())
		for i := range parties - 1 {
			b := newClient(t, eng, nil).Barrier("b", parties)
			barriers = append(barriers, b)
			if i > 0 {
				ctx = t.Context()
			}
			waits = append(waits, arrive(ctx, b))
			arrived(t, eng, "b", i+1)
		}
		quit()
		var again []<-chan arrival
		for i, w := range waits {
			err := (<-w).err
			var broken *pawl.BrokenError
			if !errors.As(err, &broken) || broken.Generation != 1 {
				t.Fatalf("party %d: %v of generation %+v", i, err, broken)
			}
			noErr(t, barriers[i].Reset(t.Context(), broken.Generation))
			again = append(again, arrive(t.Context(), barriers[i]))
			pass(time.Second)
		}
		again = append(again, arrive(t.Context(), newClient(t, eng, nil).Barrier("b", parties)))
		for _, w := range again {
			noErr(t, (<-w).err)
		}
		if n, err := barriers[0].Generation(t.Context()); err != nil || n != 3 {
			t.Errorf("generation %d, %v", n, err)
		}
		wantErr(t, barriers[0].Reset(t.Context(), 0), pawl.ErrInvalid)
	})
}

// TestBarrierResetsEnd: parties that reset whenever they find the barrier broken meet again,
// however many they are.
func TestBarrierResetsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		const parties, rounds = 5, 20
		var all sync.WaitGroup
		var told atomic.Int64
		for i := range parties {
			b := newClient(t, eng, nil).Barrier("b", parties)
			all.Go(func() {
				for met := 0; met < rounds; {
					ctx, cancel := context.WithCancel(t.Context())
					if i == 0 && met == rounds/2 && told.Load() == 0 { // once
						time.AfterFunc(time.Second, cancel)
						pass(100 * time.Millisecond)
					}
					_, err := b.Wait(ctx)
					cancel()
					var broken *pawl.BrokenError
					if errors.As(err, &broken) {
						told.Add(1)
						pass(time.Duration(i) * 300 * time.Millisecond)
						noErr(t, b.Reset(t.Context(), broken.Generation))
						continue
					}
					noErr(t, err)
					met++
					if i == 4 {
						pass(2 * time.Second) // the others wait for this party
					}
				}
			})
		}
		all.Wait()
		if n := told.Load(); n == 0 || n > parties {
			t.Errorf("%d times a party was told that it is broken once", n)
		}
	})
}

func mustJoin(t *testing.T, b *pawl.Barrier) *pawl.Member {
	t.Helper()
	m, err := b.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func arriveMember(ctx context.Context, m *pawl.Member) <-chan arrival {
	done := make(chan arrival, 1)
	go func() {
		index, err := m.Wait(ctx)
		done <- arrival{index, err}
	}()
	return done
}

// TestBarrierMemberDies: the waiting parties notice that a member died between two waits. The rest
// of the fleet goes on after a reset, with a new member in its place.
func TestBarrierMemberDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		mortal, store := newFaultyClient(t, eng, nil)
		b := newClient(t, eng, nil).Barrier("b", 3)
		dies := mustJoin(t, mortal.Barrier("b", 3))
		one, two := mustJoin(t, b), mustJoin(t, newClient(t, eng, nil).Barrier("b", 3))
		_, err := b.Join(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		for range 3 {
			waits := []<-chan arrival{arriveMember(t.Context(), one), arriveMember(t.Context(), dies), arriveMember(t.Context(), two)}
			for _, w := range waits {
				noErr(t, (<-w).err)
			}
		}
		pass(time.Minute)
		died := time.Now()
		store.set(fails, verbRenew, verbOpen, verbLeave, verbClose, verbGet, verbPut)
		waits := []<-chan arrival{arriveMember(t.Context(), one), arriveMember(t.Context(), two)}
		for _, w := range waits {
			err := (<-w).err
			wantErr(t, err, pawl.ErrBroken)
			if took := time.Since(died); took > 21*time.Second {
				t.Errorf("told after %v", took)
			}
			var broken *pawl.BrokenError
			if !errors.As(err, &broken) {
				t.Fatal(err)
			}
			noErr(t, b.Reset(t.Context(), broken.Generation))
		}
		_, err = dies.Wait(t.Context())
		wantErr(t, err, pawl.ErrLost)
		three := mustJoin(t, b)
		for _, w := range []<-chan arrival{arriveMember(t.Context(), one), arriveMember(t.Context(), two), arriveMember(t.Context(), three)} {
			noErr(t, (<-w).err)
		}
	})
}

// TestBarrierMemberLeaves: a member that leaves breaks nothing, and another takes its place. So
// does a member whose place others take as if it had died.
func TestBarrierMemberLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		b := newClient(t, eng, nil).Barrier("b", 2)
		one, leaves := mustJoin(t, b), mustJoin(t, b)
		waits := arriveMember(t.Context(), one)
		noErr(t, leaves.Leave(t.Context()))
		noErr(t, leaves.Leave(t.Context()))
		_, err := leaves.Wait(t.Context())
		wantErr(t, err, pawl.ErrClosed)
		pass(time.Minute)
		mortal, store := newFaultyClient(t, eng, nil)
		next := mustJoin(t, mortal.Barrier("b", 2))
		index, err := next.Wait(t.Context())
		if noErr(t, err); index != 0 {
			t.Errorf("the last has index %d", index)
		}
		noErr(t, (<-waits).err)
		store.set(fails, verbRenew, verbOpen, verbLeave, verbClose)
		pass(time.Minute) // nobody waits, and nobody notices
		heir := mustJoin(t, b)
		err = (<-arriveMember(t.Context(), heir)).err
		wantErr(t, err, pawl.ErrBroken)
		resetBarrier(t, b)
		waits = arriveMember(t.Context(), one)
		_, err = heir.Wait(t.Context())
		noErr(t, err)
		noErr(t, (<-waits).err)
		noErr(t, one.Leave(t.Context()))
		noErr(t, heir.Leave(t.Context()))
		wantFree(t, eng, "pawl:barrier/b")
	})
}

// TestBarrierMemberLostReplies: a member joins once and leaves, whichever reply is lost.
func TestBarrierMemberLostReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		for _, verb := range []string{verbPut, verbGet, verbEnter, verbLeave} {
			c, store := newFaultyClient(t, eng, nil)
			store.set(first(1, losesReply, nil), verb)
			one, two := mustJoin(t, c.Barrier("b", 2)), mustJoin(t, newClient(t, eng, nil).Barrier("b", 2))
			waits := arriveMember(t.Context(), one)
			_, err := two.Wait(t.Context())
			noErr(t, err)
			noErr(t, (<-waits).err)
			store.set(first(1, losesReply, nil), verb)
			noErr(t, one.Leave(t.Context()))
			noErr(t, two.Leave(t.Context()))
			pass(time.Minute)
			wantFree(t, eng, "pawl:barrier/b")
		}
	})
}

// TestBarrierGiveUpIsBounded: the store is away while a member gives up. The call ends with its ctx. The store learns of that as soon as the
// store is back.
func TestBarrierGiveUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		m := mustJoin(t, c.Barrier("b", 2))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start, waits := time.Now(), arriveMember(ctx, m)
		synctest.Wait()
		store.set(fails, verbGet, verbPut, verbWatch)
		err := (<-waits).err
		wantErr(t, err, pawl.ErrBroken, pawl.ErrUnavailable)
		if took := time.Since(start); took > time.Second+slack {
			t.Errorf("took %v", took)
		}
		store.set(nil, verbGet, verbPut, verbWatch)
		pass(time.Second)
		_, err = newClient(t, eng, nil).Barrier("b", 2).Wait(t.Context())
		wantErr(t, err, pawl.ErrBroken)
	})
}

// TestBarrierMemberWaitsAgain: the store never heard that a member gave up. The next Wait of that member is no second party.
func TestBarrierMemberWaitsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		m := mustJoin(t, c.Barrier("b", 2))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		waits := arriveMember(ctx, m)
		synctest.Wait()
		store.set(fails, verbGet, verbPut, verbWatch)
		wantErr(t, (<-waits).err, pawl.ErrBroken)
		pass(time.Minute)
		store.set(nil, verbGet, verbPut, verbWatch)
		_, err := m.Wait(t.Context())
		var broken *pawl.BrokenError
		if !errors.As(err, &broken) {
			t.Fatal(err)
		}
		noErr(t, c.Barrier("b", 2).Reset(t.Context(), broken.Generation))
		waits = arriveMember(t.Context(), m)
		_, err = newClient(t, eng, nil).Barrier("b", 2).Wait(t.Context())
		noErr(t, err)
		noErr(t, (<-waits).err)
	})
}

// TestBarrierLeftLongAgo: a party gives up after its generation and a further generation have left. The party has left as well.
func TestBarrierLeftLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		store.set(first(1, losesReply, fails), verbWatch)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		early := arrive(ctx, c.Barrier("b", 2))
		arrived(t, eng, "b", 1)
		_, err := newClient(t, eng, nil).Barrier("b", 2).Wait(t.Context())
		noErr(t, err)
		other := arrive(t.Context(), newClient(t, eng, nil).Barrier("b", 2))
		synctest.Wait()
		_, err = newClient(t, eng, nil).Barrier("b", 2).Wait(t.Context())
		noErr(t, err)
		noErr(t, (<-other).err)
		got := <-early
		if noErr(t, got.err); got.index != 1 {
			t.Errorf("index %d", got.index)
		}
	})
}
