package redlockengine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Renew implements [engine.Session].
func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	if _, err := s.up(); err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	start := time.Now()
	errs := s.engine.each(ctx, s.timeout, s.engine.all(), func(ctx context.Context, i int) error {
		if is := s.on(i); is != nil {
			return s.renew(ctx, i, is, start)
		}
		return s.join(ctx, i, start)
	})
	gone, err := s.renewed(ctx, held, start, errs)
	s.repair(ctx, errs)
	return gone, err
}

// renew renews our session on one node and looks at what it grants.
func (s *session) renew(ctx context.Context, i int, is engine.Session, start time.Time) error {
	var held []*engine.Claim
	s.mu.Lock()
	for _, cl := range s.claims {
		if cl.token != 0 && cl.at[i].token != 0 {
			held = append(held, &cl.Claim)
		}
	}
	s.mu.Unlock()
	gone, err := is.Renew(ctx, held)
	if errors.Is(err, engine.ErrGone) {
		s.lost(i, is)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[i]
	n.down = err != nil
	if err != nil {
		return err
	}
	if n.session != is {
		return errSkipped
	}
	if n.since.Before(start) {
		n.since = start
	}
	for _, c := range gone {
		if cl := s.claims[c.ID]; cl != nil {
			cl.at[i].in, cl.at[i].token = false, 0
		}
	}
	return nil
}

// renewed decides what came of a renewal. From now on trust in every claim that
// holds would rest on it, so it succeeds only if each of them stands on a
// majority of the nodes that took part, or is reported gone. Gone is what cannot
// stand on a majority, or what did not for most of the TTL: a node that did not
// answer just now costs nobody a lock.
func (s *session) renewed(ctx context.Context, held []*engine.Claim, start time.Time, errs []error) (gone []*engine.Claim, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return nil, fmt.Errorf("renew: session: %w", engine.ErrGone)
	}
	if count(errs, nil) < s.engine.quorum {
		return nil, s.engine.unreached(ctx, "renew session", failed(errs))
	}
	patient := time.Since(s.base) < s.opts.TTL*2/3
	doubt, asked := false, make(map[string]bool, len(held))
	for _, c := range held {
		asked[c.ID] = true
	}
	for id, cl := range s.claims {
		stands, may := 0, 0
		for i, at := range cl.at {
			if at.token != 0 {
				may++
				if errs[i] == nil {
					stands++
				}
			}
		}
		switch {
		case cl.token == 0 || stands >= s.engine.quorum:
		case may >= s.engine.quorum && patient:
			doubt = true
		default:
			s.forget(cl)
			doubt = doubt || !asked[id] // granted since the caller looked
		}
	}
	if doubt {
		return nil, engine.Unavailable("renew session", errors.New("what is held does not stand on a majority of the nodes that answered"))
	}
	for _, c := range held {
		if s.claims[c.ID] == nil {
			gone = append(gone, c)
		}
	}
	if s.base.Before(start) {
		s.base = start
	}
	return gone, nil
}

// forget ends a claim that is gone. What nodes still have of it is left when its
// holder has been told and had time to stop. s.mu is held.
func (s *session) forget(cl *claim) {
	var from time.Time
	if cl.token != 0 {
		from = time.Now().Add(s.opts.TTL / 10)
	}
	delete(s.claims, cl.ID)
	for i := range s.nodes {
		s.owe(i, cl, from)
	}
}

// repair brings the nodes that took part in a renewal up to date: what holds is
// entered where it is not, as on a node that was joined again, and what is to be
// left is left.
func (s *session) repair(ctx context.Context, errs []error) {
	missing, owes := make([][]*claim, len(errs)), make([][]owed, len(errs))
	var nodes []int
	s.mu.Lock()
	for i, n := range s.nodes {
		if errs[i] != nil || n.session == nil {
			continue
		}
		for _, cl := range s.claims {
			if cl.token != 0 && cl.at[i].token == 0 {
				missing[i] = append(missing[i], cl)
			}
		}
		for what, when := range n.owed {
			if !time.Now().Before(when.from) {
				owes[i] = append(owes[i], what)
			}
		}
		if len(missing[i])+len(owes[i]) > 0 {
			nodes = append(nodes, i)
		}
	}
	s.mu.Unlock()
	if len(nodes) == 0 {
		return
	}
	s.ask(ctx, nodes, func(ctx context.Context, i int, is engine.Session) error {
		for _, what := range owes[i] {
			if err := s.leave(ctx, i, is, what); err != nil && !answered(err) {
				return err
			}
		}
		for _, cl := range missing[i] {
			if err := s.regain(ctx, i, is, cl); err != nil && !answered(err) {
				return err
			}
		}
		return nil
	})
}

// regain enters a claim that holds on a node where it is not.
func (s *session) regain(ctx context.Context, i int, is engine.Session, cl *claim) error {
	err := s.enter(ctx, i, is, cl, true)
	s.mu.Lock()
	left := s.claims[cl.ID] != cl
	if !left && cl.token != 0 && err == nil {
		cl.grant = slices.Clone(cl.grant)
		cl.grant[i] = cl.at[i].token
	}
	s.mu.Unlock()
	if left {
		return s.leave(ctx, i, is, owed{cl.Resource, cl.ID})
	}
	return err
}
