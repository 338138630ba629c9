package sqlengine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/queue"
)

// quiet is a store in which all claims wait, and whose messages are lost.
type quiet struct {
	store
	deaf  bool        // no messages arrive
	looks []time.Time // for the state of all claims
	asks  int         // for anything
}

func (q *quiet) open(context.Context, string, engine.SessionOptions) error { return nil }
func (q *quiet) listen(string) func()                                      { return func() {} }
func (q *quiet) told() (bool, time.Duration)                               { return !q.deaf, 50 * time.Millisecond }
func (q *quiet) close() error                                              { return nil }

func (q *quiet) step(context.Context, string, string, string, queue.Request) (engine.Grant, time.Duration, error) {
	return engine.Grant{}, 0, nil
}

func (q *quiet) news(_ context.Context, _ []string, all bool) (map[string]news, error) {
	q.asks++
	if all {
		q.looks = append(q.looks, time.Now())
	}
	return nil, nil
}

// waiting is an engine on which claims begin to wait.
type waiting struct {
	*testing.T
	*Engine
	n int
}

func waitOn(t *testing.T, q *quiet) *waiting {
	e := newEngine(time.Second)
	e.store = q
	e.asking.Go(e.ask)
	return &waiting{T: t, Engine: e}
}

// wait begins a wait in a session of its own.
func (w *waiting) wait(heartbeat time.Duration) (end func()) {
	w.Helper()
	s, err := w.Open(w.Context(), engine.SessionOptions{TTL: time.Hour, Heartbeat: heartbeat})
	if err != nil {
		w.Fatal(err)
	}
	w.n++
	c := &engine.Claim{Spec: engine.Spec{Kind: engine.KindLock, Capacity: 1}, Resource: "x", ID: fmt.Sprint(w.n), Owner: fmt.Sprint(w.n), Weight: 1}
	if _, err := s.Enter(w.Context(), c, true); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	go s.Await(ctx, c) //nolint:errcheck // it ends with ctx
	synctest.Wait()
	return func() {
		cancel()
		s.(*session).inbox.Forget(c.ID)
		synctest.Wait()
	}
}

// TestLooksOnceAHeartbeat: a lost message is made good within the heartbeat of each session. That holds where a session with a long
// heartbeat waits before, and while other claims begin to wait again and again.
func TestLooksOnceAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := new(quiet)
		w := waitOn(t, q)
		defer w.Close() //nolint:errcheck // it returns nil
		wait := w.wait
		const long, short = time.Hour, time.Second
		first := wait(long)
		defer first()
		<-time.After(time.Minute)
		second := wait(short)
		for range 100 { // claims that begin to wait within less than a heartbeat
			<-time.After(short / 10)
			wait(long)()
		}
		if len(q.looks) < 9 || len(q.looks) > 11 {
			t.Errorf("%d looks in 10 heartbeats: %v", len(q.looks), q.looks)
		}
		second()
		before := len(q.looks)
		<-time.After(long / 2)
		if len(q.looks) != before {
			t.Errorf("%d looks in half a heartbeat", len(q.looks)-before)
		}
	})
}

// TestAsksBesideNewWaiters: where no messages arrive, the engine asks again and again, also while other claims begin to wait.
func TestAsksBesideNewWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &quiet{deaf: true}
		w := waitOn(t, q)
		defer w.Close() //nolint:errcheck // it returns nil
		wait := w.wait
		defer wait(time.Second)()
		for range 100 { // each sooner than the next request
			<-time.After(20 * time.Millisecond)
			wait(time.Hour)()
		}
		if q.asks < 30 || len(q.looks) < 1 || len(q.looks) > 2 {
			t.Errorf("%d requests, and %d of them for all claims, in 2s", q.asks, len(q.looks))
		}
	})
}
