package sqlmark_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id"
	"github.com/pawl-go/pawl/id/sqlmark"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// database is one way to reach a database. Each call of open is another process, so to say.
type database struct {
	name    string
	dialect dialect.Dialect
	open    func(t *testing.T) *sql.DB
}

// databases are all of them, in each of the ways in which drivers and settings differ.
func databases(t *testing.T) (all []database) {
	t.Helper()
	add := func(name string, d dialect.Dialect, open func(t *testing.T) *sql.DB) {
		all = append(all, database{name, d, open})
	}
	shared := func() string { return testservers.SharedPostgres(t).Addr }
	add("PostgreSQL", dialect.PostgreSQL, func(t *testing.T) *sql.DB { return postgres(t, shared(), pgx.QueryExecModeCacheStatement) })
	for _, level := range []string{"repeatable read", "serializable"} {
		add("PostgreSQL, "+level, dialect.PostgreSQL, func(t *testing.T) *sql.DB {
			return postgres(t, shared(), pgx.QueryExecModeExec, "default_transaction_isolation", level, "synchronous_commit", "off")
		})
	}
	add("PostgreSQL, pooled", dialect.PostgreSQL, func(t *testing.T) *sql.DB {
		return postgres(t, testservers.PgBouncer(t, shared()).Addr, pgx.QueryExecModeSimpleProtocol)
	})
	for _, found := range []bool{false, true} {
		for _, level := range []string{"REPEATABLE-READ", "SERIALIZABLE"} {
			add(fmt.Sprintf("MariaDB, %s, %t", level, found), dialect.MySQL, func(t *testing.T) *sql.DB {
				return mariadb(t, testservers.SharedMariaDB(t).Addr, func(c *mysql.Config) {
					c.ClientFoundRows, c.InterpolateParams = found, found
					c.Params = map[string]string{"tx_isolation": "'" + level + "'"}
				})
			})
		}
	}
	file := filepath.Join(t.TempDir(), "test.db")
	add("SQLite", dialect.SQLite, func(t *testing.T) *sql.DB { return sqlite(t, file, "&_pragma=synchronous(off)") })
	return all
}

func postgres(t *testing.T, addr string, mode pgx.QueryExecMode, settings ...string) *sql.DB {
	t.Helper()
	return bounded(testservers.PostgresPool(t, addr, func(c *pgx.ConnConfig) {
		c.DefaultQueryExecMode = mode
		for i := 0; i < len(settings); i += 2 {
			c.RuntimeParams[settings[i]] = settings[i+1]
		}
	}))
}

func mariadb(t *testing.T, addr string, set func(*mysql.Config)) *sql.DB {
	t.Helper()
	return bounded(testservers.MariaDBPool(t, addr, set))
}

func sqlite(t *testing.T, file, more string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.ToSlash(file)+"?_pragma=busy_timeout(2000)&_pragma=journal_mode(wal)"+more)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return bounded(db)
}

func bounded(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(8)
	return db
}

var tables atomic.Int64

func newTable() string { return fmt.Sprintf("Marks_%d_%d", time.Now().UnixNano(), tables.Add(1)) }

func registers(t *testing.T, db *sql.DB, d dialect.Dialect, table string) *sqlmark.Registers {
	t.Helper()
	r, err := sqlmark.New(db, d, &sqlmark.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// each runs a test on every database, with the registers of three processes in one new table.
func each(t *testing.T, test func(t *testing.T, all []id.Registers, db *sql.DB)) {
	t.Helper()
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			table := newTable()
			var all []id.Registers
			var db *sql.DB
			for range 3 {
				db = d.open(t)
				r := registers(t, db, d.dialect, table)
				if err := r.Create(t.Context()); err != nil {
					t.Fatal(err)
				}
				all = append(all, r)
			}
			t.Cleanup(func() { exec(t, db, drop(d.dialect, table)) })
			test(t, all, db)
		})
	}
}

func drop(d dialect.Dialect, table string) string {
	query, _, _ := dialect.New(d).Add("DROP TABLE ").Table(table).Build()
	return query
}

func exec(t *testing.T, db dialect.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}
