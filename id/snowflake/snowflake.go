// Package snowflake makes 63-bit IDs of a time, the number of a worker and a sequence number. Such IDs
// need no request to a store each, and rise with time.
//
// # What is promised
//
//   - An ID is never made twice by the generators of one name, whatever the clocks of their machines do, however
//     often they restart. A clock that steps back while a generator runs changes nothing. The time of a
//     generator is the clock at its start, and from then on monotonic.
//   - This rests on a durable mark for each worker number ([id.Mark]), which is raised before the time that it
//     covers is used. The next holder of the number starts above the mark. A process that was frozen, or is cut off
//     from the store, may use what it had reserved, and no more.
//   - The IDs of one goroutine rise. Those of several workers are ordered as well as their clocks agree.
//   - The worker number is one of [pawl.Slots]: no configuration, and the number of a dead worker is used again.
//     The lease only keeps two workers from fighting for one mark. After a loss the generator takes
//     another number itself.
//   - When the bits of the time are used up there is an error, never a negative number.
//
// A store that forgets what it acknowledged may forget a mark, and may give one number to two workers: then IDs may repeat. After such a
// loss stop all generators. Start them when the clock is past each time that was used. That is the time of the stop, plus the largest
// Event.Lead, twice the largest error of a clock, and Options.Burst. The lead of an event with an error does not count. Or begin a new
// name, with a Layout.Epoch that is earlier by more than this sum: all its IDs are larger.
//
// A machine whose memory was set back, or copied while the machine ran, has one generator twice. Restart the programs of such a
// machine before they make IDs.
//
// # Time ahead of the clock
//
// A unit of time has room for 2^SeqBits IDs, by default 4,096 in a millisecond. A burst of more borrows from the time
// to come, up to Options.Burst; then callers wait for the clock. After a crash, or a clock that was ahead
// once, a generator starts above the mark and so ahead of the clock. The generator tells this by Options.Observe. Beyond Options.MaxLead it
// takes another worker number, because no ID should have a time that is far from the truth.
//
// # Cost
//
// An ID costs a comparison and a swap in memory. A generator writes to the store once in a third of
// Options.Reserve.
package snowflake

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
	// Layout of the IDs. The first generator of a name records it; generators with another layout are
	// refused from then on ([pawl.ErrMismatch]).
	Layout Layout

	// Reserve is how long an outage of the store is survived: 100 ms to 1 h. Default 3 s.
	Reserve time.Duration

	// Burst is how far ahead of the clock IDs may be made when a unit of time has no room left. Burst
	// is one unit to half of Reserve. Default a third of Reserve.
	Burst time.Duration

	// MaxLead is how far ahead of the clock a mark may be that the generator goes on from: Reserve to
	// 10 years. Beyond it the generator leaves that number alone, see [ErrLead]. Default 2 h, or Reserve if that is
	// longer.
	MaxLead time.Duration

	// Clock is asked once for each worker number that is taken. Default [time.Now].
	Clock func() time.Time

	// Observe, when set, gets the events of the generator, one at a time: by New, and later by the generator's
	// own goroutine. Observe must not block.
	Observe func(Event)
}

// Event is what happens to a generator. Without an error the generator has taken the number of a worker.
type Event struct {
	Worker int
	// Lead is how far ahead of the clock the mark of the worker is; 0: it is not.
	Lead time.Duration
	// Err says why the number is not used: [ErrLead], [pawl.ErrLost], [pawl.ErrConflict]. Or Err says why the mark
	// could not be raised, as [pawl.ErrUnavailable]: then the generator keeps the number, and its reserve lasts on.
	Err error
}

// ErrLead says that the mark of a worker is ahead of the clock by more than Options.MaxLead. Either this clock is
// slow, or the clock of an earlier worker was fast. The error names both times.
var ErrLead = errors.New("the mark is too far ahead of the clock")

