package etcdengine

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/pawl-go/pawl/engine"
)

// Renew implements [engine.Session]. Renew looks for the claims too: a member
// that was leader may renew a lease that the others have revoked. After a restore an earlier claim may
// have the key of a holder.
func (s *session) Renew(ctx context.Context, held []*engine.Claim) ([]*engine.Claim, error) {
	if err := s.keepAlive(ctx); err != nil {
		return nil, failed(ctx, "renew session", err)
	}
	keys, revs := make([]string, len(held)), make([]int64, len(held))
	for i, c := range held {
		p := s.find(c.ID, 0)
		keys[i], revs[i] = cmp.Or(p.key, s.engine.base("")), p.rev
	}
	all, err := s.engine.gets(ctx, "renew session", keys, clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	var gone []*engine.Claim
	for i, is := range all {
		if c := held[i]; len(is.Kvs) == 0 || revs[i] != 0 && is.Kvs[0].CreateRevision != revs[i] {
			gone = append(gone, c)
			if s.find(c.ID, 0).doubts == 0 { // else its Leave keeps late requests out
				s.drop(c.ID, 0)
			}
		}
	}
	s.tidy(ctx)
	return gone, nil
}

// tidy does the work that has time until the next renewal, which tries again where a member did
// not answer. The lease lives all the same.
func (s *session) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.TTL/10)
	defer cancel()
	if s.raze(ctx) == nil {
		s.findStrange(ctx) //nolint:errcheck // as above
	}
}

// keepAlive asks once, by a stream of its own, so that the next one may reach
// another member.
func (s *session) keepAlive(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.engine.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.lease)}) //nolint:errcheck // Recv tells why
	reply, err := stream.Recv()
	if err == nil && reply.TTL <= 0 {
		err = rpctypes.ErrLeaseNotFound
	}
	if err != nil {
		return err
	}
	if conn, ok := peer.FromContext(stream.Context()); ok {
		s.meets(conn)
	}
	return nil
}

// raze removes the tombs that keep nothing out any more, some thousand at most, so that they
// do not delay the next renewal.
func (s *session) raze(ctx context.Context) error {
	for range 20 {
		tombs := s.oldTombs()
		if len(tombs) == 0 {
			break
		}
		var ops []clientv3.Op
		for _, t := range tombs {
			ops = append(ops, clientv3.OpDelete(t.key))
		}
		if _, err := s.engine.txn(ctx, "renew session", nil, ops, nil); err != nil {
			s.mu.Lock()
			s.tombs = append(tombs, s.tombs...)
			s.mu.Unlock()
			return err
		}
	}
	return nil
}

// oldTombs takes as many as fit into a transaction.
func (s *session) oldTombs() []tomb {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := 0 // they are in order of time, or nearly
	for old < min(len(s.tombs), 100) && time.Since(s.tombs[old].since) > s.opts.TTL {
		old++
	}
	tombs := slices.Clone(s.tombs[:old])
	s.tombs = slices.Delete(s.tombs, 0, old)
	for _, t := range tombs {
		delete(s.buried, t.claim)
	}
	return tombs
}

// findStrange tells the client of claims that the lease has in the store and that nobody here
// knows. findStrange asks only when the cluster may have been restored since the last renewal.
func (s *session) findStrange(ctx context.Context) error {
	if s.opts.Found == nil || !s.strange.Load() {
		return nil
	}
	many := grpc.MaxCallRecvMsgSize(math.MaxInt32) // keys
	reply, err := s.engine.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(s.lease), Keys: true}, many)
	if err != nil {
		return failed(ctx, "renew session", err)
	}
	s.mu.Lock()
	known := make(map[string]bool)
	for _, p := range s.places {
		known[p.key] = p.rev != 0 // a claim that enters may want the key of a claim that came back
	}
	s.mu.Unlock()
	all := s.engine.prefix + "c/"
	var keys []string
	for _, key := range reply.Keys {
		if strings.HasPrefix(string(key), all) && !known[string(key)] {
			keys = append(keys, string(key))
		}
	}
	found, err := s.engine.gets(ctx, "renew session", keys)
	for _, is := range found {
		for _, kv := range is.Kvs {
			var c stored
			escaped, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), all), "/")
			name, bad := url.PathUnescape(escaped)
			if json.Unmarshal(kv.Value, &c) == nil && bad == nil {
				s.mu.Lock()
				delete(s.buried, c.ID) // an old snapshot has the claim, and no tomb
				s.mu.Unlock()
				s.opts.Found(name, c.ID)
			}
		}
	}
	s.strange.Store(err != nil)
	return err
}
