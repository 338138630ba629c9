package sqlengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
	"github.com/pawl-go/pawl/internal/inbox"
)

type session struct {
	engine *Engine
	id     string
	opts   engine.SessionOptions
	stop   func() // ends listening
	inbox  *inbox.Inbox

	mu   sync.Mutex
	sent map[string]bool // claims that were to enter and were not left; whether that was sent
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	opts.TTL = max(opts.TTL, e.minTTL)
	opts.Heartbeat = cmp.Or(opts.Heartbeat, opts.TTL/3)
	s := &session{engine: e, id: rand.Text(), opts: opts, sent: make(map[string]bool)}
	s.inbox = inbox.New(inbox.Options{Heartbeat: opts.Heartbeat, Together: true, Gone: opts.Gone})
	if err := e.store.open(ctx, s.id, s.opts); err != nil {
		return nil, err
	}
	// Only now: the inbox of a session that is not in the store is taken for a dead one's.
	s.stop = e.store.listen(s.id)
	e.sessions.Store(s.id, s)
	return s, nil
}

func (s *session) ID() string { return s.id }

// Enter implements [engine.Session].
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	grant, err := s.inbox.Enter(ctx, c, wait, func(ctx context.Context) (engine.Grant, time.Duration, error) {
		return s.engine.store.step(ctx, "enter", s.id, c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
			ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
		}})
	})
	if errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrGrace) || errors.Is(err, engine.ErrGone) || errors.Is(err, engine.ErrMismatch) {
		s.unsent(c.ID) // nobody leaves it
	} else {
		s.note(c.ID, !errors.Is(err, errUnsent))
	}
	return grant, err
}

// errUnsent says that a request was given up before it was sent.
var errUnsent = errors.New("it was not sent")

// note remembers whether the store can know of a claim.
func (s *session) note(claim string, sent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[claim] = sent || s.sent[claim]
}

// unsent reports whether the store cannot know of a claim, and forgets that.
func (s *session) unsent(claim string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, known := s.sent[claim]
	delete(s.sent, claim)
	return known && !sent
}

// Leave asks nothing about a claim that the store does not know. So a crowd that gives up before
// its turn is no crowd in the store.
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	s.inbox.Forget(claim)
	if s.unsent(claim) {
		return fmt.Errorf("leave: %w", engine.ErrGone)
	}
	_, _, err := s.engine.store.step(ctx, "leave", s.id, resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	return err
}

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	s.engine.awaits(1)
	defer s.engine.awaits(-1)
	grant, err := s.inbox.Await(ctx, c, func(ctx context.Context) (engine.Grant, time.Duration, error) {
		return s.engine.store.step(ctx, "await", s.id, c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
	})
	if errors.Is(err, engine.ErrGone) {
		s.unsent(c.ID)
		Ask(s.engine) // it may be the session that is gone
	}
	return grant, err
}

// Renew implements [engine.Session].
func (s *session) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	all, err := s.engine.store.renew(ctx, s.id)
	if err != nil {
		return nil, err
	}
	there := make(map[string]string, len(all))
	for _, c := range all {
		there[c.id] = c.resource
	}
	for _, c := range held {
		if _, is := there[c.ID]; !is {
			gone = append(gone, c)
			s.unsent(c.ID)
		}
		delete(there, c.ID)
	}
	if s.opts.Found != nil {
		for claim, resource := range there {
			s.opts.Found(resource, claim)
		}
	}
	return gone, nil
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	err := s.engine.store.end(ctx, s.id)
	s.engine.sessions.Delete(s.id)
	s.stop()
	return err
}
