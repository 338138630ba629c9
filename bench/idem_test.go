package bench

import (
	"context"
	"database/sql"
	"strconv"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dialect/pgxtx"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/internal/testservers"
)

// idemTx is a transaction with the statements that a program would send by hand.
type idemTx struct {
	in     idem.Tx
	exec   func(query string, args ...any) error
	read   func(query, id string) error
	commit func() error
}

// byHand are the statements of one database.
type byHand struct{ claim, effect, keep, read string }

const (
	handTables = "CREATE TABLE hand (name varchar(100) PRIMARY KEY, fingerprint varchar(64), result varchar(100))"
	effects    = "CREATE TABLE effects (name varchar(100), n bigint)"
)

var handPostgres = byHand{
	"INSERT INTO hand (name, fingerprint) VALUES ($1, $2) ON CONFLICT DO NOTHING", "INSERT INTO effects VALUES ($1, 1)",
	"UPDATE hand SET result = $1 WHERE name = $2", "SELECT result FROM hand WHERE name = $1"}

var handMySQL = byHand{
	"INSERT IGNORE INTO hand (name, fingerprint) VALUES (?, ?)", "INSERT INTO effects VALUES (?, 1)",
	"UPDATE hand SET result = ? WHERE name = ?", "SELECT result FROM hand WHERE name = ?"}

// transactionMode measures a first call and a repeat beside the same statements by hand. A first call
// claims, writes the effect and keeps a result.
func transactionMode(b *testing.B, name string, hand byHand, begin func() idemTx) {
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	print := idem.FingerprintOf([]byte("content"))
	call := func(id string, want bool) {
		tx := begin()
		_, replayed, err := idem.Do(ctx, tx.in, idem.Key{Scope: "bench", ID: id}, print, func(context.Context) (string, error) {
			return "result", tx.exec(hand.effect, id)
		})
		must(err)
		must(tx.commit())
		if replayed != want {
			b.Fatal(id, "is a repeat:", replayed)
		}
	}
	var first, repeat, firstByHand, readByHand, effect samples
	n := 0
	for b.Loop() {
		n++
		id := strconv.Itoa(n)
		effect.time(func() {
			tx := begin()
			must(tx.exec(hand.effect, id))
			must(tx.commit())
		})
		firstByHand.time(func() {
			tx := begin()
			must(tx.exec(hand.claim, id, "0123456789abcdef0123456789abcdef"))
			must(tx.exec(hand.effect, id))
			must(tx.exec(hand.keep, "result", id))
			must(tx.commit())
		})
		first.time(func() { call(id, false) })
		readByHand.time(func() {
			tx := begin()
			must(tx.read(hand.read, id))
			must(tx.commit())
		})
		repeat.time(func() { call(id, true) })
	}
	compare(b, "idem, first call, "+name+", beside the effect", micros(first.quantile(.5)), micros(effect.quantile(.5)), 2.5)
	compare(b, "idem, first call, "+name, micros(first.quantile(.5)), micros(firstByHand.quantile(.5)), 1.3)
	compare(b, "idem, repeat, "+name, micros(repeat.quantile(.5)), micros(readByHand.quantile(.5)), 1.5)
}

func BenchmarkIdemPgx(b *testing.B) {
	pool := postgresPool(b, testservers.Postgres(b).Addr)
	store, err := sqlidem.New(dialect.PostgreSQL, nil)
	if err != nil {
		b.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	if err := store.Migrate(ctx, db); err != nil {
		b.Fatal(err)
	}
	for _, query := range []string{handTables, effects} {
		if _, err := pool.Exec(ctx, query); err != nil {
			b.Fatal(err)
		}
	}
	transactionMode(b, "pgx", handPostgres, func() idemTx {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return idemTx{store.In(pgxtx.Of(tx)),
			func(query string, args ...any) error { _, err := tx.Exec(ctx, query, args...); return err },
			func(query, id string) error { var is string; return tx.QueryRow(ctx, query, id).Scan(&is) },
			func() error { return tx.Commit(ctx) }}
	})
}

func BenchmarkIdemPostgres(b *testing.B) {
	db, err := sql.Open("pgx", testservers.PostgresURL(testservers.Postgres(b).Addr))
	if err != nil {
		b.Fatal(err)
	}
	idemSQL(b, "PostgreSQL", dialect.PostgreSQL, db, handPostgres)
}

func BenchmarkIdemMariaDB(b *testing.B) {
	config := testservers.MariaDBConfig(testservers.MariaDB(b).Addr)
	config.InterpolateParams = true
	connector, err := mysql.NewConnector(config)
	if err != nil {
		b.Fatal(err)
	}
	idemSQL(b, "MariaDB", dialect.MySQL, sql.OpenDB(connector), handMySQL)
}

// idemSQL measures with the savepoint, which is a round trip here, and without.
func idemSQL(b *testing.B, name string, d dialect.Dialect, db *sql.DB, hand byHand) {
	b.Cleanup(func() { db.Close() })
	store, err := sqlidem.New(d, nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := store.Migrate(ctx, db); err != nil {
		b.Fatal(err)
	}
	for suffix, opts := range map[string]idem.TxOptions{"": {}, ", no savepoint": {NoSavepoint: true}} {
		b.Run(name+suffix, func(b *testing.B) {
			for _, query := range []string{"DROP TABLE IF EXISTS hand", "DROP TABLE IF EXISTS effects", handTables, effects, "DELETE FROM pawl_idem"} {
				if _, err := db.ExecContext(ctx, query); err != nil {
					b.Fatal(err)
				}
			}
			transactionMode(b, name+suffix, hand, func() idemTx {
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					b.Fatal(err)
				}
				return idemTx{store.In(tx).With(opts),
					func(query string, args ...any) error { _, err := tx.ExecContext(ctx, query, args...); return err },
					func(query, id string) error { var is string; return tx.QueryRowContext(ctx, query, id).Scan(&is) },
					tx.Commit}
			})
		})
	}
}
