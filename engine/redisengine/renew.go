package redisengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// belief is the longest time for which an open session of the engine may believe in a grant.
func (e *Engine) belief() (longest time.Duration) {
	for s := range e.opened.Range {
		longest = max(longest, s.(*session).opts.Belief())
	}
	return longest
}

// begin begins the life of the session.
func (s *session) begin(ctx context.Context) error {
	e := s.engine
	if e.cluster {
		if err := e.refuseEviction(ctx); err != nil {
			return err
		}
		if err := e.mark(ctx, s.opts.TTL+markStays); err != nil {
			return err
		}
		return e.ackedNow(ctx, command("SET", s.key, "1", "PX", ms(s.opts.TTL)), e.wait).failed()
	}
	belief := s.opts.Belief()
	if e.graceTTL > 0 && e.graceTTL < belief {
		return fmt.Errorf("%w: a grace of %v does not cover this client, which may trust a lock for %v: set 0, or at least that",
			engine.ErrUnsupported, e.graceTTL, belief)
	}
	if belief > 0 {
		belief = max(belief, e.belief())
	}
	result := e.ackedNow(ctx, e.checking(belief, s.id, s.opts.TTL, false), e.wait)
	return cmp.Or(e.checked(result), result.short)
}

// Renew implements [engine.Session].
func (s *session) Renew(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	renew := s.renewHere
	if s.engine.cluster {
		renew = s.renewInCluster
	}
	gone, err = renew(ctx, held)
	if errors.Is(err, engine.ErrGone) {
		return nil, fmt.Errorf("renew session: %w", err)
	}
	if err != nil && s.engine.stuck != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.engine.stuck()
	}
	if err != nil {
		return nil, unchecked(ctx, "renew session", err)
	}
	return gone, nil
}

// renewHere renews a session of a single server.
func (s *session) renewHere(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	for range 4 {
		now := s.engine.life.Load()
		gone, err = s.renew(ctx, held, now)
		if errors.Is(err, errAnotherLife) {
			if unchecked := s.engine.check(ctx); unchecked != nil {
				return nil, unchecked
			}
			continue
		}
		if err == nil {
			s.reconcile(ctx, held, gone, now.mark)
			for _, c := range gone {
				s.known.leaves(c.Resource, s.opts.TTL)
			}
			s.watch(held)
		}
		break
	}
	return gone, err
}

// errAnotherLife says that the database has another mark, or does not know the script,
// as after a restart.
var errAnotherLife = errors.New("the server was restarted or forgot its keys, again and again")

// perRenewal is how many claims one script looks at. The number is bounded because nobody else is served
// meanwhile.
const perRenewal = 100

// renew proves that the session lives, and looks at its claims. Each time that it keeps their keys from
// expiring, it also tells the server for how long a client may believe. The server remembers that for
// several such times, so a note that does not arrive matters not.
func (s *session) renew(ctx context.Context, held []*engine.Claim, now *life) (gone []*engine.Claim, err error) {
	start, e, kept := time.Now(), s.engine, "0"
	s.known.mu.Lock()
	if start.Sub(s.known.touched) > keep(s.opts.TTL)/8 {
		kept, s.known.touched = s.keep, start
	}
	s.known.mu.Unlock()
	var cmds []Command
	for i := 0; i == 0 || i < len(held); i += perRenewal {
		part := held[i:min(i+perRenewal, len(held))]
		k := append(make([]string, 0, 3+2*len(part)), e.sessions, s.key, now.key)
		a := append(make([]string, 0, 4+len(part)), s.id, ms(s.opts.TTL), flag(i == 0), kept)
		for _, c := range part {
			k, a = append(k, e.keys(c.Resource, "")[:2]...), append(a, c.ID)
		}
		cmds = append(cmds, e.renew.run(k, a...))
	}
	// Replicas have to know the first command, and a server that does not know the script
	// may be another.
	first := e.ackedNow(ctx, cmds[0], e.wait)
	if first.says("NOSCRIPT") {
		return nil, cmp.Or(e.load(ctx), errAnotherLife)
	}
	if first.short != nil && first.Err == nil {
		return nil, first.short
	}
	replies := []Reply{first}
	if len(cmds) > 1 && first.Err == nil {
		replies = append(replies, e.client.Pipeline(ctx, cmds[1:])...)
	}
	for i, reply := range replies {
		list, err := reply.list()
		switch {
		case err != nil:
			return nil, err
		case list[0] == int64(-4):
			return nil, errAnotherLife
		case list[0] == int64(-1):
			return nil, engine.ErrGone
		}
		for _, at := range list[1:] {
			n, _ := at.(int64)
			gone = append(gone, held[i*perRenewal+int(n)-1])
		}
	}
	if kept != "0" && s.opts.Belief() > 0 {
		e.check(ctx) //nolint:errcheck // see above
	}
	return gone, nil
}

// missing returns those claims that are not granted in the store.
func (s *session) missing(ctx context.Context, held []*engine.Claim) (gone []*engine.Claim, err error) {
	look := func(c *engine.Claim) []string { return s.arguments([4]string{c.ID, s.keep, "", "0"}, "", "") }
	polls, now := make([]Command, len(held)), s.engine.life.Load()
	for i, c := range held {
		polls[i] = now.scripts[poll].run(s.engine.keys(c.Resource, ""), look(c)...)
	}
	for i, result := range s.engine.client.Pipeline(ctx, polls) {
		c := held[i]
		if result.says("TRYAGAIN") {
			continue // its keys are about to move, so nobody can change anything there
		}
		if result.says("NOSCRIPT") {
			result = s.engine.run(ctx, poll, s.engine.keys(c.Resource, ""), look(c), 0)
		}
		if result.says("WRONGTYPE") { // somebody put something else there
			result = Reply{Value: int64(-1)}
		}
		token, err := result.number()
		if err != nil {
			return nil, err
		}
		if token < 0 {
			s.left(c.Resource, c.ID)
			gone = append(gone, c)
		}
	}
	return gone, nil
}
