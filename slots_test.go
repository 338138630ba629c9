package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/fence"
)

func take(t *testing.T, s *pawl.Slots, number int) *pawl.Slot {
	t.Helper()
	slot, err := s.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slot.Number() != number {
		t.Fatalf("slot %d, want %d", slot.Number(), number)
	}
	return slot
}

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := newClient(t, eng, nil).Slots("s", 3), newClient(t, eng, nil).Slots("s", 3)
		zero, two, one := take(t, a, 0), take(t, b.Prefer(2), 2), take(t, a.Prefer(2), 1)
		_, err := b.TryTake(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Take(ctx)
		wantErr(t, err, pawl.ErrNotAcquired, context.DeadlineExceeded)
		later := make(chan *pawl.Slot)
		go func() {
			slot, err := b.Take(t.Context())
			noErr(t, err)
			later <- slot
		}()
		synctest.Wait()
		mustUnlock(t, one)
		next := <-later
		if next.Number() != 1 || next.Token() <= two.Token() || next.Token() <= one.Token() {
			t.Errorf("slot %d with token %v after %v and %v", next.Number(), next.Token(), one.Token(), two.Token())
		}
		is, err := newClient(t, eng, nil).Show(t.Context(), "pawl:slots/s")
		if err != nil || is.Kind != "semaphore" || is.Permits != 3 || len(is.Holders) != 3 || next.Name() != is.Name {
			t.Errorf("%+v, %v", is, err)
		}
		_, err = newClient(t, eng, nil).Slots("s", 4).Take(t.Context())
		wantErr(t, err, pawl.ErrMismatch)
		for _, slot := range []*pawl.Slot{zero, two, next} {
			mustUnlock(t, slot)
			wantErr(t, slot.Err(), pawl.ErrClosed)
		}
		wantFree(t, eng, "pawl:slots/s")
		mustUnlock(t, take(t, newClient(t, eng, nil).Slots("s", 2), 0)) // fewer slots, now that nobody holds a slot
	})
}

func TestSlotsRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c := newClient(t, eng, nil)
		for _, wrong := range []*pawl.Slots{
			c.Slots("s", 0), c.Slots("s", 4097), c.Slots("", 1), c.Slots("s", 3).Prefer(3), c.Slots("s", 3).Prefer(-1),
			c.Slots("s", 3).With(pawl.LockOptions{MaxHold: 1}),
		} {
			_, err := wrong.TryTake(t.Context())
			wantErr(t, err, pawl.ErrInvalid)
			t.Log(err)
		}
		if _, err := c.Slots("s", 3).Prefer(3).Prefer(2).Take(t.Context()); err == nil {
			t.Error("the first mistake was forgotten")
		}
		for i, text := range []string{"", "\x00", "\x03", "\x01\x80", "\x02\x01\x80"} {
			key := fmt.Sprint("pawl:slots/", i)
			if _, err := eng.Put(t.Context(), key, []byte(text), 0); err != nil {
				t.Fatal(err)
			}
			_, err := c.Slots(fmt.Sprint(i), 3).Take(t.Context())
			wantErr(t, err, pawl.ErrMismatch)
			wantFree(t, eng, key)
		}
	})
}

