package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/redisstock"
	"github.com/pawl-go/pawl/internal/testservers"
)

// BenchmarkIdemLeases: a claim, its result and a repeat in Redis, beside commands by hand. These are
// SET NX, a script that compares and sets, and GET.
func BenchmarkIdemLeases(b *testing.B) {
	addr := testservers.Redis(b).Addr
	pawls, bare := pawlOnRedis(b, addr), redisClient(b, addr)
	warm(b, pawls)
	leases := idem.NewLeases(pawls, nil)
	complete := rueidis.NewLuaScript(`if redis.call("GET",KEYS[1]) == ARGV[1] then return redis.call("SET",KEYS[1],ARGV[2],"PX",86400000) end`)
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	print := idem.FingerprintOf([]byte("content"))
	call := func(id string, want bool) {
		_, replayed, err := leases.Do(ctx, idem.Key{Scope: "bench", ID: id}, print, nil, func(context.Context, *idem.Claim) ([]byte, error) {
			return []byte("result"), nil
		})
		must(err)
		if replayed != want {
			b.Fatal(id, "is a repeat:", replayed)
		}
	}
	var first, repeat, firstByHand, readByHand samples
	n := 0
	for b.Loop() {
		n++
		id := strconv.Itoa(n)
		firstByHand.time(func() {
			must(bare.Do(ctx, bare.B().Set().Key("hand:"+id).Value("owner").Nx().PxMilliseconds(15000).Build()).Error())
			must(complete.Exec(ctx, bare, []string{"hand:" + id}, []string{"owner", "result"}).Error())
		})
		first.time(func() { call(id, false) })
		readByHand.time(func() { must(bare.Do(ctx, bare.B().Get().Key("hand:"+id).Build()).Error()) })
		repeat.time(func() { call(id, true) })
	}
	compare(b, "idem with a lease, first call, redis", micros(first.quantile(.5)), micros(firstByHand.quantile(.5)), 4)
	compare(b, "idem with a lease, repeat, redis", micros(repeat.quantile(.5)), micros(readByHand.quantile(.5)), 1.5)
}

// The scripts of a stock by hand: an id is counted once, and its reservation ends after a while.
var (
	reserveByHand = rueidis.NewLuaScript(`if redis.call("EXISTS",KEYS[2]) == 1 then return 1 end
		if tonumber(redis.call("GET",KEYS[1])) < tonumber(ARGV[1]) then return 0 end
		redis.call("DECRBY",KEYS[1],ARGV[1]) redis.call("ZADD",KEYS[3],ARGV[2],KEYS[2])
		redis.call("SET",KEYS[2],ARGV[1],"PX",87000000) return 1`)
	confirmByHand = rueidis.NewLuaScript(`redis.call("ZREM",KEYS[2],KEYS[1]) return redis.call("SET",KEYS[1],"C","XX","PX",86400000)`)
)

// BenchmarkRedisStock: reservations of a unit that are confirmed, beside scripts by hand over as many keys.
func BenchmarkRedisStock(b *testing.B) {
	bare := redisClient(b, testservers.Redis(b).Addr)
	for _, parts := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(parts, " parts"), func(b *testing.B) { benchRedisStock(b, bare, parts) })
	}
}

func benchRedisStock(b *testing.B, bare rueidis.Client, parts int) {
	const units = 1_000_000_000
	name := fmt.Sprint("sku", time.Now().UnixNano())
	stock, err := redisstock.New(bare, name, &redisstock.Options{Parts: parts})
	if err == nil {
		err = stock.Put(ctx, "all", units)
	}
	for part := range parts {
		if err == nil {
			err = bare.Do(ctx, bare.B().Set().Key(fmt.Sprintf("hand:{%s/%d}", name, part)).Value(strconv.Itoa(units/parts)).Build()).Error()
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	var ids atomic.Int64
	take := func() error {
		id := strconv.FormatInt(ids.Add(1), 10)
		if err := stock.Reserve(ctx, id, unitsTaken); err != nil {
			return err
		}
		return stock.Confirm(ctx, id)
	}
	byHand := func() error {
		key := fmt.Sprintf("hand:{%s/%d}", name, rand.IntN(parts))
		id := key + ":" + strconv.FormatInt(ids.Add(1), 10)
		ends := strconv.FormatInt(time.Now().Add(10*time.Minute).UnixMilli(), 10)
		if n, err := reserveByHand.Exec(ctx, bare, []string{key, id, key + ":holds"}, []string{strconv.Itoa(unitsTaken), ends}).AsInt64(); err != nil || n != 1 {
			return fmt.Errorf("%w: %d", pawl.ErrNotAcquired, n)
		}
		return confirmByHand.Exec(ctx, bare, []string{id, key + ":holds"}, nil).Error()
	}
	var ours, floor samples
	for b.Loop() {
		for range rounds {
			floor.time(func() { buy(b, byHand) })
			ours.time(func() { buy(b, take) })
		}
	}
	each := func(s samples) time.Duration { return s.quantile(.5) / (buyers * eachBuys) }
	compare(b, fmt.Sprintf("redis, a unit of %d parts, reserved and confirmed", parts), micros(each(ours)), micros(each(floor)), 1/0.9)
}
