package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl"
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

func pawlOnPostgres(b *testing.B, pool *pgxpool.Pool) *pawl.Client {
	b.Helper()
	return pawlOnPostgresWith(b, pool, &pgengine.Options{Unlogged: true})
}

func pawlOnPostgresWith(b *testing.B, pool *pgxpool.Pool, opts *pgengine.Options) *pawl.Client {
	b.Helper()
	eng, err := pgengine.New(ctx, pool, opts)
	if err != nil {
		b.Fatal(err)
	}
	return client(b, eng)
}

// advisory is the least that PostgreSQL can do: a lock without an expiry, an owner, a token or a
// visible queue.
func advisory(ctx context.Context, b *testing.B, pool *pgxpool.Pool) {
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
	beside(b, "postgres lock+unlock p50, unlogged", m, 2, func() { advisory(ctx, b, pool) })
}

// BenchmarkPostgresLogged has as its floor a row that is inserted and deleted: two flushed commits,
// as a lock and an unlock are. Goroutines in parallel share the flushes of 32 connections, which
// both have.
func BenchmarkPostgresLogged(b *testing.B) {
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(testservers.Postgres(b).Addr))
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 32
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	do := func(query string, args ...any) {
		if _, err := pool.Exec(ctx, query, args...); err != nil {
			b.Error(err)
		}
	}
	do("CREATE TABLE floor (name text PRIMARY KEY)")
	least := func(i int) {
		do("INSERT INTO floor VALUES ($1)", fmt.Sprint("order/", i))
		do("DELETE FROM floor WHERE name = $1", fmt.Sprint("order/", i))
	}
	c := pawlOnPostgresWith(b, pool, nil)
	b.Run("alone", func(b *testing.B) {
		beside(b, "postgres lock+unlock p50, logged", c.Mutex("order/42"), 2, func() { least(42) })
	})
	b.Run("parallel", func(b *testing.B) {
		parallel(b, "postgres 64 goroutines, per lock+unlock, logged", 20, c, 2, least)
	})
}

// notices measures bare NOTIFYs, each from before it is sent until the waiting goroutine has it.
// The clients form a ring. As pawl's clients, each has a pool and a connection on which it listens.
// The server wakes every connection that listens to anything.
func notices(b *testing.B, addr string, clients, rounds int, pause time.Duration) (got samples) {
	pools, listeners := make([]*pgxpool.Pool, clients), make([]*pgx.Conn, clients)
	for i := range clients {
		pools[i] = postgresPool(b, addr)
		conn, err := pgx.Connect(ctx, testservers.PostgresURL(addr))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, fmt.Sprint("LISTEN ring", i)); err != nil {
			b.Fatal(err)
		}
		listeners[i] = conn
	}
	received := make(chan time.Time, 1)
	for r := range rounds {
		next := (r + 1) % clients
		go func() {
			if _, err := listeners[next].WaitForNotification(ctx); err != nil {
				b.Error(err)
			}
			received <- time.Now()
		}()
		time.Sleep(pause) // as a holder does
		start := time.Now()
		if _, err := pools[r%clients].Exec(ctx, "SELECT pg_notify($1, '1795227281956428 0 ABCDEFGHIJKLMNOPQRSTUVWXYZ ABCDEFGHIJKLMNOPQRSTUVWXYZ.1a')",
			fmt.Sprint("ring", next)); err != nil {
			b.Fatal(err)
		}
		got = append(got, (<-received).Sub(start))
	}
	return got
}

func BenchmarkPostgresHandoff(b *testing.B) {
	for _, clients := range []int{2, 4} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			holds(b, func(b *testing.B, hold time.Duration) { postgresHandoff(b, clients, hold) })
		})
	}
}

func postgresHandoff(b *testing.B, clients int, hold time.Duration) {
	const each = 250
	addr := testservers.Postgres(b).Addr
	var locks []lock
	for range clients {
		locks = append(locks, lockOf(pawlOnPostgres(b, postgresPool(b, addr)).Mutex("hot")))
	}
	var ours, floor samples
	for b.Loop() {
		floor = append(floor, notices(b, addr, clients, clients*each, hold)...)
		ours.handoffs(b, locks, each, hold)
	}
	compare(b, fmt.Sprintf("postgres handoff p50, unlogged, %d clients, %v", clients, hold), micros(ours.quantile(.5)), micros(floor.quantile(.5)), 2)
}
