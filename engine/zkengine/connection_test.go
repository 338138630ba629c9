package zkengine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestServersAreAway: that is told at once, by each verb.
func TestServersAreAway(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	s, held := open(t, e, time.Minute), sessiontest.Whole(t, fair)
	token := sessiontest.Hold(t, s, held)
	if _, err := e.Get(sessiontest.Soon(t), "x"); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	start := time.Now()
	_, enter := s.Enter(sessiontest.Soon(t), sessiontest.Whole(t, fair), true)
	_, renew := s.Renew(sessiontest.Soon(t), nil)
	_, get := e.Get(sessiontest.Soon(t), "x")
	_, more := newEngine(t, server.Addr).Open(sessiontest.Soon(t), engine.SessionOptions{TTL: time.Minute})
	for _, err := range []error{enter, renew, get, more, s.Leave(sessiontest.Soon(t), "x", "y")} {
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("told after %v", took)
	}
	server.Restart()
	sessiontest.Until(t, "renewed", func() bool {
		gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held})
		return err == nil && len(gone) == 0
	})
	if again := sessiontest.Hold(t, s, held); again != token {
		t.Errorf("token %v, was %v", again, token)
	}
	sessiontest.Leave(t, s, held)
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
	s, held := open(t, e, time.Minute), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	(<-conns).Close()
	sessiontest.Until(t, "renewed", func() bool {
		gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held})
		return err == nil && len(gone) == 0
	})
	if greeted.Load() == 0 || dials.Load() != 3 {
		t.Errorf("%d bytes of greeting, %d connections", greeted.Load(), dials.Load())
	}
	sessiontest.Leave(t, s, held)
}

// tardy is a connection whose answer to the making of a container comes when the client says goodbye.
type tardy struct {
	net.Conn
	asked, goodbye chan struct{}
}

const (
	opContainer = 19
	opGoodbye   = -11
)

func (c tardy) Write(p []byte) (int, error) {
	switch int32(binary.BigEndian.Uint32(p[8:])) {
	case opContainer:
		close(c.asked)
	case opGoodbye:
		close(c.goodbye)
	}
	return c.Conn.Write(p)
}

func (c tardy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.asked:
		select {
		case <-c.goodbye:
		case <-time.After(time.Second): // the session waits for the answer
		}
	default:
	}
	return n, err
}

// TestClosedBesideAContainer: the session is closed while a container is made, and the server answers then. The client reads and
// writes that answer at once, which the race detector sees.
func TestClosedBesideAContainer(t *testing.T) {
	asked := make(chan struct{})
	e := New([]string{testservers.SharedZooKeeper(t).Addr}, &Options{Tick: tick, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return tardy{conn, asked, make(chan struct{})}, err
	}})
	s := open(t, e, time.Minute)
	claim := sessiontest.Whole(t, fair)
	claim.Resource += fmt.Sprint("/", time.Now().UnixNano()) // has no container yet
	entered := make(chan error, 1)
	go func() {
		_, err := s.Enter(ctx, claim, true)
		entered <- err
	}()
	<-asked
	s.Close(sessiontest.Soon(t)) //nolint:errcheck // the server may not have answered
	if err := <-entered; err == nil {
		t.Error("entered, and the session was closed meanwhile")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestAnswersWaitForTheWatches: no answer reaches the client before its watches are set again, however busy the machine is.
// A client without watches sets none, and waits for some pauses only.
func TestAnswersWaitForTheWatches(t *testing.T) {
	for name, anchor := range map[string]chan zk.Event{"anchored": make(chan zk.Event, 1), "perhaps none": nil} {
		for how, release := range map[string]func(*wire){
			"set": func(w *wire) {
				request := make([]byte, 12)
				binary.BigEndian.PutUint32(request[8:], opSetWatches)
				w.Write(request) //nolint:errcheck // a pipe
			},
			"closed": func(w *wire) { w.Close() },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := &link{anchor: anchor, rearmed: make(chan struct{}), changed: make(chan struct{})}
					l.over, l.finish = context.WithCancel(t.Context())
					l.life, l.end = l.over, l.finish
					near, far := net.Pipe()
					go io.Copy(io.Discard, far) //nolint:errcheck // until it is closed
					w := &wire{Conn: near, link: l, limit: time.Minute, stop: func() bool { return false }}
					began := time.Now()
					held := make(chan time.Duration)
					go func() {
						l.waitRearmed(w.limit / 2)
						held <- time.Since(began)
					}()
					<-time.After(time.Second)
					release(w)
					want := time.Second
					if anchor == nil {
						want = 4 * pause
					}
					if got := <-held; got != want {
						t.Errorf("held for %v, want %v", got, want)
					}
					w.Close()
					far.Close()
				})
			})
		}
	}
}
