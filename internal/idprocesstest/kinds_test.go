package idprocesstest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/readable"
	"github.com/pawl-go/pawl/id/redisid"
	"github.com/pawl-go/pawl/id/segment"
	"github.com/pawl-go/pawl/id/sequence"
	"github.com/pawl-go/pawl/id/snowflake"
	"github.com/pawl-go/pawl/id/uuids"
	"github.com/pawl-go/pawl/internal/idtest"
)

// kind is one way to make IDs.
type kind struct {
	name      string
	open      func(ctx context.Context, p *process) (source, error)
	atStore   bool // IDs, or small blocks of them, cost a round trip: so there are fewer
	unordered bool
	naive     bool // it repeats IDs
}

// source fills dst from the front.
type source func(ctx context.Context, dst []idtest.ID) (n int, err error)

// kinds are all of them. The marks and counters are in etcd, PostgreSQL, MariaDB and Redis.
var kinds = []kind{
	{name: "snowflake", open: openSnowflake},
	{name: "segment in etcd", open: openSegment(inEtcd)},
	{name: "segment in PostgreSQL", open: openSegment(inPostgres)},
	{name: "readable", open: openReadable, unordered: true}, // days go back with the clock
	{name: "uuid4", open: openUUIDs(uuids.V4), unordered: true},
	{name: "uuid7", open: openUUIDs(uuids.V7)},
	{name: "sequence", open: openSequence, atStore: true, unordered: true}, // of two databases
	{name: "strict", open: openStrict, atStore: true},
	{name: "redis", open: openRedis, atStore: true},
	{name: "redis in blocks", open: openRedisBlocks, atStore: true},
	{name: "naive snowflake", open: openNaiveSnowflake, atStore: true, unordered: true, naive: true},
	{name: "unguarded INCR", open: openNaiveRedis, atStore: true, unordered: true, naive: true},
	{name: "unguarded counter", open: openNaiveCounter, atStore: true, unordered: true, naive: true},
}

// sourceOf has each ID of a generator be a number.
func sourceOf[T any](g id.Generator[T], number func(T) (idtest.ID, error)) source {
	return func(ctx context.Context, dst []idtest.ID) (int, error) {
		made := make([]T, len(dst))
		n, err := g.NextN(ctx, made)
		for i, is := range made[:n] {
			var wrong error
			if dst[i], wrong = number(is); wrong != nil {
				return i, wrong
			}
		}
		return n, err
	}
}

func numbers(g id.Generator[int64]) source {
	return sourceOf(g, func(n int64) (idtest.ID, error) {
		if n < 1 {
			return idtest.ID{}, fmt.Errorf("the ID %d", n)
		}
		return idtest.ID{Low: uint64(n)}, nil
	})
}

func openSnowflake(ctx context.Context, p *process) (source, error) {
	client, marks, err := p.values(ctx)
	if err != nil {
		return nil, err
	}
	g, err := snowflake.New(ctx, client, marks, "ids", &snowflake.Options{Clock: p.clock})
	return numbers(g), err
}

func inEtcd(ctx context.Context, p *process) (id.Registers, error) {
	_, registers, err := p.values(ctx)
	return registers, err
}

func inPostgres(ctx context.Context, p *process) (id.Registers, error) {
	return marks(ctx, p.postgres, dialect.PostgreSQL)
}

// batches are loaded several times a second.
var batches = segment.Options{MinStep: 2000, MaxStep: 100_000, Cover: 300 * time.Millisecond, RequestTimeout: time.Second}

func openSegment(registers func(context.Context, *process) (id.Registers, error)) func(context.Context, *process) (source, error) {
	return func(ctx context.Context, p *process) (source, error) {
		r, err := registers(ctx, p)
		if err != nil {
			return nil, err
		}
		g, err := segment.New(r.Counter("segment"), &batches)
		return numbers(g), err
	}
}

