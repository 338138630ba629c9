// Package segment makes numbers in batches: a process reserves a range of a durable counter
// (a segment) and hands the range out from memory. The next batch is loaded while the present
// one is used (double buffer, as in Leaf), so that a caller seldom waits for the store.
//
// # What is promised
//
//   - A number is handed out once, over processes, crashes and lost replies, as long as the
//     counter keeps what it acknowledged. A process that ends leaves its reserved numbers
//     out: at most two batches, and one for each request whose reply was lost.
//   - Each goroutine gets rising numbers. Numbers of several processes interleave. A program
//     that needs one order over processes takes [id.NewStrict].
//   - A store that is away is not noticed for as long as batches last. That is at least
//     [Options.Cover] at the rate of the last batches, as far as [Options.MaxStep] allows. Then callers wait, each bounded
//     by its ctx; there is no error that says "not ready".
//   - Next without a wait is one atomic addition, and allocates nothing.
//
// A machine whose memory was set back, or copied while the machine ran, has one batch twice. Restart the programs of such a
// machine before they make numbers.
package segment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

// Options are the settings of a [Generator]. The zero value of each field means its default.
type Options struct {
	// MinStep is how many numbers the first batch has, and each later batch at least: 1 to
	// MaxStep. Default 1,000, or MaxStep if that is less.
	MinStep int64

	// MaxStep is how many numbers a batch has at most: 1 to 1,000,000,000,000. Default 1,000,000, or
	// MinStep if that is more. MaxStep bounds the gap that a restart leaves.
	MaxStep int64

	// Cover is for how long a batch should last: 10 ms to 24 h. Default 10 s. A batch has as many
	// numbers as were used in such a time, between MinStep and MaxStep. Batches grow at once,
	// and shrink by half at most.
	Cover time.Duration

	// RequestTimeout is how long one request to the counter may take before it is
	// given up and repeated: 10 ms to 1 min. Default 5 s.
	RequestTimeout time.Duration
}

const mostStep = 1_000_000_000_000

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.MinStep == 0 {
		opts.MinStep = 1000
		if opts.MaxStep > 0 {
			opts.MinStep = min(opts.MinStep, opts.MaxStep)
		}
	}
	if opts.MaxStep == 0 {
		opts.MaxStep = max(1_000_000, opts.MinStep)
	}
	if opts.Cover == 0 {
		opts.Cover = 10 * time.Second
	}
	if opts.RequestTimeout == 0 {
		opts.RequestTimeout = 5 * time.Second
	}
	return opts
}

func (o *Options) validate() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: segment: %s", pawl.ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case o.MaxStep < 1 || o.MaxStep > mostStep:
		return refuse("Options.MaxStep is %d: 1 to %d are allowed", o.MaxStep, int64(mostStep))
	case o.MinStep < 1 || o.MinStep > o.MaxStep:
		return refuse("Options.MinStep is %d: 1 to the MaxStep of %d are allowed", o.MinStep, o.MaxStep)
	case o.Cover < 10*time.Millisecond || o.Cover > 24*time.Hour:
		return refuse("Options.Cover is %v: 10ms to 24h are allowed", o.Cover)
	case o.RequestTimeout < 10*time.Millisecond || o.RequestTimeout > time.Minute:
		return refuse("Options.RequestTimeout is %v: 10ms to 1m are allowed", o.RequestTimeout)
	}
	return nil
}

// Generator hands out numbers of a counter. A Generator is an [id.Generator] and safe for concurrent use. A Generator owns
// one goroutine. Close waits until that has ended.
type Generator struct {
	counter id.Counter
	opts    Options
	current atomic.Pointer[batch] // never nil
	wake    chan struct{}         // has a token when a batch is to be loaded

	life context.Context // ends with Close
	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	spare   *batch    // the next one; nil while it is loaded
	round   *round    // what waiting callers wait for
	since   time.Time // when the present batch was begun
	step    int64     // of the next request
	starved bool      // callers had to wait since then
	trouble error     // of the last request, while there is no answer
}

var _ id.Generator[int64] = (*Generator)(nil)

// batch is a range of numbers of which the first ones are used. A batch counts from 0, not from
// first, because callers that find it empty count on: at the end of int64 a sum would overflow.
type batch struct {
	first, n int64
	used     atomic.Int64
}

// take takes up to k numbers.
func (b *batch) take(k int64) (first, taken int64) {
	end := b.used.Add(k)
	begin := end - k
	return b.first + begin, max(min(end, b.n)-begin, 0)
}

