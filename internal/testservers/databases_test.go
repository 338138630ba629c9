package testservers

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// database connects one connection to a database.
func database(t *testing.T, addr string, open func(t *testing.T, addr string) *sql.DB) *sql.DB {
	t.Helper()
	db := open(t, addr)
	db.SetMaxOpenConns(1)
	return db
}

func openPostgres(t *testing.T, addr string) *sql.DB {
	return PostgresPool(t, addr, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
}

func openMariaDB(t *testing.T, addr string) *sql.DB { return MariaDBPool(t, addr) }

func execute(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func query(db *sql.DB, query string) (n int, err error) {
	return queryWithin(db, query, 30*time.Second)
}

func queryWithin(db *sql.DB, query string, limit time.Duration) (n int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err = db.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

// testDatabase tests any server with tables.
func testDatabase(t *testing.T, s *Server, open func(t *testing.T, addr string) *sql.DB) {
	db := database(t, s.Addr, open)
	execute(t, db, "CREATE TABLE kept (n int)")
	execute(t, db, "INSERT INTO kept VALUES (42)")
	kept := func() {
		t.Helper()
		if n, err := query(database(t, s.Addr, open), "SELECT n FROM kept"); err != nil || n != 42 {
			t.Fatalf("%d, %v", n, err)
		}
	}
	s.Kill()
	if _, err := query(db, "SELECT 1"); err == nil {
		t.Fatal("killed, and it answers")
	}
	for range 3 {
		s.Restart()
		kept()
	}
	open1 := database(t, s.Addr, open)
	if _, err := query(open1, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	for what, db := range map[string]*sql.DB{"an open connection": open1, "a new one": database(t, s.Addr, open)} {
		if _, err := queryWithin(db, "SELECT 1", 300*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("paused, on %s: %v", what, err)
		}
	}
	s.Resume()
	kept()
	s.Stop()
	s.Restart()
	kept()
	s.Pause()
	s.Restart()
	kept()
}

func TestPostgres(t *testing.T) { testDatabase(t, Postgres(t), openPostgres) }

func TestMariaDB(t *testing.T) { testDatabase(t, MariaDB(t), openMariaDB) }

func TestArgumentsOfDatabases(t *testing.T) {
	for name, db := range map[string]*sql.DB{
		"SHOW max_connections":     database(t, Postgres(t, "-c", "max_connections=17").Addr, openPostgres),
		"SELECT @@max_connections": database(t, MariaDB(t, "--max-connections=17").Addr, openMariaDB),
	} {
		if n, err := query(db, name); err != nil || n != 17 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

func TestSharedDatabases(t *testing.T) {
	if a, b := SharedPostgres(t), SharedPostgres(t); a.Addr != b.Addr {
		t.Error("two PostgreSQLs")
	}
	if a, b := SharedMariaDB(t), SharedMariaDB(t); a.Addr != b.Addr {
		t.Error("two MariaDBs")
	}
}

// Behind the pooler a transaction can have any connection: that is the purpose of a pooler.
func TestPgBouncerPoolsByTransaction(t *testing.T) {
	server := SharedPostgres(t)
	pool := PgBouncer(t, server.Addr)
	a, b := database(t, pool.Addr, openPostgres), database(t, pool.Addr, openPostgres)
	first, err := query(a, "SELECT pg_backend_pid()")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := query(b, "SELECT pg_backend_pid()"); err != nil || second != first {
		t.Errorf("two clients use the backends %d and %d one after the other, %v", first, second, err)
	}
	pool.Kill()
	if _, err := query(a, "SELECT 1"); err == nil {
		t.Error("killed, and it answers")
	}
	pool.Restart()
	if _, err := query(a, "SELECT 1"); err != nil {
		t.Error(err)
	}
}
