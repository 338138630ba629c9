package etcdengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

var ctx = context.Background()

// through has each request of a client go by a way of the test, which calls next to send the request.
func through(way func(ctx context.Context, req, reply any, next func(context.Context) error) error) func(*clientv3.Config) {
	return func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				return way(ctx, req, reply, func(ctx context.Context) error { return next(ctx, method, req, reply, cc, opts...) })
			}))
	}
}

// newClientOf returns a client that reconnects soon and counts its round trips
// to keys.
func newClientOf(t testing.TB, addr string, changes ...func(*clientv3.Config)) (*clientv3.Client, *atomic.Int64) {
	t.Helper()
	var trips atomic.Int64
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := next(ctx, method, req, reply, cc, opts...)
		if _, is := req.(*pb.TxnRequest); is {
			trips.Add(1)
		}
		return err
	}
	config := clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond},
				MinConnectTimeout: time.Second,
			}),
			grpc.WithChainUnaryInterceptor(count),
		},
	}
	for _, change := range changes {
		change(&config)
	}
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, &trips
}

func newClient(t testing.TB) *clientv3.Client {
	t.Helper()
	client, _ := newClientOf(t, testservers.SharedEtcd(t).Addr)
	return client
}

var fair, barging, five = sessiontest.Fair, sessiontest.Barging, sessiontest.Five

func TestWaitersComeInOrder(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		t.Run(fmt.Sprintf("barging=%v", spec.Barging), func(t *testing.T) {
			var sessions []engine.Session
			for range 4 {
				sessions = append(sessions, sessiontest.Open(t, New(newClient(t), nil), 10*time.Second))
			}
			holder := sessiontest.Whole(t, spec)
			last, before := sessiontest.Hold(t, sessions[0], holder), watchers(t, testservers.SharedEtcd(t))
			type turn struct {
				i     int
				token fence.Token
			}
			turns := make(chan turn, 1)
			var wg sync.WaitGroup
			for i := range 20 {
				s, c := sessions[i%4], sessiontest.Whole(t, spec)
				sessiontest.Wait(t, s, c)
				wg.Go(func() {
					token := sessiontest.Await(t, s, c)
					turns <- turn{i, token}
					sessiontest.Leave(t, s, c)
				})
			}
			sessiontest.Until(t, "all watch", func() bool { return watchers(t, testservers.SharedEtcd(t)) >= before+20 })
			sessiontest.Leave(t, sessions[0], holder)
			for i := range 20 {
				got := <-turns
				if got.i != i && !spec.Barging || got.token <= last {
					t.Errorf("turn %d: got %+v after token %v", i, got, last)
				}
				last = got.token
			}
			wg.Wait()
		})
	}
}

