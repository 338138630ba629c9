package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/zkengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

type silent struct{}

func (silent) Printf(string, ...any) {}

func zkConn(b *testing.B, addr string) *zk.Conn {
	b.Helper()
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	return conn
}

func pawlOnZooKeeper(b *testing.B, addr string) *pawl.Client {
	b.Helper()
	eng := zkengine.New([]string{addr}, &zkengine.Options{Tick: time.Duration(testservers.ZooKeeperTick()) * time.Millisecond})
	b.Cleanup(func() { eng.Close() })
	c, err := pawl.New(ctx, eng, &pawl.Options{TTL: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(ctx) })
	return c
}

func zkLock(b *testing.B, conn *zk.Conn) *zk.Lock {
	return zk.NewLock(conn, "/theirs", zk.WorldACL(zk.PermAll))
}

// BenchmarkZooKeeperUncontended compares with the client's own Lock, which creates, lists and
// deletes.
func BenchmarkZooKeeperUncontended(b *testing.B) {
	addr := testservers.ZooKeeper(b).Addr
	m, theirs := pawlOnZooKeeper(b, addr).Mutex("order/42"), zkLock(b, zkConn(b, addr))
	both := func(ours, floor *samples) {
		floor.time(func() {
			if err := theirs.Lock(); err != nil {
				b.Error(err)
			}
			if err := theirs.Unlock(); err != nil {
				b.Error(err)
			}
		})
		ours.time(func() { lockUnlock(b, m) })
	}
	for range 1000 { // until then the server compiles its hot code
		both(new(samples), new(samples))
	}
	var ours, floor samples
	for b.Loop() {
		both(&ours, &floor)
	}
	compare(b, "ZooKeeper lock+unlock p50", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 0.9)
}

// BenchmarkZooKeeperHandoff compares with the client's own Lock.
func BenchmarkZooKeeperHandoff(b *testing.B) { holds(b, zooKeeperHandoff) }

func zooKeeperHandoff(b *testing.B, hold time.Duration) {
	addr := testservers.ZooKeeper(b).Addr
	const clients, each = 16, 100
	var locks, theirs []lock
	for range clients {
		locks = append(locks, lockOf(pawlOnZooKeeper(b, addr).Mutex("hot")))
		m := zkLock(b, zkConn(b, addr))
		theirs = append(theirs, func() (func() error, error) { return m.Unlock, m.Lock() })
	}
	both := func(ours, floor *samples) {
		floor.handoffs(b, theirs, each, hold)
		ours.handoffs(b, locks, each, hold)
	}
	both(new(samples), new(samples)) // the server compiles its hot code
	var ours, floor samples
	for b.Loop() {
		both(&ours, &floor)
	}
	compare(b, fmt.Sprintf("ZooKeeper handoff p50, %d clients, %v", clients, hold), micros(ours.quantile(.5)), micros(floor.quantile(.5)), 0.7)
}
