package bench

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/testservers"
)

const (
	buyers     = 32
	eachBuys   = 10
	rounds     = 12 // of ours and the floor in turn
	unitsTaken = 1
)

// BenchmarkStock: orders that take a unit and write a row, beside the bare statement over as many
// rows. The rate to that of one row is reported, too.
func BenchmarkStock(b *testing.B) {
	on := func(name string, d dialect.Dialect, db *sql.DB) {
		var single time.Duration
		for _, parts := range []int{1, 16, 64} {
			b.Run(fmt.Sprint(name, " ", parts, " parts"), func(b *testing.B) { benchStock(b, name, d, db, parts, &single) })
		}
	}
	on("postgres", dialect.PostgreSQL, openDB(b, "pgx", testservers.PostgresURL(testservers.SharedPostgres(b).Addr)))
	on("mariadb", dialect.MySQL, openDB(b, "mysql", testservers.MariaDBConfig(testservers.SharedMariaDB(b).Addr).FormatDSN()))
}

func openDB(b *testing.B, driver, source string) *sql.DB {
	b.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(buyers)
	db.SetMaxIdleConns(buyers)
	b.Cleanup(func() { db.Close() })
	return db
}

func benchStock(b *testing.B, name string, d dialect.Dialect, db *sql.DB, parts int, single *time.Duration) {
	table := fmt.Sprintf("stock_%d", time.Now().UnixNano())
	stocks, err := stock.New(d, &stock.Options{Table: table, Parts: parts})
	if err == nil {
		err = stocks.Create(ctx, db)
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "CREATE TABLE orders_"+table+" (id bigint PRIMARY KEY, n bigint NOT NULL)")
	}
	if err == nil {
		err = transact(db, func(tx *sql.Tx) error { return stocks.Put(ctx, tx, "sku", 1_000_000_000) })
	}
	if err != nil {
		b.Fatal(err)
	}
	statement, insert := "UPDATE "+table+" SET n = n - $1 WHERE name = $2 AND part = $3 AND n >= $4", "INSERT INTO orders_"+table+" VALUES ($1, $2)"
	if d == dialect.MySQL {
		statement, insert = "UPDATE "+table+" SET n = n - ? WHERE name = ? AND part = ? AND n >= ?", "INSERT INTO orders_"+table+" VALUES (?, ?)"
	}
	order := func(take func(tx *sql.Tx) error) error {
		return transact(db, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, insert, rand.Int64(), unitsTaken); err != nil {
				return err
			}
			return take(tx)
		})
	}
	bare := func() error {
		return order(func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, statement, unitsTaken, "sku", rand.IntN(parts), unitsTaken)
			return err
		})
	}
	take := func() error { return order(func(tx *sql.Tx) error { return stocks.Take(ctx, tx, "sku", unitsTaken) }) }
	var ours, floor samples
	for b.Loop() {
		for range rounds {
			floor.time(func() { buy(b, bare) })
			ours.time(func() { buy(b, take) })
		}
	}
	each := func(s samples) time.Duration { return s.quantile(.5) / (buyers * eachBuys) }
	compare(b, fmt.Sprintf("%s, a unit of %d parts, per order", name, parts), micros(each(ours)), micros(each(floor)), 1/0.9)
	if parts == 1 {
		*single = each(ours)
	} else if *single > 0 {
		say("%-54s %8.2f times the rate of one row", fmt.Sprintf("%s, a unit of %d parts", name, parts), float64(*single)/float64(each(ours)))
	}
}

func transact(db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// buy has all buyers order.
func buy(b *testing.B, order func() error) {
	var group sync.WaitGroup
	for range buyers {
		group.Go(func() {
			for range eachBuys {
				if err := order(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}
