package etcdengine

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// hanging swallows the next of the requests that it is set to, as a member that is stopped does.
type hanging struct {
	next  atomic.Pointer[func(*pb.TxnRequest) bool]
	asked atomic.Int64 // how many such requests came, the swallowed one with them
	late  func() error // sends the swallowed request on, as the member does when it goes on
}

func (h *hanging) client(t *testing.T) *clientv3.Client {
	client, _ := newClientOf(t, testservers.SharedEtcd(t).Addr, through(func(ctx context.Context, req, _ any, next func(context.Context) error) error {
		txn, _ := req.(*pb.TxnRequest)
		if is := h.next.Load(); is != nil && txn != nil && (*is)(txn) && h.asked.Add(1) == 1 {
			h.late = func() error { return next(context.Background()) }
			<-ctx.Done()
			return ctx.Err()
		}
		return next(ctx)
	}))
	return client
}

func (h *hanging) swallow(is func(*pb.TxnRequest) bool) { h.next.Store(&is) }

func every(*pb.TxnRequest) bool { return true }

// opensQuick opens a session whose waiters look often.
func opensQuick(t *testing.T, e *Engine) engine.Session {
	s, err := e.Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Minute, Heartbeat: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(ctx) }) //nolint:errcheck // the server is of these tests
	return s
}

// TestLookHangs: a waiter that is granted learns so, although the member hangs that it asks first.
func TestLookHangs(t *testing.T) {
	for name, spec := range map[string]engine.Spec{"fair": fair, "barging": barging} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var h hanging
			holder := sessiontest.Open(t, New(newClient(t), nil), time.Minute)
			s := opensQuick(t, New(h.client(t), nil))
			held, waits := sessiontest.Whole(t, spec), sessiontest.Whole(t, spec)
			sessiontest.Hold(t, holder, held)
			sessiontest.Wait(t, s, waits)
			h.swallow(every)
			got := sessiontest.Awaiting(t, s, waits)
			sessiontest.Until(t, "a member hangs", func() bool { return h.asked.Load() > 0 })
			sessiontest.Leave(t, holder, held)
			sessiontest.Granted(t, got)
		})
	}
}

// TestGrantHangs: as TestLookHangs, but the member hangs that is asked for the step by which the waiter holds.
func TestGrantHangs(t *testing.T) {
	t.Parallel()
	var h hanging
	holder := sessiontest.Open(t, New(newClient(t), nil), time.Minute)
	s := opensQuick(t, New(h.client(t), nil))
	held, waits := sessiontest.Whole(t, barging), sessiontest.Whole(t, barging)
	sessiontest.Hold(t, holder, held)
	sessiontest.Wait(t, s, waits)
	h.swallow(func(r *pb.TxnRequest) bool { return len(r.Success) > 0 && r.Success[0].GetRequestPut() != nil })
	got := sessiontest.Awaiting(t, s, waits)
	sessiontest.Leave(t, holder, held)
	sessiontest.Granted(t, got)
	if h.asked.Load() < 2 {
		t.Errorf("the step was asked for %d times", h.asked.Load())
	}
}

// TestLookOutHangs: the look of all waiters of a session outlives a member that hangs.
func TestLookOutHangs(t *testing.T) {
	t.Parallel()
	var h hanging
	s := opensQuick(t, New(h.client(t), nil))
	held, waits := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	sessiontest.Wait(t, s, waits)
	h.swallow(func(r *pb.TxnRequest) bool { return len(r.Success) > 0 && r.Success[0].GetRequestRange().GetKeysOnly() })
	got := sessiontest.Awaiting(t, s, waits)
	sessiontest.Until(t, "it looks again", func() bool { return h.asked.Load() > 1 })
	sessiontest.Leave(t, s, held)
	sessiontest.Granted(t, got)
}

