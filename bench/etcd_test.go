package bench

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/etcdengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func etcdClient(b *testing.B, addr string) *clientv3.Client {
	b.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

func pawlOnEtcd(b *testing.B, addr string) *pawl.Client {
	b.Helper()
	return client(b, etcdengine.New(etcdClient(b, addr), nil))
}

// BenchmarkEtcdUncontended has as its floor a Txn that puts a key with a lease and reads the range,
// and a Delete.
func BenchmarkEtcdUncontended(b *testing.B) {
	addr := testservers.Etcd(b).Addr
	c, raw := pawlOnEtcd(b, addr), etcdClient(b, addr)
	lease, err := raw.Grant(ctx, 60)
	if err != nil {
		b.Fatal(err)
	}
	m := c.Mutex("order/42")
	beside(b, "etcd lock+unlock p50", m, 1.05, func() {
		if _, err := raw.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision("floor/x/1"), "=", 0)).
			Then(clientv3.OpPut("floor/x/1", "value of about the same size as a claim has", clientv3.WithLease(lease.ID)),
				clientv3.OpGet("floor/x/", clientv3.WithPrefix(), clientv3.WithLimit(2))).Commit(); err != nil {
			b.Error(err)
		}
		if _, err := raw.Delete(ctx, "floor/x/1"); err != nil {
			b.Error(err)
		}
	})
}

// BenchmarkEtcdHandoff compares with etcd's own concurrency.Mutex.
func BenchmarkEtcdHandoff(b *testing.B) { holds(b, etcdHandoff) }

func etcdHandoff(b *testing.B, hold time.Duration) {
	addr := testservers.Etcd(b).Addr
	const clients, each = 16, 40
	var locks, theirs []lock
	for range clients {
		locks = append(locks, lockOf(pawlOnEtcd(b, addr).Mutex("hot")))
		s, err := concurrency.NewSession(etcdClient(b, addr))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		m := concurrency.NewMutex(s, "theirs")
		theirs = append(theirs, func() (func() error, error) { return func() error { return m.Unlock(ctx) }, m.Lock(ctx) })
	}
	var ours, floor samples
	for b.Loop() {
		floor.handoffs(b, theirs, each, hold)
		ours.handoffs(b, locks, each, hold)
	}
	compare(b, fmt.Sprintf("etcd handoff p50, %d clients, %v", clients, hold), micros(ours.quantile(.5)), micros(floor.quantile(.5)), 0.6)
}
