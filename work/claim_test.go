package work_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// TestGrace: a caller that does not wait hears of a restart grace, and not that the queue is empty. A grace may be that of some names only.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New())
		q := work.New(c, "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 3)...))
		noErr(t, mustClaim(t, q).Bury(t.Context()))
		grace := func(context.Context, func(context.Context) error) error {
			return fmt.Errorf("enter: %w", &engine.GraceError{Grace: engine.Grace{Age: time.Second, Left: time.Minute}})
		}
		store.Set(grace, faulty.Enter)
		_, err := q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace)
		wantErr(t, q.DeadLetters().Retry(t.Context(), letters(t, q)[0].ID), pawl.ErrNotAcquired, pawl.ErrGrace)
		store.Heal()
		store.Set(grace, faulty.Enter+" pawl:pool/q/1.1")
		item, err := q.TryClaim(t.Context())
		noErr(t, err)
		if string(item.Data) != "item 2" {
			t.Errorf("got %q", item.Data)
		}
		noErr(t, item.Done(t.Context()))
		_, err = q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace)
	})
}

// TestOvertaken: a worker loses the lock of an item before it has written so into the page, and another worker claims the item. That is no
// error of the first worker, which gets the next item.
func TestOvertaken(t *testing.T) {
	for _, notices := range []bool{false, true} {
		t.Run(fmt.Sprint("notices ", notices), func(t *testing.T) {
			for _, claim := range []func(*work.Queue, context.Context) (*work.Item, error){(*work.Queue).Claim, (*work.Queue).TryClaim} {
				synctest.Test(t, func(t *testing.T) {
					eng := memengine.New()
					c, store := newFaultyClient(t, eng)
					other := work.New(newClient(t, eng), "q", nil)
					noErr(t, other.Put(t.Context(), tasks(0, 2)...))
					store.Set(faulty.First(1, func(ctx context.Context, do func(context.Context) error) error {
						if !notices {
							store.Set(faulty.Hangs, faulty.Renew)
						}
						is, err := eng.Show(t.Context(), "pawl:pool/q/1.0")
						noErr(t, err)
						noErr(t, eng.Evict(t.Context(), "pawl:pool/q/1.0", is.Claims[0].ID))
						if first := mustClaim(t, other); string(first.Data) != "item 0" {
							t.Errorf("the other got %q", first.Data)
						}
						synctest.Wait()
						return do(ctx)
					}, nil), faulty.Put)
					item, err := claim(work.New(c, "q", nil), t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if string(item.Data) != "item 1" {
						t.Errorf("got %q", item.Data)
					}
				})
			}
		})
	}
}

// TestBuryOvertaken: a worker that loses the turn to put a dead letter has not lost the item. TryClaim says so, and does not go on at once.
func TestBuryOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		c, store := newFaultyClient(t, eng)
		opts := &work.Options{MaxAttempts: 1}
		q := work.New(c, "q", opts)
		noErr(t, q.Put(t.Context(), tasks(0, 1)...))
		dies := newClient(t, eng)
		mustClaim(t, work.New(dies, "q", opts))
		noErr(t, dies.Close(t.Context()))
		store.Set(faulty.First(1, func(ctx context.Context, do func(context.Context) error) error {
			is, err := eng.Show(t.Context(), "pawl:dead/q/put")
			noErr(t, err)
			noErr(t, eng.Evict(t.Context(), "pawl:dead/q/put", is.Claims[0].ID))
			synctest.Wait()
			return do(ctx)
		}, nil), faulty.Put)
		_, err := q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrLost)
		_, err = q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired)
		if n := len(letters(t, q)); n != 1 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// TestBacklog: a worker that always finds a free item claims also the item of a dead worker. So the worker does with an item of
// ReturnAfter. The questions about claimed items cost few requests, and leave the order of the others.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		mortal, dies := newFaultyClient(t, eng)
		c, store := newFaultyClient(t, eng)
		q := work.New(c, "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 2)...))
		lost := string(mustClaim(t, work.New(mortal, "q", nil)).Data)
		later := mustClaim(t, q)
		noErr(t, later.ReturnAfter(t.Context(), 40*time.Second))
		dies.Set(faulty.Fails, faulty.Renew, faulty.Open, faulty.Leave, faulty.Close)
		began, asked, came := time.Now(), len(store.Called(faulty.Enter)), make(map[string]time.Duration)
		claims, next := 0, 2
		for ; time.Since(began) < time.Minute; claims++ {
			noErr(t, q.Put(t.Context(), tasks(2+claims, 3+claims)...))
			item := mustClaim(t, q)
			switch is := string(item.Data); is {
			case lost, string(later.Data):
				came[is] = time.Since(began)
			case string(tasks(next, next+1)[0]):
				next++
			default:
				t.Fatalf("claimed %s before %s", is, tasks(next, next+1)[0])
			}
			pass(20 * time.Millisecond)
			noErr(t, item.Done(t.Context()))
		}
		if took := came[lost]; took == 0 || took > 17*time.Second {
			t.Errorf("the item of a dead worker came after %v", took)
		}
		if took := came[string(later.Data)]; took < 40*time.Second || took > 41*time.Second {
			t.Errorf("the item of ReturnAfter came after %v", took)
		}
		if asked = len(store.Called(faulty.Enter)) - asked; asked > 2*claims+4*60 { // a Put has a lock too
			t.Errorf("%d claims took %d requests for locks", claims, asked)
		}
	})
}

