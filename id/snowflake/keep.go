package snowflake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl"
)

// beat is the time from one raise of the mark to the next. Each raise reserves a beat more than
// Reserve, so that this much is left just before the next.
func (g *Generator) beat() time.Duration { return g.opts.Reserve / 3 }

func (g *Generator) ahead() int64 { return g.layout.ticks(g.opts.Reserve + g.beat()) }

// begin takes a worker number and reserves time for it. old is the term that is to be replaced, or nil: its number is
// used again only if no other is free.
func (g *Generator) begin(ctx context.Context, old *term) (t *term, err error) {
	var passed []*pawl.Slot // held until another is found, because they would be given again
	defer func() {
		for _, slot := range passed {
			slot.Unlock(ctx) //nolint:errcheck // the session repeats it
		}
	}()
	again := old != nil && old.slot.Err() == nil
	for {
		take := g.slots.Take
		if again || len(passed) > 0 {
			take = g.slots.TryTake
		}
		slot, taken := take(ctx)
		if errors.Is(taken, pawl.ErrNotAcquired) && again {
			slot, taken, again = old.slot, nil, false
		}
		switch {
		case taken != nil && err != nil:
			return nil, fmt.Errorf("%w; another number: %w", err, taken)
		case taken != nil:
			return nil, taken
		}
		t, lead, failed := g.start(ctx, slot, old)
		if failed == nil {
			g.observe(Event{Worker: slot.Number(), Lead: lead})
			return t, nil
		}
		if old != nil && slot == old.slot { // it was the last
			return nil, errors.Join(failed, err)
		}
		passed = append(passed, slot)
		if err = failed; !errors.Is(err, ErrLead) {
			return nil, err
		}
		g.observe(Event{slot.Number(), lead, err})
	}
}

const startTries = 3

// start reads the mark of a worker and raises it.
func (g *Generator) start(ctx context.Context, slot *pawl.Slot, old *term) (t *term, lead time.Duration, err error) {
	t = &term{
		layout: g.layout, slot: slot, worker: slot.Number(), burst: g.layout.ticks(g.opts.Burst),
		// the number is before the name, which may end like a number
		mark: g.registers.Mark(fmt.Sprintf("snowflake/%d/%s", slot.Number(), g.name)),
	}
	for range startTries {
		if t.from, err = t.mark.Load(ctx); err != nil {
			return nil, 0, fmt.Errorf("read the mark of worker %d: %w", slot.Number(), err)
		}
		clock := g.opts.Clock()
		t.began = time.Now()
		t.first = max(g.layout.tick(clock), t.from.Value+1)
		if ends := g.layout.time(t.from.Value + 1); t.from.Value >= g.layout.tick(clock) {
			lead = ends.Sub(clock)
		}
		if lead > g.opts.MaxLead {
			return nil, lead, fmt.Errorf("%w: the mark of worker %d is %v and the clock says %v",
				ErrLead, slot.Number(), stamp(g.layout.time(t.from.Value)), stamp(clock))
		}
		if t.first > g.layout.maxTick() {
			return nil, lead, g.exhausted()
		}
		least := t.first
		if old != nil {
			least = max(least, old.limit.Load()+1) // see follow
		}
		t.state.Store(uint64(t.first)<<g.layout.SeqBits - 1)
		if err = t.reach(ctx, least+g.ahead()); !errors.Is(err, errFought) {
			break
		}
	}
	if err != nil {
		return nil, lead, fmt.Errorf("raise the mark of worker %d: %w", slot.Number(), err)
	}
	return t, lead, nil
}

// keep raises the mark ahead of the time, and replaces the term when its number is lost.
func (g *Generator) keep() {
	for {
		t := g.term.Load()
		err := g.serve(t)
		if g.life.Err() != nil {
			return
		}
		g.tell(err)
		g.observe(Event{Worker: t.worker, Err: err})
		if !g.replace(t) {
			return
		}
	}
}

// serve raises the mark until that is not possible any more, and says why.
func (g *Generator) serve(t *term) error {
	pause, well := g.beat(), true
	for {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-t.slot.Context().Done():
		case <-g.life.Done():
		}
		timer.Stop()
		if err := t.slot.Err(); err != nil || g.life.Err() != nil {
			return err
		}
		bound, cancel := context.WithTimeout(g.life, g.opts.Reserve)
		err := t.raise(bound, g.ahead())
		cancel()
		switch {
		case errors.Is(err, errFought):
			return err
		case err != nil && g.life.Err() == nil:
			g.tell(err)
			if pause = g.beat() / 10; well {
				g.observe(Event{Worker: t.worker, Err: err})
			}
			well = false
		default:
			g.tell(nil)
			pause, well = g.beat(), true
		}
	}
}

// replace finds another number for a term that ends, whose reserve is used meanwhile. replace reports whether it
// did: it tries until the generator or its client is closed.
func (g *Generator) replace(old *term) bool {
	for {
		t, err := g.begin(g.life, old)
		if err == nil {
			if last := old.state.Swap(sealed); last != sealed {
				t.follow(t.used(last))
			} else { // Close did not wait for this
				t.state.Store(sealed)
			}
			g.term.Store(t)
			g.tell(nil)
			if old.slot != t.slot {
				old.slot.Unlock(g.life) //nolint:errcheck // it is lost, or the session repeats it
			}
			return true
		}
		g.tell(err)
		if errors.Is(err, pawl.ErrClosed) {
			return false
		}
		select {
		case <-time.After(g.beat()):
		case <-g.life.Done():
			return false
		}
	}
}
