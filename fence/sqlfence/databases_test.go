package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/fence/sqlfence"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// database is one of the test, with tables whose names no other test has.
type database struct {
	*sql.DB
	dialect sqlfence.Dialect
	marks   sqlfence.Marks
	// own is a table of a user with a row for each id, of bytes.
	own sqlfence.Table
}

// each runs a test on every database, in each of the ways in which a driver
// tells of affected rows and sends parameters.
func each(t *testing.T, test func(*testing.T, *database)) {
	t.Helper()
	on := func(name string, open func(*testing.T) *database) {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, open(t)) })
	}
	on("PostgreSQL", func(t *testing.T) *database { return postgres(t, pgx.QueryExecModeCacheStatement) })
	on("PostgreSQL, simple protocol", func(t *testing.T) *database { return postgres(t, pgx.QueryExecModeSimpleProtocol) })
	for _, found := range []bool{false, true} {
		for _, interpolate := range []bool{false, true} {
			name := fmt.Sprintf("MariaDB, clientFoundRows=%t, interpolateParams=%t", found, interpolate)
			on(name, func(t *testing.T) *database { return mariadb(t, found, interpolate) })
		}
	}
	on("SQLite", sqlite)
}

func postgres(t *testing.T, mode pgx.QueryExecMode) *database {
	t.Helper()
	db := testservers.PostgresPool(t, testservers.SharedPostgres(t).Addr, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
	return prepare(t, db, sqlfence.PostgreSQL, "bytea")
}

func mariadb(t *testing.T, found, interpolate bool) *database {
	t.Helper()
	db := testservers.MariaDBPool(t, testservers.SharedMariaDB(t).Addr, func(c *mysql.Config) {
		c.ClientFoundRows, c.InterpolateParams = found, interpolate
	})
	return prepare(t, db, sqlfence.MySQL, "varbinary(512)")
}

func sqlite(t *testing.T) *database {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))+
		"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return prepare(t, db, sqlfence.SQLite, "blob")
}

var tables atomic.Int64

func prepare(t *testing.T, db *sql.DB, dialect sqlfence.Dialect, bytes string) *database {
	t.Helper()
	db.SetMaxOpenConns(12)
	unique := fmt.Sprintf("%d_%d", time.Now().UnixNano(), tables.Add(1))
	d := &database{db, dialect, sqlfence.Marks{Dialect: dialect, Table: "Marks_" + unique}, sqlfence.Table{Dialect: dialect, Name: "own_" + unique}}
	t.Cleanup(func() {
		d.exec(t, "DROP TABLE "+d.quoted(d.marks.Table))
		d.exec(t, "DROP TABLE "+d.own.Name)
	})
	for range 2 { // the second finds it
		if err := d.marks.Create(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	d.exec(t, "CREATE TABLE "+d.own.Name+" (id "+bytes+" PRIMARY KEY, "+d.quoted("order")+
		" bigint, fence bigint NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 1)")
	return d
}

// exec runs a statement with the ?s of most databases. Cleanup runs it too, when
// the context of the test has ended.
func (d *database) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := d.ExecContext(context.Background(), d.placeholders(query), args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (d *database) placeholders(query string) string {
	for n := 1; d.dialect == sqlfence.PostgreSQL && strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

func (d *database) quoted(name string) string {
	if d.dialect == sqlfence.MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// row is the row of an id: a value, a token and a version.
func (d *database) row(ctx context.Context, id string) (row [3]int64, err error) {
	var value sql.NullInt64
	query := d.placeholders("SELECT " + d.quoted("order") + ", fence, version FROM " + d.own.Name + " WHERE id = ?")
	err = d.QueryRowContext(ctx, query, []byte(id)).Scan(&value, &row[1], &row[2])
	row[0] = value.Int64
	return row, err
}

// transact runs f in a transaction, again when the database says so.
func (d *database) transact(ctx context.Context, level sql.IsolationLevel, f func(*sql.Tx) error) error {
	for {
		err := d.transactOnce(ctx, level, f)
		var pg *pgconn.PgError
		var my *mysql.MySQLError
		again := errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01") || errors.As(err, &my) && (my.Number == 1213 || my.Number == 1020)
		if !again {
			return err
		}
	}
}

func (d *database) transactOnce(ctx context.Context, level sql.IsolationLevel, f func(*sql.Tx) error) error {
	tx, err := d.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
