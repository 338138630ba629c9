package pawl_test

import (
	"context"
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

// TestTrustWindow: whatever the network does, a holder's context ends before the store gives the
// lock to another client. The context ends one margin earlier, because code needs time to stop.
func TestTrustWindow(t *testing.T) {
	every := []string{verbOpen, verbEnter, verbAwait, verbLeave, verbRenew, verbClose}
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 15 * time.Second, 24 * time.Hour} {
		for _, tc := range []struct {
			name  string
			fault fault
			verbs []string
		}{
			{"renewals hang", hangs, []string{verbRenew}},
			{"renewals fail", fails, []string{verbRenew}},
			{"replies are lost", first(4, losesReply, hangs), []string{verbRenew}},
			{"renewals arrive late", first(2, arrivesLate(ttl/4), hangs), []string{verbRenew}},
			{"renewals arrive after the caller gave up", first(4, arrivesLate(ttl/2), hangs), []string{verbRenew}},
			{"replies come late", first(2, repliesLate(ttl/4), hangs), []string{verbRenew}},
			{"everything hangs", hangs, every},
			{"everything fails", fails, every},
		} {
			t.Run(fmt.Sprintf("%v/%s", ttl, tc.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { loseByFault(t, ttl, tc.fault, tc.verbs) })
			})
		}
	}
}

func loseByFault(t *testing.T, ttl time.Duration, f fault, verbs []string) {
	eng := memengine.New()
	opts := &pawl.Options{TTL: ttl}
	a, store := newFaultyClient(t, eng, opts)
	b := newClient(t, eng, opts)
	pass(ttl / 7) // so that the lock is not as old as the session
	lease := mustLock(t, t.Context(), a.Mutex("m"))
	ended := endOf(lease.Context())
	store.set(f, verbs...)

	got := <-lockSoon(context.Background(), b.Mutex("m"))
	if got.err != nil {
		t.Fatal(got.err)
	}
	select {
	case end := <-ended:
		if got.at.Sub(end) < min(ttl/10, time.Second)-time.Microsecond {
			t.Fatalf("the context ended at %v, the lock went to another at %v", end, got.at)
		}
	default:
		t.Fatal("the lock went to another, and the context of the first goes on")
	}
	wantErr(t, context.Cause(lease.Context()), pawl.ErrLost)
	wantErr(t, lease.Err(), pawl.ErrLost)
	wantErr(t, lease.Unlock(t.Context()), pawl.ErrLost)
	calls := store.called(verbRenew)
	if late := got.at.Sub(calls[len(calls)-1]); late > ttl+time.Second {
		t.Errorf("the lock was free %v after the last renewal, the TTL is %v", late, ttl)
	}
	if got.lease.Token() <= lease.Token() {
		t.Errorf("token %v after %v", got.lease.Token(), lease.Token())
	}
	mustUnlock(t, got.lease)
}

// TestDeafRenewal: the context ends in time also when the engine does not return when it should.
func TestDeafRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, store := newFaultyClient(t, eng, nil)
		release := make(chan struct{})
		t.Cleanup(func() { close(release) })
		lease := mustLock(t, t.Context(), a.Mutex("m"))
		store.set(func(context.Context, func(context.Context) error) error { <-release; return errTrouble }, verbRenew)
		start := time.Now()
		<-lease.Context().Done()
		if took := time.Since(start); took >= 15*time.Second {
			t.Errorf("told after %v", took)
		}
		wantErr(t, context.Cause(lease.Context()), pawl.ErrLost)
	})
}

// TestNeverTwoBelieve lets three clients contend for an hour of fake time while all their verbs are
// disturbed at random. No two trust the lock at once, and tokens grow. In the end no claim is left.
func TestNeverTwoBelieve(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &believers{t: t, held: make(map[*pawl.Lease]bool)}
				w.contend(rand.New(rand.NewPCG(seed, seed)))
			})
		})
	}
}

// believers counts the clients that trust one lock.
type believers struct {
	t     *testing.T
	mu    sync.Mutex
	held  map[*pawl.Lease]bool
	last  *pawl.Lease
	locks int
}

func (w *believers) contend(random *rand.Rand) {
	const ttl = 10 * time.Second
	eng := memengine.New()
	ctx, stop := context.WithTimeout(w.t.Context(), time.Hour)
	defer stop()
	var clients sync.WaitGroup
	for range 3 {
		client, store := newFaultyClient(w.t, eng, &pawl.Options{TTL: ttl})
		seed := random.Uint64()
		clients.Go(func() { w.use(ctx, client, rand.New(rand.NewPCG(seed, 1))) })
		clients.Go(func() { disturb(ctx, store, ttl, rand.New(rand.NewPCG(seed, 2))) })
	}
	clients.Wait()
	pass(4 * ttl)
	wantFree(w.t, eng, "m")
	if w.locks < 50 {
		w.t.Errorf("only %d locks", w.locks)
	}
}

