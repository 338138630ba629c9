package sqlengine

import (
	"context"
	"crypto/rand"
	"fmt"
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

	waiters map[string]chan fence.Token // by claim id, while it is awaited; guarded by engine.mu
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s := &session{engine: e, id: rand.Text(), opts: opts, waiters: make(map[string]chan fence.Token)}
	s.opts.TTL = max(opts.TTL, e.minTTL)
	ttl := s.opts.TTL.Microseconds()
	if err := e.transact(ctx, "open session", "", func(t *tx) error {
		return t.exec(insertSession, s.id, t.now+ttl, ttl, opts.Label)
	}); err != nil {
		return nil, err
	}
	// Only now: the inbox of a session that is not in the store is taken for a dead one's.
	s.stop = e.dialect.Listen(s.id, func(m Message) { e.receive(s.id, m) })
	if s.look = s.opts.TTL / 3; s.stop == nil {
		s.look, s.stop = min(s.look, pollEvery), func() {}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sessions[s.id] = s
	return s, nil
}

// receive reports whether the session is one of this Engine, and then tells it.
func (e *Engine) receive(session string, m Message) bool {
	e.mu.Lock()
	s := e.sessions[session]
	if s == nil {
		e.mu.Unlock()
		return false
	}
	select {
	case s.waiters[m.Claim] <- m.Token:
	default: // nobody waits, or will look anyway
	}
	e.mu.Unlock()
	if m.Gone && s.opts.Gone != nil {
		s.opts.Gone(m.Claim)
	}
	return true
}

func (s *session) ID() string { return s.id }

// step takes one step of a resource, at the time now.
func (s *session) step(ctx context.Context, verb, resource string, r queue.Request) (out queue.Outcome, now int64, err error) {
	err = s.engine.transact(ctx, verb, s.id, func(t *tx) (err error) {
		if now = t.now; r.Op == queue.Enter && t.ends <= now {
			t.answer = fmt.Errorf("session: %w", engine.ErrGone)
			return nil
		}
		out, err = t.apply(resource, r)
		t.answer = out.Err
		return err
	})
	return out, now, err
}

func grant(t fence.Token, err error) (engine.Grant, error) {
	if err != nil {
		t = 0
	}
	return engine.Grant{Token: t}, err
}

func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	out, _, err := s.step(ctx, "enter", c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}})
	return grant(out.Token, err)
}

func (s *session) Leave(ctx context.Context, resource, claim string) error {
	_, _, err := s.step(ctx, "leave", resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	return err
}

func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	told := make(chan fence.Token, 1)
	s.listen(c.ID, told)
	defer s.listen(c.ID, nil)
	for {
		out, now, err := s.step(ctx, "await", c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
		if err != nil || out.Token != 0 {
			return grant(out.Token, err)
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

func (s *session) listen(claim string, told chan fence.Token) {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	if told == nil {
		delete(s.waiters, claim)
	} else {
		s.waiters[claim] = told
	}
}

func (s *session) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	err = s.engine.transact(ctx, "renew session", s.id, func(t *tx) error {
		gone = nil
		if t.ends <= t.now {
			t.answer = engine.ErrGone
			return nil
		}
		ids, err := t.strings(heldBy, s.id)
		if err != nil {
			return err
		}
		there := make(map[string]bool)
		for _, id := range ids {
			there[id] = true
		}
		for _, c := range held {
			if !there[c.ID] {
				gone = append(gone, c)
			}
		}
		return t.exec(renewSession, t.now, s.id)
	})
	return gone, err
}

func (s *session) Close(ctx context.Context) error {
	e := s.engine
	err := e.transact(ctx, "close session", s.id, func(t *tx) error { return t.bury(s.id) })
	e.mu.Lock()
	delete(e.sessions, s.id)
	e.mu.Unlock()
	s.stop()
	e.dialect.Forget(s.id)
	return err
}
