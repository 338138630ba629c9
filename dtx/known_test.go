package dtx_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/dialect"
	"github.com/pawl-go/pawl/dtx"
)

// fileLog returns a log in a file. Init is called with each connection.
func fileLog(t *testing.T, init func(*sqlite3.Conn) error) (*sql.DB, *dtx.Log) {
	t.Helper()
	file := filepath.ToSlash(filepath.Join(t.TempDir(), "log.db"))
	db, err := driver.Open("file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(wal)&_pragma=synchronous(full)", init)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	log, err := dtx.NewLog(dialect.SQLite, db, nil)
	if err == nil {
		err = log.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return db, log
}

func plain(*sqlite3.Conn) error { return nil }

// nothing is the function of a transaction without statements.
func nothing(context.Context, *dtx.Tx) error { return nil }

// TestUnknownResources: recovery lists no branches of a resource that prepares nothing where New has it. So Run prepares none there.
func TestUnknownResources(t *testing.T) {
	t.Parallel()
	db, log := fileLog(t, plain)
	local := log.Resource("local")
	for name, known := range map[string]*dtx.Resource{"of the log": local, "read-only": dtx.ReadOnly(local)} {
		c, err := dtx.New(t.Context(), log, []*dtx.Resource{known}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []*dtx.Resource{dtx.PostgreSQL("local", db), dtx.PostgreSQL("other", db)} {
			var whole *dtx.Error
			if err := c.Run(t.Context(), nothing, r); !errors.Is(err, pawl.ErrInvalid) || errors.As(err, &whole) {
				t.Errorf("%s, run with %v: %v", name, r, err)
			}
		}
		for _, r := range []*dtx.Resource{local, dtx.ReadOnly(local)} {
			if err := c.Run(t.Context(), nothing, r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