// TestSlotOfTheDead: the number of a dead holder is free in time, whether all numbers are taken or
// not. The dead holder knew of the loss before.
func TestSlotOfTheDead(t *testing.T) {
	for _, n := range []int{1, 5} {
		synctest.Test(t, func(t *testing.T) {
			eng := memengine.New()
			mortal, store := newFaultyClient(t, eng, nil)
			dead := take(t, mortal.Slots("s", n), 0)
			ended := endOf(dead.Context())
			store.set(hangs, verbRenew, verbLeave, verbClose)
			died := time.Now()
			heirs := newClient(t, eng, nil).Slots("s", n)
			for {
				slot, err := heirs.Take(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				number := slot.Number()
				if number == 0 {
					if slot.Token() <= dead.Token() {
						t.Errorf("token %v after %v", slot.Token(), dead.Token())
					}
					break
				}
				mustUnlock(t, slot)
				pass(50 * time.Millisecond)
			}
			if took := time.Since(died); took > 16*time.Second {
				t.Errorf("the number was back after %v", took)
			}
			select {
			case <-ended:
			default:
				t.Error("the dead holder still believes")
			}
			wantErr(t, dead.Err(), pawl.ErrLost)
		})
	}
}

// during runs a function before the request of a call.
func during(other func()) fault {
	return first(1, func(ctx context.Context, do func(context.Context) error) error {
		other()
		return do(ctx)
	}, nil)
}

// loseTurn takes the turn of the numbers away from its holder, as the end of its session would.
func loseTurn(t *testing.T, c *pawl.Client, slots string) {
	t.Helper()
	evicted, err := c.Break(t.Context(), "pawl:update/pawl:slots/"+slots, pawl.BreakOptions{})
	if err != nil || len(evicted) != 1 {
		t.Fatalf("evicted %v, %v", evicted, err)
	}
}

// TestSlotConflict: a taker has lost its turn, and another taker gets the number that it has chosen.
func TestSlotConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		d := newClient(t, eng, nil)
		other := d.Slots("s", 3)
		store.set(during(func() {
			loseTurn(t, d, "s")
			take(t, other, 0)
		}), verbPut)
		take(t, c.Slots("s", 3), 1)
		if n := len(store.called(verbPut)); n != 2 {
			t.Errorf("%d writes", n)
		}
	})
}

// TestSlotOvertaken: the permit of a taker may be older than the last holders of the free numbers.
// Then the taker takes a newer permit, because tokens of a number grow.
func TestSlotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		d := newClient(t, eng, nil)
		other := d.Slots("s", 2)
		var last fence.Token
		store.set(first(1, func(ctx context.Context, do func(context.Context) error) error {
			pass(time.Second) // this taker has its permit and the turn by then
			loseTurn(t, d, "s")
			for number := range 2 {
				slot := take(t, other.Prefer(number), number)
				mustUnlock(t, slot)
				last = slot.Token()
			}
			return do(ctx)
		}, nil), verbGet)
		slot := take(t, c.Slots("s", 2), 0)
		if slot.Token() <= last {
			t.Errorf("token %v after %v", slot.Token(), last)
		}
		if n := len(store.called(verbEnter)); n != 4 { // each with its turn
			t.Errorf("%d permits and turns were asked for", n)
		}
	})
}

// TestSlotInTrouble: a lost reply costs no number, and an outage of the store costs no permit. A
// session that is lost meanwhile is replaced.
func TestSlotInTrouble(t *testing.T) {
	const key = "pawl:slots/s"
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng, nil)
		s := c.Slots("s", 3)
		store.set(first(1, losesReply, nil), verbPut)
		mustUnlock(t, take(t, s, 0))
		store.set(first(1, fails, nil), verbGet)
		mustUnlock(t, take(t, s, 0))

		store.set(fails, verbPut)
		for _, try := range []func(context.Context) (*pawl.Slot, error){s.TryTake, s.Take} {
			_, err := try(t.Context())
			wantErr(t, err, pawl.ErrUnavailable)
			wantFree(t, eng, key)
		}
		store.set(hangs, verbPut, verbLeave)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := s.Take(ctx)
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("back after %v", took)
		}
		store.set(nil, verbPut, verbLeave)
		pass(15 * time.Second)
		wantFree(t, eng, key)

		store.set(during(func() { // the session is lost before the number is read
			store.set(hangs, verbRenew)
			pass(20 * time.Second)
			store.set(nil, verbRenew)
		}), verbGet)
		mustUnlock(t, take(t, s, 0))
		wantFree(t, eng, key)
	})
}

