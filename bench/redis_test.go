package bench

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/redisengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func redisClient(b *testing.B, addr string) rueidis.Client {
	b.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}

func pawlOnRedis(b *testing.B, addr string) *pawl.Client {
	b.Helper()
	return client(b, redisengine.New(redisClient(b, addr), nil))
}

// warm takes a lock once, so that the grace of the new server is over.
func warm(b *testing.B, c *pawl.Client) {
	b.Helper()
	if err := c.Mutex("warm").Do(ctx, func(context.Context) error { return nil }); err != nil {
		b.Fatal(err)
	}
}

// floorPair is the least work for a lock with an expiry and a release that checks the owner. The floor is
// SET NX PX, and a script that compares and deletes.
type floorPair struct {
	client rueidis.Client
	script *rueidis.Lua
}

func newFloor(c rueidis.Client) floorPair {
	return floorPair{c, rueidis.NewLuaScript(`if redis.call("GET",KEYS[1]) == ARGV[1] then return redis.call("DEL",KEYS[1]) else return 0 end`)}
}

func (f floorPair) pair(b *testing.B, key, id string) {
	if err := f.client.Do(ctx, f.client.B().Set().Key(key).Value(id).Nx().PxMilliseconds(5000).Build()).Error(); err != nil {
		b.Error(err)
	}
	if n, err := f.script.Exec(ctx, f.client, []string{key}, []string{id}).AsInt64(); err != nil || n != 1 {
		b.Error(n, err)
	}
}

func BenchmarkRedisUncontended(b *testing.B) {
	addr := testservers.Redis(b).Addr
	c, f := pawlOnRedis(b, addr), newFloor(redisClient(b, addr))
	warm(b, c)
	m := c.Mutex("order/42")
	beside(b, "redis lock+unlock p50", m, 1.15, func() { f.pair(b, "floor:order/42", "0123456789abcdef") })
}

// BenchmarkRedisWait1 has a replica that has to know each step, and the same for the floor.
func BenchmarkRedisWait1(b *testing.B) {
	master := testservers.Redis(b)
	testservers.RedisReplica(b, master.Addr)
	raw := redisClient(b, master.Addr)
	c := client(b, redisengine.New(redisClient(b, master.Addr), &redisengine.Options{Wait: 1}))
	warm(b, c)
	m := c.Mutex("order/42")
	acked := func(cmd rueidis.Completed) {
		results := raw.DoMulti(ctx, cmd, raw.B().Wait().Numreplicas(1).Timeout(1000).Build())
		if n, err := results[1].AsInt64(); n != 1 || err != nil || results[0].Error() != nil {
			b.Error(n, err, results[0].Error())
		}
	}
	beside(b, "redis wait=1 lock+unlock p50", m, 1.25, func() {
		acked(raw.B().Set().Key("floor").Value("0123456789abcdef").Nx().PxMilliseconds(5000).Build())
		acked(raw.B().Del().Key("floor").Build())
	})
}

func BenchmarkRedisParallel(b *testing.B) {
	addr := testservers.Redis(b).Addr
	c, f := pawlOnRedis(b, addr), newFloor(redisClient(b, addr))
	warm(b, c)
	parallel(b, "redis 64 goroutines, per lock+unlock", 100, c, 1/0.8, func(i int) { f.pair(b, "floor:"+strconv.Itoa(i), "0123456789abcdef") })
}

