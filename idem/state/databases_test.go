package state_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	if os.Getenv("PAWL_STATE_WORKER") != "" {
		if err := work(context.Background()); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testservers.Main(m))
}

// database is one way to reach a database.
type database struct {
	name    string
	dialect dialect.Dialect
	source  string
}

func (d database) open() (*sql.DB, error) {
	driver := map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite3"}[d.dialect]
	db, err := sql.Open(driver, d.source)
	if err == nil {
		db.SetMaxOpenConns(8)
	}
	return db, err
}

func (d database) opened(t *testing.T) *sql.DB {
	t.Helper()
	db, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// databases are those of each dialect, the first as it is used most.
func databases(t *testing.T) []database {
	t.Helper()
	postgres := testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
	all := []database{
		{"PostgreSQL", dialect.PostgreSQL, postgres},
		{"MariaDB", dialect.MySQL, testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN()},
		{"SQLite", dialect.SQLite, "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "test.db")) +
			"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"},
		{"PostgreSQL, simple protocol", dialect.PostgreSQL, postgres + "&default_query_exec_mode=simple_protocol"},
	}
	for _, interpolate := range []bool{false, true} {
		config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
		config.ClientFoundRows, config.InterpolateParams = true, interpolate
		all = append(all, database{fmt.Sprintf("MariaDB, clientFoundRows, interpolateParams=%t", interpolate), dialect.MySQL, config.FormatDSN()})
	}
	return all
}

// each runs a test on databases.
func each(t *testing.T, all []database, test func(t *testing.T, d database, db *sql.DB)) {
	t.Helper()
	for _, d := range all {
		t.Run(d.name, func(t *testing.T) { test(t, d, d.opened(t)) })
	}
}

var tables atomic.Int64

// create creates a table for a test and returns its name. In columns, STATES is a type that
// has just these states, where there is such a type.
func create(t *testing.T, d database, db *sql.DB, columns string, states ...string) string {
	t.Helper()
	name := fmt.Sprintf("rows_%d_%d", time.Now().UnixNano(), tables.Add(1))
	kind := "TEXT"
	list := "('" + strings.Join(states, "', '") + "')"
	switch d.dialect {
	case dialect.PostgreSQL:
		kind = name + "_states"
		exec(t, d, db, "CREATE TYPE "+kind+" AS ENUM "+list)
	case dialect.MySQL:
		kind = "ENUM " + list
	}
	exec(t, d, db, "CREATE TABLE "+name+" ("+strings.ReplaceAll(columns, "STATES", kind)+")")
	t.Cleanup(func() {
		exec(t, d, db, "DROP TABLE "+name)
		if d.dialect == dialect.PostgreSQL {
			exec(t, d, db, "DROP TYPE "+kind)
		}
	})
	return name
}

// exec runs a statement with the ?s of most databases.
func exec(t *testing.T, d database, q dialect.DB, query string, args ...any) {
	t.Helper()
	if _, err := q.ExecContext(context.Background(), d.placeholders(query), args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (d database) placeholders(query string) string {
	for n := 1; d.dialect == dialect.PostgreSQL && strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}
