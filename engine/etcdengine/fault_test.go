package etcdengine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestRace lets many clients at once do everything, and checks that what holds
// fits in the capacity and that tokens grow.
func TestRace(t *testing.T) {
	specs := []engine.Spec{fair, barging, five, {Kind: engine.KindSemaphore, Capacity: 5, Barging: true}}
	for _, spec := range specs {
		t.Run(fmt.Sprintf("%s %v", spec.Kind, spec.Barging), func(t *testing.T) {
			var held atomic.Int64
			var last atomic.Uint64 // token of the last exclusive grant
			var grants atomic.Int64
			deadline := time.Now().Add(time.Minute)
			var wg sync.WaitGroup
			for range 3 {
				s := sessiontest.Open(t, New(newClient(t), nil), 2*time.Minute)
				for range 4 {
					wg.Go(func() {
						for grants.Load() < 300 && time.Now().Before(deadline) {
							race(t, s, spec, &held, &last, &grants)
						}
					})
				}
			}
			wg.Wait()
			if n := grants.Load(); n < 300 {
				t.Errorf("only %d grants: nothing is proven", n)
			}
		})
	}
}

func race(t *testing.T, s engine.Session, spec engine.Spec, held *atomic.Int64, last *atomic.Uint64, grants *atomic.Int64) {
	weight := 1 + rand.Int64N(min(spec.Capacity, 5))
	if spec.Kind == engine.KindLock && rand.IntN(2) == 0 {
		weight = spec.Capacity
	}
	c := sessiontest.Claim(t, spec, weight, fmt.Sprintf("owner %d", rand.Int64()))
	if rand.IntN(2) == 0 {
		c.Owner = c.ID
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	if rand.IntN(4) == 0 { // give up at a bad time
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
	}
	defer cancel()
	grant, err := s.Enter(ctx, c, rand.IntN(4) > 0)
	if err == nil && !grant.Held() {
		grant, err = s.Await(ctx, c)
	}
	switch {
	case err == nil:
		grants.Add(1)
		holding(t, s, c, grant.Token, held, last)
	case errors.Is(err, engine.ErrBusy):
		return
	case !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		t.Errorf("%s: %v", c.ID, err)
	}
	if err := s.Leave(sessiontest.Soon(t), c.Resource, c.ID); err != nil && !errors.Is(err, engine.ErrGone) {
		t.Errorf("leave: %v", err)
	}
}

func holding(t *testing.T, s engine.Session, c *engine.Claim, token fence.Token, held *atomic.Int64, last *atomic.Uint64) {
	if n := held.Add(c.Weight); n > c.Capacity {
		t.Errorf("%d held of %d", n, c.Capacity)
	}
	if c.Weight == c.Capacity && last.Swap(uint64(token)) >= uint64(token) {
		t.Errorf("token %v after a larger one", token)
	}
	if c.Owner != c.ID && rand.IntN(3) == 0 {
		again := sessiontest.Claim(t, c.Spec, 1, c.Owner)
		if got := sessiontest.Hold(t, s, again); got != token {
			t.Errorf("re-entry: token %v, want %v", got, token)
		}
		defer sessiontest.Leave(t, s, again)
	}
	if gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{c}); err != nil || len(gone) > 0 {
		t.Errorf("renew: %v, %v", gone, err)
	}
	held.Add(-c.Weight)
}

func TestServerIsDown(t *testing.T) {
	server := testservers.Etcd(t)
	client, _ := newClientOf(t, server.Addr)
	e := New(client, nil)
	s := sessiontest.Open(t, e, 5*time.Second)
	held, waits := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	token := sessiontest.Hold(t, s, held)
	sessiontest.Wait(t, s, waits)
	granted := make(chan fence.Token, 1)
	go func() { // as the root package does
		for {
			grant, err := s.Await(sessiontest.Soon(t), waits)
			if err == nil {
				granted <- grant.Token
				return
			}
			if !errors.Is(err, engine.ErrUnavailable) {
				t.Error(err)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	server.Kill()
	start := time.Now()
	_, err := s.Enter(sessiontest.Soon(t), sessiontest.Whole(t, fair), true)
	_, renewErr := s.Renew(sessiontest.Soon(t), nil)
	_, openErr := e.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Second})
	_, getErr := e.Get(sessiontest.Soon(t), "x")
	for _, err := range []error{err, renewErr, openErr, getErr, s.Close(sessiontest.Soon(t)), s.Leave(sessiontest.Soon(t), "x", "y")} {
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("a refused connection was told after %v", took)
	}
	server.Restart()
	sessiontest.Until(t, "connected again", func() bool { _, err := e.Get(ctx, "x"); return err == nil })
	if gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held}); err != nil || len(gone) > 0 {
		t.Errorf("renew after restart: %v, %v", gone, err)
	}
	sessiontest.Leave(t, s, held)
	if next := <-granted; next <= token {
		t.Errorf("token %v after %v", next, token)
	}
}

