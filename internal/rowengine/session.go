package rowengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/turn"
)

// session is what a client holds and waits for.
type session struct {
	engine *Engine
	id     string
	opts   engine.SessionOptions

	life  context.Context // ends with the session
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // the watch

	trouble atomic.Bool // the last request for a lock failed

	mu      sync.Mutex
	renewed time.Time        // start of the last successful Renew
	holds   map[string]*hold // by claim
}

// errShared says to a waiter that its owner holds the lock now.
var errShared = errors.New("its owner has the lock")

func (s *session) ID() string { return s.id }

// alive reports whether the session lives. s.mu is held.
func (s *session) alive() bool { return s.life.Err() == nil && time.Since(s.renewed) < s.opts.TTL }

func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	if err := s.engine.caps.Refuse(c.Spec, c.Weight); err != nil {
		return engine.Grant{}, fmt.Errorf("enter: %w", err)
	}
	s.mu.Lock()
	alive, h := s.alive(), cmp.Or(s.holds[c.ID], s.held(c))
	waits := h != nil && !h.grant.Held()
	s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return engine.Grant{}, fmt.Errorf("enter: %w", context.Cause(ctx))
	case !alive:
		return engine.Grant{}, fmt.Errorf("enter: session: %w", engine.ErrGone)
	case waits && wait:
		return engine.Grant{}, nil
	case waits:
		if err := s.Leave(ctx, c.Resource, c.ID); err != nil {
			return engine.Grant{}, err
		}
		return engine.Grant{}, fmt.Errorf("enter: %w", engine.ErrBusy)
	case h != nil:
		stands, err := h.ping(ctx)
		if err != nil {
			return engine.Grant{}, unavailable(ctx, "enter", err)
		}
		if stands && s.join(h, c.ID) {
			return h.grant, nil
		}
		s.forget(h) // its connection has ended: there is no such claim
	}
	return s.enter(ctx, c, wait)
}

// held returns what the owner of a claim holds of its resource. s.mu is held.
func (s *session) held(c *engine.Claim) *hold {
	if c.Owner == c.ID { // which is nobody else's
		return nil
	}
	for _, h := range s.holds {
		if h.grant.Held() && h.request.Owner == c.Owner && h.request.Resource == c.Resource {
			return h
		}
	}
	return nil
}

// join makes a claim share a hold, unless all others have left it meanwhile.
func (s *session) join(h *hold, claim string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(h.claims) == 0 || !s.alive() {
		return false
	}
	h.claims[claim] = struct{}{}
	s.holds[claim] = h
	return true
}

// forget drops a hold that is no more, with all its claims.
func (s *session) forget(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for claim := range h.claims {
		delete(s.holds, claim)
	}
	clear(h.claims)
}

// enter asks for a lock that the owner does not have here.
func (s *session) enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	h := &hold{
		session: s, turn: turn.New(1), claims: map[string]struct{}{c.ID: {}},
		request: Request{Claim: c, Session: s.id, TTL: s.opts.TTL, Wait: wait},
	}
	grant, err := h.enter(ctx)
	if err != nil {
		return engine.Grant{}, unavailable(ctx, "enter", err)
	}
	if left := time.Until(h.after); !grant.Held() && left > 0 {
		grant.Grace = engine.Grace{Left: left, Age: engine.Unknown}
	}
	if !grant.Held() && !wait {
		h.destroy()
		if grant.Grace.On() {
			return engine.Grant{}, fmt.Errorf("enter: %w", &engine.GraceError{Grace: grant.Grace})
		}
		return engine.Grant{}, fmt.Errorf("enter: %w", engine.ErrBusy)
	}
	if !s.keep(h, grant, c.ID) {
		h.destroy()
		return engine.Grant{}, fmt.Errorf("enter: session: %w", engine.ErrGone)
	}
	return grant, nil
}

// keep notes what a hold has got. keep fails if the session has ended meanwhile,
// or an entered claim was left.
func (s *session) keep(h *hold, grant engine.Grant, claim string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, entered := h.claims[claim]; !entered || !s.alive() {
		return false
	}
	h.grant = grant
	s.holds[claim] = h
	if !grant.Held() {
		return true
	}
	for _, other := range s.holds { // waiters here of the same owner
		if other != h && other.interrupt != nil && other.request.Owner == h.request.Owner && other.request.Resource == h.request.Resource {
			other.interrupt(errShared)
		}
	}
	return true
}

func (s *session) Await(ctx context.Context, c *engine.Claim) (engine.Grant, error) {
	for {
		s.mu.Lock()
		h := s.holds[c.ID]
		if h == nil {
			s.mu.Unlock()
			return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
		}
		if h.grant.Held() {
			defer s.mu.Unlock()
			return h.grant, nil
		}
		bound, cancel := context.WithCancelCause(ctx)
		h.interrupt = cancel
		if s.held(c) != nil { // since it entered
			cancel(errShared)
		}
		s.mu.Unlock()
		grant, err := s.await(bound, h, c)
		cancel(nil)
		if !errors.Is(err, errShared) {
			return grant, err
		}
		if err := h.turn.Take(ctx); err != nil {
			return engine.Grant{}, fmt.Errorf("await: %w", err)
		}
		h.destroy()
		h.turn.Give()
		s.forget(h)
		if grant, err := s.Enter(ctx, c, true); err != nil || grant.Held() {
			return grant, err
		}
	}
}

