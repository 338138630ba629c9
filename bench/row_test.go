package bench

import (
	"context"
	"testing"

	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// BenchmarkPostgresRow has pg_advisory_lock and pg_advisory_unlock on the same pool as its floor.
// These write nothing and do not show the holder. The context can end, as that of a service's
// request does.
func BenchmarkPostgresRow(b *testing.B) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pool := postgresPool(b, testservers.Postgres(b).Addr)
	eng, err := pgengine.NewRow(ctx, pool, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := client(b, eng).Mutex("order/42")
	beside(b, "PostgreSQL row lock+unlock p50", m, 1.3, func() { advisory(ctx, b, pool) })
}

// BenchmarkMariaDBRow has GET_LOCK and RELEASE_LOCK on the same pool as its
// floor, with a context as above.
func BenchmarkMariaDBRow(b *testing.B) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	db := mariadbPool(b)
	eng, err := mysqlengine.NewRow(ctx, db, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := client(b, eng).Mutex("order/42")
	beside(b, "MariaDB row lock+unlock p50", m, 1.5, func() {
		conn, err := db.Conn(ctx)
		if err != nil {
			b.Fatal(err)
		}
		getLock(ctx, b, conn)
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
	})
}
