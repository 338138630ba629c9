package redlockengine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// session is a session on each of the nodes, or on as many as there are.
type session struct {
	engine  *Engine
	id      string
	opts    engine.SessionOptions
	timeout time.Duration // of a step on a node

	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup // sessions on nodes that are being closed

	mu     sync.Mutex
	base   time.Time // start of the last renewal that a majority answered: votes count from it on
	dead   bool      // a majority has ended it
	nodes  []*node
	claims map[string]*claim // entered and not left
}

// node is what a session knows of one node. The session's mutex guards it.
type node struct {
	session engine.Session // nil: not joined
	joining bool
	ended   bool          // the node has ended our session, and we have not joined again
	since   time.Time     // start of the last renewal there
	down    bool          // did not answer since then: asked only if the others are too few
	owed    map[owed]span // claims to be left there
}

type owed struct{ resource, claim string }

// span is when a claim is to be left: not before its holder had time to stop, and
// again until no lost request can enter it any more.
type span struct{ from, until time.Time }

// claim is one claim on all nodes. The session's mutex guards what is not the
// caller's.
type claim struct {
	engine.Claim         // as the nodes have it
	at           []place // by node

	token fence.Token   // 0: it does not hold
	grant []fence.Token // the grants of nodes that it holds by
}

// place is how a claim stands on one node.
type place struct {
	in    bool        // it is there, or may be
	token fence.Token // of the node's grant
	past  fence.Token // of a grant that was given back: a message may still tell of it
	doubt time.Time   // until when a request whose outcome is unknown may still arrive
}

// Open implements [engine.Engine].
func (e *Engine) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s := &session{engine: e, id: rand.Text(), opts: opts, timeout: e.timeout(opts.TTL), claims: make(map[string]*claim)}
	s.life, s.end = context.WithCancel(context.Background())
	for range e.nodes {
		s.nodes = append(s.nodes, &node{owed: make(map[owed]span)})
	}
	s.base = time.Now()
	errs := e.each(ctx, s.timeout, e.all(), func(ctx context.Context, i int) error { return s.join(ctx, i, s.base) })
	if joined := count(errs, nil); joined < e.quorum {
		s.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what cannot be closed expires
		for _, err := range errs {
			if errors.Is(err, engine.ErrUnsupported) {
				return nil, err
			}
		}
		return nil, e.unreached(ctx, "open session", failed(errs))
	}
	return s, nil
}

// join opens a session on a node. It lives longer there by the drift.
func (s *session) join(ctx context.Context, i int, start time.Time) error {
	n := s.nodes[i]
	s.mu.Lock()
	skip := n.session != nil || n.joining
	n.joining = n.joining || !skip
	s.mu.Unlock()
	if skip {
		return errSkipped
	}
	opts := s.opts
	opts.TTL += drift(opts.TTL)
	is, err := s.engine.nodes[i].Open(ctx, opts)
	s.mu.Lock()
	defer s.mu.Unlock()
	n.joining = false
	if err == nil {
		n.session, n.since, n.down, n.ended = is, start, false, false
	}
	return err
}

// lost notes that a node has ended our session, and with it all claims there.
func (s *session) lost(i int, was engine.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[i]
	if n.session != was {
		return
	}
	n.session, n.ended = nil, true
	clear(n.owed)
	for _, cl := range s.claims {
		cl.at[i] = place{doubt: cl.at[i].doubt} // who asks to leave needs no session
	}
	ended := 0
	for _, n := range s.nodes {
		if n.ended {
			ended++
		}
	}
	s.dead = s.dead || len(s.nodes)-ended < s.engine.quorum
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		defer cancel()
		was.Close(ctx) //nolint:errcheck // it has ended
	})
}

func (s *session) ID() string { return s.id }

// on returns our session on a node; nil: there is none.
func (s *session) on(i int) engine.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[i].session
}

// up are the nodes to ask: those that answered lately, or if these are too few
// all that are joined.
func (s *session) up() (nodes []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead || s.life.Err() != nil {
		return nil, fmt.Errorf("session: %w", engine.ErrGone)
	}
	var joined []int
	for i, n := range s.nodes {
		if n.session == nil {
			continue
		}
		joined = append(joined, i)
		if !n.down && !n.since.Before(s.base) {
			nodes = append(nodes, i)
		}
	}
	if len(nodes) < s.engine.quorum {
		nodes = joined
	}
	return nodes, nil
}