// round is one wait for a batch. The error is written before it is closed.
type round struct {
	over chan struct{}
	err  error // nil: look again
}

func newRound() *round { return &round{over: make(chan struct{})} }

// New returns a generator on a counter. Nothing is asked of the counter before the first use.
// Nil opts are the defaults. Several generators, in any number of processes, may use one counter.
func New(counter id.Counter, opts *Options) (*Generator, error) {
	if counter == nil {
		return nil, fmt.Errorf("%w: segment: counter is nil", pawl.ErrInvalid)
	}
	g := &Generator{counter: counter, opts: opts.withDefaults(), wake: make(chan struct{}, 1), done: make(chan struct{}), round: newRound()}
	if err := g.opts.validate(); err != nil {
		return nil, err
	}
	g.step = g.opts.MinStep
	g.current.Store(&batch{})
	g.life, g.stop = context.WithCancel(context.Background())
	go g.load()
	return g, nil
}

// Close ends the generator, and waits for its goroutine until 100 ms after the end of ctx. Numbers
// that were not used are left out. Calls that wait return [pawl.ErrClosed], as later calls do.
func (g *Generator) Close(ctx context.Context) error {
	g.stop()
	g.mu.Lock()
	g.current.Store(&batch{})
	g.spare = nil
	g.mu.Unlock()
	last, stop := pawl.Linger(ctx)
	defer stop()
	select {
	case <-g.done:
		return nil
	case <-last.Done():
		return fmt.Errorf("close: a request to the counter goes on: %w", context.Cause(ctx))
	}
}

// Next returns a number. Where none is there it waits until ctx ends, and then the
// error matches that of ctx and, if the store does not answer, [pawl.ErrUnavailable]. An
// error of the counter that does not pass by itself is returned at once, as [id.ErrExhausted].
func (g *Generator) Next(ctx context.Context) (int64, error) {
	for {
		if n, taken := g.current.Load().take(1); taken == 1 {
			return n, nil
		}
		if err := g.refill(ctx); err != nil {
			return 0, err
		}
	}
}

// NextN fills dst from the front with rising numbers, in ranges where it can. NextN waits as Next
// does.
func (g *Generator) NextN(ctx context.Context, dst []int64) (n int, err error) {
	for n < len(dst) {
		first, taken := g.current.Load().take(int64(len(dst) - n))
		for i := range taken {
			dst[n] = first + i
			n++
		}
		if n == len(dst) {
			break
		}
		if err := g.refill(ctx); err != nil {
			return n, err
		}
	}
	return n, nil
}

// refill returns when there may be numbers.
func (g *Generator) refill(ctx context.Context) error {
	for {
		g.mu.Lock()
		ready, err := g.swap()
		wait := g.round
		if !ready && err == nil {
			g.starved = true
			g.ask()
		}
		g.mu.Unlock()
		if ready || err != nil {
			return err
		}
		select {
		case <-wait.over:
			if wait.err != nil {
				return wait.err
			}
		case <-ctx.Done():
			g.mu.Lock()
			defer g.mu.Unlock()
			return fmt.Errorf("wait for numbers: %w", errors.Join(context.Cause(ctx), g.trouble))
		case <-g.life.Done():
		}
	}
}

// swap makes the spare batch the present one, when that is used up. swap returns false when there is none.
func (g *Generator) swap() (ready bool, err error) {
	old := g.current.Load()
	switch {
	case g.life.Err() != nil:
		return false, fmt.Errorf("next number: %w", pawl.ErrClosed)
	case old.used.Load() < old.n:
		return true, nil
	case g.spare == nil:
		return false, nil
	}
	now := time.Now()
	if !g.since.IsZero() {
		g.step = g.nextStep(old.n, now.Sub(g.since))
	}
	g.since, g.starved = now, false
	g.current.Store(g.spare)
	g.spare = nil
	g.ask()
	return true, nil
}

// nextStep is the size of the next batch, when a batch of n numbers lasted for so long.
func (g *Generator) nextStep(n int64, lasted time.Duration) int64 {
	rate := float64(n) / max(lasted, time.Millisecond).Seconds()
	step := max(rate*g.opts.Cover.Seconds(), float64(n)/2)
	if g.starved { // the rate would have been higher
		step = max(step, 2*float64(n))
	}
	return int64(min(max(step, float64(g.opts.MinStep)), float64(g.opts.MaxStep)))
}

// ask wakes the goroutine that loads.
func (g *Generator) ask() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}
