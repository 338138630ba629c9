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

	waiters sync.Map // claim id → chan fence.Token, while it is awaited
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s := &session{engine: e, id: rand.Text(), opts: opts}
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

func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	token, _, err := s.engine.store.step(ctx, "enter", s.id, c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}})
	return engine.Grant{Token: token}, err
}

func (s *session) Leave(ctx context.Context, resource, claim string) error {
	_, _, err := s.engine.store.step(ctx, "leave", s.id, resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	return err
}

func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	told := make(chan fence.Token, 1)
	s.waiters.Store(c.ID, told)
	defer s.waiters.Delete(c.ID)
	s.engine.waiting.Add(1)
	defer s.engine.waiting.Add(-1)
	s.engine.await()
	for {
		token, pause, err := s.engine.store.step(ctx, "await", s.id, c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
		if err != nil || token != 0 {
			return engine.Grant{Token: token}, err
		}
		if pause == 0 || pause > s.look {
			pause = s.look
		}
		timer := time.NewTimer(pause)
		select {
		case token := <-told:
			if token != 0 {
				return engine.Grant{Token: token}, nil
			}
		case <-timer.C:
		case <-ctx.Done():
			return engine.Grant{}, ctx.Err()
		}
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
	s.stop()
	return err
}
