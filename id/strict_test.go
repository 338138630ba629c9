package id_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/internal/idtest"
)

// slowCounter is a counter whose store takes a time, and counts requests.
type slowCounter struct {
	id.Counter
	delay    time.Duration
	requests atomic.Int64
	err      atomic.Pointer[error] // instead of an answer
}

func (c *slowCounter) Add(ctx context.Context, n int64) (int64, error) {
	c.requests.Add(1)
	select {
	case <-time.After(c.delay):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if err := c.err.Load(); err != nil {
		return 0, *err
	}
	return c.Counter.Add(ctx, n)
}

func slow(t *testing.T) *slowCounter {
	return &slowCounter{Counter: registers(t, memoryClients(t, 1)[0], nil).Counter("slow"), delay: 20 * time.Millisecond}
}

// Calls that wait share a request: 1,000 calls take two, the first and all others.
func TestStrictShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counter := slow(t)
		g := id.NewStrict(counter)
		var check idtest.Checker[int64]
		var group sync.WaitGroup
		for i := range 1000 {
			log := check.Log()
			group.Go(func() {
				dst := make([]int64, 1+i%3)
				if n, err := g.NextN(t.Context(), dst); err != nil || n != len(dst) {
					t.Error(n, err)
				}
				log.Add(dst...)
			})
		}
		group.Wait()
		if n, err := check.Check(); err != nil || n != 1999 {
			t.Errorf("%d numbers: %v", n, err)
		}
		if n := counter.requests.Load(); n != 2 {
			t.Errorf("%d requests", n)
		}
		if last, err := g.Next(t.Context()); err != nil || last != 2000 {
			t.Errorf("%d, %v: there is a gap", last, err)
		}
	})
}

// A call that begins after another returned gets a larger number, whichever process it is in.
func TestStrictOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counter := slow(t)
		processes := []id.Generator[int64]{id.NewStrict(counter), id.NewStrict(counter)}
		var newest atomic.Int64
		var group sync.WaitGroup
		for i := range 50 {
			group.Go(func() {
				for range 40 {
					before := newest.Load()
					is, err := processes[i%2].Next(t.Context())
					if err != nil || is <= before {
						t.Errorf("%d after %d was returned: %v", is, before, err)
					}
					for old := newest.Load(); old < is && !newest.CompareAndSwap(old, is); old = newest.Load() {
					}
				}
			})
		}
		group.Wait()
	})
}

// Callers give up at any time: each returns at once, nobody waits for the dead, and no number
// is handed out twice.
func TestStrictGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := id.NewStrict(slow(t))
		var check idtest.Checker[int64]
		var group sync.WaitGroup
		for i := range 300 {
			log := check.Log()
			group.Go(func() {
				for j := range 30 {
					patience := time.Duration(1+(i*7+j*13)%60) * time.Millisecond
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					begun := time.Now()
					is, err := g.Next(ctx)
					switch {
					case err == nil:
						log.Add(is)
					case !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != patience:
						t.Errorf("after %v of %v: %v", time.Since(begun), patience, err)
					}
					cancel()
				}
			})
		}
		group.Wait()
		n, err := check.Check()
		if err != nil || n < 1000 {
			t.Errorf("%d numbers: %v", n, err)
		}
		if _, err := g.Next(t.Context()); err != nil { // nobody is left at the store
			t.Error(err)
		}
	})
}

// An error of the store is for all calls of the request; later calls ask anew.
func TestStrictErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counter := slow(t)
		g := id.NewStrict(counter)
		counter.err.Store(&pawl.ErrUnavailable)
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				if n, err := g.NextN(t.Context(), make([]int64, 2)); n != 0 || !errors.Is(err, pawl.ErrUnavailable) {
					t.Error(n, err)
				}
			})
		}
		group.Wait()
		if n := counter.requests.Load(); n != 2 {
			t.Errorf("%d requests", n)
		}
		counter.err.Store(nil)
		if is, err := g.Next(t.Context()); is != 1 || err != nil {
			t.Error(is, err)
		}
		if n, err := g.NextN(t.Context(), nil); n != 0 || err != nil {
			t.Error(n, err)
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Next(done); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := counter.Add(t.Context(), math.MaxInt64-2); err != nil {
			t.Fatal(err)
		}
		if n, err := g.NextN(t.Context(), make([]int64, 2)); n != 0 || !errors.Is(err, id.ErrExhausted) {
			t.Error(n, err)
		}
	})
}