// ask does a step on some of the nodes at once and notes who did not answer.
func (s *session) ask(ctx context.Context, nodes []int, step func(context.Context, int, engine.Session) error) []error {
	return s.engine.each(ctx, s.timeout, nodes, func(asked context.Context, i int) error {
		is := s.on(i)
		if is == nil {
			return errSkipped
		}
		err := step(asked, i, is)
		if err != nil && !answered(err) && ctx.Err() == nil {
			s.mu.Lock()
			s.nodes[i].down = true
			s.mu.Unlock()
		}
		return err
	})
}

// count counts the answers of a class; nil counts those without an error.
func count(errs []error, class error) (n int) {
	for _, err := range errs {
		if errors.Is(err, class) {
			n++
		}
	}
	return n
}

// take returns our record of a claim, made when it is new.
func (s *session) take(c *engine.Claim) *claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	cl := s.claims[c.ID]
	if cl == nil {
		cl = &claim{Claim: *c, at: make([]place, len(s.nodes))}
		cl.Label = s.id + " " + c.Label
		if c.Owner != c.ID {
			cl.Owner = s.id + " " + c.Owner // the token of another session's grant is not known here
		}
		s.claims[c.ID] = cl
	}
	return cl
}

// enter enters a claim on one node.
func (s *session) enter(ctx context.Context, i int, is engine.Session, cl *claim, wait bool) error {
	s.mu.Lock()
	if time.Now().Before(cl.at[i].doubt) && !cl.at[i].in {
		s.mu.Unlock()
		return errSkipped // a lost request to leave may still arrive
	}
	s.mu.Unlock()
	grant, err := is.Enter(ctx, &cl.Claim, wait)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := &cl.at[i]
	switch {
	case s.nodes[i].session != is: // it has ended meanwhile, and the claim with it
		return errSkipped
	case err == nil:
		at.in, at.token = true, grant.Token
	case !answered(err):
		at.in, at.doubt = true, time.Now().Add(s.opts.TTL)
	default:
		at.in, at.token = false, 0
	}
	if s.claims[cl.ID] != cl { // left meanwhile
		s.owe(i, cl, time.Time{})
	}
	return err
}

// owe notes that a claim has to be left on a node. s.mu is held.
func (s *session) owe(i int, cl *claim, from time.Time) {
	if at := cl.at[i]; at.in || !at.doubt.IsZero() {
		s.nodes[i].owed[owed{cl.Resource, cl.ID}] = span{from, at.doubt}
	}
}

// votes are the grants that count, by node: of those that took part in the last
// renewal. s.mu is held.
func (s *session) votes(cl *claim) (votes []fence.Token, n int) {
	votes = make([]fence.Token, len(s.nodes))
	for i, at := range cl.at {
		if is := s.nodes[i]; at.token != 0 && is.session != nil && !is.since.Before(s.base) {
			votes[i] = at.token
			n++
		}
	}
	return votes, n
}

// granted reports whether a majority grants a claim.
func (s *session) granted(cl *claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, n := s.votes(cl)
	return n >= s.engine.quorum
}

// shared returns the token of the grant that a claim is a part of: its own, if
// it is asked for again, or that of its owner. It is the same grant if a
// majority says so. s.mu is held.
func (s *session) shared(cl *claim) fence.Token {
	same := func(o *claim) bool {
		n := 0
		for i, token := range o.grant {
			if token != 0 && token == cl.at[i].token {
				n++
			}
		}
		return n >= s.engine.quorum
	}
	if same(cl) {
		return cl.token
	}
	if cl.Owner == cl.ID {
		return 0
	}
	for _, o := range s.claims {
		if o.Resource == cl.Resource && o.Owner == cl.Owner && same(o) {
			return o.token
		}
	}
	return 0
}

