package sqlmark_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/id/sqlmark"
)

// failing is a client that calls failed after each statement that fails.
type failing struct {
	driver.Connector
	failed func()
}

type failingConn struct {
	driver.Conn
	failed func()
}

func (f failing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	return failingConn{conn, f.failed}, err
}

func (c failingConn) Prepare(query string) (driver.Stmt, error) {
	stmt, err := c.Conn.Prepare(query)
	if err != nil {
		c.failed()
	}
	return stmt, err
}

// A file that another transaction keeps busy at the first look is looked at again.
func TestBusyAtTheFirstLook(t *testing.T) {
	file := filepath.Join(t.TempDir(), "marks.db")
	others := sqlite(t, file, "&_pragma=journal_mode(delete)") // so that a writer keeps readers out
	if err := registers(t, others, dialect.SQLite, "marks").Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	connector, err := others.Driver().(driver.DriverContext).OpenConnector("file:" + filepath.ToSlash(file) + "?_pragma=busy_timeout(0)")
	if err != nil {
		t.Fatal(err)
	}
	for name, first := range map[string]func(ctx context.Context, r *sqlmark.Registers) error{
		"load":  func(ctx context.Context, r *sqlmark.Registers) error { _, err := r.Mark("it").Load(ctx); return err },
		"check": func(ctx context.Context, r *sqlmark.Registers) error { return r.Check(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			writer, err := others.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer writer.Close() //nolint:errcheck // the test is over
			exec(t, writer, "BEGIN EXCLUSIVE")
			ended := sync.OnceFunc(func() { exec(t, writer, "COMMIT") })
			defer ended()
			db := sql.OpenDB(failing{connector, ended})
			defer db.Close() //nolint:errcheck // the test is over
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			if err := first(ctx, registers(t, db, dialect.SQLite, "marks")); err != nil {
				t.Error(err)
			}
		})
	}
}
