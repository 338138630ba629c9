package bench

import (
	"database/sql"
	"testing"

	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// BenchmarkMariaDBUncontended is lease mode beside GET_LOCK, which has no expiry,
// no queue to look at and no token, and writes nothing. There is no goal for it:
// it shows what those cost.
func BenchmarkMariaDBUncontended(b *testing.B) {
	db, err := sql.Open("mysql", testservers.MariaDBConfig(testservers.MariaDB(b).Addr).FormatDSN())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
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
	var ours, floor samples
	for b.Loop() {
		floor.time(func() {
			for _, query := range []string{"SELECT GET_LOCK('floor', 10)", "SELECT RELEASE_LOCK('floor')"} {
				var got int
				if err := conn.QueryRowContext(ctx, query).Scan(&got); err != nil || got != 1 {
					b.Fatal(got, err)
				}
			}
		})
		ours.time(func() { lockUnlock(b, m) })
	}
	compare(b, "mariadb lock+unlock p50, lease mode", micros(ours.quantile(.5)), micros(floor.quantile(.5)), 10)
}
