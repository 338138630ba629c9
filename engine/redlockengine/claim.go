package redlockengine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

// claim is one claim on all nodes. The session's mutex guards what changes.
type claim struct {
	id, owner     string  // the caller's
	*engine.Claim         // as the nodes have it
	at            []place // by node

	token fence.Token // 0: it does not hold
	left  bool        // it goes, wherever it is or may be
	from  time.Time   // a renewal lets it go, but not before: its holder has to stop, or Leave is under way
}

// place is how a claim stands on one node.
type place struct {
	in    bool        // it is there
	token fence.Token // of the node's grant
	stale bool        // the node shares a grant with the claim that the owner may have released: no vote
	taken time.Time   // since when the node no longer grants what it granted, as far as is known; zero: it does
	doubt time.Time   // until when a request to enter it whose answer was lost may still arrive
}

// may reports whether a claim may be on a node, or come there.
func (p place) may() bool { return p.in || !p.doubt.IsZero() }

// lacks reports whether a claim that holds is to be entered again on this node. If the node took the claim out, an
// operator may be breaking that claim, and reaches the other nodes within operatorTimeout.
func (p place) lacks() bool {
	return p.token == 0 && (p.taken.IsZero() || time.Since(p.taken) >= operatorTimeout)
}

// clear notes that a claim is not on a node now.
func (p *place) clear() {
	p.in, p.token, p.stale, p.taken = false, 0, false, time.Time{}
	if !time.Now().Before(p.doubt) {
		p.doubt = time.Time{}
	}
}

// take returns our record of a claim, made when it is new. A claim that was left may still be on
// nodes, and news of it on the way from there. So it gets another id. s.mu is held.
func (s *session) take(c *engine.Claim) *claim {
	old := s.byID[c.ID]
	if old != nil && !old.left {
		return old
	}
	is := *c
	if old != nil {
		s.serial++
		is.ID = fmt.Sprintf("%s-%d", c.ID, s.serial)
	}
	is.Owner, is.Label = s.as(c, is.ID), s.id+" "+c.Label
	cl := &claim{id: c.ID, owner: c.Owner, Claim: &is, at: make([]place, len(s.nodes))}
	s.byID[c.ID] = cl
	s.remember(cl)
	return cl
}

// as is the owner that the nodes know a claim by. That owner is the same for all claims of one owner, also
// if that is the id of one of them. That owner is not known beyond this session, because the token of
// another session's grant is not known here. s.mu is held.
func (s *session) as(c *engine.Claim, id string) string {
	for o := range s.byName[c.Resource] {
		if !o.left && o.owner == c.Owner {
			return o.Owner
		}
	}
	if c.Owner == c.ID {
		return id
	}
	return s.id + " " + c.Owner
}

// remember keeps a record. s.mu is held.
func (s *session) remember(cl *claim) {
	s.claims[cl] = true
	if s.byName[cl.Resource] == nil {
		s.byName[cl.Resource] = make(map[*claim]bool)
	}
	s.byName[cl.Resource][cl] = true
}

// settle forgets a claim that was left and is nowhere any more. s.mu is held.
func (s *session) settle(cl *claim) {
	if !cl.left || slices.ContainsFunc(cl.at, place.may) {
		return
	}
	delete(s.claims, cl)
	if s.byID[cl.id] == cl {
		delete(s.byID, cl.id)
	}
	if delete(s.byName[cl.Resource], cl); len(s.byName[cl.Resource]) == 0 {
		delete(s.byName, cl.Resource)
	}
}

// found is told by a node that it has a claim of ours, which may have come back with an old
// snapshot. An unknown claim is to be left there, or it would stand in the way of all others for as
// long as we live.
func (s *session) found(i int, resource, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for cl := range s.byName[resource] {
		if cl.ID == id {
			cl.at[i].in = true
			return
		}
	}
	cl := &claim{id: id, Claim: &engine.Claim{Resource: resource, ID: id}, at: make([]place, len(s.nodes)), left: true}
	cl.at[i].in = true
	s.remember(cl)
}

// stale reports whether a node in its grace shares a grant by which the owner had no vote of that node before. The owner
// may have released that grant, and the node may have forgotten so, and its vote for another claim since. s.mu is held.
func (s *session) stale(i int, cl *claim, g engine.Grant) bool {
	for o := range s.byName[cl.Resource] {
		if o.at[i].token != 0 && !o.left && o.Owner == cl.Owner {
			return false
		}
	}
	return g.Held() && g.Grace.On() && cl.Owner != cl.ID
}