// use locks again and again, and keeps the lock for longer than its TTL at times. Like bad code, it
// ignores the context of the lease.
func (w *believers) use(ctx context.Context, c *pawl.Client, random *rand.Rand) {
	for ctx.Err() == nil {
		lease, err := c.Mutex("m").Lock(ctx)
		if err != nil {
			pass(time.Second)
			continue
		}
		w.add(lease)
		pass(time.Duration(random.Int64N(int64(20 * time.Second))))
		w.remove(lease)
		lease.Unlock(ctx) //nolint:errcheck // lost, or the store is not well
	}
}

func (w *believers) add(lease *pawl.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.held {
		if other.Err() == nil {
			w.t.Errorf("%v and %v believe at once", other.Token(), lease.Token())
		}
	}
	if w.last != nil && lease.Token() <= w.last.Token() {
		w.t.Errorf("token %v after %v", lease.Token(), w.last.Token())
	}
	w.held[lease], w.last = true, lease
	w.locks++
}

func (w *believers) remove(lease *pawl.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, lease)
}

// disturb sets and heals faults at random, of all verbs of a session and of more.
func disturb(ctx context.Context, store *faultyStore, ttl time.Duration, random *rand.Rand, more ...string) {
	verbs := append([]string{verbOpen, verbEnter, verbAwait, verbLeave, verbRenew, verbClose}, more...)
	for ctx.Err() == nil {
		late := time.Duration(random.Int64N(int64(ttl)))
		faults := []fault{nil, nil, nil, hangs, fails, losesReply, arrivesLate(late), repliesLate(late), strays(late)}
		for _, verb := range verbs {
			store.set(faults[random.IntN(len(faults))], verb)
		}
		pass(time.Duration(random.Int64N(int64(2 * ttl))))
		if random.IntN(2) == 0 {
			store.set(nil, verbs...)
			pass(time.Duration(random.Int64N(int64(2 * ttl))))
		}
	}
	store.set(nil, verbs...)
}

// TestTransientTrouble: the client retries failed renewals until the trust window ends. Until then
// nothing is lost.
func TestTransientTrouble(t *testing.T) {
	for name, f := range map[string]fault{"fail": fails, "hang": hangs, "lose replies": losesReply} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, store := newFaultyClient(t, memengine.New(), nil)
				lease := mustLock(t, t.Context(), a.Mutex("m"))
				for range 20 {
					store.set(f, verbRenew)
					pass(8 * time.Second)
					store.set(nil, verbRenew)
					pass(8 * time.Second)
					if err := lease.Err(); err != nil {
						t.Fatal(err)
					}
				}
				mustUnlock(t, lease)
			})
		})
	}
}

// TestEndedSession: the store's answer that the session ended is final, and not trouble.
func TestEndedSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, store := newFaultyClient(t, eng, nil)
		lease := mustLock(t, t.Context(), a.Mutex("m"))
		eng.Expire(show(t, eng, "m").Claims[0].Session)
		<-lease.Context().Done()
		wantErr(t, context.Cause(lease.Context()), pawl.ErrLost)
		calls := store.called(verbRenew)
		if last := calls[len(calls)-1]; len(calls) != 1 || !time.Now().Equal(last) {
			t.Errorf("told %v after the renewal", time.Since(last))
		}
	})
}

// TestBrokenClaim: the holder learns at once that an operator took the lock away, and the rest of
// the session stays.
func TestBrokenClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a := newClient(t, eng, nil)
		broken, kept := mustLock(t, t.Context(), a.Mutex("broken")), mustLock(t, t.Context(), a.Mutex("kept"))
		start := time.Now()
		breakLock(t, eng, "broken")
		<-broken.Context().Done()
		if took := time.Since(start); took != 0 {
			t.Errorf("told after %v", took)
		}
		wantErr(t, context.Cause(broken.Context()), pawl.ErrLost)
		wantErr(t, broken.Unlock(t.Context()), pawl.ErrLost)
		pass(time.Hour)
		mustUnlock(t, kept)
	})
}

// breakLock takes every claim of a name out, as an operator does.
func breakLock(t *testing.T, eng engine.Engine, name string) {
	t.Helper()
	// The last first: a waiter must not be granted what it is evicted from next.
	for _, c := range slices.Backward(show(t, eng, name).Claims) {
		if err := eng.Evict(t.Context(), name, c.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHeartbeat: for days the client sends one renewal each TTL/3, however many locks it holds.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a, store := newFaultyClient(t, memengine.New(), nil)
		var leases pawl.Leases
		for i := range 10 {
			leases = append(leases, mustLock(t, t.Context(), a.Mutex(fmt.Sprint(i))))
		}
		const days = 3 * 24 * time.Hour
		pass(days + time.Second)
		if err := leases.Err(); err != nil {
			t.Fatal(err)
		}
		calls := store.called(verbRenew)
		if len(calls) != int(days/(5*time.Second)) {
			t.Errorf("%d renewals", len(calls))
		}
		for i, at := range calls {
			if want := start.Add(time.Duration(i+1) * 5 * time.Second); !at.Equal(want) {
				t.Fatalf("renewal %d at %v, want %v", i, at, want)
			}
		}
		mustUnlock(t, leases)
	})
}