// message measures one published message, from before PUBLISH until the goroutine that waits in
// Receive has it. The clients form a ring: a client that receives a message publishes to the next.
// Subscriptions have connections of their own, so that publishing keeps the client's fast path.
func message(b *testing.B, addr string, clients, rounds int, pause time.Duration) samples {
	nodes := make([]rueidis.Client, clients)
	news := make(chan time.Duration, 1)
	listening, stop := context.WithCancel(ctx)
	var receivers sync.WaitGroup
	defer receivers.Wait()
	defer stop()
	var sent atomic.Int64
	epoch := time.Now()
	for i := range nodes {
		nodes[i] = redisClient(b, addr)
		conn, _ := nodes[i].Dedicate()
		ready := make(chan struct{})
		hooked := rueidis.WithOnSubscriptionHook(listening, func(rueidis.PubSubSubscription) { close(ready) })
		receivers.Go(func() {
			defer conn.Close()
			err := conn.Receive(hooked, conn.B().Subscribe().Channel("ring"+strconv.Itoa(i)).Build(),
				func(rueidis.PubSubMessage) { news <- time.Since(epoch) - time.Duration(sent.Load()) })
			if listening.Err() == nil {
				b.Error(err)
				select {
				case news <- 0:
				default: // there is one already
				}
			}
		})
		select {
		case <-ready:
		case <-news:
			b.FailNow()
		}
	}
	var got samples
	for r := range rounds {
		time.Sleep(pause) // as a holder does
		sent.Store(int64(time.Since(epoch)))
		c := nodes[r%clients]
		if err := c.Do(ctx, c.B().Publish().Channel("ring"+strconv.Itoa((r+1)%clients)).
			Message("g\x1fABCDEFGHIJKLMNOPQRSTUVWXYZ.1a\x1f1795227281956428").Build()).Error(); err != nil {
			b.Fatal(err)
		}
		got = append(got, <-news)
		if b.Failed() {
			b.FailNow()
		}
	}
	return got
}

func BenchmarkRedisHandoff(b *testing.B) { holds(b, redisHandoff) }

func redisHandoff(b *testing.B, hold time.Duration) {
	addr := testservers.Redis(b).Addr
	const clients, each = 16, 200
	var locks []lock
	for i := range clients {
		c := pawlOnRedis(b, addr)
		if i == 0 {
			warm(b, c)
		}
		locks = append(locks, lockOf(c.Mutex("hot")))
	}
	var ours, floor samples
	var most int
	for b.Loop() {
		floor = append(floor, message(b, addr, clients, clients*each, hold)...)
		order := ours.handoffs(b, locks, each, hold)
		counts := make([]int, clients)
		for _, i := range order[:len(order)/2] {
			counts[i]++
		}
		most = max(most, slices.Max(counts)-slices.Min(counts))
	}
	say("redis %d clients: at half time their counts differ by at most %d of %d", clients, most, each/2)
	compare(b, fmt.Sprintf("redis handoff p50, %d clients, %v", clients, hold), micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1.35)
}

var calls = regexp.MustCompile(`cmdstat_(\w+):calls=(\d+)`)

func commands(b *testing.B, c rueidis.Client) map[string]int {
	text, err := c.Do(ctx, c.B().Info().Section("commandstats").Build()).ToString()
	if err != nil {
		b.Fatal(err)
	}
	n := make(map[string]int)
	for _, m := range calls.FindAllStringSubmatch(text, -1) {
		n[m[1]], _ = strconv.Atoi(m[2])
	}
	return n
}

func BenchmarkRedisDrain(b *testing.B) {
	addr := testservers.Redis(b).Addr
	const clients, waiters = 8, 1000
	all := make([]*pawl.Client, clients)
	for i := range all {
		all[i] = pawlOnRedis(b, addr)
	}
	warm(b, all[0])
	observer := redisClient(b, addr)
	eng := redisengine.New(observer, nil)
	perHandover := make(map[string]float64)
	var ours, floor samples
	for b.Loop() {
		floor = append(floor, message(b, addr, 16, 4000, 0)...)
		first, err := all[0].Mutex("drain").Lock(ctx)
		if err != nil {
			b.Fatal(err)
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		defer first.Unlock(ctx) //nolint:errcheck // the lock is released by then, unless the benchmark has failed
		for i := range waiters {
			wg.Go(func() { lockUnlock(b, all[i%clients].Mutex("drain")) })
		}
		until(b, "all wait", func() bool {
			r, err := eng.Show(ctx, "drain")
			if err != nil {
				b.Fatal(err)
			}
			return len(r.Claims) == waiters+1
		})
		before := commands(b, observer)
		start := time.Now()
		first.Unlock(ctx)
		wg.Wait()
		ours = append(ours, time.Since(start)/waiters)
		for name, n := range commands(b, observer) {
			if n-before[name] > 100 {
				perHandover[name] = float64(n-before[name]) / waiters
			}
		}
	}
	say("redis commands for each hand-over, those inside scripts too: %v", perHandover)
	compare(b, "redis drain of 1000 waiters, each", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1.8)
}
