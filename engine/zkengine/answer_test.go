package zkengine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// The numbers of requests.
const (
	opExists       = 3
	opPing         = 11
	opCloseSession = -11
)

// fate is what becomes of a request. The connection ends unless it arrives.
type fate int

const (
	arrives fate = iota
	isLost
	isNotAnswered
)

// tapped is a connection that asks what shall become of each request.
type tapped struct {
	net.Conn
	tap  func(op int32, body string) fate
	deaf atomic.Bool // an answer may be here before the connection has ended
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.deaf.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *tapped) Write(p []byte) (n int, err error) {
	f := arrives
	if len(p) >= 12 { // length, number, operation
		f = c.tap(int32(binary.BigEndian.Uint32(p[8:12])), string(p[12:]))
	}
	if f != arrives {
		c.deaf.Store(true)
	}
	if f != isLost {
		n, err = c.Conn.Write(p)
	}
	if f != arrives {
		c.Conn.Close()
	}
	return n, err
}

func tap(t *testing.T, addr string, each func(op int32, body string) fate) *Engine {
	t.Helper()
	e := New([]string{addr}, &Options{Tick: tick / 10, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &tapped{Conn: conn, tap: each}, err
	}})
	t.Cleanup(func() { e.Close() })
	return e
}

// TestGoneWhenFound: a claim whose reply was lost is evicted between the list in which it is
// found and the question for its age. The claim gets no token.
func TestGoneWhenFound(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	link := proxy.New(t, addr)
	near, c := open(t, newEngine(t, addr), time.Minute), sessiontest.Whole(t, fair)
	evicted := 0
	armed := false
	s := open(t, tap(t, link.Addr, func(op int32, body string) fate {
		if armed && op == opExists && strings.Contains(body, hash(c.ID)) {
			armed = false
			evicted++
			sessiontest.Leave(t, near, c)
		}
		return arrives
	}), time.Minute)
	first := sessiontest.Whole(t, fair)
	sessiontest.Hold(t, s, first) // makes the folders
	sessiontest.Leave(t, s, first)
	link.FreezeReplies()
	brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if g, err := s.Enter(brief, c, true); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("enter: %v, %v", g, err)
	}
	link.Heal()
	sessiontest.Until(t, "connected again", func() bool { return s.link.sync(ctx) == nil })
	armed = true
	g, err := s.Enter(sessiontest.Soon(t), c, true)
	if err != nil || g.Token >= 1<<53 || evicted != 1 {
		t.Errorf("got %v, %v, evicted %d times", g, err, evicted)
	}
	if r, err := near.engine.Show(sessiontest.Soon(t), c.Resource); err != nil || len(r.Claims) != 1 || r.Claims[0].Token != g.Token {
		t.Errorf("got %v, in the store %+v, %v", g, r, err)
	}
}

// TestFarewellIsCut: a session whose farewell did not arrive was not closed.
func TestFarewellIsCut(t *testing.T) {
	e := tap(t, testservers.SharedZooKeeper(t).Addr, func(op int32, _ string) fate {
		if op == opCloseSession {
			return isLost
		}
		return arrives
	})
	if err := open(t, e, time.Second).Close(sessiontest.Soon(t)); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
}

