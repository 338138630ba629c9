package segment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/id"
)

const (
	firstPause = 10 * time.Millisecond // after a failed request
	mostPause  = time.Second
)

// load fills the spare batch whenever it is asked to, until Close.
func (g *Generator) load() {
	defer close(g.done)
	for {
		select {
		case <-g.wake:
			g.fill()
		case <-g.life.Done():
			return
		}
	}
}

// fill loads one batch, however long the store is away. An error that does not pass by
// itself ends it: the next caller that finds nothing has it try again.
func (g *Generator) fill() {
	for pause := firstPause; g.life.Err() == nil; {
		g.mu.Lock()
		n, full := g.step, g.spare != nil
		if g.trouble == nil {
			g.trouble = pawl.ErrUnavailable // until the request is answered
		}
		g.mu.Unlock()
		if full {
			return
		}
		b, passes, err := g.request(n)
		switch {
		case err == nil:
			g.arrive(b, nil)
			return
		case errors.Is(err, id.ErrExhausted) && n > 1: // fewer are left
			g.mu.Lock()
			g.step = n / 2
			g.mu.Unlock()
		case !passes:
			g.arrive(nil, err)
			return
		default:
			g.mu.Lock()
			g.trouble = err
			g.mu.Unlock()
			g.sleep(pause)
			pause = min(2*pause, mostPause)
		}
	}
}

// request asks for n numbers once. request also returns whether the error may pass by itself.
func (g *Generator) request(n int64) (b *batch, passes bool, err error) {
	ctx, cancel := context.WithTimeout(g.life, g.opts.RequestTimeout)
	defer cancel()
	last, err := g.counter.Add(ctx, n)
	if err == nil && last < n {
		err = fmt.Errorf("the counter returned %d after %d numbers", last, n)
	}
	if err == nil {
		return &batch{first: last - n + 1, n: n}, false, nil
	}
	if ctx.Err() != nil { // whatever a counter makes of that
		err = pawl.Unavailable(ctx, err)
	}
	passes = errors.Is(err, pawl.ErrUnavailable) || errors.Is(err, pawl.ErrConflict)
	return nil, passes, fmt.Errorf("load %d numbers: %w", n, err)
}

// arrive puts the batch there and lets all waiting callers look, or tells them why there
// is none.
func (g *Generator) arrive(b *batch, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spare, g.trouble = b, nil
	g.round.err = err
	close(g.round.over)
	g.round = newRound()
}

func (g *Generator) sleep(d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.life.Done():
	}
}
