package etcdengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// many is how many wait.
func many() int {
	if os.Getenv("PAWL_TEST_SOAK") != "" {
		return 5000
	}
	return 500
}

var two = engine.Spec{Kind: engine.KindSemaphore, Capacity: 2}

// crowd has n claims wait, one after the other, and awaits them all.
func crowd(t *testing.T, server *testservers.Server, s engine.Session, trips *atomic.Int64, spec engine.Spec, n int) (claims []*engine.Claim, got []<-chan sessiontest.Answer) {
	t.Helper()
	weight := spec.Capacity
	if spec.Kind == engine.KindSemaphore {
		weight = 1
	}
	waiting, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	for range n {
		c, answer := sessiontest.Claim(t, spec, weight, ""), make(chan sessiontest.Answer, 1)
		sessiontest.Wait(t, s, c)
		all.Go(func() {
			g, err := s.Await(waiting, c)
			answer <- sessiontest.Answer{Grant: g, Err: err}
		})
		claims, got = append(claims, c), append(got, answer)
	}
	sessiontest.Until(t, "all watch", func() bool { return watchers(t, server) >= n })
	quiet(t, trips)
	return claims, got
}

// quiet waits until nobody asks any more, and returns how many requests there were.
func quiet(t *testing.T, trips *atomic.Int64) (n int64) {
	t.Helper()
	sessiontest.Until(t, "they have looked", func() bool {
		before := n
		n = trips.Load()
		return before == n
	})
	return n
}

// TestIdleWaitersAskTogether: what a hundred idle waiters cost is a few reads for all.
func TestIdleWaitersAskTogether(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging, two} {
		t.Run(fmt.Sprint(spec), func(t *testing.T) {
			t.Parallel()
			server := testservers.Etcd(t)
			client, trips := newClientOf(t, server.Addr)
			s, err := New(client, nil).Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Minute, Heartbeat: time.Second, Label: t.Name()})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(ctx) //nolint:errcheck // the server is the test's own
			held := sessiontest.Whole(t, spec)
			sessiontest.Hold(t, s, held)
			crowd(t, server, s, trips, spec, 100)
			before, beats := trips.Load(), int64(0)
			beat := time.NewTicker(time.Second)
			defer beat.Stop()
			for ; beats < 4; <-beat.C {
				if gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held}); err != nil || len(gone) > 0 {
					t.Fatal(gone, err)
				}
				beats++
			}
			if asked := trips.Load() - before; asked > 6*(beats+1) {
				t.Errorf("%d requests in %d heartbeats", asked, beats)
			}
		})
	}
}

// TestHandOverUnderManyWaiters: a release takes as many requests with many waiters as
// with few.
func TestHandOverUnderManyWaiters(t *testing.T) {
	const rounds = 20
	for _, spec := range []engine.Spec{fair, barging, two} {
		cost := make(map[int]float64)
		for _, n := range []int{10 + rounds, many()} {
			t.Run(fmt.Sprint(spec, n), func(t *testing.T) {
				server := testservers.Etcd(t)
				client, trips := newClientOf(t, server.Addr)
				s, held := sessiontest.Open(t, New(client, nil), 10*time.Minute), sessiontest.Whole(t, spec)
				sessiontest.Hold(t, s, held)
				claims, got := crowd(t, server, s, trips, spec, n)
				before := trips.Load()
				for i := range rounds {
					sessiontest.Leave(t, s, held)
					held = claims[i]
					sessiontest.Granted(t, got[i])
				}
				cost[n] = float64(trips.Load()-before) / rounds
			})
		}
		t.Logf("%v: requests of a hand-over by waiters: %v", spec, cost)
		if few, more := cost[10+rounds], cost[many()]; few > 8 || more > 2*few+1 {
			t.Errorf("%v: requests of a hand-over by waiters: %v", spec, cost)
		}
	}
}

// TestPermitsArePassedOn: of a semaphore only the next waiter watches the holders. In whatever
// order claims leave, all that fit hold in the end, and no mark stays.
func TestPermitsArePassedOn(t *testing.T) {
	client, _ := newClientOf(t, testservers.SharedEtcd(t).Addr)
	e := New(client, &Options{Prefix: "permits/"})
	spec := engine.Spec{Kind: engine.KindSemaphore, Capacity: 3}
	var sessions []engine.Session
	for range 3 {
		sessions = append(sessions, sessiontest.Open(t, e, time.Minute))
	}
	for round := range 10 {
		first := sessiontest.Whole(t, spec)
		sessiontest.Hold(t, sessions[0], first)
		var claims []*engine.Claim
		var got []<-chan sessiontest.Answer
		for i := range 9 {
			c := sessiontest.Claim(t, spec, 1+int64((i*round)%3)/2, "")
			s := sessions[i%3]
			sessiontest.Wait(t, s, c)
			claims, got = append(claims, c), append(got, sessiontest.Awaiting(t, s, c))
		}
		gives := (round + 1) % 9
		sessiontest.Leave(t, sessions[gives%3], claims[gives])
		sessiontest.Leave(t, sessions[1], first)
		for i, c := range claims {
			if i != gives {
				sessiontest.Granted(t, got[i])
				sessiontest.Leave(t, sessions[(i+round)%3], c)
			}
		}
	}
	all, err := client.Get(ctx, "permits/w/", clientv3.WithPrefix())
	if err != nil || all.Count != 0 {
		t.Errorf("marks stay: %v, %v", all, err)
	}
}

