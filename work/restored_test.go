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
					claim := q.TryClaim
					if waits {
						soon := claimSoon(ctx, q)
						synctest.Wait()
						claim = func(context.Context) (*work.Item, error) {
							got := <-soon
							soon = claimSoon(ctx, q)
							return got.item, got.err
						}
					}
					eng.Restore()
					store.Set(faulty.First(1000, nil, func(ctx context.Context, do func(context.Context) error) error {
						cancel() // a loop without a pause lets the time of a bubble stand still
						return faulty.Fails(ctx, do)
					}), faulty.Get)
					then()
					for range 2 {
						item, err := claim(ctx)
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
