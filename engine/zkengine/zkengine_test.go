package zkengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

var ctx = context.Background()

// tick is that of the test servers.
const tick = 200 * time.Millisecond

func newEngine(t testing.TB, addrs ...string) *Engine {
	t.Helper()
	e := New(addrs, &Options{Tick: tick})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func shared(t testing.TB) *Engine {
	t.Helper()
	return newEngine(t, testservers.SharedZooKeeper(t).Addr)
}

func open(t testing.TB, e *Engine, ttl time.Duration) *session {
	t.Helper()
	s, err := e.Open(soon(t), engine.SessionOptions{TTL: ttl, Label: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(soonOnly()) })
	return s.(*session)
}

// soon bounds what should happen at once.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func soonOnly() context.Context {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// raw returns a client of the server itself.
func raw(t testing.TB, addr string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
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

func TestBasics(t *testing.T) {
	e := shared(t)
	a, b := open(t, e, 5*time.Second), open(t, e, 5*time.Second)
	for _, spec := range []engine.Spec{fair, barging, five} {
		x, y := claim1(t, spec, spec.Capacity, ""), claim1(t, spec, spec.Capacity, "")
		first := mustHold(t, a, x)
		mustWait(t, b, y)
		mustFail(t, b, claim1(t, spec, 1, ""), false, engine.ErrBusy)
		mustLeave(t, a, x)
		if next := mustAwait(t, b, y); next <= first {
			t.Errorf("token %v after %v", next, first)
		}
		mustLeave(t, b, y)
	}
}
