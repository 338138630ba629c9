package bench

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testservers"
)

// BenchmarkRedisReader has the writing side as its floor.
func BenchmarkRedisReader(b *testing.B) {
	c := pawlOnRedis(b, testservers.Redis(b).Addr)
	warm(b, c)
	rw := c.RWMutex("order/42")
	var ours, floor samples
	for b.Loop() {
		floor.time(func() { pair(b, rw) })
		ours.time(func() { pair(b, rw.RLocker()) })
	}
	compare(b, "redis rlock+unlock p50 beside lock+unlock", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1.05)
}

func pair(b *testing.B, l pawl.Locker) {
	lease, err := l.Lock(ctx)
	if err == nil {
		err = lease.Unlock(ctx)
	}
	if err != nil {
		b.Error(err)
	}
}

// total is how many commands the server executed, also inside scripts.
func total(b *testing.B, c rueidis.Client) (n int) {
	for _, calls := range commands(b, c) {
		n += calls
	}
	return n
}

// BenchmarkRedisManyReaders measures the release of one of 1,000 readers. The floor is the release
// of one of 10 readers, in time and in commands of the server.
func BenchmarkRedisManyReaders(b *testing.B) {
	addr := testservers.Redis(b).Addr
	c, observer := pawlOnRedis(b, addr), redisClient(b, addr)
	warm(b, c)
	hold := func(name string, n int) (leases pawl.Leases) {
		for range n {
			l, err := c.RWMutex(name).RLock(ctx)
			if err != nil {
				b.Fatal(err)
			}
			leases = append(leases, l)
		}
		return leases
	}
	few, many := hold("few", 10), hold("many", 1000)
	// release lets a reader go. The release is not counted; another reader comes in its place.
	release := func(name string, leases pawl.Leases, i int, s *samples) {
		s.time(func() {
			if err := leases[i%len(leases)].Unlock(ctx); err != nil {
				b.Fatal(err)
			}
		})
		leases[i%len(leases)] = hold(name, 1)[0]
	}
	count := func(name string, leases pawl.Leases) float64 {
		before := total(b, observer)
		var ignored samples
		for i := range 100 {
			release(name, leases, i, &ignored)
		}
		return float64(total(b, observer)-before) / 100
	}
	say("redis commands to release a reader and to let one in: %.1f of 10, %.1f of 1,000", count("few", few), count("many", many))
	var ours, floor samples
	for i := 0; b.Loop(); i++ {
		release("few", few, i, &floor)
		release("many", many, i, &ours)
	}
	compare(b, "redis release of 1 of 1,000 readers, p50", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1.1)
}

// BenchmarkRedisLatch counts the commands of 1,000 parties that count down at once over 8 clients,
// beside those of 100 parties.
func BenchmarkRedisLatch(b *testing.B) {
	addr := testservers.Redis(b).Addr
	observer := redisClient(b, addr)
	var all []*pawl.Client
	for range 8 {
		all = append(all, pawlOnRedis(b, addr))
	}
	warm(b, all[0])
	rounds := 0
	parties := func(n int) float64 {
		rounds++
		name, before := "latch "+strconv.Itoa(rounds), total(b, observer)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if err := all[i%len(all)].Latch(name, n).CountDown(ctx, strconv.Itoa(i)); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		if b.Failed() {
			b.FailNow()
		}
		if err := all[0].Latch(name, n).Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
		return float64(total(b, observer)-before) / float64(n)
	}
	var ours, floor float64
	for b.Loop() {
		floor, ours = parties(100), parties(1000)
	}
	b.ReportMetric(ours/floor, "ratio")
	b.ReportMetric(0, "ns/op")
	say("redis commands a party of a latch: %.1f with 100 parties, %.1f with 1,000: %.2f × (goal 2 ×)", floor, ours, ours/floor)
}
