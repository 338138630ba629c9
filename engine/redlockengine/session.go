package redlockengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// session is a session on each of the nodes, or on as many as there are.
type session struct {
	engine  *Engine
	id      string
	opts    engine.SessionOptions
	timeout time.Duration // of a step on a node

	life context.Context // ends when it is closed, or a majority has ended it
	end  context.CancelFunc

	mu     sync.Mutex
	base   time.Time // start of the last renewal that a majority answered: votes count from it on
	nodes  []node
	claims map[*claim]bool   // what nodes have of us, or may have
	byID   map[string]*claim // by the caller's id
	serial int               // of claims that got another id
}

// node is what a session knows of one node. The session's mutex guards it.
type node struct {
	session engine.Session // nil: not joined, or the node has ended it
	since   time.Time      // start of the last renewal there
	down    bool           // did not answer since then: asked only if the others are too few
}

// errEnded is the answer of a session that has ended.
var errEnded = fmt.Errorf("session: %w", engine.ErrGone)

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	start := time.Now()
	s := &session{
		engine: e, id: rand.Text(), opts: opts, timeout: cmp.Or(e.opts.NodeTimeout, min(opts.TTL/8, 250*time.Millisecond)),
		base: start, nodes: make([]node, len(e.nodes)), claims: make(map[*claim]bool), byID: make(map[string]*claim),
	}
	s.life, s.end = context.WithCancel(context.Background())
	errs := e.each(ctx, s.timeout, func(ctx context.Context, i int) error { return s.join(ctx, i, start) })
	err := e.majority(ctx, "open session", count(errs, nil), errs)
	if err == nil {
		return s, nil
	}
	s.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what cannot be closed expires
	if never := first(errs, engine.ErrUnsupported); never != nil {
		return nil, never
	}
	return nil, err
}

// join opens a session on a node. It lives longer there by the drift.
func (s *session) join(ctx context.Context, i int, start time.Time) error {
	opts := s.opts
	opts.TTL += drift(opts.TTL)
	is, err := s.engine.nodes[i].Open(ctx, opts)
	if err != nil {
		return err
	}
	s.mu.Lock()
	n := &s.nodes[i]
	late := s.life.Err() != nil || n.session != nil // closed or joined meanwhile
	if !late {
		*n = node{session: is, since: start}
	}
	s.mu.Unlock()
	if late {
		is.Close(ctx) //nolint:errcheck // it has nothing
		return errSkipped
	}
	return nil
}

// lost notes that a node has ended our session, and with it all claims there.
func (s *session) lost(ctx context.Context, i int, was engine.Session) {
	s.mu.Lock()
	if s.nodes[i].session != was {
		s.mu.Unlock()
		return
	}
	s.nodes[i].session = nil
	for cl := range s.claims {
		cl.at[i] = place{}
	}
	without := 0
	for _, n := range s.nodes {
		if n.session == nil {
			without++
		}
	}
	if len(s.nodes)-without < s.engine.quorum {
		s.end()
	}
	s.mu.Unlock()
	was.Close(ctx) //nolint:errcheck // it has ended
}

func (s *session) ID() string { return s.id }

// joined returns our sessions by node: every one, or those on the nodes to ask, which
// answered lately. If these are too few it is every one.
func (s *session) joined(every bool) []engine.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, up, n := make([]engine.Session, len(s.nodes)), make([]engine.Session, len(s.nodes)), 0
	for i, is := range s.nodes {
		all[i] = is.session
		if is.session != nil && !is.down && !is.since.Before(s.base) {
			up[i] = is.session
			n++
		}
	}
	if every || n < s.engine.quorum {
		return all
	}
	return up
}

// ask does a step at once on the nodes whose session is given, and notes which
// of them answer.
func (s *session) ask(ctx context.Context, on []engine.Session, step func(context.Context, int, engine.Session) error) []error {
	return s.engine.each(ctx, s.timeout, func(asked context.Context, i int) error {
		if on[i] == nil {
			return errSkipped
		}
		err := step(asked, i, on[i])
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := &s.nodes[i]; n.session == on[i] && ctx.Err() == nil {
			n.down = unknown(err)
		}
		return err
	})
}

// majority is that of the engine, for a step that means nothing once the session
// has ended.
func (s *session) majority(ctx context.Context, doing string, n int, errs []error) error {
	if s.life.Err() != nil {
		return fmt.Errorf("%s: %w", doing, errEnded)
	}
	return s.engine.majority(ctx, doing, n, errs)
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	s.end()
	s.mu.Lock()
	on, joined := make([]engine.Session, len(s.nodes)), 0
	for i := range s.nodes {
		if on[i], s.nodes[i].session = s.nodes[i].session, nil; on[i] != nil {
			joined++
		}
	}
	s.mu.Unlock()
	errs := s.ask(ctx, on, func(ctx context.Context, _ int, is engine.Session) error { return is.Close(ctx) })
	if closed := count(errs, nil) + count(errs, engine.ErrGone); closed < joined {
		return s.engine.majority(ctx, "close session", closed, errs)
	}
	return nil
}
