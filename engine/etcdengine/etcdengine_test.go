package etcdengine

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

var ctx = context.Background()

// newClientOf returns a client that reconnects soon and counts its round trips
// to keys.
func newClientOf(t testing.TB, addr string) (*clientv3.Client, *atomic.Int64) {
	t.Helper()
	var trips atomic.Int64
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		switch req.(type) {
		case *pb.TxnRequest, *pb.DeleteRangeRequest:
			trips.Add(1)
		}
		return next(ctx, method, req, reply, cc, opts...)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond},
				MinConnectTimeout: time.Second,
			}),
			grpc.WithChainUnaryInterceptor(count),
		},
	})
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

func open(t testing.TB, e *Engine, ttl time.Duration) engine.Session {
	t.Helper()
	s, err := e.Open(ctx, engine.SessionOptions{TTL: ttl, Label: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(ctx) })
	return s
}

// soon bounds what should happen at once.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var ids atomic.Int64

func claim1(t testing.TB, spec engine.Spec, weight int64, owner string) *engine.Claim {
	id := fmt.Sprintf("%s/%d", t.Name(), ids.Add(1))
	if owner == "" {
		owner = id
	}
	return &engine.Claim{Spec: spec, Resource: "test/" + t.Name(), ID: id, Owner: owner, Weight: weight, Label: "label of " + id}
}

var (
	fair    = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity}
	barging = engine.Spec{Kind: engine.KindLock, Capacity: engine.LockCapacity, Barging: true}
	five    = engine.Spec{Kind: engine.KindSemaphore, Capacity: 5}
)

const all = engine.LockCapacity

func mustHold(t testing.TB, s engine.Session, c *engine.Claim) fence.Token {
	t.Helper()
	grant, err := s.Enter(soon(t), c, true)
	if err != nil || !grant.Held() {
		t.Fatalf("enter %s: got %v, %v; want a grant", c.ID, grant, err)
	}
	return grant.Token
}

func mustWait(t testing.TB, s engine.Session, c *engine.Claim) {
	t.Helper()
	if grant, err := s.Enter(soon(t), c, true); err != nil || grant.Held() {
		t.Fatalf("enter %s: got %v, %v; want to wait", c.ID, grant, err)
	}
}

func mustFail(t testing.TB, s engine.Session, c *engine.Claim, wait bool, want error) {
	t.Helper()
	if grant, err := s.Enter(soon(t), c, wait); !errors.Is(err, want) {
		t.Fatalf("enter %s: got %v, %v; want %v", c.ID, grant, err, want)
	}
}

func mustAwait(t testing.TB, s engine.Session, c *engine.Claim) fence.Token {
	t.Helper()
	grant, err := s.Await(soon(t), c)
	if err != nil || !grant.Held() {
		t.Fatalf("await %s: got %v, %v; want a grant", c.ID, grant, err)
	}
	return grant.Token
}

func mustLeave(t testing.TB, s engine.Session, c *engine.Claim) {
	t.Helper()
	if err := s.Leave(soon(t), c.Resource, c.ID); err != nil {
		t.Fatalf("leave %s: %v", c.ID, err)
	}
}

