package segment_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/segment"
	"github.com/pawl-go/pawl/internal/idtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }

// store is a counter of the memory engine whose store takes a time, and can be away.
type store struct {
	id.Counter
	delay    time.Duration
	err      atomic.Pointer[error] // instead of an answer
	hangs    atomic.Bool
	loses    atomic.Bool // the reply, not the request
	requests atomic.Int64
}

func (s *store) Add(ctx context.Context, n int64) (int64, error) {
	s.requests.Add(1)
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if s.hangs.Load() {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	if err := s.err.Load(); err != nil {
		return 0, *err
	}
	last, err := s.Counter.Add(ctx, n)
	if s.loses.Load() {
		return 0, fmt.Errorf("reply: %w", pawl.ErrUnavailable)
	}
	return last, err
}

func newStore(t *testing.T) *store {
	t.Helper()
	client, err := pawl.New(t.Context(), memengine.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // in memory
	registers, err := id.Values(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &store{Counter: registers.Counter("segment"), delay: 20 * time.Millisecond}
}

func generator(t *testing.T, counter id.Counter, opts *segment.Options) *segment.Generator {
	t.Helper()
	g, err := segment.New(counter, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// 1,000 goroutines at once on batches of 100, with a store of 20 ms delay: Leaf answers "both
// two segments are not ready". Here all wait, and the batches grow.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		g := generator(t, s, &segment.Options{MinStep: 100})
		var check idtest.Checker[int64]
		var group sync.WaitGroup
		begun := time.Now()
		for range 1000 {
			log := check.Log()
			group.Go(func() {
				for range 20 {
					n, err := g.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					log.Add(n)
				}
			})
		}
		group.Wait()
		if n, err := check.Check(); err != nil || n != 20000 {
			t.Errorf("%d numbers: %v", n, err)
		}
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("it took %v: batches do not grow", took)
		}
	})
}

// pace takes a number each 100 µs for a time, and returns how many calls had to wait.
func pace(t *testing.T, g *segment.Generator, log *idtest.Log[int64], d time.Duration) (waited int) {
	t.Helper()
	for range d / (100 * time.Microsecond) {
		begun := time.Now()
		n, err := g.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		log.Add(n)
		if time.Since(begun) > 0 { // in fake time a call that does not wait takes none
			waited++
		}
		time.Sleep(100 * time.Microsecond)
	}
	return waited
}

// Once the step has adapted, nobody notices that the store is away for 2 s at 10,000 IDs/s, at
// whatever moment that begins.
func TestOutageIsHidden(t *testing.T) {
	for name, away := range map[string]func(*store){
		"fails": func(s *store) { s.err.Store(&pawl.ErrUnavailable) }, "hangs": func(s *store) { s.hangs.Store(true) },
		"loses replies": func(s *store) { s.loses.Store(true) },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t)
			g := generator(t, s, &segment.Options{MinStep: 100})
			var check idtest.Checker[int64]
			log := check.Log()
			pace(t, g, log, 15*time.Second)
			waited := 0
			for range 4 {
				away(s)
				waited += pace(t, g, log, 2*time.Second)
				s.err.Store(nil)
				s.hangs.Store(false)
				s.loses.Store(false)
				waited += pace(t, g, log, 9*time.Second+300*time.Millisecond)
			}
			if waited != 0 {
				t.Errorf("%s: %d calls found the batches empty", name, waited)
			}
			if _, err := check.Check(); err != nil {
				t.Error(err)
			}
			if n := s.requests.Load(); n > 100 {
				t.Errorf("%s: %d requests for a minute", name, n)
			}
		})
	}
}

