package sqlidem_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/sqltest"
)

// between is a client that does something before each statement.
type between struct {
	driver.Connector
	before func(query string)
}

type betweenConn struct {
	driver.Conn
	before func(query string)
}

func (b between) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := b.Connector.Connect(ctx)
	return betweenConn{conn, b.before}, err
}

func (c betweenConn) Prepare(query string) (driver.Stmt, error) {
	c.before(query)
	return c.Conn.Prepare(query)
}

// TestSweepBesideWriters: with the transactions that a driver of SQLite has by default, others write between any two statements of the sweeper.
func TestSweepBesideWriters(t *testing.T) {
	f := newFixture(t, sqltest.SQLite(t, ""))
	f.pays("a", 1, false)
	f.exec("UPDATE " + f.table + " SET expires = 1 WHERE name <> 'format'")
	others, err := f.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close() //nolint:errcheck // the test is over
	if _, err := others.ExecContext(t.Context(), "PRAGMA busy_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	connector, err := f.db.Driver().(driver.DriverContext).OpenConnector(f.on.Source)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(between{connector, func(query string) {
		if strings.HasPrefix(query, "DELETE") { // which fails while the sweeper has the file
			others.ExecContext(t.Context(), fmt.Sprintf("INSERT INTO %s (name, n) VALUES ('b', 1)", f.effects)) //nolint:errcheck // as above
		}
	}})
	defer db.Close() //nolint:errcheck // the test is over
	if n, err := f.store.Sweep(t.Context(), db, 100); n != 1 || err != nil {
		t.Error(n, err)
	}
	if f.count("b") == 0 {
		t.Error("nobody wrote beside the sweeper")
	}
}

// TestSweepOfNothing: a sweeper that has nothing to delete waits for no writer.
func TestSweepOfNothing(t *testing.T) {
	f := newFixture(t, sqltest.SQLite(t, ""))
	f.pays("a", 1, false)
	writer, err := f.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close() //nolint:errcheck // the test is over
	if _, err := writer.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	defer writer.ExecContext(context.Background(), "ROLLBACK") //nolint:errcheck // as above
	for _, more := range []string{"", "&_txlock=immediate"} {
		on := f.on
		on.Source = strings.Replace(on.Source, "busy_timeout(20000)", "busy_timeout(0)", 1) + more
		if n, err := f.store.Sweep(t.Context(), on.Opened(t), 100); n != 0 || err != nil {
			t.Errorf("%q: %d, %v", more, n, err)
		}
	}
}
