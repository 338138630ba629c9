package state_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/internal/sqltest"
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

// databases are those of each dialect, and the ways in which drivers differ.
func databases(t *testing.T) []sqltest.Database {
	t.Helper()
	all := sqltest.All(t)
	simple, found, prepared := sqltest.Postgres(t, "&default_query_exec_mode=simple_protocol"),
		sqltest.MariaDB(t, sqltest.Interpolated, func(c *mysql.Config) { c.ClientFoundRows = true }), sqltest.MariaDB(t)
	simple.Name, found.Name, prepared.Name = "PostgreSQL, simple protocol", "MariaDB, clientFoundRows", "MariaDB, prepared"
	return append(all, simple, simple.WithPgx(), found, prepared)
}

// each runs a test on databases.
func each(t *testing.T, all []sqltest.Database, test func(t *testing.T, d sqltest.Database, db *sql.DB)) {
	t.Helper()
	for _, d := range all {
		t.Run(d.Name, func(t *testing.T) { test(t, d, d.Opened(t)) })
	}
}

// create creates a table for a test and returns its name. In columns, STATES is a type that
// has just these states, where there is such a type.
func create(t *testing.T, d sqltest.Database, db *sql.DB, columns string, states ...string) string {
	t.Helper()
	name := sqltest.NewName("rows")
	kind := "TEXT"
	list := "('" + strings.Join(states, "', '") + "')"
	switch d.Dialect {
	case dialect.PostgreSQL:
		kind = name + "_states"
		d.Run(t, db, "CREATE TYPE "+kind+" AS ENUM "+list)
	case dialect.MySQL:
		kind = "ENUM " + list
	}
	d.Run(t, db, "CREATE TABLE "+name+" ("+strings.ReplaceAll(columns, "STATES", kind)+")")
	t.Cleanup(func() {
		d.Run(t, db, "DROP TABLE "+name)
		if d.Dialect == dialect.PostgreSQL {
			d.Run(t, db, "DROP TYPE "+kind)
		}
	})
	return name
}
