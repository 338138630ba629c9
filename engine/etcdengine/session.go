package etcdengine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
)

type session struct {
	engine *Engine
	id     string
	lease  clientv3.LeaseID
	keys   string // what the keys of its claims are named after
	ttl    time.Duration

	mu     sync.Mutex
	places map[string]*place // by claim id, from Enter to Leave
	slots  int               // how many were ever in use at once
	free   []int             // those that are not now
}

func (s *session) ID() string { return s.id }

// take returns the place of a claim that enters. Its keys are named by lease
// and slot, not by claim, and used again: etcd remembers every key that it had
// until it is compacted, and a read of a range walks over all of them.
func (s *session) take(c *engine.Claim) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[c.ID]; p != nil {
		p.again, p.key, p.rev = true, "", 0
		return p
	}
	slot := s.slots
	if last := len(s.free) - 1; last >= 0 {
		slot, s.free = s.free[last], s.free[:last]
	} else {
		s.slots++
	}
	p := s.place(c, slot)
	s.places[c.ID] = p
	return p
}

// drop forgets a claim that is not in the store. The slot of one in doubt is
// never used again.
func (s *session) drop(claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[claim]; p != nil && !p.doubt {
		s.free = append(s.free, p.slot)
	}
	delete(s.places, claim)
}

// find returns a copy of the place of a claim, empty if it is not of this
// session. One that leaves twice at once is in doubt: its slot must not be
// used again before both requests are done.
func (s *session) find(claim string, leaves bool) place {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.places[claim]
	if p == nil {
		return place{}
	}
	p.doubt = p.doubt || leaves && p.leaves
	p.leaves = p.leaves || leaves
	return *p
}

// note writes down what was found of a claim.
func (s *session) note(p *place, key string, rev int64, blocker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.key, p.rev, p.blocker = key, rev, blocker
}

// doubt writes down that a request for a claim has an unknown outcome, unless
// the session has ended, which keeps everything out.
func (s *session) doubt(claim string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.places[claim]; p != nil && !errors.Is(err, engine.ErrGone) {
		p.doubt = true
	}
}

// Enter takes a resource that nobody claims. Where the order alone decides it
// appends the claim else, and looks what is ahead, in the same transaction;
// where not, it only looks.
func (s *session) Enter(ctx context.Context, c *engine.Claim, wait bool) (engine.Grant, error) {
	p := s.take(c)
	first, err := (&line{}).next(c, p, s.stored(c), wait)
	if err != nil {
		return engine.Grant{}, fmt.Errorf("enter: %w", err)
	}
	put, otherwise := s.ops(first, nil), p.view(c)
	if wait && !c.Barging && c.Owner == c.ID {
		otherwise = []clientv3.Op{clientv3.OpTxn(p.mayEnter(), append(put, otherwise...), nil)}
	}
	nobody := []clientv3.Cmp{absent(p.base).WithPrefix(), absent(p.tomb)}
	reply, err := s.engine.commit(ctx, "enter", nobody, put, otherwise)
	if err != nil {
		s.doubt(c.ID, err)
		return engine.Grant{}, err
	}
	if reply.Succeeded {
		s.note(p, first.key, reply.Header.Revision, "")
		return engine.Grant{Token: fence.Token(reply.Header.Revision)}, nil
	}
	grant, err := s.pursue(ctx, "enter", c, p, newLine(reply), wait)
	if err == nil && !grant.Held() && !wait { // it was asked again, and waits
		err = fmt.Errorf("enter: %w", engine.ErrBusy)
	}
	if errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrMismatch) {
		return engine.Grant{}, s.refuse(ctx, c, err)
	}
	return grant, err
}

// refuse makes sure that a claim that is refused is not stored. It may be if
// it was asked for before.
func (s *session) refuse(ctx context.Context, c *engine.Claim, refusal error) error {
	if s.find(c.ID, false).again {
		if err := s.Leave(ctx, c.Resource, c.ID); err != nil && !errors.Is(err, engine.ErrGone) {
			return err
		}
	}
	s.drop(c.ID)
	return refusal
}

// stored is what is to be stored of a claim.
func (s *session) stored(c *engine.Claim) claim {
	return claim{ID: c.ID, Owner: c.Owner, Session: s.id, Label: c.Label, Weight: c.Weight, Spec: c.Spec}
}

// ops does a move, of a claim that is stored already or not.
func (s *session) ops(m *move, own *claim) []clientv3.Op {
	if m.put.Owner == m.put.ID {
		m.put.Owner = "" // it is long
	}
	text, _ := json.Marshal(m.put) // strings, integers and booleans can be marshalled
	ops := []clientv3.Op{clientv3.OpPut(m.key, string(text), clientv3.WithLease(s.lease))}
	if own != nil && own.key != m.key {
		ops = append(ops, clientv3.OpDelete(own.key))
	}
	return ops
}

