package sqlengine

import (
	"context"
	"crypto/rand"
	"fmt"
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
	stop   func()        // ends listening to other processes
	look   time.Duration // how long a waiter trusts that it is told

	waiters sync.Map // claim id → chan fence.Token, while it is awaited
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s := &session{engine: e, id: rand.Text(), opts: opts}
	s.opts.TTL = max(opts.TTL, e.minTTL)
	ttl := s.opts.TTL.Microseconds()
	if err := e.transact(ctx, "open session", "", func(t *tx) {
		t.exec(insertSession, s.id, t.now+ttl, ttl, opts.Label)
	}); err != nil {
		return nil, err
	}
	// Only now: the inbox of a session that is not in the store is taken for a dead one's.
	s.stop = e.dialect.Listen(s.id, func(m Message) { e.receive(m) })
	if s.look = s.opts.TTL / 3; s.stop == nil {
		s.look, s.stop = min(s.look, pollEvery), func() {}
	}
	e.sessions.Store(s.id, s)
	return s, nil
}

// receive tells a session of this Engine, and reports whether it is one.
func (e *Engine) receive(m Message) bool {
	known, ok := e.sessions.Load(m.Session)
	if !ok {
		return false
	}
	s := known.(*session)
	if told, ok := s.waiters.Load(m.Claim); ok {
		select {
		case told.(chan fence.Token) <- m.Token:
		default: // it will look anyway
		}
	}
	if m.Gone && s.opts.Gone != nil {
		s.opts.Gone(m.Claim)
	}
	return true
}

func (s *session) ID() string { return s.id }

// step takes one step of a resource, at the time now.
func (s *session) step(ctx context.Context, verb, resource string, r queue.Request) (out queue.Outcome, now int64, err error) {
	err = s.engine.transact(ctx, verb, s.id, func(t *tx) {
		if now = t.now; r.Op == queue.Enter && t.ends <= now {
			t.answer = fmt.Errorf("session: %w", engine.ErrGone)
			return
		}
		out = t.apply(resource, r)
		t.answer = out.Err
	})
	if err != nil {
		out = queue.Outcome{}
	}
	return out, now, err
}

func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	out, _, err := s.step(ctx, "enter", c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}})
	return engine.Grant{Token: out.Token}, err
}

func (s *session) Leave(ctx context.Context, resource, claim string) error {
	_, _, err := s.step(ctx, "leave", resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	return err
}

func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	told := make(chan fence.Token, 1)
	s.waiters.Store(c.ID, told)
	defer s.waiters.Delete(c.ID)
	for {
		out, now, err := s.step(ctx, "await", c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
		if err != nil || out.Token != 0 {
			return engine.Grant{Token: out.Token}, err
		}
		pause := s.look
		if out.Next > 0 {
			pause = min(pause, time.Duration(out.Next-now)*time.Microsecond)
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

func (s *session) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	err = s.engine.transact(ctx, "renew session", s.id, func(t *tx) {
		if t.ends <= t.now {
			t.answer = engine.ErrGone
			return
		}
		t.exec(renewSession, t.now, s.id)
		ids := t.strings(heldBy, s.id)
		slices.Sort(ids)
		gone = slices.DeleteFunc(slices.Clone(held), func(c *engine.Claim) bool {
			_, there := slices.BinarySearch(ids, c.ID)
			return there
		})
	})
	return gone, err
}

func (s *session) Close(ctx context.Context) error {
	e := s.engine
	err := e.transact(ctx, "close session", s.id, func(t *tx) {
		t.exec(endSession, s.id)
		t.sweep()
	})
	e.sessions.Delete(s.id)
	s.stop()
	e.dialect.Forget(s.id)
	return err
}
