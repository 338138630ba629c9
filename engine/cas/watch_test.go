package cas

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// deaf is a store whose watch has the first item only. A cluster is deaf when it removes the mark of a deletion
// before the watch has passed that mark on.
type deaf struct{ Store }

func (d deaf) Watch(ctx context.Context, key string) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for item, err := range d.Store.Watch(ctx, key) {
			if err == nil && yield(item, nil) {
				<-ctx.Done()
				yield(Item{}, ctx.Err())
			}
			return
		}
	}
}

// A watch of a value finds a change that the store did not tell.
func TestWatchLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, deaf{newInMemory(false)}, Options{})
		version, err := e.Put(t.Context(), "v", []byte("x"), 0)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan engine.Value)
		go func() {
			v, err := e.Watch(t.Context(), "v", version)
			if err != nil {
				t.Error(err)
			}
			got <- v
		}()
		synctest.Wait()
		start := time.Now()
		if _, err := e.Put(t.Context(), "v", nil, version); err != nil {
			t.Fatal(err)
		}
		if v := <-got; v.Version != 0 || time.Since(start) > lookAgain {
			t.Errorf("%+v after %v", v, time.Since(start))
		}
	})
}

// mute is a store whose watch tells nothing. A server that is silent while it makes a watch is mute.
type mute struct{ Store }

func (m mute) Watch(ctx context.Context, _ string) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		<-ctx.Done()
		yield(Item{}, ctx.Err())
	}
}

// TestWaiterOfAMuteStore: a waiter outlives a dead holder, although no watch of the store tells anything.
func TestWaiterOfAMuteStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newInMemory(false)
		dies, waits := openOn(t, newEngine(t, store, Options{})), openOn(t, newEngine(t, mute{store}, Options{}))
		alive(t, waits)
		mustHold(t, dies, claimOf(dies, "x", 1))
		c := claimOf(waits, "x", 1)
		if g, err := waits.Enter(t.Context(), c, true); err != nil || g.Held() {
			t.Fatal(g, err)
		}
		start := time.Now()
		if g, err := waits.Await(t.Context(), c); err != nil || !g.Held() {
			t.Fatal(g, err)
		}
		if took := time.Since(start); took > 2*ttl {
			t.Errorf("granted after %v", took)
		}
	})
}