func TestWaitersComeInOrder(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		t.Run(fmt.Sprintf("barging=%v", spec.Barging), func(t *testing.T) {
			var sessions []engine.Session
			for range 4 {
				sessions = append(sessions, open(t, New(newClient(t), nil), 10*time.Second))
			}
			holder := claim1(t, spec, all, "")
			last, before := mustHold(t, sessions[0], holder), watchers(t)
			type turn struct {
				i     int
				token fence.Token
			}
			turns := make(chan turn, 1)
			var wg sync.WaitGroup
			for i := range 20 {
				s, c := sessions[i%4], claim1(t, spec, all, "")
				mustWait(t, s, c)
				wg.Go(func() {
					token := mustAwait(t, s, c)
					turns <- turn{i, token}
					mustLeave(t, s, c)
				})
			}
			until(t, "all watch", func() bool { return watchers(t) >= before+20 })
			mustLeave(t, sessions[0], holder)
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

// A release wakes one of many, who reads once. Entering and leaving take one
// round trip each, and entering to wait one more for a session that did not
// have to wait before.
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
	s := open(t, New(client, nil), time.Minute)
	for _, spec := range []engine.Spec{fair, barging} {
		free := claim1(t, spec, all, "")
		spent("enter", 1, func() { mustHold(t, s, free) })
		spent("try in vain", 1, func() { mustFail(t, s, claim1(t, spec, all, ""), false, engine.ErrBusy) })
		spent("leave", 1, func() { mustLeave(t, s, free) })
		owned := claim1(t, spec, all, "owner")
		spent("enter for an owner", 1, func() { mustHold(t, s, owned) })
		spent("re-enter and leave", 3, func() { mustLeave(t, s, mustShare(t, s, owned)) })
		mustLeave(t, s, owned)
	}
	holder := claim1(t, fair, all, "")
	mustHold(t, s, holder)
	before := watchers(t)
	waiting, cancel := context.WithCancel(ctx)
	first := make(chan error, 1)
	var wg sync.WaitGroup
	var queue []*engine.Claim
	for i := range int64(50) {
		queue = append(queue, claim1(t, fair, all, ""))
		spent("enter to wait", max(1, 2-i), func() { mustWait(t, s, queue[len(queue)-1]) })
	}
	for i, c := range queue {
		wg.Go(func() {
			_, err := s.Await(waiting, c)
			if i == 0 {
				first <- err
			}
		})
	}
	until(t, "all watch", func() bool { return watchers(t) >= before+50 })
	spent("hand over", 2, func() { // to leave, and to read
		mustLeave(t, s, holder)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
	cancel()
	wg.Wait()
}

func mustShare(t testing.TB, s engine.Session, owned *engine.Claim) *engine.Claim {
	t.Helper()
	again := claim1(t, owned.Spec, 1, owned.Owner)
	mustHold(t, s, again)
	return again
}

func TestSemaphoreKeepsOrderByWeight(t *testing.T) {
	s := open(t, New(newClient(t), nil), 10*time.Second)
	a, b, c, d := claim1(t, five, 3, ""), claim1(t, five, 2, ""), claim1(t, five, 4, ""), claim1(t, five, 1, "")
	mustHold(t, s, a)
	mustHold(t, s, b)
	mustFail(t, s, claim1(t, five, 1, ""), false, engine.ErrBusy)
	mustWait(t, s, c)
	mustWait(t, s, d)
	mustLeave(t, s, b) // 3 of 5 held: c does not fit, d must not pass
	mustFail(t, s, claim1(t, five, 1, ""), false, engine.ErrBusy)
	mustLeave(t, s, a)
	mustAwait(t, s, c)
	mustAwait(t, s, d)
}

func TestReadersAndWriters(t *testing.T) {
	s := open(t, New(newClient(t), nil), 10*time.Second)
	r1, r2, w, r3, r4 := claim1(t, fair, 1, ""), claim1(t, fair, 1, ""), claim1(t, fair, all, ""), claim1(t, fair, 1, ""), claim1(t, fair, 1, "")
	mustHold(t, s, r1)
	mustHold(t, s, r2)
	mustWait(t, s, w)
	mustWait(t, s, r3)
	mustWait(t, s, r4)
	mustLeave(t, s, r1)
	mustLeave(t, s, r2)
	token := mustAwait(t, s, w)
	mustLeave(t, s, w)
	if mustAwait(t, s, r3) <= token || mustAwait(t, s, r4) <= token {
		t.Error("a later grant has no larger token")
	}
}

func TestReentry(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		s, other := open(t, New(newClient(t), nil), 10*time.Second), open(t, New(newClient(t), nil), 10*time.Second)
		a := claim1(t, spec, all, "owner")
		token := mustHold(t, s, a)
		w := claim1(t, spec, all, "")
		mustWait(t, other, w)
		b := claim1(t, spec, all, "owner")
		if again := mustHold(t, s, b); again != token {
			t.Errorf("re-entry: token %v, want %v", again, token)
		}
		mustLeave(t, s, a) // the original goes first
		c := claim1(t, spec, 1, "owner")
		if again := mustHold(t, s, c); again != token {
			t.Errorf("re-entry to a re-entry: token %v, want %v", again, token)
		}
		mustLeave(t, s, b)
		mustFail(t, other, claim1(t, spec, all, ""), false, engine.ErrBusy)
		if gone, err := s.Renew(ctx, []*engine.Claim{c}); err != nil || len(gone) > 0 {
			t.Errorf("renew: %v, %v", gone, err)
		}
		mustLeave(t, s, c)
		if mustAwait(t, other, w) <= token {
			t.Error("a later grant has no larger token")
		}
		mustLeave(t, other, w)
	}
}

// Two claims of one owner that queue one after the other share a grant.
func TestReentryByTurn(t *testing.T) {
	s := open(t, New(newClient(t), nil), 10*time.Second)
	holder, a, b := claim1(t, fair, all, ""), claim1(t, fair, all, "owner"), claim1(t, fair, all, "owner")
	mustHold(t, s, holder)
	mustWait(t, s, a)
	mustWait(t, s, b)
	mustLeave(t, s, holder)
	token := mustAwait(t, s, a)
	if again := mustAwait(t, s, b); again != token {
		t.Errorf("token %v, want %v", again, token)
	}
	mustLeave(t, s, a)
	if again := mustHold(t, s, b); again != token { // asked again
		t.Errorf("token %v after the first left, want %v", again, token)
	}
}

func TestUpgradeAndDowngrade(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		s := open(t, New(newClient(t), nil), 10*time.Second)
		r, w := claim1(t, spec, 1, "a"), claim1(t, spec, all, "a")
		reading := mustHold(t, s, r)
		rival := claim1(t, spec, 1, "b")
		mustHold(t, s, rival)
		mustFail(t, s, w, true, engine.ErrBusy) // at once, or two would wait for each other
		mustLeave(t, s, rival)
		writing := mustHold(t, s, w)
		if writing <= reading {
			t.Errorf("upgrade: token %v after %v", writing, reading)
		}
		mustFail(t, s, claim1(t, spec, 1, "b"), false, engine.ErrBusy)
		waiting := claim1(t, spec, 1, "b")
		mustWait(t, s, waiting)
		mustLeave(t, s, w) // the downgrade lets readers in
		if mustAwait(t, s, waiting) <= writing {
			t.Error("a later grant has no larger token")
		}
		mustLeave(t, s, waiting)
		mustLeave(t, s, r)
	}
}

// Who waits has its token already: an upgrade must not get a larger one first.
func TestNoUpgradePastWaiting(t *testing.T) {
	s := open(t, New(newClient(t), nil), 10*time.Second)
	r, w := claim1(t, fair, 1, "a"), claim1(t, fair, all, "")
	mustHold(t, s, r)
	mustWait(t, s, w)
	mustFail(t, s, claim1(t, fair, all, "a"), true, engine.ErrBusy)
}

func TestBarging(t *testing.T) {
	s := open(t, New(newClient(t), nil), 10*time.Second)
	holder, waiting := claim1(t, barging, all, ""), claim1(t, barging, all, "")
	mustHold(t, s, holder)
	mustWait(t, s, waiting)
	mustLeave(t, s, holder)
	barger := claim1(t, barging, all, "")
	mustHold(t, s, barger) // overtakes
	time.AfterFunc(50*time.Millisecond, func() { mustLeave(t, s, barger) })
	mustAwait(t, s, waiting)
	mustLeave(t, s, waiting)
}

func TestMismatch(t *testing.T) {
	s := open(t, New(newClient(t), nil), 10*time.Second)
	for _, is := range []engine.Spec{fair, barging, five} {
		holder := claim1(t, is, 1, "")
		mustHold(t, s, holder)
		others := []engine.Spec{fair, barging, five, {Kind: engine.KindSemaphore, Capacity: 6}, {Kind: engine.KindSemaphore, Capacity: 5, Barging: true}}
		for _, want := range others {
			if want == is {
				continue
			}
			for _, owner := range []string{"", "owner"} {
				mustFail(t, s, claim1(t, want, 1, owner), true, engine.ErrMismatch)
				mustFail(t, s, claim1(t, want, 1, owner), false, engine.ErrMismatch)
			}
		}
		if r, err := New(newClient(t), nil).Show(ctx, holder.Resource); err != nil || len(r.Claims) != 1 || r.Spec != is {
			t.Errorf("show: %+v, %v", r, err)
		}
		mustLeave(t, s, holder)
	}
}

func TestEnterAgainCountsOnce(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		s := open(t, New(newClient(t), nil), 10*time.Second)
		c, w, last := claim1(t, spec, all, ""), claim1(t, spec, all, ""), claim1(t, spec, all, "")
		token := mustHold(t, s, c)
		mustWait(t, s, w)
		mustWait(t, s, last)
		mustWait(t, s, w) // not because of itself, nor of the one behind
		if again := mustHold(t, s, c); again != token {
			t.Errorf("asked again: token %v, want %v", again, token)
		}
		mustFail(t, s, w, false, engine.ErrBusy) // and it is not stored
		mustFail(t, s, w, false, engine.ErrBusy)
		mustLeave(t, s, c)
		mustAwait(t, s, last)
		mustLeave(t, s, last)
		if err := s.Leave(ctx, c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
			t.Errorf("left again: %v", err)
		}
	}
}

func TestEviction(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		e := New(newClient(t), nil)
		s, operator := open(t, e, 3*time.Second), open(t, e, 10*time.Second)
		held, kept, waits := claim1(t, spec, 1, ""), claim1(t, spec, 1, ""), claim1(t, spec, all, "")
		mustHold(t, s, held)
		mustHold(t, s, kept)
		mustWait(t, s, waits)
		mustLeave(t, operator, held)
		gone, err := s.Renew(ctx, []*engine.Claim{held, kept})
		if err != nil || len(gone) != 1 || gone[0] != held {
			t.Errorf("renew: %v, %v; want %v", gone, err, held)
		}
		mustLeave(t, operator, waits)
		if _, err := s.Await(soon(t), waits); !errors.Is(err, engine.ErrGone) {
			t.Errorf("await: %v", err)
		}
		if err := operator.Leave(ctx, held.Resource, held.ID); !errors.Is(err, engine.ErrGone) {
			t.Errorf("evicted again: %v", err)
		}
		mustLeave(t, s, kept)
	}
}

