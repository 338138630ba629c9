package work_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/internal/faulty"
	"github.com/pawl-go/pawl/work"
)

// hangs are calls on a store that hangs when it has heard a part of them. One item is in the queue of other, whose store has no trouble.
var hangs = map[string]func(t *testing.T, store *faulty.Store, q, other *work.Queue) func(context.Context){
	"claim": func(t *testing.T, store *faulty.Store, q, other *work.Queue) func(context.Context) {
		mustClaim(t, other)
		store.Set(faulty.Hangs, faulty.Put, faulty.Leave)
		return func(ctx context.Context) {
			waits := claimSoon(ctx, q)
			synctest.Wait()
			noErr(t, other.Put(t.Context(), tasks(1, 2)...))
			<-waits
		}
	},
	"put": func(_ *testing.T, store *faulty.Store, q, _ *work.Queue) func(context.Context) {
		store.Set(faulty.First(1, nil, faulty.Hangs), faulty.Put) // a page is reserved
		store.Set(faulty.Hangs, faulty.Leave)
		return func(ctx context.Context) { q.Put(ctx, make([]byte, work.MaxItem)) } //nolint:errcheck // only its time counts
	},
	"done": func(t *testing.T, store *faulty.Store, q, _ *work.Queue) func(context.Context) {
		item := mustClaim(t, q)
		store.Set(faulty.RepliesLate(100*time.Millisecond), faulty.Put)
		store.Set(faulty.Hangs, faulty.Leave)
		return func(ctx context.Context) { noErr(t, item.Done(ctx)) }
	},
	"retry a dead letter": func(t *testing.T, store *faulty.Store, q, _ *work.Queue) func(context.Context) {
		noErr(t, mustClaim(t, q).Bury(t.Context()))
		id := letters(t, q)[0].ID
		store.Set(faulty.First(1, nil, faulty.Hangs), faulty.Put) // the attempt is counted
		store.Set(faulty.Hangs, faulty.Leave)
		return func(ctx context.Context) { q.DeadLetters().Retry(ctx, id) } //nolint:errcheck // only its time counts
	},
	"done, by a context of the item": func(t *testing.T, store *faulty.Store, q, _ *work.Queue) func(context.Context) {
		item := mustClaim(t, q)
		store.Set(faulty.RepliesLate(100*time.Millisecond), faulty.Put)
		store.Set(faulty.Hangs, faulty.Leave)
		return func(ctx context.Context) {
			within, cancel := context.WithCancel(item.Context()) // by its end, not by a deadline
			defer cancel()
			defer context.AfterFunc(ctx, cancel)()
			noErr(t, item.Done(within))
		}
	},
	"return the last time": func(t *testing.T, store *faulty.Store, q, _ *work.Queue) func(context.Context) {
		item := mustClaim(t, q)
		store.Set(faulty.Hangs, faulty.Enter, faulty.Get, faulty.Put, faulty.Leave)
		return func(ctx context.Context) { item.Return(ctx) } //nolint:errcheck // only its time counts
	},
	"return later": func(t *testing.T, store *faulty.Store, q, other *work.Queue) func(context.Context) {
		noErr(t, mustClaim(t, other).Done(t.Context()))
		forever := work.New(newClient(t, store), "forever", nil)
		noErr(t, forever.Put(t.Context(), []byte("x")))
		item := mustClaim(t, forever)
		store.Set(faulty.RepliesLate(100*time.Millisecond), faulty.Open)
		store.Set(faulty.Hangs, faulty.Leave)
		return func(ctx context.Context) { item.ReturnAfter(ctx, time.Minute) } //nolint:errcheck // only its time counts
	},
}

// TestCallsEndWithTheirContext: on a store that hangs each call returns within 100 ms of the end of its ctx, also with two things to tell.
func TestCallsEndWithTheirContext(t *testing.T) {
	for name, prepare := range hangs {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				eng := memengine.New()
				c, store := newFaultyClient(t, eng)
				opts := &work.Options{MaxAttempts: 1}
				q, other := work.New(c, "q", opts), work.New(newClient(t, eng), "q", opts)
				noErr(t, other.Put(t.Context(), tasks(0, 1)...))
				call := prepare(t, store, q, other)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				call(ctx)
				if took := time.Since(start); took > 150*time.Millisecond {
					t.Errorf("took %v", took)
				}
				store.Heal()
				pass(10 * time.Second) // the heartbeat repeats what the store did not hear
				for _, name := range []string{"pawl:pool/q/put", "pawl:pool/q/wait"} {
					is, err := eng.Show(t.Context(), name)
					if noErr(t, err); len(is.Claims) > 0 {
						t.Errorf("%q is still held", name)
					}
				}
			})
		})
	}
}

// TestDoneEndsTheClaim: when Done returns the claim is over, also if the answer came so late that there is no time for the release.
func TestDoneEndsTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFaultyClient(t, memengine.New())
		q := work.New(c, "q", nil)
		noErr(t, q.Put(t.Context(), tasks(0, 1)...))
		item := mustClaim(t, q)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		store.Set(func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			pass(time.Second)
			return err
		}, faulty.Put)
		noErr(t, item.Done(ctx))
		wantErr(t, item.Err(), pawl.ErrClosed)
	})
}
