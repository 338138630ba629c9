package stock_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/stock"
	"github.com/pawl-go/pawl/internal/sqltest"
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

// databases are those of each dialect and pgx, at the level for hot rows, and the others.
func databases(t *testing.T) []sqltest.Database {
	t.Helper()
	postgres := sqltest.Postgres(t, "").At(sql.LevelReadCommitted)
	found := sqltest.MariaDB(t, sqltest.Interpolated, func(c *mysql.Config) { c.ClientFoundRows = true })
	return []sqltest.Database{postgres, postgres.WithPgx(), sqltest.MariaDB(t).At(sql.LevelReadCommitted), sqltest.SQLite(t, ""),
		found.At(sql.LevelRepeatableRead), sqltest.Postgres(t, "&default_query_exec_mode=simple_protocol").At(sql.LevelSerializable)}
}

// each runs a test on databases, with stock in a new table.
func each(t *testing.T, all []sqltest.Database, parts int, test func(t *testing.T, s *stocks)) {
	t.Helper()
	for _, d := range all {
		t.Run(d.Name, func(t *testing.T) {
			s := &stocks{Database: d, db: d.Opened(t), name: sqltest.NewName("Stock")}
			s.Table = s.with(t, parts)
			if err := s.Create(t.Context(), s.db); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Run(t, s.db, "DROP TABLE "+s.quoted()) })
			test(t, s)
		})
	}
}

// stocks is a table of stock with its database.
type stocks struct {
	*stock.Table
	sqltest.Database
	db   *sql.DB
	name string
}

// with is the same table for a program with another number of parts.
func (s *stocks) with(t *testing.T, parts int) *stock.Table {
	t.Helper()
	table, err := stock.New(s.Dialect, &stock.Options{Table: s.name, Parts: parts})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func (s *stocks) quoted() string {
	return map[bool]string{true: "`" + s.name + "`", false: `"` + s.name + `"`}[s.Dialect == dialect.MySQL]
}

// transact runs f in a transaction.
func (s *stocks) transact(ctx context.Context, f func(tx dialect.DB) error) error {
	tx, err := s.Begin(ctx, s.db)
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
	if err := s.transact(t.Context(), func(tx dialect.DB) error { return s.Put(t.Context(), tx, name, n) }); err != nil {
		t.Fatal(err)
	}
}

func (s *stocks) take(ctx context.Context, name string, n int64) error {
	return s.transact(ctx, func(tx dialect.DB) error { return s.Take(ctx, tx, name, n) })
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
	rows, err := s.db.Query("SELECT n FROM " + s.quoted() + " WHERE name = '" + name + "' ORDER BY part")
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
