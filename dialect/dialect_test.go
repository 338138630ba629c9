package dialect_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// each runs a test on every database.
func each(t *testing.T, test func(*testing.T, dialect.Dialect, *sql.DB)) {
	t.Helper()
	for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		t.Run(d.String(), func(t *testing.T) {
			driver, source := "pgx", ""
			switch d {
			case dialect.PostgreSQL:
				source = testservers.PostgresURL(testservers.SharedPostgres(t).Addr)
			case dialect.MySQL:
				driver, source = "mysql", testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN()
			case dialect.SQLite:
				driver, source = "sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "test.db"))+"?_pragma=busy_timeout(500)"
			}
			test(t, d, open(t, driver, source))
		})
	}
}

func open(t *testing.T, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return db
}

func exec(t *testing.T, db dialect.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// things is a table with a column of each type.
func things(t *testing.T) dialect.Table {
	return dialect.Table{Name: fmt.Sprintf("things_%d", time.Now().UnixNano()), Columns: []dialect.Column{
		{Name: "space", Type: dialect.Text, Key: true}, {Name: "name", Type: dialect.Text, Key: true},
		{Name: "n", Type: dialect.Integer}, {Name: "order", Type: dialect.Bytes, Null: true}}}
}

// Programs that start at the same time create one table, and each finds it as it should be.
func TestTableIsCreatedOnce(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		for range 5 {
			table := things(t)
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					if err := table.Create(t.Context(), db, d); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			exec(t, db, "DROP TABLE "+table.Name)
		}
	})
}

// A table of another shape is refused and left as it is.
func TestTableOfAnotherShape(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		table := things(t)
		if err := table.Check(t.Context(), db, d); !errors.Is(err, dialect.ErrMissing) {
			t.Error(err)
		}
		order := map[dialect.Dialect]string{dialect.MySQL: "`order` mediumblob", dialect.SQLite: `"order" BLOB`, dialect.PostgreSQL: `"order" bytea`}[d]
		key := map[dialect.Dialect]string{dialect.MySQL: "varbinary(512)", dialect.SQLite: `TEXT`, dialect.PostgreSQL: `text COLLATE "C"`}[d]
		columns := fmt.Sprintf("space %[1]s NOT NULL, name %[1]s NOT NULL, n bigint NOT NULL, %s, PRIMARY KEY (space, name)", key, order)
		if d == dialect.SQLite {
			columns = strings.ReplaceAll(columns, "bigint", "INTEGER")
		}
		for name, is := range map[string]struct{ columns, why string }{
			"the same":         {columns, ""},
			"a column less":    {strings.Replace(columns, order+",", "", 1), "column order is missing"},
			"a column more":    {strings.Replace(columns, order, order+", more char(3)", 1), "column more is not known"},
			"a shorter number": {strings.NewReplacer("bigint", "smallint", "n INTEGER", "n TEXT").Replace(columns), "column n is "},
			"may be null":      {strings.NewReplacer("n bigint NOT NULL", "n bigint", "n INTEGER NOT NULL", "n INTEGER").Replace(columns), "column n may be NULL"},
			"another key":      {strings.Replace(columns, "(space, name)", "(space)", 1), "column name is of the primary key"},
		} {
			table := things(t)
			exec(t, db, "CREATE TABLE "+table.Name+" ("+is.columns+")")
			checking, creating := table.Check(t.Context(), db, d), table.Create(t.Context(), db, d)
			for _, err := range []error{checking, creating} {
				good := is.why == "" && err == nil ||
					is.why != "" && errors.Is(err, dialect.ErrShape) && strings.Contains(err.Error(), is.why) && strings.Contains(err.Error(), table.Name)
				if !good {
					t.Errorf("%s: %v", name, err)
				}
			}
			exec(t, db, "DROP TABLE "+table.Name)
		}
		for name, create := range map[string]string{
			"a view": "CREATE VIEW %s AS SELECT 1 AS n", "an engine without transactions": "CREATE TABLE %s (n bigint) ENGINE=MyISAM",
			"text of a language": "CREATE TABLE %s (" + strings.Replace(columns, key+" NOT NULL", "text NOT NULL", 1) + ")",
			"unsigned":           "CREATE TABLE %s (" + strings.Replace(columns, "bigint", "bigint unsigned", 1) + ")",
		} {
			mysqlOnly := strings.Contains(name, "engine") || name == "unsigned"
			if mysqlOnly && d != dialect.MySQL || strings.HasPrefix(name, "text") && d != dialect.PostgreSQL {
				continue // no such thing there
			}
			table := things(t)
			exec(t, db, fmt.Sprintf(create, table.Name))
			if err := table.Create(t.Context(), db, d); !errors.Is(err, dialect.ErrShape) {
				t.Errorf("%s: %v", name, err)
			}
			exec(t, db, "DROP "+strings.Fields(create)[1]+" "+table.Name)
		}
	})
}

