package etcdengine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/turn"
)

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (grant engine.Grant, err error) {
	s.mu.Lock()
	p := s.places[c.ID]
	s.mu.Unlock()
	if p == nil {
		return grant, fmt.Errorf("await: %w", engine.ErrGone)
	}
	woken, done := s.waits(p)
	defer done()
	for p.rev != 0 {
		was, opts := p.blocker, []clientv3.OpOption{clientv3.WithFilterPut()}
		if was.key == "" { // it holds, and was asked for again
			was.key = p.dir
		}
		if was.rev == 0 {
			opts = append(opts, clientv3.WithPrefix())
		}
		err := s.engine.watch(ctx, "await", s.opts.Heartbeat, woken, was.key, func(ctx context.Context, event int64) (bool, error) {
			l, err := s.look(ctx, c, p, event)
			if l != nil {
				grant, err = s.pursue(ctx, "await", c, p, l, true)
			}
			return grant.Held() || p.blocker != was, err
		}, opts...)
		if err != nil || grant.Held() {
			return grant, err
		}
	}
	return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
}

// look reads what a waiting claim has to know; nothing while it and what blocks it are as they
// were. After an event any member may answer that knows of the event and of the claim, without
// asking the others. The event may be the older of both, as a watch of a member that lags behind
// begins at its own revision. A claim that was ahead and has gone does not come back.
func (s *session) look(ctx context.Context, c *engine.Claim, p *place, event int64) (*line, error) {
	if event > 0 {
		reply, err := s.engine.commit(ctx, "await", nil, p.view(c, clientv3.WithSerializable()), nil)
		if err != nil {
			return nil, err
		}
		if reply.Header.Revision >= max(event, p.rev) {
			return newLine(reply), nil
		}
	}
	then, otherwise, same := p.view(c), []clientv3.Op(nil), []clientv3.Cmp(nil)
	if p.blocker.rev != 0 && event == 0 {
		then, otherwise = nil, then
		same = []clientv3.Cmp{stands(p.key, p.rev), stands(p.blocker.key, p.blocker.rev)}
	}
	reply, err := s.engine.commit(ctx, "await", same, then, otherwise)
	if err != nil || then == nil && reply.Succeeded {
		return nil, err
	}
	return newLine(reply), nil
}

// waits notes that a claim waits, until it is done. The first of a session begins to
// look for all of them.
func (s *session) waits(p *place) (woken <-chan struct{}, done func()) {
	wake := make(turn.Bell, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[p] = wake; len(s.waiting) == 1 {
		looking, rest := context.WithCancel(context.Background())
		s.rest = rest
		go s.lookOut(looking)
	}
	return wake, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.waiting, p); len(s.waiting) == 0 {
			s.rest()
		}
	}
}

// lookOut asks once a heartbeat whether all waiting claims, and the keys that they wait for, are
// as they were. A member may hang that watches for us. A claim that finds something else looks by
// itself.
func (s *session) lookOut(ctx context.Context) {
	for turn.Pause(ctx, s.opts.Heartbeat) == nil {
		if revs, err := s.revisions(ctx); err == nil { // else the next time, or the renewal, will do
			s.wake(revs)
		}
	}
}

// revisions returns the create revisions of the keys of all waiters and of the keys that they
// wait for, each read once.
func (s *session) revisions(ctx context.Context) (map[string]int64, error) {
	revs := make(map[string]int64)
	s.mu.Lock()
	for p := range s.waiting {
		revs[p.key] = 0
		if p.blocker.rev != 0 {
			revs[p.blocker.key] = 0
		}
	}
	s.mu.Unlock()
	keys := slices.Collect(maps.Keys(revs))
	all, err := s.engine.gets(ctx, "await", keys, clientv3.WithKeysOnly())
	for i, is := range all {
		if len(is.Kvs) > 0 {
			revs[keys[i]] = is.Kvs[0].CreateRevision
		}
	}
	return revs, err
}

// wake wakes the waiters for something else than these revisions, and the next waiter.
func (s *session) wake(revs map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, woken := range s.waiting {
		if revs[p.key] == p.rev && p.blocker.rev != 0 && revs[p.blocker.key] == p.blocker.rev {
			continue
		}
		woken.Ring()
	}
}
