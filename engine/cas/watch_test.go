package cas

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
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

// cutting is a store that loses its connection, and counts the loads of resources.
type cutting struct {
	Store
	mu    sync.Mutex
	down  bool
	cut   chan struct{} // closed when the connection breaks
	loads atomic.Int64
}

var errCut = engine.Unavailable("store", errors.New("cut"))

func (c *cutting) set(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down = down; down {
		close(c.cut)
		c.cut = make(chan struct{})
	}
}

func (c *cutting) state() (down bool, cut <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down, c.cut
}

func (c *cutting) Load(ctx context.Context, key string) (Item, error) {
	if down, _ := c.state(); down {
		return Item{}, errCut
	}
	if strings.HasPrefix(key, resourceKey) {
		c.loads.Add(1)
	}
	return c.Store.Load(ctx, key)
}

func (c *cutting) Watch(ctx context.Context, key string) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		down, cut := c.state()
		watching, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-cut:
				stop()
			case <-watching.Done():
			}
		}()
		for item, err := range c.Store.Watch(watching, key) {
			if down || err != nil && ctx.Err() == nil {
				yield(Item{}, errCut)
				return
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

// TestWaitersOutliveTheirWatch: when the connection breaks, the waiters of a name do not each ask again. One of them looks
// for all, also when the connection is back.
func TestWaitersOutliveTheirWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		store := newInMemory(false)
		holder, over := openOn(t, newEngine(t, store, Options{})), &cutting{Store: store, cut: make(chan struct{})}
		s := openOn(t, newEngine(t, over, Options{}))
		alive(t, holder)
		alive(t, s)
		mustHold(t, holder, claimOf(holder, "x", 0))
		got := make([]chan error, n)
		for i := range n {
			c := claimOf(s, "x", i)
			if g, err := s.Enter(t.Context(), c, true); err != nil || g.Held() {
				t.Fatal(g, err)
			}
			got[i] = make(chan error, 1)
			go func() {
				_, err := s.Await(t.Context(), c)
				got[i] <- err
			}()
		}
		synctest.Wait()
		for _, away := range []time.Duration{time.Millisecond, ttl / 2} {
			before := over.loads.Load()
			over.set(true)
			<-time.After(away)
			over.set(false)
			<-time.After(lookAgain + time.Second)
			if asked := over.loads.Load() - before; asked > 10 {
				t.Errorf("away for %v, %d waiters asked %d times", away, n, asked)
			}
		}
		if err := holder.Leave(t.Context(), "x", claimOf(holder, "x", 0).ID); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if err := <-got[i]; err != nil {
				t.Fatal(err)
			}
			if err := s.Leave(t.Context(), "x", claimOf(s, "x", i).ID); err != nil {
				t.Fatal(err)
			}
		}
	})
}
