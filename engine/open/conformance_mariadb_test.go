package open_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func mysqlURL(addr string) string { return "mysql://root@" + addr + "/pawl" }

func TestMariaDBLease(t *testing.T) {
	addr := testservers.SharedMariaDB(t).Addr
	raw, err := sql.Open("mysql", testservers.MariaDBConfig(addr).FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	enginetest.Run(t, &enginetest.Harness{
		Open:     func(t *testing.T) engine.Engine { return connect(t, mysqlURL(addr)) },
		TTL:      time.Second,
		Clients:  150, // each has up to five connections, and the server has 1,000
		Network:  proxied(addr, mysqlURL),
		Fresh:    unused(mysqlURL(addr) + "?prefix=NEW_"),
		Snapshot: snapshot(testservers.MariaDB, mysqlURL),
		Hang: func(t *testing.T, name string) func() {
			tx, err := raw.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("SELECT id FROM pawl_slots WHERE id = CRC32(?) % 1024 FOR UPDATE", name); err != nil {
				t.Fatal(err)
			}
			return func() { tx.Rollback() } //nolint:errcheck // the row sees whether it ended
		},
		Cannot: map[string]string{"Full": "a full server takes no releases: TestFullServer of engine/mysqlengine"},
		KillSession: func(t *testing.T, session string) {
			result, err := raw.Exec("UPDATE pawl_sessions SET ends = 0 WHERE id = ?", session)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := result.RowsAffected(); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		},
	})
}
