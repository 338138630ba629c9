package zkengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/lines"
)

// put creates the node of a claim and writes the folder of its resource, if that has this version, in one step with others. put tells
// if nobody else is there. Versions of a folder that was made anew begin again. Then put fails, and the claim is in the queue.
func (s *session) put(ctx context.Context, p *place, how string, token int64, version int32, born int64, others ...any) (alone bool, err error) {
	node := &zk.CreateRequest{
		Path: fmt.Sprintf("%s/%s.%s.%s.", p.folder, p.name, how, number(token, 0, 10)), Data: p.data, Acl: s.engine.acl, Flags: zk.FlagEphemeralSequential,
	}
	write := &zk.SetDataRequest{Path: p.folder, Data: p.title, Version: version}
	replies, err := s.link.multi(ctx, append([]any{node, write}, others...)...)
	if err != nil {
		return false, err
	}
	is := replies[1].Stat
	if s.at(p, replies[0].String, is.Mzxid); born != 0 && born != is.Czxid {
		return false, zk.ErrBadVersion
	}
	return is.NumChildren == 1, nil
}

// queueUp appends the claim to the queue, and tells if nobody else is there:
// then it holds.
func (s *session) queueUp(ctx context.Context, p *place) (alone bool, err error) {
	for err == nil {
		if alone, err = s.put(ctx, p, inTurn, 0, -1, 0); err == nil {
			return alone, nil
		}
		if errors.Is(err, zk.ErrNoNode) {
			err = s.link.create(ctx, p.folder, p.title, zk.FlagContainer)
		}
	}
	return false, err
}

// pursue looks at the resource, and does what that allows, until the claim holds,
// waits, is refused or is no longer there. The first look may have been taken. Looks are fresh when the server has answered a sync or a
// write of this call, so that the server is not behind.
func (s *session) pursue(ctx context.Context, c *engine.Claim, p *place, l *line, wait, fresh bool) (grant engine.Grant, err error) {
	for ; ; l = nil {
		if l == nil {
			if l, err = s.link.read(ctx, p.folder); err != nil {
				return grant, err
			}
		}
		own := l.Find(p.hash)
		if own == nil && p.path != "" {
			s.waitFor(p, false, blocker{})
			return grant, nil
		}
		step, with, err := l.Next(c, hash(c.Owner), own, !p.waits, wait)
		switch {
		case err != nil && own == nil && !fresh: // a follower may be behind, so look again
			err = cmp.Or(s.link.sync(ctx), zk.ErrBadVersion)
		case err != nil:
			return grant, err
		case step == lines.Stay:
			grant, err = s.stay(ctx, c, p, l, own)
		case step == lines.Append:
			_, err = s.queueUp(ctx, p)
			err = cmp.Or(err, zk.ErrBadVersion)
		default:
			grant, err = s.move(ctx, c, p, l, own, with, step == lines.Share, fresh)
		}
		if !conflicts(err) {
			return grant, err
		}
		fresh = fresh || errors.Is(err, zk.ErrBadVersion) // the leader has answered
	}
}

// stay tells what the claim is where it is.
func (s *session) stay(ctx context.Context, c *engine.Claim, p *place, l *line, own *claim) (none engine.Grant, err error) {
	if own.Node.path != p.path {
		stat, err := s.link.stat(ctx, own.Node.path)
		if err != nil {
			return none, err
		}
		s.at(p, own.Node.path, stat.Czxid)
	}
	if !own.Holds {
		s.waitFor(p, true, l.Blocker(own))
		return none, nil
	}
	if own.InTurn && lines.Tells(own.Spec, own.Weight) && l.Behind(own) {
		if _, err := ask(ctx, s.link, func() (*zk.Stat, error) { return s.link.conn.Set(p.path, p.data, -1) }); err != nil {
			return none, err // the next waiter may not know that it is the next
		}
	}
	return s.grant(c, p, cmp.Or(own.Token, p.czxid), l.First(own)), nil
}

// move creates the node of a claim by which it holds, and compares that nobody came since. A claim that shares after a fresh look
// compares only that the other claim is there, because nobody's arrival shall keep the claim from that.
func (s *session) move(ctx context.Context, c *engine.Claim, p *place, l *line, own, with *claim, shares, fresh bool) (none engine.Grant, err error) {
	var others []any
	if with != nil {
		others = append(others, &zk.CheckVersionRequest{Path: with.Node.path, Version: -1})
	}
	if own != nil {
		others = append(others, &zk.DeleteRequest{Path: own.Node.path, Version: -1})
	}
	how, version, token := inTurn, l.version, int64(0)
	if c.Barging {
		how = outOfTurn + number(l.born, 0, 36)
	}
	if l.born == 0 {
		err = s.link.create(ctx, p.folder, p.title, zk.FlagContainer)
	}
	if shares {
		how = strconv.FormatInt(with.Node.place, 10)
		if fresh {
			version = -1
		}
		if err = s.share(p); err == nil {
			token, err = s.link.token(ctx, with)
		}
	}
	if shares && !c.Barging {
		others = append(others, &zk.CreateRequest{Path: p.folder + "/g/" + p.hash, Acl: s.engine.acl, Flags: zk.FlagEphemeral})
		if !l.hasG && err == nil {
			err = s.link.create(ctx, p.folder+"/g", nil, zk.FlagContainer)
		}
	}
	if err == nil {
		_, err = s.put(ctx, p, how, token, version, l.born, others...)
	}
	if err != nil {
		return none, err
	}
	return s.grant(c, p, cmp.Or(token, p.czxid), len(l.Claims) == 0), nil
}
