package open_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/enginetest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// killing is an engine whose sessions are in the client, so that a test can end them only there.
type killing struct {
	engine.Engine
	sessions *sync.Map // by id
}

func (k killing) Open(ctx context.Context, opts engine.SessionOptions) (engine.Session, error) {
	s, err := k.Engine.Open(ctx, opts)
	if err == nil {
		k.sessions.Store(s.ID(), s)
	}
	return s, err
}

// killers makes the hook that ends a session of any opened engine. A Close with a context that has
// ended breaks its connections.
func killers(open func(t *testing.T) engine.Engine) (opened func(*testing.T) engine.Engine, kill func(*testing.T, string)) {
	var sessions sync.Map
	return func(t *testing.T) engine.Engine { return killing{open(t), &sessions} }, func(t *testing.T, session string) {
		s, ok := sessions.Load(session)
		if !ok {
			t.Fatalf("no session %s", session)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		s.(engine.Session).Close(ended) //nolint:errcheck // the error says that ctx has ended
	}
}

// postgresRow opens the row mode with a pool of its own.
func postgresRow(t *testing.T, addr string, connections int) engine.Engine {
	t.Helper()
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	eng, err := pgengine.NewRow(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

// postgresRowDB opens the row mode with a database of package sql.
func postgresRowDB(t *testing.T, addr string, connections int) engine.Engine {
	t.Helper()
	db, err := sql.Open("pgx", testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	t.Cleanup(func() {
		if n := db.Stats().InUse; n > 0 {
			t.Errorf("%d connections were not given back", n)
		}
		db.Close()
	})
	eng, err := pgengine.NewRowDB(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

// mariadbRow opens the row mode with a pool of its own.
func mariadbRow(t *testing.T, addr string, connections int) engine.Engine {
	t.Helper()
	db := testservers.MariaDBPool(t, addr)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	eng, err := mysqlengine.NewRow(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	return eng
}

func runRow(t *testing.T, addr string, url func(addr string) string, open func(*testing.T, string, int) engine.Engine, private func(*testing.T) *testservers.Server) {
	opened, kill := killers(func(t *testing.T) engine.Engine { return open(t, addr, 30) })
	enginetest.Run(t, &enginetest.Harness{
		Open: opened, KillSession: kill, TTL: 4 * time.Second, // a machine that stalls for all of it rightly loses its locks
		Network: proxied(addr, url),
		Forgetful: func(t *testing.T) (func(*testing.T) engine.Engine, func()) {
			server := private(t)
			return func(t *testing.T) engine.Engine { return open(t, server.Addr, 30) },
				func() { server.Kill(); server.Restart() }
		},
		Cannot: map[string]string{"Snapshot": "a connection has the lock, and no copy of the data has it", "Full": "a release ends a transaction, and writes nothing", "Hang": "each waiter has a connection of its own: TestRowPoolExhausted"},
	})
}

func TestPostgresRow(t *testing.T) {
	runRow(t, testservers.SharedPostgres(t).Addr, postgresURL("mode=row"), postgresRow, func(t *testing.T) *testservers.Server { return testservers.Postgres(t) })
}

func TestPostgresRowDB(t *testing.T) {
	runRow(t, testservers.SharedPostgres(t).Addr, postgresURL("mode=row"), postgresRowDB, func(t *testing.T) *testservers.Server { return testservers.Postgres(t) })
}

func TestMariaDBRow(t *testing.T) {
	url := func(addr string) string { return "mysql://root@" + addr + "/pawl?mode=row" }
	runRow(t, testservers.SharedMariaDB(t).Addr, url, mariadbRow, func(t *testing.T) *testservers.Server { return testservers.MariaDB(t) })
}
