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

// lagging answers as a member that lags behind.
type lagging struct {
	rev  atomic.Int64 // the last that a serializable read sees; 0: the last of all
	from atomic.Int64 // where a watch begins; 0: after the last of all
	read atomic.Int64 // how many such reads there were
}

// watching is a stream of watches from such a member. Each event comes when the member knows nothing after that event.
type watching struct {
	grpc.ClientStream
	*lagging
}

func (w watching) SendMsg(m any) error {
	if r, is := m.(*pb.WatchRequest); is && r.GetCreateRequest() != nil {
		r.GetCreateRequest().StartRevision = w.from.Load()
	}
	return w.ClientStream.SendMsg(m)
}

func (w watching) RecvMsg(m any) error {
	err := w.ClientStream.RecvMsg(m)
	if r, is := m.(*pb.WatchResponse); err == nil && is && len(r.Events) > 0 {
		r.Header.Revision = r.Events[len(r.Events)-1].Kv.ModRevision
	}
	return err
}

func (l *lagging) client(t *testing.T) *clientv3.Client {
	reads := through(func(ctx context.Context, req, reply any, next func(context.Context) error) error {
		rev, lags := l.rev.Load(), false
		if txn, is := req.(*pb.TxnRequest); is && rev != 0 {
			for _, op := range txn.Success {
				if r := op.GetRequestRange(); r.GetSerializable() {
					r.Revision, lags = rev, true
				}
			}
		}
		err := next(ctx)
		if lags && err == nil {
			l.read.Add(1)
			reply.(*pb.TxnResponse).Header.Revision = rev
		}
		return err
	})
	client, _ := newClientOf(t, testservers.SharedEtcd(t).Addr, reads, func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := next(ctx, desc, cc, method, opts...)
				return watching{stream, l}, err
			}))
	})
	return client
}

// TestWaiterMeetsALaggingMember: an event may be older than the claim that waits. A member that knows the event, and not
// the claim, does not tell that the claim is gone.
func TestWaiterMeetsALaggingMember(t *testing.T) {
	t.Parallel()
	var l lagging
	s := sessiontest.Open(t, New(l.client(t), nil), time.Minute)
	var claims []*engine.Claim
	for range 4 {
		claims = append(claims, sessiontest.Claim(t, two, 1, ""))
	}
	first, second, third, waits := claims[0], claims[1], claims[2], claims[3]
	sessiontest.Hold(t, s, first)
	before := sessiontest.Hold(t, s, second)
	sessiontest.Leave(t, s, first)
	after := sessiontest.Hold(t, s, third)
	sessiontest.Wait(t, s, waits)
	l.from.Store(int64(before) + 1)
	l.rev.Store(int64(after) - 1)
	got := sessiontest.Awaiting(t, s, waits)
	sessiontest.Until(t, "the member tells what it knows", func() bool { return l.read.Load() > 0 })
	sessiontest.Leave(t, s, second)
	sessiontest.Granted(t, got)
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
