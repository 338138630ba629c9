package open_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func zkURL(addrs ...string) string {
	return fmt.Sprintf("zk://%s?tick=%dms", strings.Join(addrs, ","), testservers.ZooKeeperTick())
}

// zkTTL is above the shortest that servers give, which is two ticks. A heartbeat takes half a tick,
// and one may be lost.
const zkTTL, zkTTLAsShipped = 3 * time.Second, 12 * time.Second

// zkPassword computes the password of a session from its id, as a server does, so that any server
// of the ensemble knows it.
func zkPassword(session int64) []byte {
	seed := (session ^ 0xB3415C00 ^ 0x5DEECE66D) & (1<<48 - 1) // java.util.Random
	password := make([]byte, 0, 16)
	for range 4 {
		seed = (seed*0x5DEECE66D + 0xB) & (1<<48 - 1)
		word := int32(seed >> 16)
		for range 4 {
			password = append(password, byte(word))
			word >>= 8
		}
	}
	return password
}

// zkPacket puts the length before a packet.
func zkPacket(fields ...any) []byte {
	var body []byte
	for _, field := range fields {
		switch field := field.(type) {
		case int32:
			body = binary.BigEndian.AppendUint32(body, uint32(field))
		case int64:
			body = binary.BigEndian.AppendUint64(body, uint64(field))
		case []byte:
			body = append(binary.BigEndian.AppendUint32(body, uint32(len(field))), field...)
		}
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// killZooKeeper takes a session over and closes it, until the server says that the session is gone.
// The session's client takes the session back as soon as it can.
func killZooKeeper(addr, session string) error {
	hex, _, _ := strings.Cut(session, "-")
	id, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		return err
	}
	for range 100 {
		var left bool
		if left, err = closeZooKeeper(addr, int64(id)); left {
			return nil
		}
	}
	return fmt.Errorf("session %s is still there: %w", session, err)
}

// closeZooKeeper tries so once, and reports whether the session was gone before.
func closeZooKeeper(addr string, session int64) (gone bool, err error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return false, err
	}
	const version, lastZxid, timeout, xid, closeSession = int32(0), int64(0), int32(5000), int32(1), int32(-11)
	both := append(zkPacket(version, lastZxid, timeout, session, zkPassword(session)), zkPacket(xid, closeSession)...)
	if _, err := conn.Write(both); err != nil {
		return false, err
	}
	answer := make([]byte, 20) // length, version, time-out, session
	if _, err := io.ReadFull(conn, answer); err != nil {
		return false, err
	}
	return binary.BigEndian.Uint64(answer[12:]) == 0, nil
}

func zkHarness(addrs ...string) *enginetest.Harness {
	ttl := zkTTL
	if testservers.AsShipped() {
		ttl = zkTTLAsShipped
	}
	return &enginetest.Harness{
		Open: func(t *testing.T) engine.Engine { return connect(t, zkURL(addrs...)) },
		TTL:  ttl,
		Network: func(t *testing.T) (engine.Engine, enginetest.Network) {
			through, net := proxies(t, addrs...)
			return connect(t, zkURL(through...)), net
		},
		KillSession: func(t *testing.T, session string) {
			if err := killZooKeeper(addrs[0], session); err != nil {
				t.Fatal(err)
			}
		},
		Fresh:  unused(zkURL(strings.Join(addrs, ",") + "/NEW")),
		Cannot: map[string]string{"Full": "a server without room ends: TestFullDisk of engine/zkengine", "Hang": "the connection of a session answers in one row"},
	}
}

// startZooKeeper has the same form as the functions that start other servers.
func startZooKeeper(t testing.TB, _ ...string) *testservers.Server { return testservers.ZooKeeper(t) }

func TestZooKeeper(t *testing.T) {
	h := zkHarness(testservers.SharedZooKeeper(t).Addr)
	h.Snapshot = snapshot(startZooKeeper, func(addr string) string { return zkURL(addr) })
	enginetest.Run(t, h)
}

func TestZooKeeper3(t *testing.T) {
	h := zkHarness(addrsOf(testservers.ZooKeeperEnsemble(t))...)
	h.Cannot["Snapshot"] = "the data are on three servers"
	enginetest.Run(t, h)
}

// leader returns the node that leads.
func leader(t *testing.T, nodes []*testservers.Server) *testservers.Server {
	t.Helper()
	for range 500 {
		for _, node := range nodes {
			if text, err := testservers.ZooKeeperSays(node.Addr, "srvr"); err == nil && strings.Contains(text, "Mode: leader") {
				return node
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no node leads")
	return nil
}

// counter is a number that several clients count under a lock until a stop.
type counter struct {
	inside atomic.Int32
	last   atomic.Uint64 // of the last count
	count  atomic.Int64
	stop   chan struct{}
	done   sync.WaitGroup
}

func (n *counter) run(t *testing.T, m *pawl.Mutex) {
	for {
		select {
		case <-n.stop:
			return
		default:
		}
		l, err := m.Lock(t.Context())
		if errors.Is(err, pawl.ErrUnavailable) {
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		if inside := n.inside.Add(1); inside != 1 {
			t.Errorf("%d hold", inside)
		}
		if before := n.last.Swap(uint64(l.Token())); before >= uint64(l.Token()) {
			t.Errorf("token %v after %v", l.Token(), before)
		}
		if err := l.Err(); err != nil {
			t.Errorf("lost: %v", err)
		}
		n.count.Add(1)
		n.inside.Add(-1)
		if err := l.Unlock(t.Context()); err != nil && !errors.Is(err, pawl.ErrUnavailable) {
			t.Errorf("unlock: %v", err)
		}
	}
}

// more waits until the clients have counted 200 times more.
func (n *counter) more(t *testing.T, what string) {
	t.Helper()
	start, want := time.Now(), n.count.Load()+200
	for n.count.Load() < want {
		if time.Since(start) > 30*time.Second {
			t.Errorf("%s: only %d more", what, n.count.Load()+200-want)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("%s: 200 more after %v", what, time.Since(start).Round(time.Millisecond))
}

// TestZooKeeperLeaderFails: several clients count under a lock while the leader is killed, and the
// next leader is paused. Never do two clients trust the lock at once, and tokens grow. No lock is
// lost, because the sessions live on with the other servers.
func TestZooKeeperLeaderFails(t *testing.T) {
	nodes := testservers.ZooKeeperEnsemble(t)
	n := &counter{stop: make(chan struct{})}
	for range 4 {
		c, err := pawl.New(t.Context(), connect(t, zkURL(addrsOf(nodes)...)), &pawl.Options{TTL: 12 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		n.done.Go(func() {
			defer c.Close(t.Context())
			n.run(t, c.Mutex("counted"))
		})
	}
	n.more(t, "all well")
	first := leader(t, nodes)
	first.Kill()
	n.more(t, "leader killed")
	first.Restart()
	n.more(t, "restarted")
	second := leader(t, nodes)
	second.Pause()
	n.more(t, "leader paused")
	second.Resume()
	n.more(t, "resumed")
	close(n.stop)
	n.done.Wait()
}
