package bench

import (
	"context"
	"strconv"
	"sync"
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
	c, err := pawl.New(ctx, etcdengine.New(etcdClient(b, addr), nil), &pawl.Options{TTL: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(ctx) })
	return c
}

// BenchmarkEtcdUncontended has one Txn that puts a key with a lease and reads
// the range, and one Delete, as its floor.
func BenchmarkEtcdUncontended(b *testing.B) {
	addr := testservers.Etcd(b).Addr
	c, raw := pawlOnEtcd(b, addr), etcdClient(b, addr)
	lease, err := raw.Grant(ctx, 60)
	if err != nil {
		b.Fatal(err)
	}
	m := c.Mutex("order/42")
	var ours, floor samples
	for b.Loop() {
		floor.time(func() {
			if _, err := raw.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision("floor/x/1"), "=", 0)).
				Then(clientv3.OpPut("floor/x/1", "value of about the same size as a claim has", clientv3.WithLease(lease.ID)),
					clientv3.OpGet("floor/x/", clientv3.WithPrefix(), clientv3.WithLimit(2))).Commit(); err != nil {
				b.Error(err)
			}
			if _, err := raw.Delete(ctx, "floor/x/1"); err != nil {
				b.Error(err)
			}
		})
		ours.time(func() { lockUnlock(b, m) })
	}
	compare(b, "etcd lock+unlock p50", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1.05)
}

// BenchmarkEtcdHandoff compares with etcd's own concurrency.Mutex.
func BenchmarkEtcdHandoff(b *testing.B) {
	addr := testservers.Etcd(b).Addr
	const clients, each = 16, 40
	locks := make([]*pawl.Mutex, clients)
	theirs := make([]*concurrency.Mutex, clients)
	for i := range clients {
		locks[i] = pawlOnEtcd(b, addr).Mutex("hot")
		s, err := concurrency.NewSession(etcdClient(b, addr))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		theirs[i] = concurrency.NewMutex(s, "theirs")
	}
	handoff := func(lock func(i int) func() error) samples {
		var got samples
		var left time.Time // written by who holds
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for range each {
					unlock := lock(i)
					if !left.IsZero() {
						got = append(got, time.Since(left))
					}
					left = time.Now()
					if err := unlock(); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return got
	}
	var ours, floor samples
	for b.Loop() {
		floor = append(floor, handoff(func(i int) func() error {
			if err := theirs[i].Lock(ctx); err != nil {
				b.Error(err)
			}
			return func() error { return theirs[i].Unlock(ctx) }
		})...)
		ours = append(ours, handoff(func(i int) func() error {
			l, err := locks[i].Lock(ctx)
			if err != nil {
				b.Error(err)
			}
			return func() error { return l.Unlock(context.Background()) }
		})...)
	}
	compare(b, "etcd handoff p50, "+strconv.Itoa(clients)+" clients", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 0.6)
}
