package zkengine

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
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
	return sessiontest.Open(t, e, ttl).(*session)
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

var fair, barging, five = sessiontest.Fair, sessiontest.Barging, sessiontest.Five

func TestBasics(t *testing.T) {
	e := shared(t)
	a, b := open(t, e, 5*time.Second), open(t, e, 5*time.Second)
	for _, spec := range []engine.Spec{fair, barging, five} {
		x, y := sessiontest.Whole(t, spec), sessiontest.Whole(t, spec)
		first := sessiontest.Hold(t, a, x)
		sessiontest.Wait(t, b, y)
		sessiontest.Refuse(t, b, sessiontest.Claim(t, spec, 1, ""), false, engine.ErrBusy)
		sessiontest.Leave(t, a, x)
		if next := sessiontest.Await(t, b, y); next <= first {
			t.Errorf("token %v after %v", next, first)
		}
		sessiontest.Leave(t, b, y)
	}
}