// slotBook knows the holder of each slot, and notes the mistakes.
type slotBook struct {
	mu    sync.Mutex
	last  map[int]fence.Token
	held  map[int]bool
	wrong []string
}

func (b *slotBook) taken(number int, token fence.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[number] {
		b.wrong = append(b.wrong, fmt.Sprintf("slot %d has two holders", number))
	}
	if token <= b.last[number] {
		b.wrong = append(b.wrong, fmt.Sprintf("slot %d has token %v after %v", number, token, b.last[number]))
	}
	b.held[number], b.last[number] = true, max(token, b.last[number])
}

func (b *slotBook) left(number int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[number] = false
}

// rankSlots is a wrong way: a number is the rank among the permits that the store shows.
func rankSlots(ctx context.Context, c *pawl.Client, n int) (int, *pawl.Lease, error) {
	lease, err := c.Semaphore("rank", n).Lock(ctx)
	if err != nil {
		return 0, nil, err
	}
	is, err := c.Show(ctx, "rank")
	for number, p := range is.Holders {
		if p.Token == lease.Token() {
			return number, lease, err
		}
	}
	return 0, nil, errors.Join(err, errors.New("the permit is not shown"))
}

// TestSlotsChurn: many takers, and each request to the store takes some time. The same check finds
// the mistakes of the wrong way.
func TestSlotsChurn(t *testing.T) {
	const clients, n, rounds = 6, 4, 30
	churn := func(t *testing.T, take func(*pawl.Client) (int, *pawl.Lease, error)) []string {
		eng := memengine.New()
		book := &slotBook{last: make(map[int]fence.Token), held: make(map[int]bool)}
		var all sync.WaitGroup
		for i := range clients {
			c, store := newFaultyClient(t, eng, nil)
			store.set(arrivesLate(time.Duration(i+1)*time.Millisecond), verbEnter, verbGet, verbPut, verbLeave)
			all.Go(func() {
				for range rounds {
					number, lease, err := take(c)
					if err != nil {
						t.Error(err)
						return
					}
					book.taken(number, lease.Token())
					pass(time.Duration(i*3) * time.Millisecond)
					book.left(number)
					noErr(t, lease.Unlock(t.Context()))
				}
			})
		}
		all.Wait()
		return book.wrong
	}
	synctest.Test(t, func(t *testing.T) {
		if wrong := churn(t, func(c *pawl.Client) (int, *pawl.Lease, error) {
			slot, err := c.Slots("s", n).Take(t.Context())
			if err != nil {
				return 0, nil, err
			}
			return slot.Number(), slot.Lease, nil
		}); len(wrong) > 0 {
			t.Error(wrong)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		wrong := churn(t, func(c *pawl.Client) (int, *pawl.Lease, error) { return rankSlots(t.Context(), c, n) })
		if len(wrong) == 0 {
			t.Error("the check finds nothing wrong with ranks")
		}
		t.Log(len(wrong), "mistakes of ranks")
	})
}

// countedStore counts the requests of all clients; each request takes the same time.
type countedStore struct {
	*memengine.Engine
	trip time.Duration

	mu    sync.Mutex
	n     int
	shown int // requests that the store reads all claims for
}

func (s *countedStore) count() {
	s.mu.Lock()
	s.n++
	s.mu.Unlock()
	pass(s.trip)
}

// settled returns the counts when the last taker has given up its turn, which it does in the background.
// The waiting takes time: 100 requests are done by then.
func (s *countedStore) settled() (sent, looks int) {
	pass(100 * s.trip)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n, s.shown
}

func (s *countedStore) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	sess, err := s.Engine.Open(ctx, opts)
	return &countedSession{sess, s}, err
}

func (s *countedStore) Show(ctx context.Context, name string) (engine.Resource, error) {
	s.count()
	s.mu.Lock()
	s.shown++
	s.mu.Unlock()
	return s.Engine.Show(ctx, name)
}