func TestEndOfASession(t *testing.T) {
	client := newClient(t)
	e := New(client, nil)
	s, other := open(t, e, 3*time.Second), open(t, e, 10*time.Second)
	held, waits, next := claim1(t, fair, all, ""), claim1(t, fair, all, ""), claim1(t, fair, all, "")
	mustHold(t, s, held)
	mustWait(t, s, waits)
	mustWait(t, other, next)
	if _, err := client.Revoke(ctx, s.(*session).lease); err != nil {
		t.Fatal(err)
	}
	mustAwait(t, other, next)
	if _, err := s.Await(soon(t), waits); !errors.Is(err, engine.ErrGone) {
		t.Errorf("await: %v", err)
	}
	if _, err := s.Renew(ctx, []*engine.Claim{held}); !errors.Is(err, engine.ErrGone) {
		t.Errorf("renew: %v", err)
	}
	mustFail(t, s, claim1(t, fair, all, ""), true, engine.ErrGone)
	mustFail(t, s, claim1(t, five, 1, ""), true, engine.ErrMismatch) // found first
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestSessionExpires(t *testing.T) {
	e := New(newClient(t), nil)
	if _, err := e.Open(ctx, engine.SessionOptions{TTL: 999 * time.Millisecond}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("open: %v", err)
	}
	s, other := open(t, e, time.Second), open(t, e, 10*time.Second)
	held, next := claim1(t, fair, all, ""), claim1(t, fair, all, "")
	mustHold(t, s, held)
	mustWait(t, other, next)
	if _, err := s.Renew(ctx, nil); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	mustAwait(t, other, next)
	if took := time.Since(start); took < time.Second || took > 3*time.Second {
		t.Errorf("the claim of a session of 1s was free after %v", took)
	}
}
