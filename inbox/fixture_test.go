package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/idem/sqlidem"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// database is one of the test, with a table of IDs and a table of effects.
type database struct {
	dialect dialect.Dialect
	db      *sql.DB
	store   *sqlidem.Store
	name    string
}

// each runs a test on every database, with tables that no other test has.
func each(t *testing.T, test func(t *testing.T, d *database)) {
	t.Helper()
	for _, kind := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, kind))
		})
	}
}

var tables atomic.Int64

func newDatabase(t *testing.T, kind dialect.Dialect) *database {
	t.Helper()
	d := &database{dialect: kind, name: fmt.Sprintf("inbox_%d_%d", time.Now().UnixNano(), tables.Add(1))}
	driver, source := "sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))+"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)"
	switch kind {
	case dialect.PostgreSQL:
		driver, source = "pgx", testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
	case dialect.MySQL:
		config := testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr)
		config.InterpolateParams = true
		driver, source = "mysql", config.FormatDSN()
	}
	var err error
	if d.db, err = sql.Open(driver, source); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.db.Close() }) //nolint:errcheck // nothing is lost
	if d.store, err = sqlidem.New(kind, &sqlidem.Options{Table: d.name}); err != nil {
		t.Fatal(err)
	}
	if err := d.store.Migrate(t.Context(), d.db); err != nil {
		t.Fatal(err)
	}
	if _, err := d.db.ExecContext(t.Context(), "CREATE TABLE effects_"+d.name+" (seq "+serial[kind]+", id varchar(100), k varchar(100))"); err != nil {
		t.Fatal(err)
	}
	return d
}

var serial = map[dialect.Dialect]string{dialect.PostgreSQL: "bigserial PRIMARY KEY", dialect.MySQL: "bigint AUTO_INCREMENT PRIMARY KEY", dialect.SQLite: "integer PRIMARY KEY AUTOINCREMENT"}

// effect is what a message does.
func (d *database) effect(ctx context.Context, tx *sql.Tx, id, key string) error {
	_, err := dialect.New(d.dialect).Add("INSERT INTO effects_"+d.name+" (id, k) VALUES (").Value(id).Add(", ").Value(key).Add(")").Exec(ctx, tx)
	return err
}

// effects returns the IDs of the messages that took effect, in order.
func (d *database) effects(t *testing.T) (ids []string) {
	t.Helper()
	rows, err := d.db.QueryContext(t.Context(), "SELECT id FROM effects_"+d.name+" ORDER BY seq")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}