// pursue takes moves until the claim holds, waits, is refused or is no longer
// there.
func (s *session) pursue(ctx context.Context, doing string, c *engine.Claim, p *place, l *line, wait bool) (engine.Grant, error) {
	for range maxMoves {
		own := l.find(c.ID)
		if own == nil && p.rev != 0 {
			s.note(p, p.key, p.rev, "")
			return engine.Grant{}, nil
		}
		m, err := l.next(c, p, s.stored(c), wait)
		switch {
		case err != nil:
			return engine.Grant{}, fmt.Errorf("%s: %w", doing, err)
		case m == nil && own.holds:
			s.note(p, own.key, own.rev, "")
			return engine.Grant{Token: fence.Token(own.token())}, nil
		case own != nil:
			s.note(p, own.key, own.rev, l.blocker(c, p))
		}
		if m == nil {
			return engine.Grant{}, nil
		}
		reply, err := s.engine.commit(ctx, doing, m.guards, append(s.ops(m, own), p.view(c)...), p.fullView(c))
		if err != nil {
			s.doubt(c.ID, err)
			return engine.Grant{}, err
		}
		l = newLine(reply)
	}
	return engine.Grant{}, engine.Unavailable(doing, errors.New("others come all the time, or a key is in the way"))
}

// maxMoves bounds the attempts at moves whose guards fail.
const maxMoves = 1000

// Await implements [engine.Session].
func (s *session) Await(ctx context.Context, c *engine.Claim) (grant engine.Grant, err error) {
	s.mu.Lock()
	p := s.places[c.ID]
	s.mu.Unlock()
	for p != nil && p.blocker != "" {
		key, opts := p.blocker, []clientv3.OpOption{clientv3.WithFilterPut()}
		if strings.HasSuffix(key, "/") {
			opts = append(opts, clientv3.WithPrefix())
		}
		err := s.engine.watch(ctx, "await", s.ttl/3, key, func() (bool, error) {
			reply, err := s.engine.commit(ctx, "await", nil, p.view(c), nil)
			if err == nil {
				grant, err = s.pursue(ctx, "await", c, p, newLine(reply), true)
			}
			return grant.Held() || p.blocker != key, err
		}, opts...)
		if err != nil || grant.Held() {
			return grant, err
		}
	}
	return engine.Grant{}, fmt.Errorf("await: %w", engine.ErrGone)
}

// tombSeconds is how long a claim is kept out that left while an Enter of it
// had an unknown outcome: the request may still be on its way, say through a
// member that is stopped, and would come in after the claim had left.
const tombSeconds = 300

// Leave takes one round trip for a claim of this session, two for another's.
func (s *session) Leave(ctx context.Context, resource, claim string) error {
	p := s.find(claim, true)
	if p.doubt {
		return s.leaveInDoubt(ctx, claim, p)
	}
	if p.key != "" {
		reply, err := s.engine.kv.Delete(ctx, p.key)
		if err != nil {
			s.doubt(claim, err)
			return failed(ctx, "leave", err)
		}
		if reply.Deleted > 0 {
			s.drop(claim)
			return nil
		}
	}
	for { // it was evicted, or has another key by now, or never was of this session
		l, err := s.engine.read(ctx, "leave", resource)
		if err != nil {
			return err
		}
		own := l.find(claim)
		if own == nil {
			if p.key != "" { // else it may be about to come
				s.drop(claim)
			}
			return fmt.Errorf("leave: %w", engine.ErrGone)
		}
		has := []clientv3.Cmp{stands(own.key, own.rev)}
		reply, err := s.engine.commit(ctx, "leave", has, []clientv3.Op{clientv3.OpDelete(own.key)}, nil)
		if err != nil {
			return err
		}
		if reply.Succeeded {
			if p.key != "" {
				s.drop(claim)
			}
			return nil
		}
	}
}

// leaveInDoubt leaves wherever the claim may be, and keeps it out.
func (s *session) leaveInDoubt(ctx context.Context, claim string, p place) error {
	lease, err := s.engine.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: tombSeconds})
	if err != nil {
		return failed(ctx, "leave", err)
	}
	reply, err := s.engine.commit(ctx, "leave", nil, []clientv3.Op{
		clientv3.OpDelete(p.queue), clientv3.OpDelete(p.grants),
		clientv3.OpPut(p.tomb, "", clientv3.WithLease(clientv3.LeaseID(lease.ID))),
	}, nil)
	if err != nil {
		return err
	}
	s.drop(claim)
	for _, r := range reply.Responses {
		if r.GetResponseDeleteRange().GetDeleted() > 0 {
			return nil
		}
	}
	return fmt.Errorf("leave: %w", engine.ErrGone)
}

// Renew implements [engine.Session]. It looks for the claims too: a member
// that was leader may renew a lease that the others have revoked.
func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	if err := s.keepAlive(ctx); err != nil {
		return nil, err
	}
	var gone []*engine.Claim
	for some := range slices.Chunk(held, 100) {
		var ops []clientv3.Op
		for _, c := range some {
			ops = append(ops, clientv3.OpGet(cmp.Or(s.find(c.ID, false).key, s.engine.base("")), clientv3.WithCountOnly()))
		}
		reply, err := s.engine.commit(ctx, "renew session", nil, ops, nil)
		if err != nil {
			return nil, err
		}
		for i, r := range reply.Responses {
			if r.GetResponseRange().GetCount() == 0 {
				gone = append(gone, some[i])
			}
		}
	}
	return gone, nil
}

// keepAlive asks once, by a stream of its own, so that the next one may reach
// another member.
func (s *session) keepAlive(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.engine.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return failed(ctx, "renew session", err)
	}
	stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.lease)}) //nolint:errcheck // Recv tells why
	reply, err := stream.Recv()
	if err == nil && reply.TTL <= 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	if err != nil {
		return failed(ctx, "renew session", err)
	}
	return nil
}

// Close implements [engine.Session].
func (s *session) Close(ctx context.Context) error {
	_, err := s.engine.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(s.lease)})
	if err == nil || errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return failed(ctx, "close session", err)
}