// grant gives a claim that a majority grants its token. It holds if that
// majority still stands when the token is known.
func (s *session) grant(ctx context.Context, cl *claim, marks []mark, unread []error) (engine.Grant, error) {
	s.mu.Lock()
	votes, _ := s.votes(cl)
	token := s.shared(cl)
	s.mu.Unlock()
	if token == 0 {
		var err error
		if token, err = s.mint(ctx, cl.Resource, votes, marks, unread); err != nil {
			return engine.Grant{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stand, n := s.votes(cl)
	switch valid := s.base.Add(s.opts.TTL); {
	case s.dead || s.claims[cl.ID] != cl:
		return engine.Grant{}, fmt.Errorf("enter: %w", engine.ErrGone)
	case n < s.engine.quorum || !time.Now().Before(valid):
		return engine.Grant{}, engine.Unavailable("enter", errors.New("the majority was over before it was complete"))
	}
	cl.token, cl.grant = token, stand
	return engine.Grant{Token: token}, nil
}

// Enter implements [engine.Session].
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	if err := s.engine.caps.Refuse(c.Spec, c.Weight); err != nil {
		return engine.Grant{}, err
	}
	nodes, err := s.up()
	if err != nil {
		return engine.Grant{}, fmt.Errorf("enter: %w", err)
	}
	if ctx.Err() != nil {
		return engine.Grant{}, context.Cause(ctx)
	}
	var marks []mark
	var unread []error
	var reading sync.WaitGroup
	if !s.engine.opts.NoTokens {
		reading.Go(func() { marks, unread = s.marks(ctx, nodes, c.Resource) })
	}
	cl := s.take(c)
	errs := s.ask(ctx, nodes, func(ctx context.Context, i int, is engine.Session) error {
		err := s.enter(ctx, i, is, cl, wait)
		if errors.Is(err, engine.ErrGone) {
			s.lost(i, is)
		}
		return err
	})
	reading.Wait()
	if s.granted(cl) {
		return s.grant(ctx, cl, marks, unread)
	}
	return engine.Grant{}, s.refused(ctx, cl, wait, errs)
}

// refused says why a claim was not granted; nil: it waits. What a caller is told
// that it is not stored is left everywhere.
func (s *session) refused(ctx context.Context, cl *claim, wait bool, errs []error) error {
	entered, busy := count(errs, nil), count(errs, engine.ErrBusy)
	mismatch := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, engine.ErrMismatch) })
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	var err error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case dead:
		return fmt.Errorf("enter: session: %w", engine.ErrGone)
	case mismatch >= 0:
		err = errs[mismatch]
	case entered+busy < s.engine.quorum:
		return s.engine.unreached(ctx, "enter", failed(errs)) // asked again, or left
	case wait && busy == 0:
		return nil
	case busy > 0:
		err = errs[slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, engine.ErrBusy) })]
	default:
		err = fmt.Errorf("enter: %w", engine.ErrBusy)
	}
	s.withdraw(ctx, cl)
	return err
}

// withdraw leaves a claim on every node, whatever it said; what cannot be told
// now the renewals tell.
func (s *session) withdraw(ctx context.Context, cl *claim) {
	s.mu.Lock()
	if !slices.ContainsFunc(cl.at, func(at place) bool { return at.in || !at.doubt.IsZero() }) {
		delete(s.claims, cl.ID)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.Leave(ctx, cl.Resource, cl.ID) //nolint:errcheck // see above
}

// Leave implements [engine.Session].
func (s *session) Leave(ctx context.Context, resource, id string) error {
	nodes, err := s.up()
	if err != nil { // of an ended session: others have it
		return fmt.Errorf("leave: %w", err)
	}
	s.mu.Lock()
	cl := s.claims[id]
	delete(s.claims, id)
	for i, n := range s.nodes {
		if cl != nil {
			s.owe(i, cl, time.Time{})
		} else if what := (owed{resource, id}); n.session != nil {
			n.owed[what] = span{until: n.owed[what].until}
		}
	}
	s.mu.Unlock()
	errs := s.ask(ctx, nodes, func(ctx context.Context, i int, is engine.Session) error {
		return s.leave(ctx, i, is, owed{resource, id})
	})
	left, gone := count(errs, nil), count(errs, engine.ErrGone)
	switch unknown := len(errs) - left - gone; {
	case left+gone < s.engine.quorum:
		return s.engine.unreached(ctx, "leave", failed(errs))
	case left == 0 || left+unknown < s.engine.quorum:
		return fmt.Errorf("leave: %w", engine.ErrGone)
	}
	return nil
}

// leave leaves a claim on one node and notes what is still to be done.
func (s *session) leave(ctx context.Context, i int, is engine.Session, what owed) error {
	err := is.Leave(ctx, what.resource, what.claim)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[i]
	when, open := n.owed[what]
	switch {
	case !open || n.session != is:
	case err != nil && !answered(err):
		n.owed[what] = span{until: time.Now().Add(s.opts.TTL)}
	case !time.Now().Before(when.until):
		delete(n.owed, what)
	}
	return err
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.dead = true
	sessions := make([]engine.Session, len(s.nodes))
	var nodes []int
	for i, n := range s.nodes {
		if sessions[i], n.session = n.session, nil; sessions[i] != nil {
			nodes = append(nodes, i)
		}
	}
	s.mu.Unlock()
	s.end()
	errs := s.engine.each(ctx, s.timeout, nodes, func(ctx context.Context, i int) error { return sessions[i].Close(ctx) })
	s.tasks.Wait()
	if len(nodes) > 0 && count(errs, nil) < min(s.engine.quorum, len(nodes)) {
		return s.engine.unreached(ctx, "close session", failed(errs))
	}
	return nil
}