func (s *session) await(ctx context.Context, h *hold, c *engine.Claim) (engine.Grant, error) {
	if err := h.turn.Take(ctx); err != nil {
		return engine.Grant{}, err
	}
	defer h.turn.Give()
	grant, err := h.await(ctx)
	s.mu.Lock()
	h.interrupt = nil
	s.mu.Unlock()
	switch {
	case err == nil && s.keep(h, grant, c.ID):
		return grant, nil
	case err == nil:
		h.destroy()
		return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
	case ctx.Err() != nil:
		h.destroy()
		return engine.Grant{}, fmt.Errorf("await: %w", context.Cause(ctx))
	case errors.Is(err, ErrBroken):
		s.forget(h)
		return engine.Grant{}, fmt.Errorf("await: %w: %w", engine.ErrGone, err)
	}
	return engine.Grant{}, engine.Unavailable("await", err)
}

func (s *session) Leave(ctx context.Context, resource, claim string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("leave: %w", context.Cause(ctx))
	}
	s.mu.Lock()
	h := s.holds[claim]
	if h == nil || h.request.Resource != resource {
		s.mu.Unlock()
		// The server may still have it: its connection was lost, and nobody heard the server since.
		there, err := s.engine.evict(ctx, resource, claim, 0)
		if err == nil && !there {
			return fmt.Errorf("leave: %w", engine.ErrGone)
		}
		return unavailable(ctx, "leave", err)
	}
	if h.interrupt != nil {
		h.interrupt(engine.ErrGone)
	}
	s.mu.Unlock()
	if err := h.turn.Take(ctx); err != nil {
		return unavailable(ctx, "leave", err)
	}
	defer h.turn.Give()
	return s.leave(ctx, h, claim)
}

// leave ends a hold, unless other claims share it. If the server may not have
// heard of it the claim is kept, to be left again.
func (s *session) leave(ctx context.Context, h *hold, claim string) error {
	s.mu.Lock()
	delete(h.claims, claim) // the last one lets none join
	delete(s.holds, claim)
	shared := len(h.claims) > 0
	s.mu.Unlock()
	if shared {
		return nil
	}
	err := h.release(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrEnded):
		if h.grant.Held() {
			return fmt.Errorf("leave: %w: %w", engine.ErrGone, err)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() == nil {
		h.claims[claim] = struct{}{}
		s.holds[claim] = h
	}
	return unavailable(ctx, "leave", err)
}

func (s *session) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	start := time.Now()
	s.mu.Lock()
	all := make(map[*hold]struct{})
	for _, h := range s.holds {
		if h.grant.Held() {
			all[h] = struct{}{}
		}
	}
	alive := s.alive()
	s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("renew: %w", context.Cause(ctx))
	case !alive:
		return nil, fmt.Errorf("renew session: %w", engine.ErrGone)
	}
	err = each(all, func(h *hold) error {
		stands, err := h.ping(ctx)
		if err == nil && !stands {
			s.forget(h)
		}
		return err
	})
	if len(all) == 0 && s.trouble.Load() && s.engine.free() { // nothing else would find out that the server is away
		if err = s.engine.store.Check(ctx, s.opts.TTL); err == nil {
			s.trouble.Store(false)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.alive():
		return nil, fmt.Errorf("renew session: %w", engine.ErrGone)
	case err != nil:
		return nil, unavailable(ctx, "renew", err)
	}
	s.renewed = start
	for _, c := range held {
		if h := s.holds[c.ID]; h == nil || !h.grant.Held() {
			gone = append(gone, c)
		}
	}
	return gone, nil
}

// watch tells soon of a connection that ended, and again until a renewal has
// looked: the server gives its lock away at once. watch asks the operating system
// only.
func (s *session) watch() {
	for turn.Pause(s.life, min(s.opts.TTL/10, 100*time.Millisecond)) == nil {
		s.mu.Lock()
		held := make(map[string]*hold)
		for claim, h := range s.holds {
			if h.grant.Held() {
				held[claim] = h
			}
		}
		s.mu.Unlock()
		for claim, h := range held {
			if h.dead() {
				s.opts.Gone(claim)
			}
		}
	}
}

func (s *session) Close(ctx context.Context) error {
	return s.finish(func(h *hold) error {
		if err := h.release(ctx); !errors.Is(err, ErrEnded) {
			return err
		}
		return nil
	})
}

// finish ends the session and each of its holds.
func (s *session) finish(end func(*hold) error) error {
	s.mu.Lock()
	s.end(engine.ErrGone)
	all := make(map[*hold]struct{})
	for _, h := range s.holds {
		all[h] = struct{}{}
		if h.interrupt != nil {
			h.interrupt(engine.ErrGone)
		}
	}
	clear(s.holds)
	s.mu.Unlock()
	s.engine.sessions.Delete(s.id)
	s.tasks.Wait()
	return engine.Unavailable("close session", each(all, func(h *hold) error {
		h.turn.Take(context.Background()) //nolint:errcheck // the call that uses it was told to stop
		defer h.turn.Give()
		return end(h)
	}))
}

// each calls do for all holds at once, and joins the errors.
func each(holds map[*hold]struct{}, do func(*hold) error) (err error) {
	errs := make(chan error, len(holds))
	for h := range holds {
		go func() { errs <- do(h) }()
	}
	for range holds {
		err = errors.Join(err, <-errs)
	}
	return err
}