// TestHangingRenewal: a renewal that hangs gets half of the remaining time, so that there is time
// for another.
func TestHangingRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), a.Mutex("m"))
		store.set(first(1, hangs, nil), verbRenew)
		pass(14 * time.Second)
		calls := store.called(verbRenew)
		const remains = 14*time.Second - 5*time.Second
		if second := calls[1].Sub(start.Add(5 * time.Second)); second < remains/2 || second > remains/2+50*time.Millisecond {
			t.Errorf("the second renewal came %v after the first, with %v left", second, remains)
		}
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBeliefCountsFromTheRequest: the trust counts from the request, not from the reply. So do the
// heartbeats.
func TestBeliefCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a, store := newFaultyClient(t, memengine.New(), nil)
		lease := mustLock(t, t.Context(), a.Mutex("m"))
		if want := start.Add(14 * time.Second); !lease.ValidUntil().Equal(want) {
			t.Errorf("valid until %v, want %v", lease.ValidUntil(), want)
		}
		store.set(repliesLate(3*time.Second), verbRenew)
		pass(9 * time.Second) // sent at 5 s, answered at 8 s
		if want := start.Add(19 * time.Second); !lease.ValidUntil().Equal(want) {
			t.Errorf("valid until %v, want %v", lease.ValidUntil(), want)
		}
		pass(time.Minute)
		for i, at := range store.called(verbRenew) {
			if want := start.Add(time.Duration(i+1) * 5 * time.Second); !at.Equal(want) {
				t.Fatalf("renewal %d at %v, want %v", i, at, want)
			}
		}
	})
}

// TestLateReply: the late reply to an earlier renewal does not shorten the trust won by a later
// renewal.
func TestLateReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		eng := memengine.New()
		a, store := newFaultyClient(t, eng, nil)
		b := newClient(t, eng, nil)
		lease := mustLock(t, t.Context(), a.Mutex("m"))
		mustLock(t, t.Context(), b.Mutex("taken"))
		waiter := lockSoon(t.Context(), a.Mutex("taken"))
		// This renewal is sent at 5 s and answered at 9 s. One more follows, and then none.
		store.set(first(1, repliesLate(4*time.Second), first(1, nil, hangs)), verbRenew)
		pass(6 * time.Second)
		breakLock(t, eng, "taken") // the waiter finds out why, by a renewal
		wantErr(t, (<-waiter).err, pawl.ErrNotAcquired)
		for range 2 {
			if want := start.Add(20 * time.Second); lease.ValidUntil().Before(want) {
				t.Errorf("valid until %v, not before %v", lease.ValidUntil(), want)
			}
			pass(3*time.Second + time.Millisecond) // the late reply comes
		}
	})
}

// TestOrphans: the heartbeat leaves the claims that could not be left. Orphans do not hold up the
// renewal of the held locks.
func TestOrphans(t *testing.T) {
	for name, f := range map[string]fault{"fail": fails, "hang": hangs} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				a, store := newFaultyClient(t, eng, nil)
				kept := mustLock(t, t.Context(), a.Mutex("kept"))
				store.set(f, verbLeave)
				var unlocks sync.WaitGroup
				for i := range 5 {
					lease := mustLock(t, t.Context(), a.Mutex(fmt.Sprint(i)))
					unlocks.Go(func() {
						if err := lease.Unlock(t.Context()); !errors.Is(err, pawl.ErrUnavailable) {
							t.Errorf("unlock while leaving is in trouble: %v", err)
						}
					})
				}
				unlocks.Wait()
				pass(10 * time.Minute)
				if err := kept.Err(); err != nil {
					t.Fatal(err)
				}
				if len(show(t, eng, "0").Claims) != 1 {
					t.Fatal("it is left although leaving was in trouble")
				}
				store.set(nil, verbLeave)
				pass(15 * time.Second)
				for i := range 5 {
					wantFree(t, eng, fmt.Sprint(i))
				}
				mustUnlock(t, kept)
			})
		})
	}
}

// TestNewSession: after a loss the next lock opens a new session by itself.
func TestNewSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a := newClient(t, eng, nil)
		lease := mustLock(t, t.Context(), a.Mutex("m"))
		before := show(t, eng, "m").Claims[0].Session
		eng.Expire(before)
		again := mustLock(t, t.Context(), a.Mutex("m")) // before the heartbeat has noticed
		if after := show(t, eng, "m").Claims[0].Session; after == before {
			t.Error("the session is the same")
		}
		wantErr(t, lease.Err(), pawl.ErrLost)
		if again.Token() <= lease.Token() {
			t.Errorf("token %v after %v", again.Token(), lease.Token())
		}
		mustUnlock(t, again)
	})
}

// TestSlowOpening: a session that opened slowly is renewed before the end of its trust.
func TestSlowOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(memengine.New())
		store.set(first(1, repliesLate(10*time.Second), nil), verbOpen)
		lease := mustLock(t, t.Context(), newClient(t, store, nil).Mutex("m"))
		pass(time.Minute)
		noErr(t, lease.Err())
	})
}
