package sqlengine

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/fence"
)

type session struct {
	engine *Engine
	id     string
	opts   engine.SessionOptions
	stop   func()        // ends listening
	look   time.Duration // how long a waiter trusts that it is told

	mu      sync.Mutex
	waiters map[string]*waiter // by claim id
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s := &session{engine: e, id: rand.Text(), opts: opts, waiters: make(map[string]*waiter)}
	s.opts.TTL = max(opts.TTL, e.minTTL)
	if err := e.store.open(ctx, s.id, s.opts); err != nil {
		return nil, err
	}
	// Only now: the inbox of a session that is not in the store is taken for a dead one's.
	s.stop = e.store.listen(s.id)
	if s.look = s.opts.TTL / 3; s.stop == nil {
		s.look, s.stop = min(s.look, pollEvery), func() {}
	}
	e.sessions.Store(s.id, s)
	return s, nil
}

func (s *session) ID() string { return s.id }

// waiter is a claim that may be told something: its token, or 0 to look.
type waiter struct {
	told  chan fence.Token
	waits bool      // the store said so
	look  time.Time // when it looks by itself
}

func (w *waiter) tell(token fence.Token) {
	select {
	case w.told <- token:
	default: // it has been told something, and will look
	}
}

// expect makes the claim one that may be told something.
func (s *session) expect(claim string) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiters[claim]
	if w == nil {
		w = &waiter{told: make(chan fence.Token, 1)}
		s.waiters[claim] = w
	}
	return w
}

// wait notes that the claim waits, and looks after the pause if it is told
// nothing.
func (s *session) wait(w *waiter, pause time.Duration) {
	if pause == 0 || pause > s.look {
		pause = s.look
	}
	w.look = time.Now().Add(pause)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.waits {
		w.waits = true
		s.engine.waits(1)
	}
}

func (s *session) forget(claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiters[claim]; w != nil {
		delete(s.waiters, claim)
		if w.waits {
			s.engine.waits(-1)
		}
	}
}

// Enter expects to be told before it asks: a grant may come before the answer.
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	var w *waiter
	if wait {
		w = s.expect(c.ID)
	}
	token, pause, err := s.engine.store.step(ctx, "enter", s.id, c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}})
	switch {
	case err == nil && token == 0:
		s.wait(w, pause)
	case wait:
		s.forget(c.ID)
	}
	return engine.Grant{Token: token}, err
}

func (s *session) Leave(ctx context.Context, resource, claim string) error {
	s.forget(claim)
	_, _, err := s.engine.store.step(ctx, "leave", s.id, resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	return err
}

// Await looks at once when it does not know since when the claim waits.
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	w := s.expect(c.ID)
	timer := time.NewTimer(time.Until(w.look))
	defer timer.Stop()
	for {
		select {
		case token := <-w.told:
			if token != 0 {
				s.forget(c.ID)
				return engine.Grant{Token: token}, nil
			}
		case <-timer.C:
		case <-ctx.Done():
			return engine.Grant{}, ctx.Err()
		}
		token, pause, err := s.engine.store.step(ctx, "await", s.id, c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
		if err != nil || token != 0 {
			s.forget(c.ID)
			return engine.Grant{Token: token}, err
		}
		s.wait(w, pause)
		timer.Reset(time.Until(w.look))
	}
}

func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	ids, err := s.engine.store.renew(ctx, s.id)
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Clone(held), func(c *engine.Claim) bool {
		_, there := slices.BinarySearch(ids, c.ID)
		return there
	}), nil
}

func (s *session) Close(ctx context.Context) error {
	err := s.engine.store.end(ctx, s.id)
	s.engine.sessions.Delete(s.id)
	for claim := range s.waiting(false) {
		s.forget(claim)
	}
	s.stop()
	return err
}

// waiting returns those that may be told something, or only those that wait.
func (s *session) waiting(only bool) map[string]*waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]*waiter, len(s.waiters))
	for claim, w := range s.waiters {
		if w.waits || !only {
			all[claim] = w
		}
	}
	return all
}