// TestRootIsRemoved: every verb of a session calls that trouble of the store. There is nothing to
// read then, and a value can be put.
func TestRootIsRemoved(t *testing.T) {
	server := testservers.ZooKeeper(t)
	e := newEngine(t, server.Addr)
	s := open(t, e, time.Minute)
	if _, err := e.Get(sessiontest.Soon(t), "x"); err != nil {
		t.Fatal(err)
	}
	conn := raw(t, server.Addr)
	for _, path := range []string{"/pawl/c", "/pawl/beat", "/pawl/v", "/pawl"} {
		if err := conn.Delete(path, -1); err != nil {
			t.Fatal(err)
		}
	}
	_, enter := s.Enter(sessiontest.Soon(t), sessiontest.Whole(t, fair), true)
	_, try := s.Enter(sessiontest.Soon(t), sessiontest.Whole(t, fair), false)
	_, renew := s.Renew(sessiontest.Soon(t), nil)
	if r, err := e.Show(sessiontest.Soon(t), "x"); err != nil || len(r.Claims) > 0 {
		t.Errorf("show: %+v, %v", r, err)
	}
	_, put := e.Put(sessiontest.Soon(t), "x", []byte("x"), 0)
	if put != nil {
		t.Error(put)
	}
	for _, err := range []error{enter, try, renew} {
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	for name, err := range e.List(sessiontest.Soon(t), "") {
		t.Errorf("list: %q, %v", name, err)
	}
}

// TestTryAfterEviction: a claim that is not to wait is granted or refused, also when it waited
// before.
func TestTryAfterEviction(t *testing.T) {
	e := shared(t)
	a, b := open(t, e, time.Minute), open(t, e, time.Minute)
	held, waits := sessiontest.Whole(t, fair), sessiontest.Whole(t, fair)
	sessiontest.Hold(t, a, held)
	sessiontest.Wait(t, b, waits)
	sessiontest.Leave(t, a, waits)
	sessiontest.Refuse(t, b, waits, false, engine.ErrBusy)
}

// TestOperatorSessionEnds: the session for operators and values is nobody's, so
// that it has ended is trouble that passes.
func TestOperatorSessionEnds(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	link := proxy.New(t, addr)
	e := newEngine(t, link.Addr)
	made, err := e.dial(sessiontest.Soon(t), time.Second, errEnded, func(zk.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	<-e.operator
	e.operator <- made
	watched := make(chan error, 1)
	go func() {
		_, err := e.Watch(sessiontest.Soon(t), "watched", 0)
		watched <- err
	}()
	sessiontest.Until(t, "it is watched", func() bool {
		made.mu.Lock()
		defer made.mu.Unlock()
		return len(made.watches) == 1
	})
	link.Freeze()
	id := fmt.Sprintf("0x%x", uint64(made.conn.SessionID()))
	sessiontest.Until(t, "the session has ended", func() bool {
		text, err := testservers.ZooKeeperSays(addr, "dump")
		return err == nil && !strings.Contains(text, id)
	})
	got := make(chan error, 100)
	for range cap(got) {
		go func() {
			_, err := e.Get(sessiontest.Soon(t), "x")
			got <- err
		}()
	}
	link.Heal()
	for range cap(got) {
		if err := <-got; err != nil && !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("get: %v", err)
		}
	}
	var v uint64
	sessiontest.Until(t, "it works again", func() bool { v, err = e.Put(sessiontest.Soon(t), "watched", []byte("x"), 0); return err == nil })
	if err := <-watched; err != nil && !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("watch: %v", err)
	}
	if _, err := e.Put(sessiontest.Soon(t), "watched", nil, v); err != nil {
		t.Error(err)
	}
}

// clientWatches counts what the client remembers of watches: it forgets one only
// when it fires.
func clientWatches(conn *zk.Conn) (n int) {
	each := reflect.ValueOf(conn).Elem().FieldByName("watchers").MapRange()
	for each.Next() {
		n += each.Value().Len()
	}
	return n
}

// TestGivenUp: a waiter that gives up leaves no watch behind that nobody needs.
func TestGivenUp(t *testing.T) {
	e := shared(t)
	a, b := open(t, e, time.Minute), open(t, e, time.Minute)
	held := sessiontest.Whole(t, fair)
	sessiontest.Hold(t, a, held)
	for range 20 {
		c := sessiontest.Whole(t, fair)
		sessiontest.Wait(t, b, c)
		awaiting(t, b, c)
		sessiontest.Leave(t, b, c)
	}
	if n := clientWatches(b.link.conn); n != 2 {
		t.Errorf("%d watches of one node and of the root", n)
	}
	for i := range 20 {
		key := fmt.Sprintf("%s/%d", t.Name(), i)
		waits, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.Watch(waits, key, 0) //nolint:errcheck // it is cancelled
		}()
		l, err := e.link(sessiontest.Soon(t))
		if err != nil {
			t.Fatal(err)
		}
		sessiontest.Until(t, "it is watched", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.watches[e.value(key)] != nil && l.watches[e.value(key)].set
		})
		cancel()
		<-done
		version, err := e.Put(sessiontest.Soon(t), key, []byte("x"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Put(sessiontest.Soon(t), key, nil, version); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		if n := len(l.watches); n != 0 {
			t.Errorf("%d watches are remembered", n)
		}
		l.mu.Unlock()
	}
}

// again asks as the root package does: until the store has answered.
func again(t *testing.T, what string, ask func() error) error {
	t.Helper()
	for range 20 {
		if err := ask(); !errors.Is(err, engine.ErrUnavailable) {
			return err
		}
	}
	t.Fatalf("%s: not answered", what)
	return nil
}

// TestCutAnywhere: the connection ends with any of the requests, before it was sent or before its
// answer came. The outcome is the same when the request is repeated.
func TestCutAnywhere(t *testing.T) {
	addr := testservers.SharedZooKeeper(t).Addr
	near := open(t, newEngine(t, addr), time.Minute)
	for _, spec := range []engine.Spec{fair, barging, five} {
		for _, how := range []fate{isLost, isNotAnswered} {
			for cut, reached := int64(1), true; reached; cut++ {
				reached = cutAt(t, addr, near, spec, cut, how)
			}
		}
	}
}

// cutAt waits, holds, re-enters, renews and leaves, cuts the connection at this
// request, and reports whether there were so many.
func cutAt(t *testing.T, addr string, near *session, spec engine.Spec, cut int64, how fate) bool {
	t.Helper()
	var requests atomic.Int64
	requests.Store(cut)
	s := open(t, tap(t, addr, func(op int32, _ string) fate {
		if op != opPing && op != opSetWatches && requests.Add(1) == cut {
			return how
		}
		return arrives
	}), time.Minute)
	held, c := sessiontest.Whole(t, spec), sessiontest.Whole(t, spec)
	shares := sessiontest.Claim(t, spec, 1, c.Owner)
	first := sessiontest.Hold(t, near, held)
	requests.Store(0)
	var g, shared engine.Grant
	enter := again(t, "enter", func() (err error) { g, err = s.Enter(sessiontest.Soon(t), c, true); return err })
	if enter != nil || g.Held() {
		t.Fatalf("cut at %d: %v, %v beside %v", cut, g, enter, first)
	}
	sessiontest.Leave(t, near, held)
	await := again(t, "await", func() (err error) {
		if g, err = s.Await(sessiontest.Soon(t), c); errors.Is(err, engine.ErrUnavailable) {
			if g, err = s.Enter(sessiontest.Soon(t), c, true); err == nil && !g.Held() {
				g, err = s.Await(sessiontest.Soon(t), c)
			}
		}
		return err
	})
	reenter := again(t, "re-enter", func() (err error) { shared, err = s.Enter(sessiontest.Soon(t), shares, false); return err })
	var gone []*engine.Claim
	renew := again(t, "renew", func() (err error) { gone, err = s.Renew(sessiontest.Soon(t), []*engine.Claim{shares}); return err })
	if err := errors.Join(await, reenter, renew); err != nil || g.Token <= first || shared != g || len(gone) > 0 {
		t.Errorf("cut at %d: %v after %v, shared %v, gone %v: %v", cut, g, first, shared, gone, err)
	}
	for _, c := range []*engine.Claim{c, shares} {
		before := requests.Load()
		err := again(t, "leave", func() error { return s.Leave(sessiontest.Soon(t), c.Resource, c.ID) })
		wasCut := before < cut && requests.Load() >= cut
		if err != nil && !(wasCut && errors.Is(err, engine.ErrGone)) {
			t.Errorf("cut at %d: leave: %v", cut, err)
		}
	}
	if r, err := near.engine.Show(sessiontest.Soon(t), c.Resource); err != nil || len(r.Claims) > 0 || len(s.places) > 0 {
		t.Errorf("cut at %d: %+v, %v; %d places", cut, r, err, len(s.places))
	}
	return requests.Load() >= cut
}
