package stock_test

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

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) {
	if os.Getenv("PAWL_STOCK_WORKER") != "" {
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
	level   sql.IsolationLevel
	source  string
}

func (d database) open() (*sql.DB, error) {
	driver := map[dialect.Dialect]string{dialect.PostgreSQL: "pgx", dialect.MySQL: "mysql", dialect.SQLite: "sqlite3"}[d.dialect]
	db, err := sql.Open(driver, d.source)
	if err == nil {
		db.SetMaxOpenConns(8)
		db.SetMaxIdleConns(8)
	}
	return db, err
}

// databases are those of each dialect at the level for hot rows, and the others.
func databases(t *testing.T) []database {
	t.Helper()
	postgres := testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
	config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
	mariadb := config.FormatDSN()
	config.ClientFoundRows, config.InterpolateParams = true, true
	file := filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))
	return []database{
		{"PostgreSQL", dialect.PostgreSQL, sql.LevelReadCommitted, postgres},
		{"MariaDB", dialect.MySQL, sql.LevelReadCommitted, mariadb},
		{"SQLite", dialect.SQLite, sql.LevelDefault, "file:" + file + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"},
		{"MariaDB, repeatable read", dialect.MySQL, sql.LevelRepeatableRead, config.FormatDSN()},
		{"PostgreSQL, serializable", dialect.PostgreSQL, sql.LevelSerializable, postgres + "&default_query_exec_mode=simple_protocol"},
	}
}

// each runs a test on databases, with stock in a new table.
func each(t *testing.T, all []database, parts int, test func(t *testing.T, s *stocks)) {
	t.Helper()
	for _, d := range all {
		t.Run(d.name, func(t *testing.T) {
			db, err := d.open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			s := &stocks{database: d, db: db, name: fmt.Sprintf("Stock_%d_%d", time.Now().UnixNano(), tables.Add(1))}
			s.Table = s.with(t, parts)
			if err := s.Create(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.exec(t, "DROP TABLE "+s.quoted()) })
			test(t, s)
		})
	}
}

var tables atomic.Int64

// stocks is a table of stock with its database.
type stocks struct {
	*stock.Table
	database
	db   *sql.DB
	name string
}

// with is the same table for a program with another number of parts.
func (s *stocks) with(t *testing.T, parts int) *stock.Table {
	t.Helper()
	table, err := stock.New(s.dialect, &stock.Options{Table: s.name, Parts: parts})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func (s *stocks) quoted() string {
	return map[bool]string{true: "`" + s.name + "`", false: `"` + s.name + `"`}[s.dialect == dialect.MySQL]
}

// exec runs a statement with the ?s of most databases.
func (s *stocks) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := s.db.ExecContext(context.Background(), s.placeholders(query), args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (d database) placeholders(query string) string {
	for n := 1; d.dialect == dialect.PostgreSQL && strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

// transact runs f in a transaction.
func (s *stocks) transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: s.level})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *stocks) put(t *testing.T, name string, n int64) {
	t.Helper()
	if err := s.transact(t.Context(), func(tx *sql.Tx) error { return s.Put(t.Context(), tx, name, n) }); err != nil {
		t.Fatal(err)
	}
}

func (s *stocks) take(ctx context.Context, name string, n int64) error {
	return s.transact(ctx, func(tx *sql.Tx) error { return s.Take(ctx, tx, name, n) })
}

func (s *stocks) total(t *testing.T, name string) int64 {
	t.Helper()
	n, err := s.Total(t.Context(), s.db, name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parts returns how many units each part has.
func (s *stocks) partsOf(t *testing.T, name string) (all []int64) {
	t.Helper()
	rows, err := s.db.Query(s.placeholders("SELECT n FROM "+s.quoted()+" WHERE name = ? ORDER BY part"), name)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}