// A release wakes one of many waiters, which reads once. Entering and leaving take one round trip
// each, and entering to wait one more for a session that did not have to wait before.
func TestRoundTrips(t *testing.T) {
	client, trips := newClientOf(t, testservers.SharedEtcd(t).Addr)
	spent := func(what string, want int64, do func()) {
		t.Helper()
		before := trips.Load()
		do()
		if got := trips.Load() - before; got != want {
			t.Errorf("%s: %d round trips, want %d", what, got, want)
		}
	}
	s := sessiontest.Open(t, New(client, nil), time.Minute)
	for _, spec := range []engine.Spec{fair, barging} {
		free := sessiontest.Whole(t, spec)
		spent("enter", 1, func() { sessiontest.Hold(t, s, free) })
		spent("try in vain", 1, func() { sessiontest.Refuse(t, s, sessiontest.Whole(t, spec), false, engine.ErrBusy) })
		spent("leave", 1, func() { sessiontest.Leave(t, s, free) })
		owned := sessiontest.Claim(t, spec, spec.Capacity, "owner")
		spent("enter for an owner", 1, func() { sessiontest.Hold(t, s, owned) })
		spent("re-enter and leave", 3, func() { sessiontest.Leave(t, s, mustShare(t, s, owned)) })
		sessiontest.Leave(t, s, owned)
	}
	holder := sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, holder)
	before := watchers(t, testservers.SharedEtcd(t))
	waiting, cancel := context.WithCancel(ctx)
	first := make(chan error, 1)
	var wg sync.WaitGroup
	var queue []*engine.Claim
	for i := range int64(50) {
		queue = append(queue, sessiontest.Whole(t, fair))
		spent("enter to wait", max(1, 2-i), func() { sessiontest.Wait(t, s, queue[len(queue)-1]) })
	}
	entered := trips.Load()
	for i, c := range queue {
		wg.Go(func() {
			_, err := s.Await(waiting, c)
			if i == 0 {
				first <- err
			}
		})
	}
	sessiontest.Until(t, "all watch, and have looked once since", func() bool {
		return watchers(t, testservers.SharedEtcd(t)) >= before+50 && trips.Load() >= entered+50
	})
	spent("hand over", 2, func() { // to leave, and to read
		sessiontest.Leave(t, s, holder)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
	cancel()
	wg.Wait()
}

func mustShare(t testing.TB, s engine.Session, owned *engine.Claim) *engine.Claim {
	t.Helper()
	again := sessiontest.Claim(t, owned.Spec, 1, owned.Owner)
	sessiontest.Hold(t, s, again)
	return again
}

func TestSemaphoreKeepsOrderByWeight(t *testing.T) {
	s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
	a, b, c, d := sessiontest.Claim(t, five, 3, ""), sessiontest.Claim(t, five, 2, ""), sessiontest.Claim(t, five, 4, ""), sessiontest.Claim(t, five, 1, "")
	sessiontest.Hold(t, s, a)
	sessiontest.Hold(t, s, b)
	sessiontest.Refuse(t, s, sessiontest.Claim(t, five, 1, ""), false, engine.ErrBusy)
	sessiontest.Wait(t, s, c)
	sessiontest.Wait(t, s, d)
	sessiontest.Leave(t, s, b) // 3 of 5 held: c does not fit, d must not pass
	sessiontest.Refuse(t, s, sessiontest.Claim(t, five, 1, ""), false, engine.ErrBusy)
	sessiontest.Leave(t, s, a)
	sessiontest.Await(t, s, c)
	sessiontest.Await(t, s, d)
}

func TestReadersAndWriters(t *testing.T) {
	s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
	r1, r2, w, r3, r4 := sessiontest.Claim(t, fair, 1, ""), sessiontest.Claim(t, fair, 1, ""), sessiontest.Whole(t, fair), sessiontest.Claim(t, fair, 1, ""), sessiontest.Claim(t, fair, 1, "")
	sessiontest.Hold(t, s, r1)
	sessiontest.Hold(t, s, r2)
	sessiontest.Wait(t, s, w)
	sessiontest.Wait(t, s, r3)
	sessiontest.Wait(t, s, r4)
	sessiontest.Leave(t, s, r1)
	sessiontest.Leave(t, s, r2)
	token := sessiontest.Await(t, s, w)
	sessiontest.Leave(t, s, w)
	if sessiontest.Await(t, s, r3) <= token || sessiontest.Await(t, s, r4) <= token {
		t.Error("a later grant has no larger token")
	}
}

func TestReentry(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		s, other := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second), sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
		a := sessiontest.Claim(t, spec, spec.Capacity, "owner")
		token := sessiontest.Hold(t, s, a)
		w := sessiontest.Whole(t, spec)
		sessiontest.Wait(t, other, w)
		b := sessiontest.Claim(t, spec, spec.Capacity, "owner")
		if again := sessiontest.Hold(t, s, b); again != token {
			t.Errorf("re-entry: token %v, want %v", again, token)
		}
		sessiontest.Leave(t, s, a) // the original goes first
		c := sessiontest.Claim(t, spec, 1, "owner")
		if again := sessiontest.Hold(t, s, c); again != token {
			t.Errorf("re-entry to a re-entry: token %v, want %v", again, token)
		}
		sessiontest.Leave(t, s, b)
		sessiontest.Refuse(t, other, sessiontest.Whole(t, spec), false, engine.ErrBusy)
		if gone, err := s.Renew(ctx, []*engine.Claim{c}); err != nil || len(gone) > 0 {
			t.Errorf("renew: %v, %v", gone, err)
		}
		sessiontest.Leave(t, s, c)
		if sessiontest.Await(t, other, w) <= token {
			t.Error("a later grant has no larger token")
		}
		sessiontest.Leave(t, other, w)
	}
}

