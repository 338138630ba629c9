package zkengine

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// turn is a claim that looks at its resource and does what that allows.
type turn struct {
	session *session
	doing   string
	c       *engine.Claim
	p       *place
	wait    bool
	enters  bool // it is refused if it would have to wait and does not want to
	news    bool // that it has to wait was not found before: it may re-enter past those that wait, or be refused
	fresh   bool // what it reads cannot be older than its beginning
}

// pursue takes moves until the claim holds, waits, is refused or is no longer
// there.
func (t *turn) pursue(ctx context.Context, l *line) (engine.Grant, error) {
	for range tries {
		own := l.find(t.p.hash)
		if own == nil && t.p.path != "" {
			t.session.waitFor(t.p, false, blocker{})
			return engine.Grant{}, nil
		}
		m, err := t.next(l, own)
		if err != nil && own == nil && !t.fresh { // a follower may be behind
			if err := t.session.link.sync(ctx, t.doing); err != nil {
				return engine.Grant{}, err
			}
			t.fresh = true
			if l, err = t.session.link.read(ctx, t.doing, t.p.folder); err != nil {
				return engine.Grant{}, err
			}
			continue
		}
		if err != nil {
			return engine.Grant{}, fmt.Errorf("%s: %w", t.doing, err)
		}
		var grant engine.Grant
		if m == nil {
			grant, err = t.found(ctx, l, own)
		} else {
			grant, err = t.do(ctx, l, own, m)
		}
		if !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNodeExists) {
			return grant, err
		}
		if l, err = t.session.link.read(ctx, t.doing, t.p.folder); err != nil {
			return engine.Grant{}, err
		}
	}
	return engine.Grant{}, engine.Unavailable(t.doing, errors.New("others come all the time"))
}

// move is a step that a claim may take if what it read still holds.
type move struct {
	inG    bool   // it goes under g, else it is appended to the queue
	with   *claim // that has to stand still
	shares bool   // it shares the grant of that claim
	holds  bool   // it holds then
}

// next decides, as package queue does, what a claim does about the line that it
// read: nothing more (nil), or a move.
func (t *turn) next(l *line, own *claim) (*move, error) {
	c, owner := t.c, hash(t.c.Owner)
	with, held := l.Held(owner)
	if own == nil && len(l.claims) > 0 && l.Spec != c.Spec || own != nil && t.news && l.Spec != c.Spec {
		return nil, queue.Mismatch(l.Spec, c.Spec)
	}
	if own == nil {
		l.Spec = c.Spec
	}
	switch {
	case own != nil && own.holds && own.shares != nil:
		return &move{inG: true, with: own.shares, shares: true, holds: true}, nil
	case own != nil && own.holds:
		return nil, nil
	case (t.news || c.Barging) && held >= c.Weight:
		return &move{inG: true, with: with, shares: true, holds: true}, nil
	case c.Barging && l.Fits(owner, c.Weight):
		return &move{inG: true, with: with, holds: true}, nil
	case own == nil && !l.Waits && l.Fits(owner, c.Weight):
		return &move{with: with, holds: true}, nil
	case t.news && with != nil, t.enters && !t.wait:
		return nil, engine.ErrBusy
	case own == nil:
		return &move{}, nil
	}
	return nil, nil
}

// found tells what the claim is, where it stays where it is.
func (t *turn) found(ctx context.Context, l *line, own *claim) (engine.Grant, error) {
	s, p := t.session, t.p
	if own.path != p.path {
		s.at(p, own.path, 0)
	}
	if p.czxid == 0 {
		if err := s.link.age(ctx, t.doing, own); err != nil {
			return engine.Grant{}, err
		}
		s.at(p, own.path, own.czxid)
	}
	if !own.holds {
		s.waitFor(p, true, l.blocker(own))
		return engine.Grant{}, nil
	}
	own.czxid = p.czxid
	return s.grant(t.c, p, own.grant(), own == l.claims[0]), nil
}

// do takes a move. What the decision rests on and could change meanwhile is
// compared: who shares needs the claim that it shares with, and all others that
// nobody came since. (That somebody went can only help.)
func (t *turn) do(ctx context.Context, l *line, own *claim, m *move) (engine.Grant, error) {
	s, p := t.session, t.p
	folder, token := p.folder, int64(0)
	if m.shares {
		if m.with.token == 0 && m.with.czxid == 0 {
			stat, err := s.link.exists(ctx, t.doing, m.with.path)
			if err != nil {
				return engine.Grant{}, err
			}
			m.with.czxid = stat.Czxid
		}
		token = m.with.grant()
	}
	if l.missing {
		if err := s.link.create(ctx, t.doing, p.folder, zk.FlagContainer); err != nil {
			return engine.Grant{}, err
		}
	}
	if m.inG {
		folder += "/g"
		if !l.hasG {
			if err := s.link.create(ctx, t.doing, folder, zk.FlagContainer); err != nil {
				return engine.Grant{}, err
			}
		}
	}
	guard := &zk.SetDataRequest{Path: p.folder, Version: l.version}
	if m.shares {
		guard.Version = -1
	}
	ops := []any{guard, s.node(folder, p, token)}
	if m.with != nil {
		ops = append(ops, &zk.CheckVersionRequest{Path: m.with.path, Version: -1})
	}
	if own != nil {
		ops = append(ops, &zk.DeleteRequest{Path: own.path, Version: -1})
	}
	replies, err := s.link.multi(ctx, t.doing, ops...)
	if err != nil {
		return engine.Grant{}, err
	}
	s.at(p, replies[1].String, replies[0].Stat.Mzxid)
	switch {
	case m.shares:
		return s.grant(t.c, p, token, false), nil
	case m.holds:
		return s.grant(t.c, p, p.czxid, len(l.claims) == 0), nil
	}
	// What was read is what is ahead.
	last := &claim{id: p.hash, owner: hash(t.c.Owner), weight: t.c.Weight, spec: t.c.Spec, inTurn: true, path: p.path}
	l.claims = append(l.claims, last)
	s.waitFor(p, true, l.blocker(last))
	return engine.Grant{}, nil
}
