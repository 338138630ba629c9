package memengine

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/internal/turn"
)

type session struct {
	engine *Engine
	id     string
	opts   engine.SessionOptions

	// guarded by engine.mu
	ends  int64
	lapse *time.Timer          // wakes the waiters behind it when the session may have ended
	wake  map[string]turn.Bell // by claim id, while it is awaited
}

func (s *session) ID() string { return s.id }

// lapsed hands on the locks of the session, if it was not renewed meanwhile.
func (s *session) lapsed() {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if left := s.ends - e.now(); left > 0 {
		s.lapse.Reset(time.Duration(left) * time.Microsecond)
		return
	}
	e.settle()
}

// look returns the state of a waiting claim. A fair claim is granted by others, so
// that a crowd that waits does not take a step each. e.mu is held.
func (s *session) look(c *engine.Claim) queue.Outcome {
	e := s.engine
	if state := e.resources[c.Resource]; !state.Spec.Barging && s.ends > e.now() {
		for _, is := range state.Claims {
			if is.ID == c.ID {
				return queue.Outcome{Token: is.Token}
			}
		}
	}
	return e.apply(c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
}

func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	e := s.engine
	e.lock()
	defer e.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return engine.Grant{}, err
	}
	if s.ends <= e.now() {
		return engine.Grant{}, fmt.Errorf("enter: session: %w", engine.ErrGone)
	}
	out := e.apply(c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}})
	if out.Err != nil {
		return engine.Grant{}, fmt.Errorf("enter: %w", out.Err)
	}
	return engine.Grant{Token: out.Token}, nil
}

func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	e := s.engine
	wake := make(turn.Bell, 1)
	e.lock()
	s.wake[c.ID] = wake
	e.mu.Unlock()
	defer func() {
		e.lock()
		delete(s.wake, c.ID)
		e.mu.Unlock()
	}()
	for {
		e.lock()
		out := s.look(c)
		now := e.now()
		e.mu.Unlock()
		if out.Err != nil {
			return engine.Grant{}, fmt.Errorf("await: %w", out.Err)
		}
		if out.Token != 0 {
			return engine.Grant{Token: out.Token}, nil
		}
		pause := s.opts.TTL
		if out.Next > now {
			pause = min(pause, time.Duration(out.Next-now)*time.Microsecond)
		}
		select {
		case <-wake:
		case <-time.After(pause):
		case <-ctx.Done():
			return engine.Grant{}, ctx.Err()
		}
	}
}

func (s *session) Leave(ctx context.Context, resource, claim string) error {
	return s.engine.remove(ctx, "leave", resource, claim, s)
}

// left wakes the waiter of a claim that is to leave, or returns the session that
// holds it. e.mu is held.
func (e *Engine) left(resource, claim string) (holder *session) {
	for _, c := range e.resources[resource].Claims {
		switch {
		case c.ID != claim:
		case c.Token != 0:
			return e.sessions[c.Session]
		default:
			e.signal(c.Session, c.ID)
		}
	}
	return nil
}

func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	gone, others, err := s.renew(held)
	for _, c := range others {
		s.opts.Found(c.Resource, c.ID)
	}
	return gone, err
}

// renew returns the lost claims of the held ones. If the client wants to know, renew also
// returns the other claims of the session.
func (s *session) renew(held []*engine.Claim) (gone, others []*engine.Claim, err error) {
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.ends <= e.now() {
		return nil, nil, fmt.Errorf("renew session: %w", engine.ErrGone)
	}
	s.ends = e.now() + s.opts.TTL.Microseconds()
	asked := make(map[string]bool, len(held))
	for _, c := range held {
		asked[c.ID] = true
		out := e.apply(c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
		if out.Token == 0 {
			gone = append(gone, c)
		}
	}
	if s.opts.Found == nil {
		return gone, nil, nil
	}
	for name, state := range e.resources {
		for _, c := range state.Claims {
			if c.Session == s.id && !asked[c.ID] {
				others = append(others, &engine.Claim{Resource: name, ID: c.ID})
			}
		}
	}
	return gone, others, nil
}

func (s *session) Close(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	s.ends = 0
	s.lapse.Stop()
	e.settle()
	return nil
}