// When the batches are used up callers wait, each until its own ctx ends, and are served as
// soon as the store is back.
func TestLongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		g := generator(t, s, &segment.Options{MinStep: 10, MaxStep: 10})
		dst := make([]int64, 15)
		if n, err := g.NextN(t.Context(), dst); n != 15 || err != nil {
			t.Fatal(n, err)
		}
		<-time.After(time.Second) // in which the spare batch arrives
		s.err.Store(&pawl.ErrUnavailable)
		soon, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		more := make([]int64, 30)
		n, err := g.NextN(soon, more) // 5 of the present batch and the 10 of the spare one
		if n != 15 || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, pawl.ErrUnavailable) || time.Since(begun) != 3*time.Second {
			t.Errorf("%d after %v: %v", n, time.Since(begun), err)
		}
		for i, is := range append(dst, more[:n]...) {
			if is != int64(i+1) {
				t.Errorf("number %d is %d", i, is)
			}
		}
		time.AfterFunc(10*time.Second, func() { s.err.Store(nil) })
		begun = time.Now()
		if is, err := g.Next(t.Context()); is != 31 || err != nil || time.Since(begun) > 11*time.Second+100*time.Millisecond {
			t.Errorf("%d after %v: %v", is, time.Since(begun), err)
		}
	})
}

// A counter that does not answer is unavailable, also while its first request is under way.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.hangs.Store(true)
		g := generator(t, s, nil)
		for _, patience := range []time.Duration{0, time.Second, 20 * time.Second} { // with 0 the store may have been asked already, or not
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			begun := time.Now()
			if n, err := g.Next(ctx); !errors.Is(err, context.DeadlineExceeded) || patience > 0 && !errors.Is(err, pawl.ErrUnavailable) || time.Since(begun) != patience {
				t.Errorf("%d after %v: %v", n, time.Since(begun), err)
			}
			cancel()
		}
		s.hangs.Store(false)
		if n, err := g.Next(t.Context()); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}

// An error that does not pass by itself is told at once to all callers that wait. A later caller
// has the store asked anew.
func TestErrorsThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.err.Store(&pawl.ErrMismatch)
		g := generator(t, s, nil)
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				if _, err := g.Next(t.Context()); !errors.Is(err, pawl.ErrMismatch) {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := s.requests.Load(); n > 3 {
			t.Errorf("%d requests", n)
		}
		s.err.Store(nil)
		if n, err := g.Next(t.Context()); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}

// At the end of int64 the last numbers are handed out, then there is an error and never a
// negative number.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		if _, err := s.Counter.Add(t.Context(), math.MaxInt64-2500); err != nil {
			t.Fatal(err)
		}
		g := generator(t, s, nil)
		dst := make([]int64, 3000)
		n, err := g.NextN(t.Context(), dst)
		if n != 2500 || !errors.Is(err, id.ErrExhausted) || dst[2499] != math.MaxInt64 || dst[0] != math.MaxInt64-2499 {
			t.Errorf("%d from %d to %d: %v", n, dst[0], dst[max(n, 1)-1], err)
		}
		for range 1000 {
			if n, err := g.Next(t.Context()); !errors.Is(err, id.ErrExhausted) {
				t.Fatal(n, err)
			}
		}
	})
}

// The step follows the rate: up at once, down by half.
func TestStepFollowsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		g := generator(t, s, &segment.Options{MinStep: 100, MaxStep: 5000, Cover: time.Second})
		var check idtest.Checker[int64]
		log := check.Log()
		pace(t, g, log, 3*time.Second) // 10,000 a second
		before := s.requests.Load()
		pace(t, g, log, 5*time.Second)
		if n := s.requests.Load() - before; n < 9 || n > 11 {
			t.Errorf("%d batches for 50,000 numbers, of 5,000 at most", n)
		}
		for range 2000 {
			log.Add(must(g.Next(t.Context())))
			time.Sleep(100 * time.Millisecond)
		}
		before = s.requests.Load()
		for range 1000 {
			log.Add(must(g.Next(t.Context())))
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.requests.Load() - before; n > 10 {
			t.Errorf("%d batches for 1,000 numbers", n)
		}
		if _, err := check.Check(); err != nil {
			t.Error(err)
		}
	})
}

