package keytable

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// A sweep looks at the index, because a table of keys may be large.
func TestSweepsUseTheIndex(t *testing.T) {
	for d, open := range map[dialect.Dialect]func() (string, string){
		dialect.PostgreSQL: func() (string, string) {
			return "pgx", testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
		},
		dialect.MySQL: func() (string, string) {
			return "mysql", testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN()
		},
		dialect.SQLite: func() (string, string) {
			return "sqlite3", "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))
		},
	} {
		t.Run(d.String(), func(t *testing.T) {
			db, err := sql.Open(open())
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			name := fmt.Sprintf("keys_%d", time.Now().UnixNano())
			table, err := New(d, name)
			if err != nil {
				t.Fatal(err)
			}
			if err := table.Migrate(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			defer db.Exec("DROP TABLE " + name)
			fill(t, table, db)
			if plan := explain(t, table, db); !strings.Contains(plan, "expires") {
				t.Error(plan)
			}
		})
	}
}

// fill makes keys of which none has expired.
func fill(t *testing.T, table Table, db *sql.DB) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	for i := range 500 {
		c := idem.TxClaim{Name: fmt.Sprint("s|", i), Owner: 1, Expiry: time.Hour}
		statement := table.Insert
		if table.Dialect == dialect.PostgreSQL {
			statement = table.ClaimOrRead
		}
		if _, err := statement(c).Exec(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// explain returns how the database finds expired keys: of PostgreSQL, if a table is never read whole.
func explain(t *testing.T, table Table, db *sql.DB) (plan string) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	prefix := "EXPLAIN "
	switch table.Dialect {
	case dialect.PostgreSQL:
		if _, err := conn.ExecContext(t.Context(), "SET enable_seqscan = off"); err != nil {
			t.Fatal(err)
		}
	case dialect.MySQL:
		prefix = "EXPLAIN FORMAT = JSON "
	case dialect.SQLite:
		prefix = "EXPLAIN QUERY PLAN "
	}
	query, args, err := table.find(10).Build()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := conn.QueryContext(t.Context(), prefix+query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	texts := make([]sql.NullString, len(columns))
	into := make([]any, len(columns))
	for i := range texts {
		into[i] = &texts[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			plan += text.String + "\n"
		}
	}
	// The condition names the column as well, so only the lines of the index count.
	var lines []string
	for line := range strings.Lines(plan) {
		if strings.Contains(strings.ToLower(line), "index") || strings.Contains(line, `"key"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
