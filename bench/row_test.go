package bench

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func rowMutex(b *testing.B, eng engine.Engine) *pawl.Mutex {
	b.Helper()
	c, err := pawl.New(ctx, eng, &pawl.Options{TTL: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(ctx) })
	return c.Mutex("order/42")
}

// BenchmarkPostgresRow has pg_advisory_lock and pg_advisory_unlock on the same
// pool as its floor: they write nothing and tell nobody who holds. The context
// can end, as that of a service's request does.
func BenchmarkPostgresRow(b *testing.B) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pool, err := pgxpool.New(ctx, testservers.PostgresURL(testservers.Postgres(b).Addr))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	eng, err := pgengine.NewRow(ctx, pool, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := rowMutex(b, eng)
	var ours, floor samples
	for b.Loop() {
		floor.time(func() {
			conn, err := pool.Acquire(ctx)
			if err != nil {
				b.Fatal(err)
			}
			for _, query := range []string{"SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"} {
				if _, err := conn.Exec(ctx, query, 42); err != nil {
					b.Error(err)
				}
			}
			conn.Release()
		})
		ours.time(func() { lockUnlock(b, m) })
	}
	compare(b, "PostgreSQL row lock+unlock p50", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1.3)
}

// BenchmarkMariaDBRow has GET_LOCK and RELEASE_LOCK on the same pool as its
// floor, with a context as above.
func BenchmarkMariaDBRow(b *testing.B) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connector, err := mysql.NewConnector(testservers.MariaDBConfig(testservers.MariaDB(b).Addr))
	if err != nil {
		b.Fatal(err)
	}
	db := sql.OpenDB(connector)
	b.Cleanup(func() { db.Close() })
	eng, err := mysqlengine.NewRow(ctx, db, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := rowMutex(b, eng)
	var ours, floor samples
	for b.Loop() {
		floor.time(func() {
			conn, err := db.Conn(ctx)
			if err != nil {
				b.Fatal(err)
			}
			for _, query := range []string{"SELECT GET_LOCK('order/42', 10)", "SELECT RELEASE_LOCK('order/42')"} {
				if err := conn.QueryRowContext(ctx, query).Scan(new(int)); err != nil {
					b.Error(err)
				}
			}
			if err := conn.Close(); err != nil {
				b.Error(err)
			}
		})
		ours.time(func() { lockUnlock(b, m) })
	}
	compare(b, "MariaDB row lock+unlock p50", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 1.5)
}
