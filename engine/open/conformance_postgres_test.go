package open_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// postgresURL returns a function that makes a URL from an address.
func postgresURL(params string) func(addr string) string {
	return func(addr string) string { return "postgres://postgres@" + addr + "/postgres?" + params }
}

// postgresHarness reaches a schema of the server at addr, directly or through the proxy or pooler
// at via.
func postgresHarness(t *testing.T, addr, via, schema, params string) *enginetest.Harness {
	t.Helper()
	raw, err := pgxpool.New(t.Context(), testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	url := postgresURL("schema=" + schema + params)
	return &enginetest.Harness{
		Open:    func(t *testing.T) engine.Engine { return connect(t, url(via)) },
		TTL:     time.Second,
		Clients: 60, // each has up to five connections, and the server has 400
		Network: proxied(via, url),
		KillSession: func(t *testing.T, session string) {
			tag, err := raw.Exec(context.Background(), "UPDATE "+schema+".sessions SET ends = 0 WHERE id = $1", session)
			if err != nil || tag.RowsAffected() != 1 {
				t.Fatal(tag, err)
			}
		},
		Fresh: unused(postgresURL("schema=NEW" + params)(via)),
		Hang: func(t *testing.T, name string) func() {
			tx, err := raw.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			// A step keeps the lock of its name until its transaction ends.
			if _, err := tx.Exec(t.Context(), "SELECT * FROM "+schema+".step('poll', '', $1, '', '', '', 0, '', 0, 0, 0)", name); err != nil {
				t.Fatal(err)
			}
			return func() { tx.Rollback(context.Background()) } //nolint:errcheck // the row sees whether it ended
		},
		Cannot: map[string]string{"Snapshot": "the row is in TestPostgresLease", "Full": "the row is in TestPostgresLease"},
	}
}

func TestPostgresLease(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	h := postgresHarness(t, addr, addr, "logged", "")
	h.Snapshot, h.Full, h.Cannot = snapshot(testservers.Postgres, postgresURL("")), fullPostgres, nil
	enginetest.Run(t, h)
}

func TestPostgresUnlogged(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	h := postgresHarness(t, addr, addr, "unlogged", "&unlogged=on")
	h.Forgetful = func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
		server := testservers.Postgres(t)
		return func(t *testing.T) engine.Engine { return connect(t, postgresURL("unlogged=on")(server.Addr)) },
			func() { server.Kill(); server.Restart() }
	}
	enginetest.Run(t, h)
}

// TestPostgresPooled: pawl depends on nothing that a connection remembers.
func TestPostgresPooled(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	pooler := testservers.PgBouncer(t, addr).Addr
	enginetest.Run(t, postgresHarness(t, addr, pooler, "pooled", "&pooled=on"))
}