func must(n int64, err error) int64 {
	if err != nil {
		panic(err)
	}
	return n
}

// Close ends waiting calls and the request that is under way.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		g := generator(t, s, nil)
		if n, err := g.Next(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		s.hangs.Store(true)
		waiting := make(chan error, 10)
		for range cap(waiting) {
			go func() {
				_, err := g.NextN(t.Context(), make([]int64, 5000))
				waiting <- err
			}()
		}
		synctest.Wait()
		begun := time.Now()
		for range 2 {
			if err := g.Close(t.Context()); err != nil || time.Since(begun) > 0 {
				t.Error(err, time.Since(begun))
			}
		}
		for range cap(waiting) {
			if err := <-waiting; !errors.Is(err, pawl.ErrClosed) {
				t.Error(err)
			}
		}
		if n, err := g.Next(t.Context()); !errors.Is(err, pawl.ErrClosed) {
			t.Error(n, err)
		}
	})
}

// A program that ends closes with the ctx whose end it saw. Nothing goes on, so that is no error.
func TestCloseAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			g := generator(t, newStore(t), nil)
			if n, err := g.Next(t.Context()); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if err := g.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestOptions(t *testing.T) {
	s := newStore(t)
	for field, opts := range map[string]*segment.Options{
		"Options.MinStep is -1: 1 to the MaxStep of":  {MinStep: -1},
		"Options.MinStep is 11: 1 to the MaxStep of ": {MinStep: 11, MaxStep: 10},
		"Options.MaxStep is -1: 1 to":                 {MaxStep: -1},
		"Options.MaxStep is 9223372036854775807: 1":   {MaxStep: math.MaxInt64},
		"Options.Cover is 1ms: 10ms to 24h":           {Cover: time.Millisecond},
		"Options.Cover is 25h":                        {Cover: 25 * time.Hour},
		"Options.RequestTimeout is -1s: 10ms to 1m":   {RequestTimeout: -time.Second},
		"Options.RequestTimeout is 1h":                {RequestTimeout: time.Hour},
	} {
		if _, err := segment.New(s, opts); !errors.Is(err, pawl.ErrInvalid) || !contains(err, field) {
			t.Errorf("%v; it should say %q", err, field)
		}
	}
	if _, err := segment.New(nil, nil); !errors.Is(err, pawl.ErrInvalid) {
		t.Error(err)
	}
	for _, opts := range []*segment.Options{nil, {MaxStep: 1}, {MinStep: 5_000_000}} {
		generator(t, s, opts)
	}
	if n := s.requests.Load(); n != 0 {
		t.Errorf("%d requests before the first use", n)
	}
}

// Several goroutines get more than one million numbers, in batches so small that they are always
// being loaded. The numbers rise for each goroutine, and none is there twice.
func TestMillionsInMemory(t *testing.T) {
	s := newStore(t)
	s.delay = 0
	g := generator(t, s, &segment.Options{MinStep: 50, MaxStep: 5000, Cover: 10 * time.Millisecond})
	var check idtest.Checker[int64]
	var group sync.WaitGroup
	for i := range 4 {
		log := check.Log()
		group.Go(func() {
			dst := make([]int64, 1+i*i)
			for range 300_000 {
				n, err := g.NextN(t.Context(), dst[:1+len(dst)/2])
				if err != nil {
					t.Error(err)
					return
				}
				log.Add(dst[:n]...)
			}
		})
	}
	group.Wait()
	if n, err := check.Check(); err != nil || n < 1_000_000 {
		t.Errorf("%d numbers: %v", n, err)
	}
}

func TestNextAllocatesNothing(t *testing.T) {
	s := newStore(t)
	g := generator(t, s, &segment.Options{MinStep: 1_000_000})
	dst := make([]int64, 10)
	if _, err := g.NextN(t.Context(), dst); err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(10000, func() {
		if _, err := g.Next(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := g.NextN(t.Context(), dst); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