// An index is made with its table, or later.
func TestTableWithAnIndex(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		table := things(t)
		table.Columns[2].Index, table.Columns[3].Index = true, d == dialect.PostgreSQL // of a quoted name; MySQL wants a length for bytes
		for range 2 {
			if err := table.Create(t.Context(), db, d); err != nil {
				t.Fatal(err)
			}
		}
		query := map[dialect.Dialect]string{
			dialect.PostgreSQL: "SELECT count(*) FROM pg_indexes WHERE tablename = '%s' AND (indexdef LIKE '%%(n)' OR indexdef LIKE '%%(\"order\")')",
			dialect.MySQL:      "SELECT 2 * count(*) FROM information_schema.statistics WHERE table_name = '%s' AND column_name = 'n'",
			dialect.SQLite:     "SELECT 2 * count(*) FROM sqlite_master WHERE type = 'index' AND tbl_name = '%s' AND name LIKE '%%_n'",
		}[d]
		var n int
		if err := db.QueryRowContext(t.Context(), fmt.Sprintf(query, table.Name)).Scan(&n); err != nil || n != 2 {
			t.Error(n, err)
		}
		exec(t, db, "DROP TABLE "+table.Name)
	})
}

// A lock that is not given back in time is told from a deadlock.
func TestLockTimeout(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		table := things(t)
		if err := table.Create(t.Context(), db, d); err != nil {
			t.Fatal(err)
		}
		defer exec(t, db, "DROP TABLE "+table.Name)
		insert := "INSERT INTO " + table.Name + " (space, name, n) VALUES ('s', 'a', 0)"
		holder, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback() //nolint:errcheck // it wrote nothing to keep
		exec(t, holder, insert)
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		exec(t, conn, map[dialect.Dialect]string{dialect.PostgreSQL: "SET lock_timeout = '50ms'",
			dialect.MySQL: "SET innodb_lock_wait_timeout = 1", dialect.SQLite: "PRAGMA busy_timeout = 50"}[d])
		if _, err := conn.ExecContext(t.Context(), insert); !dialect.LockTimeout(err) || dialect.Lost(err) {
			t.Error(err)
		}
		if _, err := conn.ExecContext(t.Context(), "nonsense"); dialect.LockTimeout(err) {
			t.Error(err)
		}
	})
}

// A row that is there stays as it is, and other mistakes are told.
func TestInsertIfAbsent(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		table := things(t)
		if err := table.Create(t.Context(), db, d); err != nil {
			t.Fatal(err)
		}
		defer exec(t, db, "DROP TABLE "+table.Name)
		for n := range 3 {
			row := dialect.Columns{"space": "s", "name": "it", "n": n + 1, "order": []byte{0, 255}}
			if _, err := dialect.InsertIfAbsent(d, table.Name, "name", row).Exec(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		var n int
		var order []byte
		query := dialect.New(d).Add("SELECT n, ").Name("order").Add(" FROM ").Table(table.Name).Add(" WHERE name = ").Value("it")
		if err := query.Scan(t.Context(), db, &n, &order); err != nil || n != 1 || string(order) != "\x00\xff" {
			t.Error(n, order, err)
		}
		if _, err := dialect.InsertIfAbsent(d, table.Name, "name", dialect.Columns{"space": "s", "name": "null", "n": nil}).Exec(t.Context(), db); err == nil {
			t.Error("NULL is not refused")
		}
	})
}

func TestNamesAndDialects(t *testing.T) {
	for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
		for _, name := range []string{"", `a"b`, "a`b", "a;b", "1a", "ä", "a.b.c", strings.Repeat("x", 64), "a b", "x\x00"} {
			table := dialect.Table{Name: name}
			if err := table.Create(t.Context(), nil, d); !errors.Is(err, dialect.ErrName) {
				t.Errorf("%q: %v", name, err)
			}
			if _, err := dialect.New(d).Name(name).Exec(t.Context(), nil); !errors.Is(err, dialect.ErrName) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	for _, d := range []dialect.Dialect{0, -1, 4} {
		if err := d.Validate(); err == nil {
			t.Error(d)
		}
		if _, _, err := dialect.New(d).Add("SELECT 1").Build(); err == nil || !strings.Contains(err.Error(), "PostgreSQL, MySQL or SQLite") {
			t.Error(err)
		}
	}
}

// Two transactions that wait for each other: the database ends one, which may be repeated.
func TestAgainIsADeadlock(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		table := things(t)
		if err := table.Create(t.Context(), db, d); err != nil {
			t.Fatal(err)
		}
		defer exec(t, db, "DROP TABLE "+table.Name)
		for _, name := range []string{"a", "b"} {
			exec(t, db, "INSERT INTO "+table.Name+" (space, name, n) VALUES ('s', '"+name+"', 0)")
		}
		var both sync.WaitGroup
		both.Add(2)
		results := make(chan error, 2)
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			go func() { results <- cross(t.Context(), db, table.Name, order, &both) }()
		}
		first, second := <-results, <-results
		if err := errors.Join(first, second); !dialect.Again(err) || dialect.Lost(err) || dialect.ReadOnly(err) {
			t.Error(err)
		}
		if first != nil && second != nil && d != dialect.SQLite {
			t.Error("both failed", first, second)
		}
	})
}