// TestBacklogBehindALongJob: a Claim asks about one claimed item at most. An item of a living worker keeps none from asking about the
// item of a dead worker behind.
func TestBacklogBehindALongJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 30
		eng := memengine.New()
		mortal, dies := newFaultyClient(t, eng)
		c, store := newFaultyClient(t, eng)
		living, q := work.New(newClient(t, eng), "q", nil), work.New(c, "q", nil)
		for range long + 2 {
			noErr(t, living.Put(t.Context(), ofAPage))
		}
		for range long {
			mustClaim(t, living)
		}
		lost := mustClaim(t, work.New(mortal, "q", nil))
		dies.Set(faulty.Fails, faulty.Renew, faulty.Open, faulty.Leave, faulty.Close)
		for began := time.Now(); ; {
			noErr(t, living.Put(t.Context(), ofAPage))
			asked := len(store.Called(faulty.Enter))
			item := mustClaim(t, q)
			if asked = len(store.Called(faulty.Enter)) - asked; asked > 2 {
				t.Fatalf("a claim took %d requests for locks", asked)
			}
			if item.Attempts == 2 {
				break
			}
			if time.Since(began) > 15*time.Second+(long+2)*time.Second {
				t.Fatal("nobody asked about the item of a dead worker")
			}
			pass(time.Second)
			noErr(t, item.Done(t.Context()))
		}
		wantErr(t, lost.Err(), pawl.ErrLost)
	})
}

// TestBacklogBehindAPoisonItem: an item that a worker gave back comes after the items that were there then. That holds also for a worker
// that had seen the item in its old place.
func TestBacklogBehindAPoisonItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		a, b := work.New(newClient(t, eng), "q", nil), work.New(newClient(t, eng), "q", nil)
		for i := range byte(5) {
			noErr(t, b.Put(t.Context(), append([]byte{i}, ofAPage...)))
		}
		poison := mustClaim(t, b)
		noErr(t, mustClaim(t, a).Done(t.Context()))
		noErr(t, poison.Return(t.Context()))
		pass(time.Second)
		for _, want := range []byte{2, 3, 4, 0} {
			item := mustClaim(t, a)
			if item.Data[0] != want {
				t.Errorf("claimed %d before %d", item.Data[0], want)
			}
			noErr(t, item.Done(t.Context()))
		}
	})
}

// TestBacklogOfSpentItems: the item of a dead worker that has no attempts left becomes a dead letter also while there is a backlog.
func TestBacklogOfSpentItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		mortal, dies := newFaultyClient(t, eng)
		q := work.New(newClient(t, eng), "q", &work.Options{MaxAttempts: 1})
		noErr(t, q.Put(t.Context(), tasks(0, 1)...))
		mustClaim(t, work.New(mortal, "q", &work.Options{MaxAttempts: 1}))
		dies.Set(faulty.Fails, faulty.Renew, faulty.Open, faulty.Leave, faulty.Close)
		for began := time.Now(); time.Since(began) < 20*time.Second; {
			noErr(t, q.Put(t.Context(), tasks(1, 2)...))
			item := mustClaim(t, q)
			pass(time.Second)
			noErr(t, item.Done(t.Context()))
		}
		if all := letters(t, q); len(all) != 1 {
			t.Errorf("dead letters: %v", all)
		}
	})
}

// TestBacklogAskedBySeveral: goroutines of a Queue that claim at once ask about different items.
func TestBacklogAskedBySeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		mortal, dies := newFaultyClient(t, eng)
		c, store := newFaultyClient(t, eng)
		q, dead := work.New(c, "q", nil), work.New(mortal, "q", nil)
		for range 6 {
			noErr(t, dead.Put(t.Context(), ofAPage))
		}
		mustClaim(t, dead)
		mustClaim(t, dead)
		noErr(t, mustClaim(t, q).Done(t.Context())) // knows the claims
		dies.Set(faulty.Fails, faulty.Renew, faulty.Open, faulty.Leave, faulty.Close)
		pass(time.Minute)
		store.Set(faulty.RepliesLate(10*time.Millisecond), faulty.Get)
		for _, got := range []<-chan claimed{claimSoon(t.Context(), q), claimSoon(t.Context(), q)} {
			got := <-got
			if noErr(t, got.err); got.item.Attempts != 2 {
				t.Errorf("claimed %v", got.item)
			}
		}
	})
}

// TestOrderAfterAGrace: a restart grace makes no crowd. A worker that was refused in the grace reads no page again, and keeps the order.
func TestOrderAfterAGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New())
		q := work.New(c, "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 20)...))
		ends := time.Now().Add(10 * time.Second)
		grace := func(ctx context.Context, do func(context.Context) error) error {
			if left := time.Until(ends); left > 0 {
				return &engine.GraceError{Grace: engine.Grace{Age: time.Second, Left: left}}
			}
			return do(ctx)
		}
		store.Set(grace, faulty.Enter)
		before := len(store.Called(faulty.Get))
		_, err := q.TryClaim(t.Context())
		wantErr(t, err, pawl.ErrNotAcquired, pawl.ErrGrace)
		if n := len(store.Called(faulty.Get)) - before; n > 3 {
			t.Errorf("%d requests for pages", n)
		}
		store.Heal()
		noErr(t, q.Put(t.Context(), tasks(20, 200)...))
		store.Set(grace, faulty.Enter)
		for i := range 20 {
			item := mustClaim(t, q)
			if string(item.Data) != string(tasks(i, i+1)[0]) {
				t.Errorf("claimed %s, want item %d", item.Data, i)
			}
			noErr(t, item.Done(t.Context()))
		}
	})
}