// enter enters a claim on one node, and returns the node's grace if that is why it is
// not granted there. A claim that may not wait is refused where its grant is stale.
func (s *session) enter(ctx context.Context, i int, is engine.Session, cl *claim, wait bool) (engine.Grace, error) {
	grant, err := is.Enter(ctx, cl.Claim, wait)
	grace := grant.Grace
	if why := new(engine.GraceError); errors.As(err, &why) {
		grace = why.Grace
	}
	if errors.Is(err, engine.ErrGone) {
		s.lost(ctx, i, is)
		return grace, err
	}
	refused := false
	s.mu.Lock()
	at := &cl.at[i]
	switch {
	case s.nodes[i].session != is: // it has ended meanwhile, and the claim with it
		s.mu.Unlock()
		return grace, errSkipped
	case err == nil:
		at.stale = s.stale(i, cl, grant) // before the token is there
		at.in, at.token, at.taken = true, grant.Token, time.Time{}
		if at.stale {
			at.token, refused = 0, !wait
		}
	case unknown(err):
		at.doubt = time.Now().Add(s.opts.TTL)
	default:
		at.clear()
	}
	left := cl.left
	if left { // meanwhile
		s.remember(cl)
		s.settle(cl)
	}
	s.mu.Unlock()
	if left && err == nil {
		err = s.leave(ctx, i, is, cl)
	} else if refused {
		err = &engine.GraceError{Grace: grace}
	}
	return grace, err
}

// leave leaves a claim on one node.
func (s *session) leave(ctx context.Context, i int, is engine.Session, cl *claim) error {
	err := is.Leave(ctx, cl.Resource, cl.ID)
	if !unknown(err) {
		s.mu.Lock()
		defer s.mu.Unlock()
		cl.at[i].clear()
		s.settle(cl)
	}
	return err
}

// leaveAll leaves a claim on every node that is up, whatever it said before. The
// others are told by later renewals: an overtaking renewal would make the answers wrong.
func (s *session) leaveAll(ctx context.Context, cl *claim) []error {
	s.mu.Lock()
	cl.left, cl.token, cl.from = true, 0, time.Now().Add(max(s.timeout, s.opts.Heartbeat/2))
	s.mu.Unlock()
	errs := s.ask(ctx, s.joined(false), func(ctx context.Context, i int, is engine.Session) error { return s.leave(ctx, i, is, cl) })
	s.mu.Lock()
	cl.from = time.Now()
	s.mu.Unlock()
	return errs
}

// votes are the grants that count, by node: of nodes that took part in a renewal that started then
// or later. s.mu is held.
func (s *session) votes(cl *claim, since time.Time) (votes []fence.Token, n int) {
	votes = make([]fence.Token, len(s.nodes))
	for i, at := range cl.at {
		if is := s.nodes[i]; at.token != 0 && is.session != nil && !is.since.Before(since) {
			votes[i] = at.token
			n++
		}
	}
	return votes, n
}

// waits counts the nodes where a claim waits, as far as is known: each may grant it by
// now. s.mu is held.
func (s *session) waits(cl *claim) (n int) {
	for i, at := range cl.at {
		if at.in && at.token == 0 && at.taken.IsZero() && s.nodes[i].session != nil {
			n++
		}
	}
	return n
}

// shared returns the token of the grant that a claim is a part of. That is its own, if it is asked
// for again, or the largest that its owner shares with it. The grant is the same grant if a majority says
// so. s.mu is held.
func (s *session) shared(cl *claim) (token fence.Token) {
	if cl.token != 0 {
		return cl.token
	}
	for o := range s.byName[cl.Resource] {
		if o.token == 0 || o.Owner != cl.Owner {
			continue
		}
		same := 0
		for i, at := range o.at {
			if at.token != 0 && at.token == cl.at[i].token {
				same++
			}
		}
		if same >= s.engine.quorum {
			token = max(token, o.token)
		}
	}
	return token
}

// grant gives a claim that a majority grants its token. The grant holds if that
// majority still stands when the token is known. The zero Grant: there is none.
func (s *session) grant(ctx context.Context, cl *claim, marks []mark) (engine.Grant, error) {
	s.mu.Lock()
	votes, n := s.votes(cl, s.base)
	token := s.shared(cl)
	s.mu.Unlock()
	if n < s.engine.quorum {
		return engine.Grant{}, nil
	}
	switch {
	case token != 0:
	case s.engine.opts.NoTokens:
		token = slices.Max(votes)
	default:
		var err error
		if token, err = s.mint(ctx, cl.Resource, votes, marks); err != nil {
			return engine.Grant{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, n = s.votes(cl, s.base)
	switch valid := s.base.Add(s.opts.TTL); {
	case s.life.Err() != nil || cl.left:
		return engine.Grant{}, fmt.Errorf("enter: %w", engine.ErrGone)
	case n < s.engine.quorum || !time.Now().Before(valid):
		return engine.Grant{}, engine.Unavailable("enter", errors.New("the majority was over before it was complete"))
	}
	cl.token = token
	return engine.Grant{Token: token}, nil
}