const (
	defaultReserve = 3 * time.Second
	minReserve     = 100 * time.Millisecond
	maxReserve     = time.Hour
	defaultMaxLead = 2 * time.Hour
	mostMaxLead    = 10 * 365 * 24 * time.Hour
	maxName        = 160
)

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	opts.Layout = opts.Layout.withDefaults()
	if opts.Reserve == 0 {
		opts.Reserve = defaultReserve
	}
	if opts.Burst == 0 {
		opts.Burst = max(opts.Reserve/3, min(opts.Layout.Unit, opts.Reserve/2))
	}
	if opts.MaxLead == 0 {
		opts.MaxLead = max(defaultMaxLead, opts.Reserve)
	}
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	return opts
}

func (o *Options) validate() error {
	if err := o.Layout.validate(o.Clock()); err != nil {
		return err
	}
	unit := o.Layout.Unit
	switch {
	case o.Reserve < max(minReserve, 2*unit) || o.Reserve > maxReserve:
		return invalid("Options.Reserve is %v: %v to %v are allowed", o.Reserve, max(minReserve, 2*unit), maxReserve)
	case o.Burst < unit || o.Burst > o.Reserve/2:
		return invalid("Options.Burst is %v: %v to half of Reserve (%v) are allowed", o.Burst, unit, o.Reserve/2)
	case o.MaxLead < o.Reserve || o.MaxLead > mostMaxLead:
		return invalid("Options.MaxLead is %v: Reserve (%v) to %v are allowed", o.MaxLead, o.Reserve, mostMaxLead)
	}
	return nil
}

// Generator makes IDs. A Generator is safe for concurrent use, and is an [id.Generator] of int64.
type Generator struct {
	name      string
	opts      Options
	layout    *Layout
	slots     *pawl.Slots
	registers id.Registers

	term  atomic.Pointer[term]
	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when there is more to hand out, or an error
	trouble error         // of the last request; nil: it was answered
}

var _ id.Generator[int64] = (*Generator)(nil)

// New returns a generator of the IDs of this name: 1 to 160 bytes of UTF-8 without control characters. New takes a
// worker number and reserves the first of its time. While all numbers are taken New waits; ctx bounds that.
// The slots are those of client with the name "snowflake/" and this one. The marks are those of registers with the names
// "snowflake/layout/" and this one, and "snowflake/", the number of a worker, "/" and this one. Nil opts are the defaults. The caller closes the generator before the client.
//
// New fails with [pawl.ErrInvalid] before anything is asked. New fails with [pawl.ErrMismatch] when
// the name has another layout, and with [ErrLead] when each free number has such a mark.
// [id.ErrExhausted] says that the bits of the time are used up. All other errors are those of
// [pawl.Slots.Take] and of the marks.
func New(ctx context.Context, client *pawl.Client, registers id.Registers, name string, opts *Options) (*Generator, error) {
	g := &Generator{name: name, opts: opts.withDefaults(), registers: registers, changed: make(chan struct{})}
	g.layout = &g.opts.Layout
	if err := g.opts.validate(); err != nil {
		return nil, g.failed(err)
	}
	if err := id.CheckName(name); err != nil || len(name) > maxName {
		return nil, g.failed(errors.Join(invalid("name has %d bytes: 1 to %d without control characters are allowed", len(name), maxName), err))
	}
	g.slots = client.Slots("snowflake/"+name, 1<<g.layout.WorkerBits)
	if err := g.layout.agree(ctx, registers.Mark("snowflake/layout/"+name)); err != nil {
		return nil, g.failed(err)
	}
	t, err := g.begin(ctx, nil)
	if err != nil {
		return nil, g.failed(err)
	}
	g.term.Store(t)
	g.life, g.end = context.WithCancel(context.Background())
	g.tasks.Go(g.keep)
	return g, nil
}

func (g *Generator) failed(err error) error { return fmt.Errorf("%q: %w", "snowflake/"+g.name, err) }

// Worker returns the number of the worker as which the generator makes IDs now.
func (g *Generator) Worker() int { return g.term.Load().worker }

