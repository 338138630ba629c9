package etcdengine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// lagging answers serializable reads as a member does that knows nothing after a revision; 0: as a member that knows all.
type lagging struct {
	rev  atomic.Int64
	read atomic.Int64 // how many such reads there were
}

func (l *lagging) client(t *testing.T) *clientv3.Client {
	client, _ := newClientOf(t, testservers.SharedEtcd(t).Addr, func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				rev, any := l.rev.Load(), false
				if txn, is := req.(*pb.TxnRequest); is && rev != 0 {
					for _, op := range txn.Success {
						if r := op.GetRequestRange(); r.GetSerializable() {
							r.Revision, any = rev, true
						}
					}
				}
				err := next(ctx, method, req, reply, cc, opts...)
				if any && err == nil {
					l.read.Add(1)
					reply.(*pb.TxnResponse).Header.Revision = rev
				}
				return err
			}))
	})
	return client
}

// TestShareWithALaggingMember: a claim that asks a member that lags behind still shares the largest token of its owner.
func TestShareWithALaggingMember(t *testing.T) {
	t.Parallel()
	var l lagging
	s := sessiontest.Open(t, New(l.client(t), nil), time.Minute)
	spec := engine.Spec{Kind: engine.KindSemaphore, Capacity: 3, Barging: true}
	held := sessiontest.Whole(t, spec)
	sessiontest.Hold(t, s, held)
	var claims []*engine.Claim
	for _, weight := range []int64{1, 2, 1} {
		c := sessiontest.Claim(t, spec, weight, "owner of "+t.Name())
		sessiontest.Wait(t, s, c)
		claims = append(claims, c)
	}
	sessiontest.Leave(t, s, held)
	small := sessiontest.Hold(t, s, claims[2])
	l.rev.Store(int64(small))
	large := sessiontest.Hold(t, s, claims[1])
	if shared := sessiontest.Hold(t, s, claims[0]); large <= small || shared != large {
		t.Errorf("beside the tokens %v and %v a claim has %v", small, large, shared)
	}
	if l.read.Load() == 0 {
		t.Error("no member was asked that lags behind")
	}
}