func openReadable(ctx context.Context, p *process) (source, error) {
	registers, err := inEtcd(ctx, p)
	if err != nil {
		return nil, err
	}
	daily, err := readable.NewDaily(registers, "orders")
	if err != nil {
		return nil, err
	}
	f, err := readable.New("ORD-{date:20060102}-{n:10}-{digit}", &readable.Options{Now: p.clock, Counter: func(day string) id.Generator[int64] {
		g, err := segment.New(daily.Counter(day), &batches)
		if err != nil {
			panic(err) // the options are good
		}
		return g
	}})
	if err != nil {
		return nil, err
	}
	g, err := f.Generator(nil)
	return sourceOf(g, func(text string) (idtest.ID, error) {
		parts, err := f.Parse(text)
		return idtest.ID{Low: uint64(parts.Time.Unix()/(24*60*60)<<40 + parts.Number)}, err
	}), err
}

func openUUIDs(version func() id.Generator[uuid.UUID]) func(context.Context, *process) (source, error) {
	return func(context.Context, *process) (source, error) {
		return sourceOf(version(), func(u uuid.UUID) (idtest.ID, error) {
			return idtest.ID{High: binary.BigEndian.Uint64(u[:]), Low: binary.BigEndian.Uint64(u[8:])}, nil
		}), nil
	}
}

func openSequence(ctx context.Context, p *process) (source, error) {
	s, err := sequence.New(ctx, []sequence.Database{{DB: p.postgres, Dialect: dialect.PostgreSQL}, {DB: p.mariadb, Dialect: dialect.MySQL}},
		"ids", &sequence.Options{Step: 2})
	return numbers(s), err
}

func openStrict(ctx context.Context, p *process) (source, error) {
	registers, err := marks(ctx, p.mariadb, dialect.MySQL)
	if err != nil {
		return nil, err
	}
	return numbers(id.NewStrict(registers.Counter("strict"))), nil
}

// counterInRedis has its mark in PostgreSQL.
func counterInRedis(ctx context.Context, p *process, key string) (id.Counter, error) {
	registers, err := inPostgres(ctx, p)
	if err != nil {
		return nil, err
	}
	client, err := p.redis()
	if err != nil {
		return nil, err
	}
	return redisid.New(client, key, &redisid.Options{Mark: registers.Mark(key), Ahead: 2000})
}

func openRedis(ctx context.Context, p *process) (source, error) {
	c, err := counterInRedis(ctx, p, redisKey)
	return numbers(id.NewStrict(c)), err
}

func openRedisBlocks(ctx context.Context, p *process) (source, error) {
	c, err := counterInRedis(ctx, p, "blocks")
	if err != nil {
		return nil, err
	}
	g, err := segment.New(c, &segment.Options{MaxStep: 100, RequestTimeout: time.Second})
	return numbers(g), err
}

// redisKey is the key that is lost and put back.
const redisKey = "ids"

// naiveSnowflake is the way of most libraries: the clock, and a worker number that is configured.
type naiveSnowflake struct {
	clock  func() time.Time
	worker int64

	mu             sync.Mutex
	tick, sequence int64
}

func (g *naiveSnowflake) next() int64 {
	now := g.clock().UnixMilli()
	if now != g.tick {
		g.sequence = -1
	}
	if g.sequence++; g.sequence == 4096 {
		for now == g.tick {
			now = g.clock().UnixMilli()
		}
		g.sequence = 0
	}
	g.tick = now
	return now<<22 | g.worker<<12 | g.sequence
}

func openNaiveSnowflake(_ context.Context, p *process) (source, error) {
	g := &naiveSnowflake{clock: p.clock, worker: int64(p.Number)}
	return func(_ context.Context, dst []idtest.ID) (int, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for i := range dst {
			dst[i].Low = uint64(g.next())
		}
		return len(dst), nil
	}, nil
}

// bareINCR counts in a Redis that may forget.
type bareINCR struct{ client rueidis.Client }

func (c bareINCR) Add(ctx context.Context, n int64) (int64, error) {
	last, err := c.client.Do(ctx, c.client.B().Incrby().Key("bare").Increment(n).Build()).AsInt64()
	if err != nil {
		return 0, errors.Join(pawl.ErrUnavailable, err)
	}
	return last, nil
}

func openNaiveRedis(_ context.Context, p *process) (source, error) {
	client, err := p.redis()
	return numbers(id.NewStrict(bareINCR{client})), err
}

func openNaiveCounter(ctx context.Context, p *process) (source, error) {
	registers, err := inPostgres(ctx, p)
	if err != nil {
		return nil, err
	}
	return numbers(id.NewStrict(idtest.NaiveCounter(registers.Mark("naive")))), nil
}
