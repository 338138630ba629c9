package redlockengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/turn"
)

// Await implements [engine.Session]. A waiter that some nodes grant, but no majority, may be one of
// several that wait for one another. After a short time it leaves everywhere, and after a random
// pause waits again.
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(fmt.Errorf("await: %w", errEnded)) })()
	s.mu.Lock()
	cl := s.byID[c.ID]
	s.mu.Unlock()
	if cl == nil {
		return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
	}
	patience := s.timeout / 8
	for {
		if err := s.complete(ctx, cl); err != nil {
			return engine.Grant{}, err
		}
		some, gone := s.watch(ctx, cl, patience+rand.N(patience+1))
		if grant, err := s.grant(ctx, cl, nil); err != nil || grant.Held() {
			return grant, err
		}
		if ctx.Err() != nil {
			return engine.Grant{}, context.Cause(ctx)
		}
		if gone {
			s.leaveAll(ctx, cl)
			return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
		}
		if some {
			cl = s.yield(ctx, cl, c)
			if err := turn.Pause(ctx, rand.N(patience+1)); err != nil {
				return engine.Grant{}, err
			}
			patience = min(2*patience, s.opts.Heartbeat/2)
		}
	}
}

// complete enters a claim that waits where it is not, on the nodes that are up. A node that is down
// is not asked, because each claim that it may have got nevertheless is remembered until it
// answers. complete fails when fewer than a majority have it.
func (s *session) complete(ctx context.Context, cl *claim) error {
	errs := s.ask(ctx, s.joined(false), func(ctx context.Context, i int, is engine.Session) error {
		s.mu.Lock()
		there := cl.at[i].in && !s.nodes[i].down
		s.mu.Unlock()
		if there {
			return nil
		}
		_, err := s.enter(ctx, i, is, cl, true)
		return err
	})
	return s.majority(ctx, "await", count(errs, nil), errs)
}

// watch awaits a claim on each node where it waits, until a majority grants it or says that it is
// not there. watch ends when the claim is to be entered again, or after patience when some nodes grant
// it.
func (s *session) watch(ctx context.Context, cl *claim, patience time.Duration) (some, gone bool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	round := time.AfterFunc(s.opts.Heartbeat, stop)
	defer round.Stop()
	without := make([]engine.Session, len(s.nodes)) // the sessions that do not have it
	look := func() {                                // s.mu is held
		missing := 0
		for i, at := range cl.at {
			if without[i] != nil && without[i] == s.nodes[i].session {
				missing++
			}
			if (at.token != 0 || at.stale) && !some {
				some = true
				round.Reset(patience)
			}
		}
		_, votes := s.votes(cl, s.base)
		gone = cl.left || len(s.nodes)-missing < s.engine.quorum
		if gone || votes >= s.engine.quorum {
			stop()
		}
	}
	var watchers sync.WaitGroup
	s.mu.Lock()
	for i := range s.nodes {
		n, at := &s.nodes[i], &cl.at[i]
		is := n.session
		if !at.in || at.token != 0 || at.stale || is == nil || n.down {
			continue
		}
		watchers.Go(func() {
			grant, err := is.Await(ctx, cl.Claim)
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case n.session != is: // it has ended meanwhile
			case err == nil && s.stale(i, cl, grant):
				at.stale = true
			case err == nil:
				at.token = grant.Token
			case errors.Is(err, engine.ErrGone):
				at.clear()
				without[i] = is
			case ctx.Err() == nil:
				n.down = true
			}
			look()
		})
	}
	look()
	s.mu.Unlock()
	<-ctx.Done()
	watchers.Wait()
	return some, gone
}

// yield leaves everywhere, so that others find a majority, and returns the claim
// that takes its place. That goes on when ctx ends, because then the caller leaves
// the other claim. ctx ends with the session, after which nothing begins.
func (s *session) yield(ctx context.Context, cl *claim, c *engine.Claim) *claim {
	left := make(chan struct{})
	s.mu.Lock()
	next := cl
	if !cl.left {
		cl.left = true
		next = s.take(c)
	}
	if s.life.Err() == nil {
		s.tasks.Go(func() {
			defer close(left)
			s.leaveAll(s.life, cl)
		})
	}
	s.mu.Unlock()
	select {
	case <-left:
	case <-ctx.Done():
	}
	return next
}
