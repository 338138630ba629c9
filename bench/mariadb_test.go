package bench

import (
	"context"
	"database/sql"
	"testing"

	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func mariadbPool(b *testing.B) *sql.DB {
	b.Helper()
	return testservers.MariaDBPool(b, testservers.MariaDB(b).Addr)
}

// getLock is the least that MariaDB can do: a lock without an expiry, an owner, a token or a
// visible queue.
func getLock(ctx context.Context, b *testing.B, conn *sql.Conn) {
	for _, query := range []string{"SELECT GET_LOCK('floor', 10)", "SELECT RELEASE_LOCK('floor')"} {
		var got int
		if err := conn.QueryRowContext(ctx, query).Scan(&got); err != nil || got != 1 {
			b.Fatal(got, err)
		}
	}
}

// BenchmarkMariaDBUncontended is lease mode beside GET_LOCK, which has no expiry, no visible queue
// and no token, and writes nothing. The benchmark has no goal: it shows the cost of these.
func BenchmarkMariaDBUncontended(b *testing.B) {
	db := mariadbPool(b)
	eng, err := mysqlengine.New(ctx, db, nil)
	if err != nil {
		b.Fatal(err)
	}
	c := client(b, eng)
	conn, err := db.Conn(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	beside(b, "mariadb lock+unlock p50, lease mode", c.Mutex("order/42"), 10, func() { getLock(ctx, b, conn) })
}

// BenchmarkMariaDBLogged has as its floor a row that is inserted and deleted: two flushed commits,
// as a lock and an unlock are. A tuned server does not flush. Goroutines in parallel share the
// flushes of 32 connections, which both have.
func BenchmarkMariaDBLogged(b *testing.B) {
	db := mariadbPool(b)
	db.SetMaxOpenConns(32)
	db.SetMaxIdleConns(32)
	eng, err := mysqlengine.New(ctx, db, nil)
	if err != nil {
		b.Fatal(err)
	}
	do := func(query string, args ...any) {
		if _, err := db.ExecContext(ctx, query, args...); err != nil {
			b.Error(err)
		}
	}
	do("CREATE TABLE floor (id INT PRIMARY KEY) ENGINE=InnoDB")
	least := func(i int) {
		do("INSERT INTO floor VALUES (?)", i)
		do("DELETE FROM floor WHERE id = ?", i)
	}
	c := client(b, eng)
	b.Run("alone", func(b *testing.B) {
		beside(b, unflushed("mariadb lock+unlock p50, rows as floor"), c.Mutex("order/42"), 3, func() { least(42) })
	})
	b.Run("parallel", func(b *testing.B) {
		parallel(b, unflushed("mariadb 64 goroutines, per lock+unlock"), 20, c, 3, least)
	})
}
