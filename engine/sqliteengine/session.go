package sqliteengine

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
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
	deaf   bool // no message from another process arrives

	wake map[string]chan struct{} // by claim id, while it is awaited; guarded by engine.mu
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s := &session{engine: e, id: rand.Text(), opts: opts, wake: make(map[string]chan struct{})}
	s.opts.TTL = max(opts.TTL, minTTL)
	err := e.transact(ctx, "open session", "", func(t *tx) error {
		s.deaf = !t.openInbox(s.id)
		ttl := s.opts.TTL.Microseconds()
		return t.exec(`INSERT INTO pawl_sessions (id, ends, ttl, label) VALUES (?, ?, ?, ?)`, s.id, t.now+ttl, ttl, opts.Label)
	})
	if err != nil {
		e.closeInbox(s.id)
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sessions[s.id] = s
	return s, nil
}

func (s *session) ID() string { return s.id }

// step takes one step of a resource. now is when that was.
func (s *session) step(ctx context.Context, verb, resource string, r queue.Request) (out queue.Outcome, now int64, err error) {
	err = s.engine.transact(ctx, verb, s.id, func(t *tx) (err error) {
		now = t.now
		if r.Op == queue.Enter && t.ends <= now {
			out.Err = fmt.Errorf("session: %w", engine.ErrGone)
			return nil
		}
		out, err = t.apply(resource, r)
		return err
	})
	if err == nil && out.Err != nil {
		err = fmt.Errorf("%s: %w", verb, out.Err)
	}
	if err != nil {
		return queue.Outcome{}, now, err
	}
	return out, now, nil
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
	e := s.engine
	wake := make(chan struct{}, 1)
	e.mu.Lock()
	s.wake[c.ID] = wake
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(s.wake, c.ID)
		e.mu.Unlock()
	}()
	for {
		token, pause, err := s.look(ctx, c)
		if err != nil || token != 0 {
			return engine.Grant{Token: token}, err
		}
		pause = min(pause, s.opts.TTL/3)
		if s.deaf {
			pause = min(pause, pollEvery)
		}
		timer := time.NewTimer(pause)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return engine.Grant{}, ctx.Err()
		}
		timer.Stop()
	}
}

// look reads whether a waiting claim was granted, and when to look again at the
// latest. While everybody lives one row says so: whoever changes the queue
// also writes the grant. A barging claim has to try.
func (s *session) look(ctx context.Context, c *engine.Claim) (token fence.Token, pause time.Duration, err error) {
	if !c.Barging {
		current := false
		err = s.engine.use(ctx, "await", func(t *tx) error {
			var first int64
			err := t.get(`SELECT token, (SELECT min(ends) FROM pawl_sessions) FROM pawl_claims
				WHERE session = ? AND resource = ? AND id = ?`, args{s.id, c.Resource, c.ID}, &token, &first)
			pause = time.Duration(first-now()) * time.Microsecond
			current = err == nil && pause > 0
			return found(err)
		})
		if current || err != nil {
			return token, pause, err
		}
	}
	out, now, err := s.step(ctx, "await", c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
	if pause = s.opts.TTL; out.Next > 0 {
		pause = time.Duration(out.Next-now) * time.Microsecond
	}
	return out.Token, pause, err
}

// found is err, unless that says that there is no row.
func found(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}

func (s *session) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	alive := false
	err = s.engine.transact(ctx, "renew session", s.id, func(t *tx) error {
		gone = nil
		if alive = t.ends > t.now; !alive {
			return nil
		}
		if err := t.exec(`UPDATE pawl_sessions SET ends = ? + ttl WHERE id = ?`, t.now, s.id); err != nil {
			return err
		}
		for _, c := range held {
			var token fence.Token
			err := t.get(`SELECT token FROM pawl_claims WHERE session = ? AND resource = ? AND id = ?`, args{s.id, c.Resource, c.ID}, &token)
			if found(err) != nil {
				return err
			}
			if token == 0 {
				gone = append(gone, c)
			}
		}
		return nil
	})
	if err == nil && !alive {
		err = fmt.Errorf("renew session: %w", engine.ErrGone)
	}
	return gone, err
}

func (s *session) Close(ctx context.Context) error {
	e := s.engine
	err := e.transact(ctx, "close session", s.id, func(t *tx) error { return t.bury(s.id) })
	e.mu.Lock()
	delete(e.sessions, s.id)
	e.mu.Unlock()
	e.closeInbox(s.id)
	return err
}