// TestFullStoreTakesReleases: at the quota etcd takes deletions only. Any holder may leave, also
// after a request that was sent twice, and the next waiters hold.
func TestFullStoreTakesReleases(t *testing.T) {
	server := testservers.Etcd(t, "--quota-backend-bytes", "16777216")
	client, _ := newClientOf(t, server.Addr)
	e := New(client, nil)
	s := sessiontest.Open(t, e, time.Minute)
	var held, waiting []*engine.Claim
	var got []<-chan sessiontest.Answer
	for i, spec := range []engine.Spec{fair, fair, two} {
		h, w := sessiontest.Whole(t, spec), sessiontest.Claim(t, spec, (spec.Capacity+1)/2, "")
		h.Resource = fmt.Sprint(i)
		w.Resource = h.Resource
		if i == 1 { // asked twice
			enterInDoubt(s, h)
		}
		sessiontest.Hold(t, s, h)
		sessiontest.Wait(t, s, w)
		held, waiting, got = append(held, h), append(waiting, w), append(got, sessiontest.Awaiting(t, s, w))
	}
	for i := 0; ; i++ {
		if _, err := client.Put(ctx, fmt.Sprint("fill", i), strings.Repeat("x", 1<<20)); errors.Is(err, rpctypes.ErrNoSpace) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for i := range held {
		sessiontest.Leave(t, s, held[i])
		sessiontest.Granted(t, got[i])
		if gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{waiting[i]}); err != nil || len(gone) > 0 {
			t.Errorf("renew: %v, %v", gone, err)
		}
		sessiontest.Leave(t, s, waiting[i])
	}
	if _, err := s.Enter(sessiontest.Soon(t), held[0], true); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "space") {
		t.Errorf("enter: %v", err)
	}
	if err := s.Close(sessiontest.Soon(t)); err != nil {
		t.Error(err)
	}
}

// keysRead counts the keys in the replies to the requests of a client.
func keysRead(n *atomic.Int64) func(*clientv3.Config) {
	return through(func(ctx context.Context, _, reply any, next func(context.Context) error) error {
		err := next(ctx)
		if txn, ok := reply.(*pb.TxnResponse); ok {
			for _, r := range txn.Responses {
				n.Add(int64(len(r.GetResponseRange().GetKvs())))
			}
		}
		return err
	})
}

// TestEnterAgainAfterTrouble: after an outage each waiter enters again. That reads a few keys of each, however many wait.
// A claim that is gone by then enters anew.
func TestEnterAgainAfterTrouble(t *testing.T) {
	const n = 50
	for _, spec := range []engine.Spec{fair, barging, two} {
		t.Run(fmt.Sprint(spec), func(t *testing.T) {
			t.Parallel()
			var read atomic.Int64
			client, trips := newClientOf(t, testservers.SharedEtcd(t).Addr, keysRead(&read))
			e := New(client, nil)
			s, held := sessiontest.Open(t, e, time.Minute), sessiontest.Whole(t, spec)
			sessiontest.Hold(t, s, held)
			var waiting []*engine.Claim
			for range n {
				c := sessiontest.Claim(t, spec, (spec.Capacity+1)/2, "")
				sessiontest.Wait(t, s, c)
				waiting = append(waiting, c)
			}
			read.Store(0)
			before := trips.Load()
			for _, c := range waiting {
				sessiontest.Wait(t, s, c)
			}
			if read.Load() > 4*n || trips.Load()-before > 2*n {
				t.Errorf("%d waiters read %d keys in %d requests", n, read.Load(), trips.Load()-before)
			}
			sessiontest.Evict(t, e, waiting[0])
			sessiontest.Wait(t, s, waiting[0])
			got, last := sessiontest.Awaiting(t, s, waiting[1]), sessiontest.Awaiting(t, s, waiting[0])
			sessiontest.Leave(t, s, held)
			sessiontest.Granted(t, got)
			for _, c := range waiting[1:] {
				sessiontest.Leave(t, s, c)
			}
			sessiontest.Granted(t, last)
		})
	}
}

// TestLeaveOfTheBuried: a claim whose Enter was given up is left again with each heartbeat, which takes no more requests.
func TestLeaveOfTheBuried(t *testing.T) {
	client, trips := newClientOf(t, testservers.SharedEtcd(t).Addr)
	s, c := sessiontest.Open(t, New(client, nil), time.Minute), sessiontest.Whole(t, fair)
	enterInDoubt(s, c)
	sessiontest.Hold(t, s, c)
	sessiontest.Leave(t, s, c)
	before := trips.Load()
	for range 3 {
		if err := s.Leave(ctx, c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
			t.Error(err)
		}
	}
	if asked := trips.Load() - before; asked > 0 {
		t.Errorf("%d requests", asked)
	}
}

