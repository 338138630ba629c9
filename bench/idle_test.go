package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/open"
	"github.com/pawl-go/pawl/internal/testservers"
)

// BenchmarkIdleWaiters measures the cost of clients that only wait: processor time of the server and
// the client, a waiter and heartbeat. The same clients without waiters stand beside it.
func BenchmarkIdleWaiters(b *testing.B) {
	servers := func(n int, start func(testing.TB, ...string) *testservers.Server) (all []*testservers.Server) {
		for range n {
			all = append(all, start(b))
		}
		return all
	}
	zookeeper := func(t testing.TB, _ ...string) *testservers.Server { return testservers.ZooKeeper(t) }
	for _, store := range []struct {
		name    string
		url     string // with the address of the server
		servers int
		start   func(testing.TB, ...string) *testservers.Server
		waiters int
	}{
		{"Redis", "redis://%s", 1, testservers.Redis, 200},
		{"Redlock of 3", "redlock://%s,%s,%s", 3, testservers.Redis, 200},
		{"PostgreSQL, lease", "postgres://postgres@%s/postgres?unlogged=on", 1, testservers.Postgres, 200},
		{"PostgreSQL, row", "postgres://postgres@%s/postgres?mode=row&connections=40", 1, testservers.Postgres, 25}, // each has a connection
		{"MariaDB, lease", "mysql://root@%s/pawl", 1, testservers.MariaDB, 200},
		{"MariaDB, row", "mysql://root@%s/pawl?mode=row&connections=40", 1, testservers.MariaDB, 25},
		{"etcd", "etcd://%s", 1, testservers.Etcd, 200},
		{"ZooKeeper", fmt.Sprintf("zk://%%s?tick=%dms", testservers.ZooKeeperTick()), 1, zookeeper, 200},
		{"NATS", "nats://%s", 1, testservers.NATS, 200},
		{"SQLite", "sqlite:" + filepath.Join(b.TempDir(), "idle.db"), 0, nil, 200},
	} {
		b.Run(store.name, func(b *testing.B) {
			all := servers(store.servers, store.start)
			var addrs []any
			for _, s := range all {
				addrs = append(addrs, s.Addr)
			}
			url := fmt.Sprintf(store.url, addrs...)
			for b.Loop() {
				idleWaiters(b, store.name, store.waiters, func() engine.Engine {
					eng, err := open.Open(ctx, url)
					if err != nil {
						b.Fatal(err)
					}
					return eng
				}, all)
			}
		})
	}
}

func idleWaiters(b *testing.B, name string, waiters int, open func() engine.Engine, servers []*testservers.Server) {
	const ttl, beats = 6 * time.Second, 5
	var clients []*pawl.Client
	for range 2 {
		eng := open()
		c, err := pawl.New(ctx, eng, &pawl.Options{TTL: ttl})
		if err != nil {
			b.Fatal(err)
		}
		defer eng.Close()
		defer c.Close(ctx)
		clients = append(clients, c)
	}
	held, err := clients[0].Mutex("idle").Lock(ctx)
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(ttl / 3) // the work of the start is done by then
	server, client := idleCPU(beats*ttl/3, servers)
	wait, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for range waiters {
		all.Go(func() {
			if _, err := clients[1].Mutex("idle").Lock(wait); wait.Err() == nil {
				b.Error("a waiter is back: ", err)
			}
		})
	}
	until(b, "all wait", func() bool {
		r, err := clients[0].Show(ctx, "idle")
		if err != nil {
			b.Fatal(err)
		}
		return len(r.Holders)+len(r.Waiters) > waiters
	})
	time.Sleep(ttl / 3) // the work of the entering is done by then
	serverWith, clientWith := idleCPU(beats*ttl/3, servers)
	if err := held.Err(); err != nil {
		b.Error(err)
	}
	stop()
	all.Wait()
	each := func(with, without time.Duration) float64 { return micros(with-without) / float64(waiters) / beats }
	b.ReportMetric(each(serverWith, server), "server-µs/waiter/beat")
	b.ReportMetric(each(clientWith, client), "client-µs/waiter/beat")
	b.ReportMetric(0, "ns/op")
	say("%-54s %8.2f µs of the server, %8.2f µs of the client a heartbeat for each of %d",
		"idle waiters, "+name, each(serverWith, server), each(clientWith, client), waiters)
}

// idleCPU is the processor time that servers and this process take within a while.
func idleCPU(while time.Duration, servers []*testservers.Server) (server, client time.Duration) {
	measure := func() (server, client time.Duration) {
		for _, s := range servers {
			server += s.CPU()
		}
		var used syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &used) //nolint:errcheck // the process itself always exists
		return server, time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	s, c := measure()
	time.Sleep(while)
	after, own := measure()
	return after - s, own - c
}