// Two claims of one owner that queue one after the other share a grant.
func TestReentryByTurn(t *testing.T) {
	s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
	holder, a, b := sessiontest.Whole(t, fair), sessiontest.Claim(t, fair, fair.Capacity, "owner"), sessiontest.Claim(t, fair, fair.Capacity, "owner")
	sessiontest.Hold(t, s, holder)
	sessiontest.Wait(t, s, a)
	sessiontest.Wait(t, s, b)
	sessiontest.Leave(t, s, holder)
	token := sessiontest.Await(t, s, a)
	if again := sessiontest.Await(t, s, b); again != token {
		t.Errorf("token %v, want %v", again, token)
	}
	sessiontest.Leave(t, s, a)
	if again := sessiontest.Hold(t, s, b); again != token { // asked again
		t.Errorf("token %v after the first left, want %v", again, token)
	}
}

func TestUpgradeAndDowngrade(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
		r, w := sessiontest.Claim(t, spec, 1, "a"), sessiontest.Claim(t, spec, spec.Capacity, "a")
		reading := sessiontest.Hold(t, s, r)
		rival := sessiontest.Claim(t, spec, 1, "b")
		sessiontest.Hold(t, s, rival)
		sessiontest.Refuse(t, s, w, true, engine.ErrBusy) // at once, or two would wait for each other
		sessiontest.Leave(t, s, rival)
		writing := sessiontest.Hold(t, s, w)
		if writing <= reading {
			t.Errorf("upgrade: token %v after %v", writing, reading)
		}
		sessiontest.Refuse(t, s, sessiontest.Claim(t, spec, 1, "b"), false, engine.ErrBusy)
		waiting := sessiontest.Claim(t, spec, 1, "b")
		sessiontest.Wait(t, s, waiting)
		sessiontest.Leave(t, s, w) // the downgrade lets readers in
		if sessiontest.Await(t, s, waiting) <= writing {
			t.Error("a later grant has no larger token")
		}
		sessiontest.Leave(t, s, waiting)
		sessiontest.Leave(t, s, r)
	}
}

// A waiter has its token already: an upgrade must not get a larger token first.
func TestNoUpgradePastWaiting(t *testing.T) {
	s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
	r, w := sessiontest.Claim(t, fair, 1, "a"), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, r)
	sessiontest.Wait(t, s, w)
	sessiontest.Refuse(t, s, sessiontest.Claim(t, fair, fair.Capacity, "a"), true, engine.ErrBusy)
}

func TestBarging(t *testing.T) {
	s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
	holder, waiting := sessiontest.Whole(t, barging), sessiontest.Whole(t, barging)
	sessiontest.Hold(t, s, holder)
	sessiontest.Wait(t, s, waiting)
	sessiontest.Leave(t, s, holder)
	barger := sessiontest.Whole(t, barging)
	sessiontest.Hold(t, s, barger) // overtakes
	time.AfterFunc(50*time.Millisecond, func() { sessiontest.Leave(t, s, barger) })
	sessiontest.Await(t, s, waiting)
	sessiontest.Leave(t, s, waiting)
}

func TestMismatch(t *testing.T) {
	s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
	for _, is := range []engine.Spec{fair, barging, five} {
		holder := sessiontest.Claim(t, is, 1, "")
		sessiontest.Hold(t, s, holder)
		others := []engine.Spec{fair, barging, five, {Kind: engine.KindSemaphore, Capacity: 6}, {Kind: engine.KindSemaphore, Capacity: 5, Barging: true}}
		for _, want := range others {
			if want == is {
				continue
			}
			for _, owner := range []string{"", "owner"} {
				sessiontest.Refuse(t, s, sessiontest.Claim(t, want, 1, owner), true, engine.ErrMismatch)
				sessiontest.Refuse(t, s, sessiontest.Claim(t, want, 1, owner), false, engine.ErrMismatch)
			}
		}
		if r, err := New(newClient(t), nil).Show(ctx, holder.Resource); err != nil || len(r.Claims) != 1 || r.Spec != is {
			t.Errorf("show: %+v, %v", r, err)
		}
		sessiontest.Leave(t, s, holder)
	}
}