// TestWatchHangs: a watch of a value sees a change, although the member hangs that is asked first.
func TestWatchHangs(t *testing.T) {
	t.Parallel()
	var h hanging
	e, key := New(h.client(t), nil), "value of "+t.Name()
	h.swallow(every)
	got := make(chan engine.Value, 1)
	go func() {
		v, err := e.Watch(sessiontest.Soon(t), key, 0)
		if err != nil {
			t.Error(err)
		}
		got <- v
	}()
	sessiontest.Until(t, "a member hangs", func() bool { return h.asked.Load() > 0 })
	version, err := e.Put(sessiontest.Soon(t), key, []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if v := <-got; v.Version != version {
		t.Errorf("watched %+v, want version %d", v, version)
	}
}

// TestLateRequestOfAHolder: a request to enter is given up, and served when its claim has come in by another request. The
// claim keeps one key, and a waiter behind the claim is woken by others.
func TestLateRequestOfAHolder(t *testing.T) {
	spec := engine.Spec{Kind: engine.KindSemaphore, Capacity: 2, Barging: true}
	for folder, holders := range map[string]int{"/q/": 2, "/g/": 1} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			var h hanging
			e := New(h.client(t), nil)
			s, other := sessiontest.Open(t, e, time.Minute), sessiontest.Open(t, New(newClient(t), nil), time.Minute)
			c, waits := sessiontest.Claim(t, spec, 1, ""), sessiontest.Claim(t, spec, 1, "")
			held := []*engine.Claim{sessiontest.Claim(t, spec, 1, ""), sessiontest.Claim(t, spec, 1, "")}
			for i := range holders {
				sessiontest.Hold(t, other, held[i])
			}
			brief, giveUp := context.WithCancel(ctx)
			h.swallow(func(r *pb.TxnRequest) bool {
				is := len(r.Compare) > 2 && strings.Contains(string(r.Success[0].GetRequestPut().GetKey()), folder)
				if is {
					giveUp()
				}
				return is
			})
			if _, err := s.Enter(brief, c, true); !errors.Is(err, context.Canceled) || h.late == nil {
				t.Fatalf("enter: %v", err)
			}
			if holders == 1 {
				sessiontest.Hold(t, other, held[1])
				sessiontest.Wait(t, s, c)
				sessiontest.Leave(t, other, held[1])
			} else {
				sessiontest.Leave(t, other, held[1])
				sessiontest.Hold(t, s, c)
			}
			if err := h.late(); err != nil {
				t.Fatal(err)
			}
			if r, err := e.Show(ctx, c.Resource); err != nil || len(r.Claims) != 2 {
				t.Errorf("one more came late: %+v, %v", r, err)
			}
			if holders == 1 {
				sessiontest.Await(t, s, c)
			}
			sessiontest.Wait(t, other, waits)
			got := sessiontest.Awaiting(t, other, waits)
			sessiontest.Leave(t, other, held[0])
			sessiontest.Granted(t, got)
		})
	}
}

// TestLateDeletionOfAMark: a holder's request to delete its mark is given up, and served when another claim has that mark.
func TestLateDeletionOfAMark(t *testing.T) {
	t.Parallel()
	var h hanging
	client := h.client(t)
	s, other := sessiontest.Open(t, New(client, nil), time.Minute).(*session), sessiontest.Open(t, New(newClient(t), nil), time.Minute)
	held, c, next := sessiontest.Whole(t, two), sessiontest.Claim(t, two, 1, ""), sessiontest.Claim(t, two, 1, "")
	sessiontest.Hold(t, other, held)
	sessiontest.Wait(t, s, c)
	mark := s.find(c.ID, 0).mark
	brief, giveUp := context.WithCancel(ctx)
	h.swallow(func(r *pb.TxnRequest) bool {
		is := len(r.Success) == 1 && string(r.Success[0].GetRequestDeleteRange().GetKey()) == mark
		if is {
			giveUp()
		}
		return is
	})
	sessiontest.Leave(t, other, held)
	if _, err := s.Await(brief, c); !errors.Is(err, context.Canceled) || h.late == nil {
		t.Fatalf("await: %v", err)
	}
	sessiontest.Hold(t, s, c)
	sessiontest.Leave(t, s, c)
	sessiontest.Hold(t, other, held)
	sessiontest.Wait(t, s, next)
	if s.find(next.ID, 0).mark != mark {
		t.Fatal("the slot is not used again")
	}
	if err := h.late(); err != nil {
		t.Fatal(err)
	}
	if is, err := client.Get(ctx, mark); err != nil || is.Count != 1 {
		t.Errorf("the mark of a waiter is gone: %v, %v", is, err)
	}
}
