package redlockengine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/turn"
)

// Renew implements [engine.Session].
func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	if s.life.Err() != nil {
		return nil, fmt.Errorf("renew: %w", errEnded)
	}
	start := time.Now()
	on := s.joined(true)
	errs, may := make([]error, len(on)), s.bound()
	if len(held) > many {
		errs = s.engine.each(ctx, may, func(ctx context.Context, i int) error {
			if on[i] == nil {
				return nil
			}
			return s.renew(ctx, i, on[i], time.Time{}) // keeps our session alive; no vote rests on that
		})
		may = bound{s.opts.Heartbeat / 2, s.opts.Heartbeat}
	}
	errs = s.engine.each(ctx, may, func(ctx context.Context, i int) error {
		switch {
		case errs[i] != nil:
			return errs[i]
		case on[i] == nil:
			return s.join(ctx, i, start)
		}
		return s.renew(ctx, i, on[i], start)
	})
	gone, err := s.renewed(ctx, held, start, errs)
	if len(gone) == 0 { // else their holders are told first
		s.repair(ctx, errs)
	}
	return gone, err
}

// many is how many held claims a node can look at within the time of a step. More
// of them have a heartbeat's time, after the session was kept alive by itself.
const many = 250

// renew renews our session on one node, and looks at what it grants if there is a start.
func (s *session) renew(ctx context.Context, i int, is engine.Session, start time.Time) error {
	granted := make(map[*engine.Claim]*claim)
	s.mu.Lock()
	for cl := range s.claims {
		if cl.at[i].token != 0 && !cl.left && !start.IsZero() {
			granted[cl.Claim] = cl
		}
	}
	s.mu.Unlock()
	gone, err := is.Renew(ctx, slices.Collect(maps.Keys(granted)))
	if errors.Is(err, engine.ErrGone) {
		s.lost(ctx, i, is)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.nodes[i]
	if n.session != is {
		return errSkipped
	}
	if n.down = err != nil; n.down {
		return err
	}
	if n.since.Before(start) {
		n.since = start
	}
	for _, c := range gone {
		if cl := granted[c]; cl != nil {
			cl.at[i].token, cl.at[i].taken = 0, time.Now() // it stays in: it may have been entered again meanwhile
		}
	}
	return nil
}

// renewed decides what came of a renewal. From now on trust in every claim that holds would rest on
// it. So it succeeds only if each of them stands on a majority of the nodes that took part, or is
// reported gone. A claim is gone if it cannot stand on a majority, or did not for two heartbeats.
// So a node that did not answer just now costs nobody a lock.
func (s *session) renewed(ctx context.Context, held []*engine.Claim, start time.Time, errs []error) (gone []*engine.Claim, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.majority(ctx, "renew session", count(errs, nil), errs); err != nil {
		return nil, err
	}
	patient := time.Since(s.base) < 2*s.opts.Heartbeat
	doubt := false
	for cl := range s.claims {
		_, stands := s.votes(cl, start)
		_, may := s.votes(cl, time.Time{})
		switch {
		case cl.token == 0 || stands >= s.engine.quorum:
		case may+s.waits(cl) >= s.engine.quorum && patient:
			doubt = true
		default: // its holder is told by a renewal that succeeds, or trusts it no more a TTL later
			cl.left, cl.token, cl.from = true, 0, time.Now().Add(s.opts.TTL)
			asked := slices.ContainsFunc(held, func(c *engine.Claim) bool { return c.ID == cl.id })
			doubt = doubt || !asked // granted since the caller looked
		}
	}
	if doubt {
		return nil, engine.Unavailable("renew session", errors.New("the held claims do not stand on a majority of the nodes that answered"))
	}
	for _, c := range held {
		if cl := s.byID[c.ID]; cl == nil {
			gone = append(gone, c)
		} else if cl.token == 0 { // what nodes still have of it is left when its holder had time to stop
			gone, cl.from = append(gone, c), time.Now().Add(s.opts.Delay+s.opts.Heartbeat*3/10)
		}
	}
	if s.base.Before(start) {
		s.base = start
	}
	return gone, nil
}

// repair brings the nodes that took part in a renewal up to date. A claim that holds is entered
// where it is not, as on a node that was joined again. A claim that is to be left is left.
func (s *session) repair(ctx context.Context, errs []error) {
	on := s.joined(true)
	for i, err := range errs {
		if err != nil {
			on[i] = nil
		}
	}
	todo := make([][]func(context.Context) error, len(errs))
	s.mu.Lock()
	for cl := range s.claims {
		s.settle(cl)
		for i, at := range cl.at {
			switch is := on[i]; {
			case is == nil:
			case cl.token != 0 && at.lacks():
				todo[i] = append(todo[i], func(ctx context.Context) error { _, err := s.enter(ctx, i, is, cl, true); return err })
			case cl.left && at.may() && !time.Now().Before(cl.from):
				todo[i] = append(todo[i], func(ctx context.Context) error { return s.leave(ctx, i, is, cl) })
			}
		}
	}
	s.mu.Unlock()
	s.engine.each(ctx, bound{s.opts.Heartbeat / 2, 0}, func(ctx context.Context, i int) error {
		err := s.work(ctx, todo[i])
		if unknown(err) && ctx.Err() == nil {
			s.silent(i, on[i], true)
		}
		return err
	})
}

// workers is how many steps of a repair are under way on a node.
const workers = 32

// work does steps on a node until one of them is not answered. The node has just answered, however slow it
// is, so a step has half of the time of all, at least.
func (s *session) work(ctx context.Context, steps []func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	places := turn.New(workers)
	var all sync.WaitGroup
	for _, step := range steps {
		if places.Take(ctx) != nil || ctx.Err() != nil {
			break
		}
		all.Go(func() {
			defer places.Give()
			once, cancel := context.WithTimeout(ctx, max(s.timeout, s.opts.Heartbeat/4))
			defer cancel()
			if err := step(once); unknown(err) {
				stop(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
