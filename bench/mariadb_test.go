package bench

import (
	"context"
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

func mariadbPool(b *testing.B) *sql.DB {
	b.Helper()
	connector, err := mysql.NewConnector(testservers.MariaDBConfig(testservers.MariaDB(b).Addr))
	if err != nil {
		b.Fatal(err)
	}
	db := sql.OpenDB(connector)
	b.Cleanup(func() { db.Close() })
	return db
}

// getLock is the least that MariaDB can do: a lock without a queue to look at,
// an expiry, an owner or a token.
func getLock(ctx context.Context, b *testing.B, conn *sql.Conn) {
	for _, query := range []string{"SELECT GET_LOCK('floor', 10)", "SELECT RELEASE_LOCK('floor')"} {
		var got int
		if err := conn.QueryRowContext(ctx, query).Scan(&got); err != nil || got != 1 {
			b.Fatal(got, err)
		}
	}
}

// BenchmarkMariaDBUncontended is lease mode beside GET_LOCK, which has no expiry,
// no queue to look at and no token, and writes nothing. There is no goal for it:
// it shows what those cost.
func BenchmarkMariaDBUncontended(b *testing.B) {
	db := mariadbPool(b)
	eng, err := mysqlengine.New(ctx, db, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := client(b, eng).Mutex("order/42")
	conn, err := db.Conn(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	beside(b, "mariadb lock+unlock p50, lease mode", m, 10, func() { getLock(ctx, b, conn) })
}
