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
	lines   map[string]*line   // by resource
	sent    map[string]bool    // claims that were to enter and were not left; whether that was sent
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s := &session{engine: e, id: rand.Text(), opts: opts, waiters: make(map[string]*waiter), lines: make(map[string]*line), sent: make(map[string]bool)}
	s.opts.TTL = max(opts.TTL, e.minTTL)
	s.look = cmp.Or(opts.Heartbeat, s.opts.TTL/3)
	if err := e.store.open(ctx, s.id, s.opts); err != nil {
		return nil, err
	}
	// Only now: the inbox of a session that is not in the store is taken for a dead one's.
	s.stop = e.store.listen(s.id)
	if s.stop == nil {
		s.stop = func() {}
	}
	e.sessions.Store(s.id, s)
	return s, nil
}

func (s *session) ID() string { return s.id }

// waiter is a claim that may be told something: its token, or 0 to look.
type waiter struct {
	told  chan fence.Token
	waits bool // the store said so
	line  *line
}

// line is all that waits in one session for one resource. One of them looks for
// all, because that finds out whether a claim ahead has died.
type line struct {
	waiters int
	look    time.Time // when it is time for that
}

func (w *waiter) tell(token fence.Token) {
	select {
	case w.told <- token:
	default: // it has been told something, and will look
	}
}

// expect makes the claim one that may be told something.
func (s *session) expect(resource, claim string) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiters[claim]
	if w != nil {
		return w
	}
	l := s.lines[resource]
	if l == nil {
		l = &line{look: time.Now().Add(s.look)}
		s.lines[resource] = l
	}
	l.waiters++
	w = &waiter{told: make(chan fence.Token, 1), line: l}
	s.waiters[claim] = w
	return w
}

// wait notes that the claim waits, and that its line looks after the pause.
func (s *session) wait(w *waiter, pause time.Duration) {
	if pause == 0 || pause > s.look {
		pause = s.look
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.line.look = time.Now().Add(pause)
	if !w.waits {
		w.waits = true
		s.engine.waits(1)
	}
}

// rest is how long it is until the line looks.
func (s *session) rest(w *waiter) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(w.line.look)
}

// due reports whether the line looks now. The waiter that gets true has to look.
func (s *session) due(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(w.line.look) {
		return false
	}
	w.line.look = now.Add(s.look)
	return true
}

func (s *session) forget(resource, claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiters[claim]
	if w == nil {
		return
	}
	delete(s.waiters, claim)
	if w.line.waiters--; w.line.waiters == 0 {
		delete(s.lines, resource)
	}
	if w.waits {
		s.engine.waits(-1)
	}
}

// waitsFor reports whether anything of the session waits for the resource.
func (s *session) waitsFor(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines[resource] != nil
}

// waitsAtAll reports whether anything of the session waits.
func (s *session) waitsAtAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiters) > 0
}

// tell tells a claim, and reports whether it is of this session.
func (s *session) tell(claim string, token fence.Token) bool {
	s.mu.Lock()
	w := s.waiters[claim]
	s.mu.Unlock()
	if w != nil {
		w.tell(token)
	}
	return w != nil
}

// Enter expects to be told before it asks: a grant may come before the answer.
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	var w *waiter
	if wait {
		w = s.expect(c.Resource, c.ID)
	}
	grant, pause, err := s.engine.store.step(ctx, "enter", s.id, c.Resource, queue.Request{Op: queue.Enter, Spec: c.Spec, Wait: wait, Claim: queue.Claim{
		ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight,
	}})
	switch {
	case err == nil && !grant.Held():
		s.wait(w, pause)
	case wait:
		s.forget(c.Resource, c.ID)
	}
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
	if sent {
		s.sent[claim] = true
	} else if !s.sent[claim] {
		s.sent[claim] = false
	}
}

// unsent reports whether the store cannot know of a claim, and forgets that.
func (s *session) unsent(claim string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, known := s.sent[claim]
	delete(s.sent, claim)
	return known && !sent
}

// Leave asks nothing about a claim that the store does not know: a crowd that gives up
// before it was its turn is no crowd in the store.
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	s.forget(resource, claim)
	if s.unsent(claim) {
		return fmt.Errorf("leave: %w", engine.ErrGone)
	}
	_, _, err := s.engine.store.step(ctx, "leave", s.id, resource, queue.Request{Op: queue.Leave, Claim: queue.Claim{ID: claim}})
	return err
}

// Await looks at once when it does not know since when the claim waits.
func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	w := s.expect(c.Resource, c.ID)
	if !w.waits {
		w.tell(0)
	}
	timer := time.NewTimer(s.rest(w))
	defer timer.Stop()
	for {
		select {
		case token := <-w.told:
			if token != 0 {
				s.forget(c.Resource, c.ID)
				return engine.Grant{Token: token}, nil
			}
		case <-timer.C:
			if !s.due(w) {
				timer.Reset(s.rest(w))
				continue
			}
		case <-ctx.Done():
			return engine.Grant{}, ctx.Err()
		}
		grant, pause, err := s.engine.store.step(ctx, "await", s.id, c.Resource, queue.Request{Op: queue.Poll, Claim: queue.Claim{ID: c.ID}})
		if err != nil || grant.Held() {
			s.forget(c.Resource, c.ID)
			if errors.Is(err, engine.ErrGone) {
				s.unsent(c.ID)
				Ask(s.engine) // it may be the session that is gone
			}
			return grant, err
		}
		s.wait(w, pause)
		timer.Reset(s.rest(w))
	}
}

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

func (s *session) Close(ctx context.Context) error {
	err := s.engine.store.end(ctx, s.id)
	s.engine.sessions.Delete(s.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiters { // nobody awaits them any more
		if w.waits {
			s.engine.waits(-1)
		}
	}
	clear(s.waiters)
	clear(s.lines)
	s.stop()
	return err
}

// waiting returns those that wait.
func (s *session) waiting() map[string]*waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]*waiter, len(s.waiters))
	for claim, w := range s.waiters {
		if w.waits {
			all[claim] = w
		}
	}
	return all
}
