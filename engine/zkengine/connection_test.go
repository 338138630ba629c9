package zkengine

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestServersAreAway: that is told at once, by each verb.
func TestServersAreAway(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	s, held := open(t, e, time.Minute), claim1(t, fair, all, "")
	token := mustHold(t, s, held)
	if _, err := e.Get(soon(t), "x"); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	start := time.Now()
	_, enter := s.Enter(soon(t), claim1(t, fair, all, ""), true)
	_, renew := s.Renew(soon(t), nil)
	_, get := e.Get(soon(t), "x")
	_, more := newEngine(t, server.Addr).Open(soon(t), engine.SessionOptions{TTL: time.Minute})
	for _, err := range []error{enter, renew, get, more, s.Leave(soon(t), "x", "y")} {
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("told after %v", took)
	}
	server.Restart()
	until(t, "renewed", func() bool { gone, err := s.Renew(soon(t), []*engine.Claim{held}); return err == nil && len(gone) == 0 })
	if again := mustHold(t, s, held); again != token {
		t.Errorf("token %v, was %v", again, token)
	}
	mustLeave(t, s, held)
}

// TestGreetingIsNotAnswered: as by a server that has just started.
func TestGreetingIsNotAnswered(t *testing.T) {
	var greeted, dials atomic.Int64
	conns := make(chan net.Conn, 10)
	e := New([]string{testservers.SharedZooKeeper(t).Addr}, &Options{Tick: tick, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) == 2 {
			client, server := net.Pipe()
			go func() {
				n, _ := server.Read(make([]byte, 1000))
				greeted.Add(int64(n))
			}()
			t.Cleanup(func() { server.Close() })
			return client, nil
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		conns <- conn
		return conn, err
	}})
	s, held := open(t, e, time.Minute), claim1(t, fair, all, "")
	mustHold(t, s, held)
	(<-conns).Close()
	until(t, "renewed", func() bool { gone, err := s.Renew(soon(t), []*engine.Claim{held}); return err == nil && len(gone) == 0 })
	if greeted.Load() == 0 || dials.Load() != 3 {
		t.Errorf("%d bytes of greeting, %d connections", greeted.Load(), dials.Load())
	}
	mustLeave(t, s, held)
}
