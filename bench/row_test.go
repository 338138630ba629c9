package bench

import (
	"context"
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// BenchmarkPostgresRow has pg_advisory_lock and pg_advisory_unlock on the same
// pool as its floor: they write nothing and tell nobody who holds. The context
// can end, as that of a service's request does.
func BenchmarkPostgresRow(b *testing.B) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pool := postgresPool(b, testservers.Postgres(b).Addr)
	eng, err := pgengine.NewRow(ctx, pool, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := client(b, eng).Mutex("order/42")
	var ours, floor samples
	for b.Loop() {
		floor.time(func() { advisory(ctx, b, pool) })
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
	m := client(b, eng).Mutex("order/42")
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
