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
	looks []time.Time // for the state of all claims
}

func (q *quiet) open(context.Context, string, engine.SessionOptions) error { return nil }
func (q *quiet) listen(string) func()                                      { return nil }
func (q *quiet) told() (bool, time.Duration)                               { return true, 0 }
func (q *quiet) close() error                                              { return nil }

func (q *quiet) step(context.Context, string, string, string, queue.Request) (engine.Grant, time.Duration, error) {
	return engine.Grant{}, 0, nil
}

func (q *quiet) news(_ context.Context, _ []string, all bool) (map[string]news, error) {
	if all {
		q.looks = append(q.looks, time.Now())
	}
	return nil, nil
}

// TestLooksOnceAHeartbeat: a lost message is made good within the heartbeat of each session. That holds where a session with a long
// heartbeat waits before, and while other claims begin to wait again and again.
func TestLooksOnceAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := new(quiet)
		e := newEngine(time.Second)
		e.store = q
		e.asking.Go(e.ask)
		defer e.Close() //nolint:errcheck // it returns nil
		n := 0
		wait := func(heartbeat time.Duration) (end func()) {
			t.Helper()
			s, err := e.Open(t.Context(), engine.SessionOptions{TTL: time.Hour, Heartbeat: heartbeat})
			if err != nil {
				t.Fatal(err)
			}
			n++
			c := &engine.Claim{Spec: engine.Spec{Kind: engine.KindLock, Capacity: 1}, Resource: "x", ID: fmt.Sprint(n), Owner: fmt.Sprint(n), Weight: 1}
			if _, err := s.Enter(t.Context(), c, true); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go s.Await(ctx, c) //nolint:errcheck // it ends with ctx
			synctest.Wait()
			return func() {
				cancel()
				s.(*session).inbox.Forget(c.ID)
				synctest.Wait()
			}
		}
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