func TestNetworkIsFrozen(t *testing.T) {
	server := testservers.SharedEtcd(t)
	link := proxy.New(t, server.Addr)
	client, _ := newClientOf(t, link.Addr)
	s := sessiontest.Open(t, New(client, nil), 10*time.Second)
	held, waits := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	sessiontest.Wait(t, s, waits)
	link.Freeze()
	brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, awaitErr := s.Await(brief, waits)
	_, enterErr := s.Enter(brief, sessiontest.Whole(t, fair), true)
	_, renewErr := s.Renew(brief, nil)
	for _, err := range []error{awaitErr, enterErr, renewErr, s.Leave(brief, held.Resource, held.ID), s.Close(brief)} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	}
	link.Heal()
	sessiontest.Until(t, "connected again", func() bool { _, err := s.Renew(ctx, nil); return err == nil })
	sessiontest.Leave(t, s, held)
	sessiontest.Await(t, s, waits)
}

// The reply of an Enter is lost, the claim leaves, and then the request comes
// once more, say from a member that was stopped.
func TestLateEnterIsKeptOut(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		link := proxy.New(t, testservers.SharedEtcd(t).Addr)
		client, _ := newClientOf(t, link.Addr)
		e := New(client, nil)
		s := sessiontest.Open(t, e, 10*time.Second).(*session)
		c := sessiontest.Whole(t, spec)
		if _, err := e.Get(ctx, "x"); err != nil { // connect
			t.Fatal(err)
		}
		link.FreezeReplies()
		brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		if _, err := s.Enter(brief, c, true); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("enter: %v", err)
		}
		cancel()
		link.Heal()
		sessiontest.Until(t, "connected again", func() bool { _, err := e.Get(ctx, "x"); return err == nil })
		r, err := e.Show(ctx, c.Resource)
		if err != nil || len(r.Claims) != 1 {
			t.Fatalf("the request was not executed: %+v, %v", r, err)
		}
		p := s.find(c.ID, 0)
		sessiontest.Leave(t, s, c)
		if _, err := s.pursue(sessiontest.Soon(t), "enter", c, &p, &line{}, true); !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("the same transactions, sent again: %v", err)
		}
		if r, err := e.Show(ctx, c.Resource); err != nil || len(r.Claims) != 0 {
			t.Errorf("a claim came in after it had left: %+v, %v", r, err)
		}
		next := sessiontest.Whole(t, spec) // is not kept out
		sessiontest.Hold(t, s, next)
		sessiontest.Leave(t, s, next)
	}
}

// The reply of a Leave is lost. As the request may come late, no other claim
// may have the key that it deletes.
func TestLateLeaveHitsNobody(t *testing.T) {
	link := proxy.New(t, testservers.SharedEtcd(t).Addr)
	client, _ := newClientOf(t, link.Addr)
	e := New(client, nil)
	s := sessiontest.Open(t, e, 10*time.Second).(*session)
	c := sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, c)
	key := s.find(c.ID, 0).key
	link.Freeze()
	brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := s.Leave(brief, c.Resource, c.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("leave: %v", err)
	}
	link.Heal()
	sessiontest.Until(t, "connected again", func() bool { _, err := e.Get(ctx, "x"); return err == nil })
	sessiontest.Leave(t, s, c)
	for range 2 {
		next := sessiontest.Whole(t, fair)
		sessiontest.Hold(t, s, next)
		if s.find(next.ID, 0).key == key {
			t.Error("the key is used again")
		}
		sessiontest.Leave(t, s, next)
	}
	if s.slots != 2 {
		t.Errorf("%d slots: that of a claim that left well is not used again", s.slots)
	}
}

// A claim leaves while its Enter is still under way: that comes too late.
func TestLeftWhileItEnters(t *testing.T) {
	for _, spec := range []engine.Spec{fair, barging} {
		e := New(newClient(t), nil)
		s := sessiontest.Open(t, e, 10*time.Second).(*session)
		c := sessiontest.Whole(t, spec)
		p := s.take(c)
		if err := s.Leave(ctx, c.Resource, c.ID); !errors.Is(err, engine.ErrGone) {
			t.Errorf("leave: %v", err)
		}
		next := sessiontest.Whole(t, spec)
		next.Resource += "/next"
		if at := s.take(next); at.queue == p.queue || at.slot == p.slot {
			t.Error("two claims have one key")
		}
		if grant, err := s.enter(sessiontest.Soon(t), c, p, true); !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("a claim came in after it had left: %v, %v", grant, err)
		}
		if r, err := e.Show(ctx, c.Resource); err != nil || len(r.Claims) != 0 {
			t.Errorf("a claim came in after it had left: %+v, %v", r, err)
		}
	}
}

