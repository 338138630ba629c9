package sqlidem_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/internal/testservers"
)

// fixture is a database with tables of keys and of effects, which one test has for itself.
type fixture struct {
	*testing.T
	db      *sql.DB
	dialect dialect.Dialect
	level   sql.IsolationLevel
	store   *sqlidem.Store
	table   string
	effects string
}

// servers are the databases; each is opened at most once for a test.
var servers = []struct {
	dialect dialect.Dialect
	levels  []sql.IsolationLevel
}{
	{dialect.PostgreSQL, []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}},
	{dialect.MySQL, []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}},
	{dialect.SQLite, []sql.IsolationLevel{sql.LevelDefault}},
}

// source returns the driver and the source of a database.
func source(t testing.TB, d dialect.Dialect) (driver, source string) {
	t.Helper()
	switch d {
	case dialect.PostgreSQL:
		return "pgx", testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
	case dialect.MySQL:
		return "mysql", mariadb(testservers.SharedMariaDB(t).Addr, true)
	}
	return "sqlite3", sqlite(filepath.Join(t.TempDir(), "test.db"))
}

func mariadb(addr string, interpolate bool) string {
	config := testservers.MariaDBConfig(addr)
	config.InterpolateParams = interpolate
	return config.FormatDSN()
}

func sqlite(file string) string {
	return "file:" + filepath.ToSlash(file) + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
}

func open(t testing.TB, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return db
}

var tables atomic.Int64

// each runs a test on every database, at every level of isolation.
func each(t *testing.T, test func(f *fixture)) {
	t.Helper()
	for _, s := range servers {
		driver, source := source(t, s.dialect)
		db := open(t, driver, source)
		for _, level := range s.levels {
			t.Run(fmt.Sprintf("%v, %v", s.dialect, level), func(t *testing.T) { test(newFixture(t, db, s.dialect, level, idem.TxOptions{})) })
		}
	}
}

func newFixture(t *testing.T, db *sql.DB, d dialect.Dialect, level sql.IsolationLevel, opts idem.TxOptions) *fixture {
	t.Helper()
	n := fmt.Sprintf("%d_%d", time.Now().UnixNano(), tables.Add(1))
	f := &fixture{T: t, db: db, dialect: d, level: level, table: "keys_" + n, effects: "effects_" + n}
	var err error
	if f.store, err = sqlidem.New(d, &sqlidem.Options{Table: f.table, Tx: opts}); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	f.exec("CREATE TABLE " + f.effects + " (name varchar(100) NOT NULL, n bigint NOT NULL)")
	t.Cleanup(func() { f.exec("DROP TABLE " + f.table); f.exec("DROP TABLE " + f.effects) })
	return f
}

func (f *fixture) exec(query string) {
	f.Helper()
	if _, err := f.db.ExecContext(context.Background(), query); err != nil {
		f.Fatalf("%s: %v", query, err)
	}
}

// begin begins a transaction, which the end of the test rolls back.
func (f *fixture) begin() *sql.Tx {
	f.Helper()
	tx, err := f.db.BeginTx(f.Context(), &sql.TxOptions{Isolation: f.level})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { tx.Rollback() }) //nolint:errcheck // it may have ended
	return tx
}

func (f *fixture) commit(tx *sql.Tx) {
	f.Helper()
	if err := tx.Commit(); err != nil {
		f.Fatal(err)
	}
}

// write has the effect of a key.
func (f *fixture) write(ctx context.Context, tx *sql.Tx, key string, n int) error {
	query, args, err := dialect.New(f.dialect).Add("INSERT INTO " + f.effects + " (name, n) VALUES (").Value(key).Add(", ").Value(n).Add(")").Build()
	if err == nil {
		_, err = tx.ExecContext(ctx, query, args...)
	}
	return err
}

// count returns how many effects a key has, as others see it.
func (f *fixture) count(key string) (n int) {
	f.Helper()
	query := dialect.New(f.dialect).Add("SELECT count(*) FROM " + f.effects + " WHERE name = ").Value(key)
	if err := query.Scan(f.Context(), f.db, &n); err != nil {
		f.Fatal(err)
	}
	return n
}
