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

// TestAnswersWaitForTheWatches: no answer reaches the client before its watches are set again, however busy the machine is, and
// while the link closes. Only the answer to a login does. A client without watches sets none, and waits for some pauses only.
func TestAnswersWaitForTheWatches(t *testing.T) {
	request := make([]byte, 12)
	binary.BigEndian.PutUint32(request[8:], opSetWatches)
	login := make([]byte, 12)
	binary.BigEndian.PutUint32(login[8:], opSetAuth)
	for name, row := range map[string]struct {
		fired   bool
		release func(*wire)
		held    time.Duration
		read    bool
	}{
		"set":              {false, func(w *wire) { w.Write(request) }, time.Second, true}, //nolint:errcheck // a pipe
		"login":            {false, func(w *wire) { w.Write(login) }, time.Second, true},   //nolint:errcheck // the same
		"closed":           {false, func(w *wire) { w.Close() }, time.Second, false},
		"link has ended":   {false, func(w *wire) { w.link.end() }, time.Second, false},
		"never set":        {false, func(*wire) {}, time.Minute, false},
		"perhaps no watch": {true, func(*wire) {}, 4 * pause, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				anchor := make(chan zk.Event, 1)
				if row.fired {
					anchor <- zk.Event{}
				}
				l := &link{anchor: anchor, rearmed: make(chan struct{}), changed: make(chan struct{})}
				l.life, l.end = context.WithCancel(t.Context())
				l.over, l.finish = context.WithCancel(l.life)
				near, far := net.Pipe()
				defer far.Close()
				go far.Write([]byte("answer")) //nolint:errcheck // until it is closed
				go io.Copy(io.Discard, far)    //nolint:errcheck // the same
				w := &wire{Conn: near, link: l, limit: time.Minute, login: make(chan struct{}, 2), stop: func() bool { return false }}
				defer w.Close()
				began, held := time.Now(), make(chan time.Duration, 1)
				go func() {
					w.SetReadDeadline(began.Add(time.Hour)) //nolint:errcheck // a pipe
					<-time.After(1)                         // any moment later
					n, err := w.Read(make([]byte, 6))
					if (err == nil) != row.read {
						t.Errorf("read %d bytes, %v", n, err)
					}
					held <- time.Since(began)
				}()
				<-time.After(time.Second / 2)
				l.finish() // the session is being closed
				<-time.After(time.Second / 2)
				row.release(w)
				if got := (<-held).Truncate(time.Millisecond); got != row.held {
					t.Errorf("held for %v, want %v", got, row.held)
				}
			})
		})
	}
}

// TestAnchorStays: of two clients of a store the first made its folders. Both delete values. Each client still has the watch that it
// sets again over a new connection.
func TestAnchorStays(t *testing.T) {
	server := testservers.ZooKeeper(t)
	var links []*link
	for i := range 2 {
		e := newEngine(t, server.Addr)
		s := open(t, e, time.Minute)
		key, held := fmt.Sprint("key", i), sessiontest.Whole(t, fair)
		held.Resource += key
		sessiontest.Hold(t, s, held)
		waiter := sessiontest.Whole(t, fair)
		waiter.Resource = held.Resource
		sessiontest.Wait(t, s, waiter)
		awaiting(t, s, waiter)
		version, err := e.Put(sessiontest.Soon(t), key, []byte("x"), 0)
		if err == nil {
			_, err = e.Put(sessiontest.Soon(t), key, nil, version)
		}
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, s.link)
	}
	for i, l := range links {
		if err := l.sync(sessiontest.Soon(t)); err != nil { // all events before have arrived then
			t.Fatal(err)
		}
		l.mu.Lock()
		if l.anchor == nil || len(l.anchor) > 0 {
			t.Errorf("client %d has no watch that stays", i)
		}
		l.mu.Unlock()
	}
}

// TestUserReconnects: a session with a user loses its connection. The client logs in again, and awaits that answer, before it sets
// its watches. The session is renewed long before its end.
func TestUserReconnects(t *testing.T) {
	const ttl = 12 * time.Second
	conns := make(chan net.Conn, 100)
	e := New([]string{testservers.ZooKeeper(t).Addr}, &Options{Tick: tick, User: "me", Password: "secret", Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		conns <- conn
		return conn, err
	}})
	s, held := open(t, e, ttl), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	s.link.mu.Lock()
	changed := s.link.changed
	s.link.mu.Unlock()
	(<-conns).Close()
	<-changed
	sessiontest.Until(t, "it is renewed", func() bool {
		gone, err := s.Renew(sessiontest.Soon(t), []*engine.Claim{held})
		if errors.Is(err, engine.ErrGone) || len(gone) > 0 {
			t.Fatalf("gone %v, %v", gone, err)
		}
		return err == nil
	})
}

// closedRoot answers as a server that checks who may ask whether a node exists (ZOOKEEPER-2590), with "/" closed.
type closedRoot struct {
	net.Conn
	xid *atomic.Uint32 // of the question
	at  *atomic.Int64  // time of the question
}

func (c closedRoot) Write(p []byte) (int, error) {
	if len(p) == 18 && binary.BigEndian.Uint32(p[8:]) == 3 && p[16] == '/' {
		c.xid.Store(binary.BigEndian.Uint32(p[4:]))
		c.at.Store(time.Now().UnixNano())
	}
	return c.Conn.Write(p)
}

func (c closedRoot) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if xid := c.xid.Load(); xid != 0 && n >= 16 && binary.BigEndian.Uint32(p) == xid {
		noAuth := int32(-102)
		binary.BigEndian.PutUint32(p[12:], uint32(noAuth))
	}
	return n, err
}

// TestRootOfTheTreeIsClosed: an operator has closed "/" to pawl, whose own folder is open. The client asks for "/" before its first
// watch, which comes a pause after the connection.
func TestRootOfTheTreeIsClosed(t *testing.T) {
	var asked atomic.Uint32
	var at atomic.Int64
	e := New([]string{testservers.SharedZooKeeper(t).Addr}, &Options{Tick: tick, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return closedRoot{conn, &asked, &at}, err
	}})
	s, held := open(t, e, time.Minute), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, held)
	if asked.Load() != 0 {
		t.Error("it watches before anybody waits")
	}
	waiter := sessiontest.Whole(t, fair)
	sessiontest.Wait(t, s, waiter)
	got := awaiting(t, s, waiter)
	sessiontest.Leave(t, s, held)
	if answer := <-got; answer.Err != nil {
		t.Error(answer.Err)
	}
	if asked.Load() == 0 {
		t.Error("nobody asked for the root")
	}
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if after := time.Unix(0, at.Load()).Sub(s.link.since); after < pause {
		t.Errorf("the first watch came %v after the connection", after)
	}
}
