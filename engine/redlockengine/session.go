package redlockengine

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
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
	timeout time.Duration // of a step on a node, if a majority has done it

	life context.Context // ends when it is closed, or a majority has ended it
	end  context.CancelFunc

	tasks sync.WaitGroup // that nobody waits for but Close

	mu     sync.Mutex
	base   time.Time // start of the last renewal that a majority answered: votes count from it on
	nodes  []node
	claims map[*claim]bool            // what nodes have of us, or may have
	byID   map[string]*claim          // by the caller's id
	byName map[string]map[*claim]bool // by resource
	serial int                        // of claims that got another id
}

// node is what a session knows of one node. The session's mutex guards it.
type node struct {
	session engine.Session // nil: not joined, or the node has ended it
	since   time.Time      // start of the last renewal there
	down    bool           // did not answer since then: asked only if the others are too few
	alien   error          // why it can have no part, as long as it is as it is: engine.ErrUnsupported
}

// errEnded is the answer of a session that has ended.
var errEnded = fmt.Errorf("session: %w", engine.ErrGone)

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	start := time.Now()
	opts.Heartbeat = cmp.Or(opts.Heartbeat, opts.TTL/3)
	s := &session{
		engine: e, id: rand.Text(), opts: opts, timeout: cmp.Or(e.opts.NodeTimeout, min(opts.Heartbeat*3/8, 250*time.Millisecond)),
		base: start, nodes: make([]node, len(e.nodes)),
		claims: make(map[*claim]bool), byID: make(map[string]*claim), byName: make(map[string]map[*claim]bool),
	}
	s.life, s.end = context.WithCancel(context.Background())
	errs := e.each(ctx, s.bound(), func(ctx context.Context, i int) error { return s.join(ctx, i, start) })
	err := cmp.Or(s.alien(), e.majority(ctx, "open session", count(errs, nil), errs))
	if err == nil {
		return s, nil
	}
	e.closing.Go(func() { s.Close(context.Background()) }) //nolint:errcheck // what cannot be closed expires
	return nil, err
}

// alien returns why a node can have no part, if one cannot, as with another format of pawl. The
// error goes to the caller, because the node is not merely down.
func (s *session) alien() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range s.nodes {
		if n.alien != nil {
			return fmt.Errorf("node %d: %w", i+1, n.alien)
		}
	}
	return nil
}

// join opens a session on a node. The session lives longer there by the drift, in which a node
// that starts again grants nothing either. Nobody believes in the session of an
// operator, nor does a grace cover it.
func (s *session) join(ctx context.Context, i int, start time.Time) error {
	opts := s.opts
	opts.TTL, opts.Delay = NodeTTL(opts.TTL), NodeTTL(opts.TTL)
	if belief := s.opts.Belief(); belief > 0 {
		opts.Delay -= NodeTTL(belief)
	}
	opts.Found = func(resource, id string) { s.found(i, resource, id) }
	is, err := s.engine.nodes[i].Open(ctx, opts)
	s.mu.Lock()
	n := &s.nodes[i]
	if n.alien = nil; errors.Is(err, engine.ErrUnsupported) {
		n.alien = err
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
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

// bound is that of a step.
func (s *session) bound() bound { return bound{s.timeout, s.opts.Heartbeat / 2} }

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
	return s.engine.each(ctx, s.bound(), func(asked context.Context, i int) error {
		if on[i] == nil {
			return errSkipped
		}
		err := step(asked, i, on[i])
		if ctx.Err() == nil {
			s.silent(i, on[i], unknown(err))
		}
		return err
	})
}

// silent notes whether a node did not answer, unless our session there is another by now.
func (s *session) silent(i int, is engine.Session, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := &s.nodes[i]; n.session == is {
		n.down = down
	}
}

// majority is that of the engine. A step means nothing once the session has ended.
func (s *session) majority(ctx context.Context, doing string, n int, errs []error) error {
	if s.life.Err() != nil {
		return fmt.Errorf("%s: %w", doing, errEnded)
	}
	return s.engine.majority(ctx, doing, n, errs)
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.end()
	on := make([]engine.Session, len(s.nodes))
	for i := range s.nodes {
		on[i], s.nodes[i].session = s.nodes[i].session, nil
	}
	s.mu.Unlock()
	s.tasks.Wait()
	errs := s.ask(ctx, on, func(ctx context.Context, _ int, is engine.Session) error { return is.Close(ctx) })
	if closed := count(errs, nil) + count(errs, engine.ErrGone); closed+count(errs, errSkipped) < len(errs) {
		return s.engine.majority(ctx, "close session", closed, errs)
	}
	return nil
}
