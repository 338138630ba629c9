package redlockengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pawl-go/pawl/engine"
)

// Enter implements [engine.Session].
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	if err := s.engine.caps.Refuse(c.Spec, c.Weight); err != nil {
		return engine.Grant{}, err
	}
	if s.life.Err() != nil {
		return engine.Grant{}, fmt.Errorf("enter: %w", errEnded)
	}
	if ctx.Err() != nil {
		return engine.Grant{}, context.Cause(ctx)
	}
	if err := s.alien(); err != nil {
		return engine.Grant{}, fmt.Errorf("enter: %w", err)
	}
	s.mu.Lock()
	cl := s.take(c)
	s.mu.Unlock()
	var marks []mark
	var reading sync.WaitGroup
	if !s.engine.opts.NoTokens {
		reading.Go(func() { marks, _ = s.recall(ctx, c.Resource) }) // in case it is granted
	}
	graces := make([]engine.Grace, len(s.nodes))
	errs := s.ask(ctx, s.joined(false), func(ctx context.Context, i int, is engine.Session) (err error) {
		graces[i], err = s.enter(ctx, i, is, cl, wait)
		return err
	})
	reading.Wait()
	grant, err := s.grant(ctx, cl, marks)
	if grant.Grace = s.engine.grace(errs, graces); err == nil && !grant.Held() {
		err = s.refused(ctx, cl, wait, errs, grant.Grace)
	}
	return grant, err
}

// grace is what keeps a majority from granting: until as many nodes as that grant again.
// Errs tell which of them answered.
func (e *Engine) grace(errs []error, graces []engine.Grace) engine.Grace {
	var told []engine.Grace
	for i, g := range graces {
		if !unknown(errs[i]) {
			told = append(told, g)
		}
	}
	if len(told) < e.quorum {
		return engine.Grace{}
	}
	slices.SortFunc(told, func(a, b engine.Grace) int { return cmp.Compare(a.Left, b.Left) })
	return told[e.quorum-1]
}

// refused says why a claim was not granted; nil: it waits. A claim of which the caller is told that
// it is not stored is left everywhere.
func (s *session) refused(ctx context.Context, cl *claim, wait bool, errs []error, grace engine.Grace) error {
	mismatch, busy := first(errs, engine.ErrMismatch), cmp.Or(first(errs, engine.ErrBusy), first(errs, engine.ErrGrace))
	err := s.majority(ctx, "enter", count(errs, nil)+count(errs, engine.ErrBusy)+count(errs, engine.ErrGrace), errs)
	switch {
	case mismatch != nil:
		err = mismatch
	case err != nil:
		return err // asked again, or left
	case wait && count(errs, nil) >= s.engine.quorum && count(errs, engine.ErrBusy) == 0:
		return nil // where a grace refuses to let it wait it is entered later
	case busy != nil && grace.On():
		err = fmt.Errorf("enter: %w", &engine.GraceError{Grace: grace})
	case busy != nil:
		err = busy
	default:
		err = engine.Unavailable("enter", errors.New("too few of the nodes that granted took part in the last renewal"))
	}
	s.mu.Lock()
	cl.left = true
	s.settle(cl)
	stored := s.claims[cl]
	s.mu.Unlock()
	if stored {
		s.leaveAll(ctx, cl)
	}
	return err
}

// Leave implements [engine.Session].
func (s *session) Leave(ctx context.Context, resource, id string) error {
	if s.life.Err() != nil { // others have what it had
		return fmt.Errorf("leave: %w", errEnded)
	}
	s.mu.Lock()
	cl := s.byID[id]
	s.mu.Unlock()
	if cl == nil {
		return fmt.Errorf("leave: %w", engine.ErrGone)
	}
	return s.engine.left(ctx, "leave", s.leaveAll(ctx, cl))
}

// left is what the nodes say together of a claim that was to go.
func (e *Engine) left(ctx context.Context, doing string, errs []error) error {
	left, gone := count(errs, nil), count(errs, engine.ErrGone)
	err := e.majority(ctx, doing, left+gone, errs)
	if err == nil && (left == 0 || len(errs)-gone < e.quorum) {
		err = fmt.Errorf("%s: %w", doing, engine.ErrGone)
	}
	return err
}
