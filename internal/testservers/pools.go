package testservers

import (
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// PostgresPool returns connections to the server, proxy or pooler at addr, as one process has them. The connections are
// closed with the test. Each set changes how they connect.
func PostgresPool(t testing.TB, addr string, set ...func(*pgx.ConnConfig)) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range set {
		change(config)
	}
	return closed(t, stdlib.OpenDB(*config))
}

// MariaDBPool does for MariaDB as [PostgresPool] does for PostgreSQL.
func MariaDBPool(t testing.TB, addr string, set ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	config := MariaDBConfig(addr)
	for _, change := range set {
		change(config)
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, sql.OpenDB(connector))
}

func closed(t testing.TB, db *sql.DB) *sql.DB {
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // nothing is lost
	return db
}