// cross writes two rows in one transaction, the second when the other transaction has
// begun, too.
func cross(ctx context.Context, db *sql.DB, table string, rows []string, both *sync.WaitGroup) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		both.Done()
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit there is nothing to undo
	_, err = tx.ExecContext(ctx, "UPDATE "+table+" SET n = n + 1 WHERE space = 's' AND name = '"+rows[0]+"'")
	both.Done()
	if err != nil {
		return err
	}
	both.Wait()
	if _, err = tx.ExecContext(ctx, "UPDATE "+table+" SET n = n + 1 WHERE space = 's' AND name = '"+rows[1]+"'"); err != nil {
		return err
	}
	return tx.Commit()
}

// strange is an error of a service that has codes of its own, as many clients of RPC have.
type strange struct {
	Code   int
	Number uint16
	cause  error
}

func (e strange) Error() string { return fmt.Sprint("code ", e.Code) }
func (e strange) Unwrap() error { return e.cause }

// refusal has its code in a method.
type refusal uint32

func (e refusal) Error() string { return "refused" }
func (e refusal) Code() uint32  { return uint32(e) }

// A code that no database gave says nothing, and hides no code of a database.
func TestCodesOfOthers(t *testing.T) {
	busy := &pgconn.PgError{Code: "40001"}
	for _, err := range []error{strange{Code: 5}, &strange{Code: 6}, &strange{Number: 1213}, refusal(5), fmt.Errorf("call: %w", refusal(6))} {
		if dialect.Again(err) || dialect.LockTimeout(err) || dialect.Said(err) {
			t.Errorf("%#v is taken for an error of a database", err)
		}
	}
	for _, err := range []error{strange{Code: 7, cause: busy}, &strange{Number: 1, cause: busy}, errors.Join(refusal(13), busy)} {
		if !dialect.Again(err) {
			t.Errorf("%#v hides the error of the database", err)
		}
	}
	for _, err := range []error{strange{Code: 8}, refusal(8), refusal(2067), strange{Code: 1, cause: io.EOF}} {
		if dialect.ReadOnly(err) || dialect.Duplicate(err) || dialect.Lost(err) != errors.Is(err, io.EOF) {
			t.Errorf("%#v is taken for an error of a database", err)
		}
	}
}

// InnoDB rolls the whole transaction back after some errors only. A repeat cures a deadlock, and may not cure a full lock table.
func TestRolledBack(t *testing.T) {
	for number, is := range map[uint16]struct{ rolledBack, again bool }{1205: {true, true}, 1213: {true, true}, 1020: {true, true}, 1206: {true, false}, 1062: {}, 1064: {}} {
		err := fmt.Errorf("call: %w", &mysql.MySQLError{Number: number})
		if dialect.RolledBack(err) != is.rolledBack || dialect.Again(err) != is.again || !dialect.Said(err) {
			t.Error(err)
		}
	}
	for _, err := range []error{nil, io.EOF, &pgconn.PgError{Code: "40001"}, strange{Number: 1206}} {
		if dialect.RolledBack(err) {
			t.Errorf("%#v is taken for an error of MySQL", err)
		}
	}
}

func TestReadOnly(t *testing.T) {
	each(t, func(t *testing.T, d dialect.Dialect, db *sql.DB) {
		db.SetMaxOpenConns(1)
		exec(t, db, map[dialect.Dialect]string{dialect.PostgreSQL: "SET default_transaction_read_only = on",
			dialect.MySQL: "SET SESSION TRANSACTION READ ONLY", dialect.SQLite: "PRAGMA query_only = on"}[d])
		_, err := db.ExecContext(t.Context(), "CREATE TABLE never_there (n int)")
		if !dialect.ReadOnly(err) || dialect.Again(err) || dialect.Lost(err) {
			t.Error(err)
		}
	})
}