func (s *countedStore) Get(ctx context.Context, key string) (engine.Value, error) {
	s.count()
	return s.Engine.Get(ctx, key)
}

func (s *countedStore) Put(ctx context.Context, key string, data []byte, version uint64) (uint64, error) {
	s.count()
	return s.Engine.Put(ctx, key, data, version)
}

type countedSession struct {
	engine.Session
	store *countedStore
}

func (s *countedSession) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	s.store.count()
	return s.Session.Enter(ctx, c, wait)
}

func (s *countedSession) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	s.store.count()
	return s.Session.Await(ctx, c)
}

func (s *countedSession) Leave(ctx context.Context, resource, claim string) error {
	s.store.count()
	return s.Session.Leave(ctx, resource, claim)
}

// TestSlotsTrips: Take needs three round trips without contention, however many slots are taken.
func TestSlotsTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, taken, trip = 1024, 1000, 10 * time.Millisecond
		store := &countedStore{Engine: memengine.New()}
		s := newClient(t, store, nil).Slots("s", n)
		for number := range taken {
			take(t, s, number)
		}
		store.settled()
		store.trip, store.n = trip, 0
		began := time.Now()
		take(t, s, taken)
		took := time.Since(began)
		if sent, _ := store.settled(); took > 3*trip || sent > 6 {
			t.Errorf("%d requests in %v, where each takes %v", sent, took, trip)
		}
	})
}

// TestSlotsAtOnce: clients that start together send few requests each. A few of them read the claims,
// because that costs the store as much as there are claims.
func TestSlotsAtOnce(t *testing.T) {
	const each, mostLooks = 12, 8
	for _, n := range []int{16, 256, 1024} {
		synctest.Test(t, func(t *testing.T) {
			store := &countedStore{Engine: memengine.New(), trip: time.Millisecond}
			numbers := make(chan int, n)
			for range n {
				s := newClient(t, store, nil).Slots("s", n)
				go func() {
					slot, err := s.Take(t.Context())
					if err != nil {
						t.Error(err)
						close(numbers)
						return
					}
					numbers <- slot.Number()
				}()
			}
			seen := make(map[int]bool)
			for range n {
				seen[<-numbers] = true
			}
			sent, looks := store.settled()
			t.Logf("%d takers sent %d requests, of which %d read all claims", n, sent, looks)
			if looks > mostLooks {
				t.Errorf("%d takers read all claims %d times", n, looks)
			}
			if len(seen) != n || sent > each*n {
				t.Errorf("%d different numbers of %d, by %d requests", len(seen), n, sent)
			}
		})
	}
}

// TestTryTakeOfAFullStore: a taker that gets no permit gives up its request for the turn of the numbers. No event says that the
// store was in trouble, and the turn is free for the next taker.
func TestTryTakeOfAFullStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		held, err := newClient(t, eng, nil).Slots("s", 1).Take(t.Context())
		noErr(t, err)
		store := newFaultyStore(eng)
		c := newClient(t, store, &pawl.Options{Observe: func(_ context.Context, e pawl.Event) {
			if errors.Is(e.Err, pawl.ErrUnavailable) {
				t.Errorf("%v of %q: %v", e.Kind, e.Name, e.Err)
			}
		}})
		store.set(arrivesLate(5*time.Millisecond), verbEnter+" pawl:slots/s")
		store.set(arrivesLate(10*time.Millisecond), verbEnter+" pawl:update/pawl:slots/s")
		for range 2 {
			_, err = c.Slots("s", 1).TryTake(t.Context())
			wantErr(t, err, pawl.ErrNotAcquired)
		}
		pass(20 * time.Millisecond) // the requests have arrived
		mustUnlock(t, held)
		start := time.Now()
		slot, err := newClient(t, eng, nil).Slots("s", 1).Take(t.Context())
		noErr(t, err)
		if took := time.Since(start); took > time.Second {
			t.Errorf("the next taker took %v", took)
		}
		mustUnlock(t, slot)
	})
}
