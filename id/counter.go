package id

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/pawl-go/pawl"
)

// CounterOf returns a counter on a mark: a loop that reads and raises until no other writer
// came between. The counter owns the mark: each number up to it is taken. The calls through
// one CounterOf wait for each other, so that a process has one such loop at a time. For a
// counter of many processes take [Registers.Counter], which does better where the store can.
func CounterOf(mark Mark) Counter { return &markCounter{mark: mark, turn: make(chan struct{}, 1)} }

type markCounter struct {
	mark Mark
	turn chan struct{} // held by the call that is at the store; bounded by ctx, as a mutex is not
	seen Reading       // what this process wrote last, which may save a read
}

func (c *markCounter) Add(ctx context.Context, n int64) (int64, error) {
	if err := CheckAdd(n); err != nil {
		return 0, err
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the counter: %w", pawl.Unavailable(ctx, ctx.Err()))
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 64*time.Millisecond) {
		last, err := c.add(ctx, n)
		if !errors.Is(err, pawl.ErrConflict) {
			return last, err
		}
		select {
		case <-time.After(rand.N(pause)):
		case <-ctx.Done():
			return 0, fmt.Errorf("count among other writers: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// add tries once. Every error has add forget the last reading, because then the mark may be
// anywhere.
func (c *markCounter) add(ctx context.Context, n int64) (last int64, err error) {
	is := c.seen
	c.seen = Reading{}
	if is.Version == 0 {
		if is, err = c.mark.Load(ctx); err != nil {
			return 0, err
		}
	}
	if last, err = plus(is.Value, n); err != nil {
		return 0, err
	}
	if is, err = c.mark.Raise(ctx, last, is); err != nil {
		return 0, err
	}
	c.seen = is
	return last, nil
}

// plus adds numbers that are not negative.
func plus(value, n int64) (int64, error) {
	if value < 0 || n > math.MaxInt64-value {
		return 0, fmt.Errorf("%w: %d numbers after %d", ErrExhausted, n, value)
	}
	return value + n, nil
}
