package work_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// changes are what happens to two items after the store was copied. Each returns what happens after the copy came back.
var changes = map[string]func(*testing.T, *work.Queue) (then func()){
	"the page was emptied": func(t *testing.T, q *work.Queue) func() {
		noErr(t, mustClaim(t, q).Done(t.Context()))
		noErr(t, mustClaim(t, q).Done(t.Context()))
		_, err := q.TryClaim(t.Context()) // takes the page off the head
		wantErr(t, err, pawl.ErrNotAcquired)
		return func() {}
	},
	"another page came": func(t *testing.T, q *work.Queue) func() {
		noErr(t, q.Put(t.Context(), make([]byte, work.MaxItem)))
		for range 3 {
			noErr(t, mustClaim(t, q).Done(t.Context()))
		}
		return func() {}
	},
	"the items were claimed": func(t *testing.T, q *work.Queue) func() {
		a, b := mustClaim(t, q), mustClaim(t, q)
		return func() { noErr(t, a.Return(t.Context())); noErr(t, b.Return(t.Context())) }
	},
}

// claimer returns TryClaim, or what a Claim gets that waits already.
func claimer(ctx context.Context, q *work.Queue, waits bool) func() (*work.Item, error) {
	if !waits {
		return func() (*work.Item, error) { return q.TryClaim(ctx) }
	}
	soon := claimSoon(ctx, q)
	synctest.Wait()
	return func() (*work.Item, error) {
		got := <-soon
		soon = claimSoon(ctx, q)
		return got.item, got.err
	}
}

// TestRestored: a store comes back with an older copy of a queue, of its head or only of a page. A worker that saw the later
// state gets the items of the copy, and asks no more often than others.
func TestRestored(t *testing.T) {
	for name, change := range changes {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", waits ", waits), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := faulty.NewRestored(memengine.New())
					c, store := newFaultyClient(t, eng)
					q := work.New(c, "q", nil)
					noErr(t, q.Put(t.Context(), tasks(0, 2)...))
					eng.Copy()
					then := change(t, q)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					claim := claimer(ctx, q, waits)
					eng.Restore()
					store.Set(faulty.First(1000, nil, func(ctx context.Context, do func(context.Context) error) error {
						cancel() // a loop without a pause lets the time of a bubble stand still
						return faulty.Fails(ctx, do)
					}), faulty.Get)
					then()
					for range 2 {
						item, err := claim()
						if err != nil {
							t.Fatal(err)
						}
						noErr(t, item.Done(t.Context()))
					}
				})
			})
		}
	}
}

// TestRestoredAndPut: after a store came back with an older copy, somebody puts before a worker looks that saw a page emptied. The
// worker gets the items of the copy and the new ones, also if that page or its number is in use again.
func TestRestoredAndPut(t *testing.T) {
	for _, copied := range []int{0, 2} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprint(copied, " copied, waits ", waits), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					eng := faulty.NewRestored(memengine.New())
					c, store := newFaultyClient(t, eng)
					store.Set(faulty.Hangs, faulty.Watch) // the worker looks after the put
					q, other := work.New(c, "q", nil), work.New(newClient(t, eng), "q", nil)
					noErr(t, other.Put(t.Context(), tasks(0, 1)...))
					noErr(t, mustClaim(t, other).Done(t.Context()))
					_, err := other.TryClaim(t.Context()) // takes the page off the head
					wantErr(t, err, pawl.ErrNotAcquired)
					if copied == 0 {
						eng.Copy()
					}
					noErr(t, other.Put(t.Context(), tasks(0, 2)...))
					if copied > 0 {
						eng.Copy()
					}
					big := make([]byte, work.MaxItem) // comes in a page of its own: a worker reads the last page in any case
					noErr(t, other.Put(t.Context(), big))
					a, b, last := mustClaim(t, q), mustClaim(t, q), mustClaim(t, q)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					claim := claimer(ctx, q, waits)
					noErr(t, a.Done(t.Context()))
					noErr(t, b.Done(t.Context()))
					eng.Restore()
					noErr(t, last.Return(t.Context())) // of a new item this may be the lock
					noErr(t, other.Put(t.Context(), tasks(2, 3)...))
					noErr(t, other.Put(t.Context(), big))
					for range copied + 2 {
						item, err := claim()
						if err != nil {
							t.Fatal(err)
						}
						noErr(t, item.Done(t.Context()))
					}
				})
			})
		}
	}
}

// TestRestoredHead: only the head comes back, so a page has the number of the next one. A Put that says that all is put has put all.
func TestRestoredHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := memengine.New()
		q := work.New(newClient(t, eng), "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 1)...))
		older, err := eng.Get(t.Context(), "pawl:pool/q")
		noErr(t, err)
		noErr(t, q.Put(t.Context(), make([]byte, work.MaxItem)))
		head, err := eng.Get(t.Context(), "pawl:pool/q")
		noErr(t, err)
		_, err = eng.Put(t.Context(), "pawl:pool/q", older.Data, head.Version)
		noErr(t, err)
		late := make([]byte, work.MaxItem-1)
		wantErr(t, q.Put(t.Context(), late), pawl.ErrLost)
		noErr(t, q.Put(t.Context(), late))
		for _, want := range []int{len("item 0"), len(late)} {
			item := mustClaim(t, q)
			if len(item.Data) != want {
				t.Errorf("got %d bytes, want %d", len(item.Data), want)
			}
			noErr(t, item.Done(t.Context()))
		}
	})
}
