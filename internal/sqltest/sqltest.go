// Package sqltest has the databases of the tests of services, and every kind of transaction that users bring.
package sqltest

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver" // the driver of SQLite

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dialect/pgxtx"
	"github.com/pawl-go/pawl/internal/testservers"
)

// Database is one way to reach a database. As JSON, a process of a test learns the database.
type Database struct {
	Name    string
	Dialect dialect.Dialect
	Source  string             // as its driver wants it
	Level   sql.IsolationLevel // of transactions of Begin
	Pgx     bool               // Begin begins transactions of pgx
}

// Postgres is the shared server. More is appended to its URL, such as "&default_query_exec_mode=exec".
func Postgres(t testing.TB, more string) Database {
	t.Helper()
	return Database{Name: "PostgreSQL", Dialect: dialect.PostgreSQL, Source: testservers.PostgresURL(testservers.SharedPostgres(t).Addr) + more}
}

// MariaDB is the shared server. Each set changes how its driver connects.
func MariaDB(t testing.TB, set ...func(*mysql.Config)) Database {
	t.Helper()
	config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
	for _, change := range set {
		change(config)
	}
	return Database{Name: "MariaDB", Dialect: dialect.MySQL, Source: config.FormatDSN()}
}

// SQLite is a new file. More is appended to its URL, such as "&_txlock=immediate".
func SQLite(t testing.TB, more string) Database {
	t.Helper()
	file := filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))
	return Database{Name: "SQLite", Dialect: dialect.SQLite,
		Source: "file:" + file + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)" + more}
}

// Interpolated lets the driver of MariaDB put values into statements, which saves a round trip.
func Interpolated(c *mysql.Config) { c.InterpolateParams = true }

// All are a database of each dialect, and PostgreSQL with transactions of pgx.
func All(t testing.TB) []Database {
	t.Helper()
	return []Database{Postgres(t, ""), Postgres(t, "").WithPgx(), MariaDB(t, Interpolated), SQLite(t, "&_txlock=immediate")}
}

// WithPgx returns the database with transactions of pgx.
func (d Database) WithPgx() Database {
	d.Name, d.Pgx = d.Name+", pgx", true
	return d
}

// At returns the database with transactions at a level.
func (d Database) At(level sql.IsolationLevel) Database {
	d.Name, d.Level = fmt.Sprintf("%s, %v", d.Name, level), level
	return d
}

// Open opens the database.
func (d Database) Open() (*sql.DB, error) {
	db, err := sql.Open(map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite3"}[d.Dialect], d.Source)
	if err == nil {
		db.SetMaxOpenConns(16)
		db.SetMaxIdleConns(16)
	}
	return db, err
}

// Opened opens the database until the test ends.
func (d Database) Opened(t testing.TB) *sql.DB {
	t.Helper()
	db, err := d.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return db
}

// JSON is the database for a process of a test.
func (d Database) JSON() string {
	text, err := json.Marshal(d)
	if err != nil {
		panic(err) // it is plain data
	}
	return string(text)
}

// Tx is a transaction of a test: a *sql.Tx, or one of pgx. After its end, Commit and Rollback return an error.
type Tx interface {
	dialect.DB
	// Commit makes the writes last.
	Commit() error
	// Rollback undoes the writes.
	Rollback() error
}

// pgxTx is a transaction of pgx in a connection of the pool.
type pgxTx struct {
	*pgxtx.Tx
	tx   pgx.Tx
	conn *sql.Conn
}

func (t *pgxTx) Commit() error   { defer t.conn.Close(); return t.tx.Commit(context.Background()) }
func (t *pgxTx) Rollback() error { defer t.conn.Close(); return t.tx.Rollback(context.Background()) }

// Begin begins a transaction of database/sql or of pgx.
func (d Database) Begin(ctx context.Context, db *sql.DB) (Tx, error) {
	if !d.Pgx {
		return db.BeginTx(ctx, &sql.TxOptions{Isolation: d.Level})
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var tx pgx.Tx
	err = conn.Raw(func(c any) (err error) {
		level := map[sql.IsolationLevel]pgx.TxIsoLevel{sql.LevelReadCommitted: pgx.ReadCommitted, sql.LevelRepeatableRead: pgx.RepeatableRead, sql.LevelSerializable: pgx.Serializable}
		tx, err = c.(*stdlib.Conn).Conn().BeginTx(ctx, pgx.TxOptions{IsoLevel: level[d.Level]})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &pgxTx{pgxtx.Of(tx), tx, conn}, nil
}

// Exec runs a statement with a ? for each value.
func (d Database) Exec(ctx context.Context, db dialect.DB, query string, args ...any) error {
	_, err := d.statement(query, args).Exec(ctx, db)
	return err
}

// Run runs a statement with a ? for each value, also after the end of the test.
func (d Database) Run(t testing.TB, db dialect.DB, query string, args ...any) {
	t.Helper()
	if err := d.Exec(context.WithoutCancel(t.Context()), db, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// Number returns the number that a query with a ? for each value reads.
func (d Database) Number(t testing.TB, db dialect.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := d.statement(query, args).Scan(t.Context(), db, &n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (d Database) statement(query string, args []any) *dialect.Statement {
	s := dialect.New(d.Dialect)
	for _, c := range query {
		if c == '?' {
			s.Value(args[0])
			args = args[1:]
		} else {
			s.Add(string(c))
		}
	}
	return s
}

var names atomic.Int64

// NewName returns a name of a table that no other test has.
func NewName(prefix string) string {
	return fmt.Sprintf("%s_%d_%d", prefix, time.Now().UnixNano(), names.Add(1))
}