// TestFull: a full or failing disk is told from other trouble. So a statement that needs too much of the server's memory is no such trouble.
func TestFull(t *testing.T) {
	for err, full := range map[error]bool{
		&pgconn.PgError{Code: "53100"}: true, &pgconn.PgError{Code: "58030"}: true, &pgconn.PgError{Code: "53200"}: false, &pgconn.PgError{Code: "40001"}: false,
		&mysql.MySQLError{Number: 1021}: true, &mysql.MySQLError{Number: 1030}: true, &mysql.MySQLError{Number: 1114}: true, &mysql.MySQLError{Number: 1213}: false,
		&mysql.MySQLError{Number: 1114, Message: "The table '/tmp/#sql1a2b_3_0' is full"}: false, &mysql.MySQLError{Number: 1114, Message: "The table '(temporary)' is full"}: false,
		strange{Code: 13}: false, strange{Number: 1114}: false, nil: false,
	} {
		if dialect.Full(err) != full || dialect.Lost(err) {
			t.Errorf("%#v", err)
		}
	}
	db := open(t, "sqlite3", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "full.db")))
	db.SetMaxOpenConns(1)
	exec(t, db, "PRAGMA max_page_count = 2")
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE large AS SELECT randomblob(100000)"); !dialect.Full(err) || dialect.Again(err) || dialect.Lost(err) {
		t.Error(err)
	}
}

// TestMayHaveCommitted: an error of COMMIT is a refusal only if the database has that error before the commit.
func TestMayHaveCommitted(t *testing.T) {
	for err, may := range map[error]bool{
		&pgconn.PgError{Code: "53100"}: false, &pgconn.PgError{Code: "40001"}: false, &pgconn.PgError{Code: "23505"}: false,
		&mysql.MySQLError{Number: 1026}: true, &mysql.MySQLError{Number: 1180}: true, &mysql.MySQLError{Number: 1030}: true, &mysql.MySQLError{Number: 1317}: true,
		&mysql.MySQLError{Number: 1213}: false, &mysql.MySQLError{Number: 1290}: false, &mysql.MySQLError{Number: 3100}: false, &mysql.MySQLError{Number: 3101}: false,
		nil: false,
	} {
		if dialect.MayHaveCommitted(err) != may {
			t.Errorf("%#v", err)
		}
	}
}

// A connection that breaks is told from a refusal of the server.
func TestLost(t *testing.T) {
	servers := map[string]func() (addr string, kill func(), db *sql.DB){
		"PostgreSQL": func() (string, func(), *sql.DB) {
			s := testservers.Postgres(t)
			return s.Addr, s.Kill, open(t, "pgx", testservers.PostgresURL(s.Addr))
		},
		"MySQL": func() (string, func(), *sql.DB) {
			s := testservers.MariaDB(t)
			return s.Addr, s.Kill, open(t, "mysql", testservers.MariaDBConfig(s.Addr).FormatDSN())
		},
	}
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			_, kill, db := start()
			if _, err := db.ExecContext(t.Context(), "SELECT nonsense"); err == nil || dialect.Lost(err) || dialect.Again(err) {
				t.Error(err)
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			kill()
			_, during := tx.ExecContext(t.Context(), "SELECT 1")
			if !dialect.Lost(during) || dialect.Again(during) {
				t.Errorf("in a transaction: %v", during)
			}
			if _, again := tx.ExecContext(t.Context(), "SELECT 1"); !dialect.Lost(again) {
				t.Errorf("once more in the transaction: %v", again)
			}
			if err := tx.Commit(); !dialect.Lost(err) {
				t.Errorf("commit: %v", err)
			}
			if _, err := db.ExecContext(t.Context(), "SELECT 1"); !dialect.Lost(err) {
				t.Errorf("later: %v", err)
			}
		})
	}
	for _, err := range []error{io.EOF, fmt.Errorf("read: %w", net.ErrClosed), errors.Join(errors.New("x"), mysql.ErrInvalidConn)} {
		if !dialect.Lost(err) {
			t.Error(err)
		}
	}
	for _, err := range []error{nil, errors.New("x"), sql.ErrNoRows} {
		if dialect.Lost(err) || dialect.Again(err) || dialect.ReadOnly(err) {
			t.Error(err)
		}
	}
}

// TestLostBySilence: PostgreSQL ends a connection whose transaction was silent for too long.
func TestLostBySilence(t *testing.T) {
	db := open(t, "pgx", testservers.PostgresURL(testservers.SharedPostgres(t).Addr))
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // its connection has ended
	var pid, left int
	if err := tx.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	exec(t, tx, "SET LOCAL idle_in_transaction_session_timeout = 10")
	for left = 1; left > 0; {
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.ExecContext(t.Context(), "SELECT 1"); !dialect.Lost(err) || dialect.Said(err) {
		t.Error(err)
	}
}