func TestEnterAgainCountsOnce(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		s := sessiontest.Open(t, New(newClient(t), nil), 10*time.Second)
		c, w, last := sessiontest.Whole(t, spec), sessiontest.Whole(t, spec), sessiontest.Whole(t, spec)
		token := sessiontest.Hold(t, s, c)
		sessiontest.Wait(t, s, w)
		sessiontest.Wait(t, s, last)
		sessiontest.Wait(t, s, w) // not because of itself, nor of the one behind
		if again := sessiontest.Hold(t, s, c); again != token {
			t.Errorf("asked again: token %v, want %v", again, token)
		}
		sessiontest.Refuse(t, s, w, false, engine.ErrBusy) // and it is not stored
		sessiontest.Refuse(t, s, w, false, engine.ErrBusy)
		sessiontest.Leave(t, s, c)
		sessiontest.Await(t, s, last)
		sessiontest.Leave(t, s, last)
		if err := s.Leave(ctx, c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
			t.Errorf("left again: %v", err)
		}
	}
}

func TestEviction(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		e := New(newClient(t), nil)
		s := sessiontest.Open(t, e, time.Minute)
		held, kept, waits := sessiontest.Claim(t, spec, 1, ""), sessiontest.Claim(t, spec, 1, ""), sessiontest.Whole(t, spec)
		sessiontest.Hold(t, s, held)
		sessiontest.Hold(t, s, kept)
		sessiontest.Wait(t, s, waits)
		sessiontest.Evict(t, e, held)
		gone, err := s.Renew(ctx, []*engine.Claim{held, kept})
		if err != nil || len(gone) != 1 || gone[0] != held {
			t.Errorf("renew: %v, %v; want %v", gone, err, held)
		}
		sessiontest.Evict(t, e, waits)
		if _, err := s.Await(sessiontest.Soon(t), waits); !errors.Is(err, engine.ErrGone) {
			t.Errorf("await: %v", err)
		}
		if err := e.Evict(ctx, held.Resource, held.ID); !errors.Is(err, engine.ErrGone) {
			t.Errorf("evicted again: %v", err)
		}
		sessiontest.Leave(t, s, kept)
		if n := len(s.(*session).places); n != 1 { // a holder that is told does not leave
			t.Errorf("%d claims are remembered, want that which was evicted while it waited", n)
		}
	}
}

// A heartbeat that carries more claims than etcd takes in one transaction.
func TestRenewOfMany(t *testing.T) {
	s := sessiontest.Open(t, New(newClient(t), nil), time.Minute)
	var held []*engine.Claim
	for i := range 250 {
		c := sessiontest.Claim(t, engine.Spec{Kind: engine.KindSemaphore, Capacity: 250}, 1, "")
		c.Resource += fmt.Sprint("/", i/125)
		sessiontest.Hold(t, s, c)
		held = append(held, c)
	}
	evicted := []*engine.Claim{held[0], held[99], held[100], held[249]}
	for _, c := range evicted {
		sessiontest.Evict(t, New(newClient(t), nil), c)
	}
	if gone, err := s.Renew(ctx, held); err != nil || !slices.Equal(gone, evicted) {
		t.Errorf("renew: %v, %v", gone, err)
	}
}

func TestEndOfASession(t *testing.T) {
	client := newClient(t)
	e := New(client, nil)
	s, other := sessiontest.Open(t, e, 3*time.Second), sessiontest.Open(t, e, 10*time.Second)
	held, waits, next := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	sessiontest.Wait(t, s, waits)
	sessiontest.Wait(t, other, next)
	if _, err := client.Revoke(ctx, s.(*session).lease); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, other, next)
	if _, err := s.Await(sessiontest.Soon(t), waits); !errors.Is(err, engine.ErrGone) {
		t.Errorf("await: %v", err)
	}
	if _, err := s.Renew(ctx, []*engine.Claim{held}); !errors.Is(err, engine.ErrGone) {
		t.Errorf("renew: %v", err)
	}
	sessiontest.Refuse(t, s, sessiontest.Whole(t, fair), true, engine.ErrGone)
	sessiontest.Refuse(t, s, sessiontest.Claim(t, five, 1, ""), true, engine.ErrMismatch) // found first
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestSessionExpires(t *testing.T) {
	e := New(newClient(t), nil)
	if _, err := e.Open(ctx, engine.SessionOptions{TTL: 999 * time.Millisecond}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("open: %v", err)
	}
	s, other := sessiontest.Open(t, e, time.Second), sessiontest.Open(t, e, 10*time.Second)
	held, next := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	sessiontest.Wait(t, other, next)
	if _, err := s.Renew(ctx, nil); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	sessiontest.Await(t, other, next)
	if took := time.Since(start); took < time.Second || took > 3*time.Second {
		t.Errorf("the claim of a session of 1s was free after %v", took)
	}
}