// Next returns an ID, larger than all that Next and NextN returned before Next was called. Next waits while the burst is
// used up, or while the store is away and the reserve is used up. When ctx ends first, the error matches that of ctx, and
// that of the store if there was trouble. [id.ErrExhausted]: the bits of the time are used up. [pawl.ErrClosed]: the generator or
// its client is closed.
func (g *Generator) Next(ctx context.Context) (int64, error) {
	for {
		t := g.term.Load()
		if position, n := t.reserve(1); n == 1 {
			return t.layout.id(position, t.worker), nil
		}
		if err := g.wait(ctx); err != nil {
			return 0, g.failed(err)
		}
	}
}

// NextN fills dst with IDs that rise, as Next does, and reserves many at a time.
func (g *Generator) NextN(ctx context.Context, dst []int64) (n int, err error) {
	for n < len(dst) {
		t := g.term.Load()
		first, got := t.reserve(uint64(len(dst) - n))
		for i := range got {
			dst[n] = t.layout.id(first+i, t.worker)
			n++
		}
		if got > 0 {
			continue
		}
		if err := g.wait(ctx); err != nil {
			return n, g.failed(err)
		}
	}
	return n, nil
}

// wait waits until there may be more to hand out.
func (g *Generator) wait(ctx context.Context) error {
	g.mu.Lock()
	changed, trouble := g.changed, g.trouble
	g.mu.Unlock()
	t := g.term.Load()
	ready, pause := t.wait()
	switch {
	case g.life.Err() != nil:
		return pawl.ErrClosed
	case ready:
		return nil
	case pause > 0:
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-changed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case t.limit.Load() == g.layout.maxTick() && t.state.Load() != sealed:
		return g.exhausted()
	case permanent(trouble):
		return trouble
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.trouble == nil { // the reserve is used up, and the request has not been answered
			return pawl.Unavailable(ctx, ctx.Err())
		}
		return errors.Join(ctx.Err(), g.trouble)
	}
}

func (g *Generator) exhausted() error {
	last := g.layout.maxTick()
	return fmt.Errorf("%w: the %d bits of the time end at %v", id.ErrExhausted, g.layout.TimeBits, stamp(g.layout.time(last)))
}

// permanent reports whether it makes no sense to wait until it is over.
func permanent(err error) bool {
	for _, is := range []error{pawl.ErrClosed, pawl.ErrInvalid, pawl.ErrMismatch, pawl.ErrUnsupported, ErrLead, id.ErrExhausted} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// Close ends the generator: it writes the last time in use, if the mark is an [id.Settler], and releases the
// worker number. ctx bounds both, also where a mark ignores its context: the number is then released with the
// client. A ctx that has ended leaves 100 ms. Calls that wait, and later calls, get [pawl.ErrClosed]. A second Close returns nil.
func (g *Generator) Close(ctx context.Context) error {
	if g.life.Err() != nil {
		return nil
	}
	g.end()
	if ctx.Err() != nil { // a healthy store answers soon
		var stop context.CancelFunc
		ctx, stop = pawl.Linger(ctx)
		defer stop()
	}
	kept := make(chan struct{})
	go func() { g.tasks.Wait(); close(kept) }() // ends with the tasks
	select {
	case <-kept:
	case <-ctx.Done():
		g.term.Load().state.Store(sealed)
		g.tell(pawl.ErrClosed)
		return g.failed(fmt.Errorf("close: the mark did not return: %w", context.Cause(ctx)))
	}
	t := g.term.Load()
	used := t.state.Swap(sealed)
	g.tell(pawl.ErrClosed)
	if used == sealed { // another Close was faster
		return nil
	}
	settled := t.settle(ctx, t.used(used))
	if err := errors.Join(settled, t.slot.Unlock(ctx)); err != nil && !errors.Is(err, pawl.ErrLost) {
		return g.failed(fmt.Errorf("close: %w", err))
	}
	return nil
}

// tell wakes the calls that wait, because of an error or because there is more to hand out.
func (g *Generator) tell(trouble error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trouble = trouble
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *Generator) observe(e Event) {
	if g.opts.Observe != nil {
		g.opts.Observe(e)
	}
}