// The reply is lost to the step by which a claim that waited holds.
func TestAwaitAgain(t *testing.T) {
	var lose atomic.Bool
	client, _ := newClientOf(t, testservers.SharedEtcd(t).Addr, through(func(ctx context.Context, req, _ any, next func(context.Context) error) error {
		err := next(ctx)
		if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Compare) > 0 && err == nil && lose.Swap(false) {
			err = status.Error(codes.Unavailable, "lost")
		}
		return err
	}))
	s := sessiontest.Open(t, New(client, nil), 10*time.Second)
	for _, spec := range []engine.Spec{fair, barging} {
		holder, first, second := sessiontest.Whole(t, spec), sessiontest.Claim(t, spec, spec.Capacity, "owner"), sessiontest.Claim(t, spec, spec.Capacity, "owner")
		sessiontest.Hold(t, s, holder)
		sessiontest.Wait(t, s, first)
		sessiontest.Wait(t, s, second)
		sessiontest.Leave(t, s, holder)
		token := sessiontest.Await(t, s, first)
		lose.Store(true)
		if grant, err := s.Await(sessiontest.Soon(t), second); !errors.Is(err, engine.ErrUnavailable) {
			t.Fatalf("await: %v, %v", grant, err)
		}
		if again := sessiontest.Await(t, s, second); again != token {
			t.Errorf("token %v, want %v", again, token)
		}
		sessiontest.Leave(t, s, first)
		sessiontest.Leave(t, s, second)
	}
}

// Nothing of a session is left in the store.
func TestNothingIsLeft(t *testing.T) {
	server := testservers.Etcd(t)
	client, _ := newClientOf(t, server.Addr)
	e := New(client, nil)
	for range 3 {
		s, err := e.Open(ctx, engine.SessionOptions{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range []engine.Spec{fair, barging, five} {
			a, b, c := sessiontest.Claim(t, spec, 1, "owner"), sessiontest.Claim(t, spec, 1, "owner"), sessiontest.Whole(t, spec)
			sessiontest.Hold(t, s, a)
			sessiontest.Hold(t, s, b)
			sessiontest.Wait(t, s, c)
			sessiontest.Refuse(t, s, sessiontest.Whole(t, spec), false, engine.ErrBusy)
			sessiontest.Leave(t, s, a)
			sessiontest.Leave(t, s, b)
			sessiontest.Await(t, s, c)
			sessiontest.Leave(t, s, c)
		}
		if n := len(s.(*session).places); n > 0 {
			t.Errorf("%d claims are remembered", n)
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	all, err := client.Get(ctx, "", clientv3.WithPrefix())
	if err != nil || all.Count != 1 || string(all.Kvs[0].Key) != "pawl/format" {
		t.Errorf("%v, %v", all, err)
	}
	leases, err := client.Leases(ctx)
	if err != nil || len(leases.Leases) != 0 {
		t.Errorf("%v, %v", leases, err)
	}
}

// BenchmarkUncontended measures by turns, so that load on the machine hits all
// alike.
func BenchmarkUncontended(b *testing.B) {
	server := testservers.Etcd(b)
	client, _ := newClientOf(b, server.Addr)
	s := sessiontest.Open(b, New(client, nil), time.Minute)
	took := make(map[string][]time.Duration)
	lap := func(name string, do func() error) {
		start := time.Now()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		took[name] = append(took[name], time.Since(start))
	}
	value := strings.Repeat("x", 250)
	for b.Loop() {
		key := s.(*session).place(sessiontest.Whole(b, fair), 0).queue
		lap("floor", func() error { // with a key, a value and a lease as a claim has
			put := clientv3.OpPut(key, value, clientv3.WithLease(s.(*session).lease))
			if _, err := client.Txn(ctx).If(absent(key)).Then(put).Commit(); err != nil {
				return err
			}
			_, err := client.Delete(ctx, key)
			return err
		})
		for _, c := range []*engine.Claim{sessiontest.Whole(b, fair), sessiontest.Claim(b, fair, fair.Capacity, "x"), sessiontest.Whole(b, barging)} {
			lap(fmt.Sprintf("barging:%v-owner:%v", c.Barging, c.Owner == "x"), func() error {
				if _, err := s.Enter(ctx, c, true); err != nil {
					return err
				}
				return s.Leave(ctx, c.Resource, c.ID)
			})
		}
	}
	for name, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), name+"-p50-µs")
	}
}

// BenchmarkHandoff measures from the Leave of one to the grant of the next.
func BenchmarkHandoff(b *testing.B) {
	server := testservers.Etcd(b)
	var left atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	var n atomic.Int64
	start := time.Now()
	var wg sync.WaitGroup
	for range 16 {
		client, _ := newClientOf(b, server.Addr)
		s := sessiontest.Open(b, New(client, nil), time.Minute)
		wg.Go(func() {
			for n.Add(1) <= int64(b.N) {
				c := sessiontest.Whole(b, fair)
				grant, err := s.Enter(ctx, c, true)
				if err == nil && !grant.Held() {
					if _, err = s.Await(ctx, c); err == nil {
						mu.Lock()
						took = append(took, time.Since(start)-time.Duration(left.Load()))
						mu.Unlock()
					}
				}
				if err != nil {
					b.Error(err)
					return
				}
				left.Store(int64(time.Since(start)))
				if err := s.Leave(ctx, c.Resource, c.ID); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(took) > 0 {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	}
}
