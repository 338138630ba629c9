package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func postgresPool(b *testing.B, addr string) *pgxpool.Pool {
	b.Helper()
	pool, err := pgxpool.New(ctx, testservers.PostgresURL(addr))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func client(b *testing.B, eng engine.Engine) *pawl.Client {
	b.Helper()
	c, err := pawl.New(ctx, eng, &pawl.Options{TTL: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(ctx); eng.Close() })
	return c
}

func pawlOnPostgres(b *testing.B, pool *pgxpool.Pool) *pawl.Client {
	b.Helper()
	eng, err := pgengine.New(ctx, pool, &pgengine.Options{Unlogged: true})
	if err != nil {
		b.Fatal(err)
	}
	return client(b, eng)
}

// advisory is the least that PostgreSQL can do: a lock without a queue to look
// at, an expiry, an owner or a token.
func advisory(b *testing.B, pool *pgxpool.Pool) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	for _, query := range []string{"SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"} {
		if _, err := conn.Exec(ctx, query, 42); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPostgresUncontended(b *testing.B) {
	pool := postgresPool(b, testservers.Postgres(b).Addr)
	m := pawlOnPostgres(b, pool).Mutex("order/42")
	var ours, floor samples
	for b.Loop() {
		floor.time(func() { advisory(b, pool) })
		ours.time(func() { lockUnlock(b, m) })
	}
	compare(b, "postgres lock+unlock p50, unlogged", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 2)
}

// notice is one bare NOTIFY, from before it is sent to its receipt by who waits
// for it on another connection.
func notice(b *testing.B, pool *pgxpool.Pool, listener *pgx.Conn) time.Duration {
	got := make(chan time.Time, 1)
	go func() {
		if _, err := listener.WaitForNotification(ctx); err != nil {
			b.Error(err)
		}
		got <- time.Now()
	}()
	start := time.Now()
	if _, err := pool.Exec(ctx, "SELECT pg_notify('bench', $1)", "1795227281956428 0 ABCDEFGHIJKLMNOPQRSTUVWXYZ ABCDEFGHIJKLMNOPQRSTUVWXYZ.1a"); err != nil {
		b.Fatal(err)
	}
	return (<-got).Sub(start)
}

func BenchmarkPostgresHandoff(b *testing.B) {
	addr := testservers.Postgres(b).Addr
	pool := postgresPool(b, addr)
	listener, err := pgx.Connect(ctx, testservers.PostgresURL(addr))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { listener.Close(ctx) })
	if _, err := listener.Exec(ctx, "LISTEN bench"); err != nil {
		b.Fatal(err)
	}
	const clients, each = 4, 250
	var all []*pawl.Client
	for range clients {
		all = append(all, pawlOnPostgres(b, postgresPool(b, addr)))
	}
	var ours, floor samples
	for b.Loop() {
		for range clients * each {
			floor = append(floor, notice(b, pool, listener))
		}
		ours = append(ours, handoffs(b, all, each)...)
	}
	compare(b, "postgres handoff p50, unlogged", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 2)
}

// handoffs measures how long it is from before one unlocks to the return of the
// next one's lock.
func handoffs(b *testing.B, all []*pawl.Client, each int) (got samples) {
	var left time.Time // written by who holds, as got is
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			for range each {
				l, err := c.Mutex("hot").Lock(ctx)
				if err != nil {
					b.Error(err)
					return
				}
				if !left.IsZero() {
					got = append(got, time.Since(left))
				}
				left = time.Now()
				if err := l.Unlock(ctx); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		fmt.Println("handoffs failed")
	}
	return got
}