// panicking is a slow counter with a bug, which shows at the second request.
type panicking struct {
	id.Counter
	requests atomic.Int64
}

func (c *panicking) Add(ctx context.Context, n int64) (int64, error) {
	is := c.requests.Add(1)
	<-time.After(time.Second)
	if is == 2 {
		panic("a bug")
	}
	return c.Counter.Add(ctx, n)
}

// A counter that panics under one caller is in the way of no other caller. Callers that shared its request ask again.
func TestStrictSurvivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := id.NewStrict(&panicking{Counter: slow(t)})
		var group sync.WaitGroup
		var served, panicked atomic.Int64
		for range 10 {
			group.Go(func() {
				defer func() {
					if recover() != nil { // as a server does
						panicked.Add(1)
					}
				}()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				n, err := g.Next(ctx)
				if err != nil || n < 1 {
					t.Error(n, err)
				}
				served.Add(1)
			})
			synctest.Wait() // the first call asks alone, and the others share the second request
		}
		group.Wait()
		if served.Load() != 9 || panicked.Load() != 1 {
			t.Errorf("%d were served, %d panicked", served.Load(), panicked.Load())
		}
	})
}

// deaf is a mark whose store does not answer.
type deaf struct{ id.Mark }

func (deaf) Load(ctx context.Context) (id.Reading, error) {
	<-ctx.Done()
	return id.Reading{}, pawl.Unavailable(ctx, ctx.Err())
}

// A call that waits behind a request to a store that is away says so, as the request itself does.
func TestWaitsForAStoreThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, counter := id.NewStrict(id.CounterOf(deaf{})), id.CounterOf(deaf{})
		var group sync.WaitGroup
		for name, next := range map[string]func(context.Context) (int64, error){
			"NewStrict": shared.Next, "CounterOf": func(ctx context.Context) (int64, error) { return counter.Add(ctx, 1) },
		} {
			for i := range 2 {
				synctest.Wait() // the first call is at the store
				group.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2-i)*time.Second)
					defer cancel()
					if n, err := next(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pawl.ErrUnavailable) {
						t.Errorf("%s: %d, %v", name, n, err)
					}
				})
			}
		}
		group.Wait()
	})
}

// CounterOf waits for its turn no longer than its ctx, and says who was in the way.
func TestCounterOfIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mark := &busyMark{Mark: registers(t, memoryClients(t, 1)[0], nil).Mark("busy")}
		counter := id.CounterOf(mark)
		mark.busy.Store(true)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begun := time.Now()
			_, err := counter.Add(ctx, 1)
			if !errors.Is(err, pawl.ErrConflict) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
			cancel()
		}
		mark.busy.Store(false)
		for want := range int64(3) {
			if last, err := counter.Add(t.Context(), 1); err != nil || last != want+1 {
				t.Error(last, err)
			}
		}
		if n := mark.loads.Load(); n > 200 { // without them it would be thousands
			t.Errorf("%d reads: the pauses do not grow", n)
		}
	})
}

// busyMark is a mark that somebody else raises all the time.
type busyMark struct {
	id.Mark
	busy  atomic.Bool
	loads atomic.Int64
}

func (m *busyMark) Load(ctx context.Context) (id.Reading, error) {
	m.loads.Add(1)
	return m.Mark.Load(ctx)
}

func (m *busyMark) Raise(ctx context.Context, to int64, from id.Reading) (id.Reading, error) {
	if m.busy.Load() {
		from.Version += 7
	}
	return m.Mark.Raise(ctx, to, from)
}