// enterInDoubt gives up a request to enter, which never arrives.
func enterInDoubt(s engine.Session, c *engine.Claim) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	s.Enter(ended, c, true) //nolint:errcheck // it is given up
}

// TestTombsGo: what keeps a late request out is removed when none can come any more.
func TestTombsGo(t *testing.T) {
	server := testservers.Etcd(t)
	client, _ := newClientOf(t, server.Addr)
	s := sessiontest.Open(t, New(client, nil), 5*time.Second).(*session)
	for range 250 {
		c := sessiontest.Whole(t, fair)
		s.take(c)
		if err := s.Leave(ctx, c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
			t.Fatal(err)
		}
	}
	count := func() int64 {
		all, err := client.Get(ctx, "pawl/x/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return all.Count
	}
	if n := count(); n != 250 {
		t.Errorf("%d tombs", n)
	}
	sessiontest.Until(t, "they are removed", func() bool {
		if _, err := s.Renew(ctx, nil); err != nil {
			t.Fatal(err)
		}
		return count() == 0
	})
	if len(s.tombs)+len(s.buried) > 0 {
		t.Errorf("%d tombs are remembered, and %d claims", len(s.tombs), len(s.buried))
	}
}

// TestOtherFormat: open, put, show and evict refuse a store of another format, also a store that was used before there
// were marks of the format.
func TestOtherFormat(t *testing.T) {
	client := newClient(t)
	for i, how := range []struct{ key, value, names string }{
		{"format", "77", "format 77"}, {"c/x/1.false.lock/q/1.0", "{}", "format 1 "}, {"v/x", "x", "format 1 "},
	} {
		prefix := fmt.Sprintf("formats/%d/", i)
		if _, err := client.Put(ctx, prefix+how.key, how.value); err != nil {
			t.Fatal(err)
		}
		e := New(client, &Options{Prefix: prefix})
		_, err := e.Open(ctx, engine.SessionOptions{TTL: time.Minute})
		_, putErr := e.Put(ctx, "y", []byte("y"), 0)
		_, showErr := e.Show(ctx, "x")
		evictErr := e.Evict(ctx, "x", "claim")
		for _, err := range []error{err, putErr, showErr, evictErr} {
			if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), how.names) || !strings.Contains(err.Error(), "format "+engine.Format()) {
				t.Errorf("%s: %v", how.key, err)
			}
		}
	}
	ours := New(client, &Options{Prefix: "formats/ours/"})
	sessiontest.Hold(t, sessiontest.Open(t, ours, time.Minute), sessiontest.Whole(t, fair))
	sessiontest.Open(t, ours, time.Minute)
}

// TestTimeLeft: etcd tells how long a session has left, in seconds.
func TestTimeLeft(t *testing.T) {
	e := New(newClient(t), nil)
	s, c := sessiontest.Open(t, e, time.Minute), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, c)
	r, err := e.Show(sessiontest.Soon(t), c.Resource)
	if err != nil || r.Claims[0].Left > time.Minute || r.Claims[0].Left < 50*time.Second || r.Claims[0].Held >= 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestHeartbeatBesideManyRequests: requests that are not answered yet are so few that a
// heartbeat is not late.
func TestHeartbeatBesideManyRequests(t *testing.T) {
	var under, most atomic.Int64
	client, _ := newClientOf(t, testservers.SharedEtcd(t).Addr, through(func(ctx context.Context, _, _ any, next func(context.Context) error) error {
		n := under.Add(1)
		defer under.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		return next(ctx)
	}))
	e := New(client, nil)
	s := sessiontest.Open(t, e, time.Minute)
	asking, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for range 2000 {
		all.Go(func() {
			for asking.Err() == nil {
				e.Get(asking, "x") //nolint:errcheck // only that it is asked counts
			}
		})
	}
	for range 5 {
		if _, err := s.Renew(sessiontest.Soon(t), nil); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	all.Wait()
	if most.Load() > inFlight+1 || most.Load() < 2 {
		t.Errorf("%d requests were under way at once", most.Load())
	}
}

// TestKeysOfALeaseAreMany: the keys of a session are more than gRPC lets a message have by
// itself, 4 MiB.
func TestKeysOfALeaseAreMany(t *testing.T) {
	client, _ := newClientOf(t, testservers.Etcd(t).Addr)
	opened, err := New(client, nil).Open(ctx, engine.SessionOptions{TTL: time.Minute, Found: func(string, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	s := opened.(*session)
	s.strange.Store(true)
	long := strings.Repeat("x", 1000)
	for i := range 50 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprint("elsewhere/", i, "/", j, long), "", clientv3.WithLease(s.lease)))
		}
		if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.findStrange(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Close(sessiontest.Soon(t)); err != nil {
		t.Error(err)
	}
}
