package pgengine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/enginetest/proxy"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

func TestMain(m *testing.M) { os.Exit(testservers.Main(m)) }

// pool connects as a user, by the name of an application.
func pool(t *testing.T, addr, user, application string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.User = user
	config.ConnConfig.RuntimeParams["application_name"] = application
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func exec(t *testing.T, p *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := p.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func newEngine(t *testing.T, p *pgxpool.Pool, opts *pgengine.Options) *pgengine.Engine {
	t.Helper()
	e, err := pgengine.New(t.Context(), p, opts)
	leasetest.Opened(t, e, err)
	return e
}

func count(t *testing.T, p *pgxpool.Pool, query string) (n int) {
	t.Helper()
	if err := p.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const (
	ours       = `FROM pg_stat_activity WHERE application_name = 'victim'`
	listening  = `SELECT count(*) ` + ours + ` AND (query = '-- ping' OR query LIKE '%renew(%')` // its last one
	terminated = `SELECT count(pg_terminate_backend(pid)) ` + ours
)

// TestBackendsTerminated: all connections end, also listening ones, while a holder holds and a
// waiter waits. Nobody loses anything, and messages arrive again.
func TestBackendsTerminated(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	admin := pool(t, addr, "postgres", "admin")
	opts := &pgengine.Options{Schema: "terminated"}
	a, b := newEngine(t, pool(t, addr, "postgres", "victim"), opts), newEngine(t, pool(t, addr, "postgres", "victim"), opts)
	pair := leasetest.NewPair(t, a, b)
	for range 2 {
		held, next := pair.Lock(t)
		sessiontest.Until(t, "both listen", func() bool { return count(t, admin, listening) >= 2 })
		if n := count(t, admin, terminated); n < 4 {
			t.Fatalf("%d backends were there", n)
		}
		sessiontest.Until(t, "both listen again", func() bool { return count(t, admin, listening) >= 2 })
		sessiontest.Until(t, "the pools have met their dead connections", func() bool {
			_, err := a.Show(t.Context(), "terminated")
			_, other := b.Show(t.Context(), "terminated")
			return err == nil && other == nil
		})
		leasetest.HandsOver(t, held, next)
	}
}

// TestTerminatedInTheMidst: the message goes nowhere, because its receiver is not connected when it
// is sent.
func TestTerminatedInTheMidst(t *testing.T) {
	server := testservers.SharedPostgres(t)
	link := proxy.New(t, server.Addr)
	opts := &pgengine.Options{Schema: "midst"}
	a, b := newEngine(t, pool(t, server.Addr, "postgres", "holder"), opts), newEngine(t, pool(t, link.Addr, "postgres", "waiter"), opts)
	held, next := leasetest.NewPair(t, a, b).Lock(t)
	link.Cut()
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	link.Heal()
	if err := next().Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > leasetest.TTL/4 {
		t.Errorf("found out after %v", took)
	}
}

// TestRestart: the server is restarted while one holds and another waits. Logged tables keep their
// rows even if the server crashed, unlogged ones if it did not. The forgetting of the latter is a
// row of the conformance table.
func TestRestart(t *testing.T) {
	for _, c := range []struct {
		name    string
		opts    pgengine.Options
		restart func(*testservers.Server)
	}{
		{"crash, logged", pgengine.Options{}, func(s *testservers.Server) { s.Kill(); s.Restart() }},
		{"stop, logged", pgengine.Options{}, func(s *testservers.Server) { s.Stop(); s.Restart() }},
		{"stop, unlogged", pgengine.Options{Unlogged: true}, func(s *testservers.Server) { s.Stop(); s.Restart() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := testservers.Postgres(t)
			a, b := newEngine(t, pool(t, server.Addr, "postgres", "a"), &c.opts), newEngine(t, pool(t, server.Addr, "postgres", "b"), &c.opts)
			held, next := leasetest.NewPair(t, a, b).Lock(t)
			c.restart(server)
			leasetest.HandsOver(t, held, next)
		})
	}
}

// rights is what the package documentation says that a user of locks needs.
const rights = `
GRANT USAGE ON SCHEMA pawl TO app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pawl TO app;
GRANT SELECT ON ALL TABLES IN SCHEMA pawl TO app;`

func TestLeastPrivilege(t *testing.T) {
	leasetest.Documented(t, "pgengine.go", rights)
	addr := testservers.Postgres(t).Addr
	admin := pool(t, addr, "postgres", "admin")
	exec(t, admin, "CREATE ROLE app LOGIN", "REVOKE CREATE ON DATABASE postgres FROM app")
	app := pool(t, addr, "app", "app")
	if _, err := pgengine.New(t.Context(), app, nil); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "pawl store init") {
		t.Errorf("without tables and the right to create them: %v", err)
	}
	newEngine(t, admin, nil)
	exec(t, admin, rights)
	leasetest.Complete(t, newEngine(t, app, nil), newEngine(t, app, nil))
	for _, forged := range []string{"UPDATE pawl.claims SET token = 1", "DELETE FROM pawl.sessions", "SELECT nextval('pawl.tokens')",
		"INSERT INTO pawl.values VALUES ('x', 1, '')", "CREATE TABLE pawl.x (x INT)"} {
		if _, err := app.Exec(t.Context(), forged); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", forged, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	addr := testservers.Postgres(t).Addr // roles are of all its schemas
	admin := pool(t, addr, "postgres", "admin")
	newEngine(t, admin, &pgengine.Options{Schema: "refusals"})
	refused := func(what string, p *pgxpool.Pool, opts *pgengine.Options) {
		t.Helper()
		if e, err := pgengine.New(t.Context(), p, opts); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
			if err == nil {
				e.Close()
			}
		}
	}
	refused("unlogged where tables are logged", admin, &pgengine.Options{Schema: "refusals", Unlogged: true})
	exec(t, admin, "CREATE ROLE strict LOGIN SUPERUSER", "ALTER ROLE strict SET default_transaction_isolation = 'repeatable read'")
	refused("another isolation", pool(t, addr, "strict", "strict"), &pgengine.Options{Schema: "refusals"})
	exec(t, admin, "UPDATE refusals.meta SET version = 99")
	refused("a later version", admin, &pgengine.Options{Schema: "refusals"})
	db, err := sql.Open("mysql", testservers.MariaDBConfig(testservers.SharedMariaDB(t).Addr).FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := pgengine.NewDB(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a database of another driver: %v", err)
	}
	if _, err := pgengine.NewRowDB(t.Context(), db, nil); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a database of another driver, row mode: %v", err)
	}
	if n := db.Stats().InUse; n > 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// TestOldVersion: tables of an older version are brought up to ours.
func TestOldVersion(t *testing.T) {
	admin := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "admin")
	opts := &pgengine.Options{Schema: "old version"}
	newEngine(t, admin, opts)
	exec(t, admin, `UPDATE "old version".meta SET version = 0`)
	e := newEngine(t, admin, opts)
	now := count(t, admin, `SELECT version FROM "old version".meta`)
	if now == 0 {
		t.Error("it stays old")
	}
	s := sessiontest.Open(t, e, leasetest.TTL)
	token := sessiontest.Hold(t, s, claimOf("old version", s, 1))
	exec(t, admin, `UPDATE "old version".meta SET version = 3`)
	other, err := pgengine.New(t.Context(), admin, opts)
	if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "version 3") || !strings.Contains(err.Error(), fmt.Sprint("version ", now)) {
		t.Errorf("in use: %v, %v", other, err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `ALTER TABLE "old version".claims DROP COLUMN held`)
	next := sessiontest.Open(t, newEngine(t, admin, opts), leasetest.TTL)
	if later := sessiontest.Hold(t, next, claimOf("old version", next, 1)); later <= token {
		t.Errorf("token %v after %v", later, token)
	}
	if n := count(t, admin, `SELECT version FROM "old version".meta`); n != now {
		t.Errorf("version %d, want %d", n, now)
	}
}

// TestSessionBesideAnUpgrade: a session that a client of the older version opens meanwhile keeps the tables from being replaced.
func TestSessionBesideAnUpgrade(t *testing.T) {
	admin := pool(t, testservers.Postgres(t).Addr, "postgres", "admin")
	opts := &pgengine.Options{Schema: "upgrade"}
	newEngine(t, admin, opts)
	exec(t, admin, "UPDATE upgrade.meta SET version = 4")
	tx, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO upgrade.sessions (id, ends, ttl, label, client) VALUES ('s', 9e15, 60000000, '', '')"); err != nil {
		t.Fatal(err)
	}
	upgraded := make(chan error, 1)
	go func() { _, err := pgengine.New(t.Context(), admin, opts); upgraded <- err }()
	sessiontest.Until(t, "the upgrade waits", func() bool {
		return count(t, admin, "SELECT count(*) FROM pg_locks WHERE relation = 'upgrade.sessions'::regclass AND NOT granted") > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-upgraded; !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("%v; want a refusal because a session is open", err)
	}
	if n := count(t, admin, "SELECT count(*) FROM upgrade.sessions"); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// TestSQLDatabase: locks are handed over by message between a pool and a database of database/sql.
func TestSQLDatabase(t *testing.T) {
	addr := testservers.SharedPostgres(t).Addr
	opts := &pgengine.Options{Schema: "a \"quoted\" 'schema'"}
	a := newEngine(t, pool(t, addr, "postgres", "a"), opts)
	db, err := sql.Open("pgx", testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	b, err := pgengine.NewDB(t.Context(), db, opts)
	held, next := leasetest.NewPair(t, a, leasetest.Opened(t, b, err)).Lock(t)
	leasetest.HandsOver(t, held, next)
}

// TestNothingStays: neither of a client that closes, nor of a killed client with more names than
// are handed on at a time.
func TestNothingStays(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "stays")
	e := newEngine(t, p, &pgengine.Options{Schema: "stays"})
	held := func(s engine.Session) {
		for i := range 120 {
			c := &engine.Claim{Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: 9}, Resource: fmt.Sprint("stays ", s.ID(), i), Weight: 1}
			c.ID = fmt.Sprint(s.ID(), i)
			c.Owner = c.ID
			sessiontest.Hold(t, s, c)
		}
	}
	var sessions []engine.Session
	for range 3 {
		s, err := e.Open(t.Context(), engine.SessionOptions{TTL: leasetest.TTL})
		if err != nil {
			t.Fatal(err)
		}
		held(s)
		sessions = append(sessions, s)
	}
	exec(t, p, "UPDATE stays.sessions SET ends = 0 WHERE id = '"+sessions[0].ID()+"'")
	if err := sessions[1].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, p, "SELECT count(*) FROM stays.claims"); n != 240 {
		t.Errorf("%d claims after one was closed; who was killed is not buried yet", n)
	}
	if _, err := sessions[2].Renew(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	sessiontest.Until(t, "who was killed is buried after a renewal of one that lives", func() bool {
		return count(t, p, "SELECT count(*) FROM stays.claims") == 120
	})
	if err := sessions[2].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, p, "SELECT (SELECT count(*) FROM stays.claims) + (SELECT count(*) FROM stays.sessions)"); n != 0 {
		t.Errorf("%d rows stay", n)
	}
}

// TestRenewalStands: a session is buried while its renewal is being committed. The renewal came before the end of the session, and
// was answered, so the session lives.
func TestRenewalStands(t *testing.T) {
	p := pool(t, testservers.Postgres(t).Addr, "postgres", "stands")
	s := sessiontest.Open(t, newEngine(t, p, nil), leasetest.TTL)
	exec(t, p, "UPDATE pawl.sessions SET ends = ends - 7000000 WHERE id = '"+s.ID()+"'")
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // after the commit there is nothing to undo
	var alive int
	if err := tx.QueryRow(t.Context(), "SELECT alive FROM pawl.renew($1)", s.ID()).Scan(&alive); err != nil || alive != 1 {
		t.Fatalf("the renewal came too late: %d, %v", alive, err)
	}
	sessiontest.Until(t, "the old end is over", func() bool {
		return count(t, p, "SELECT count(*) FROM pawl.sessions WHERE ends <= extract(epoch FROM clock_timestamp()) * 1000000") == 1
	})
	buried := make(chan error, 1)
	go func() { _, err := p.Exec(context.Background(), "SELECT pawl.finish($1, 0)", s.ID()); buried <- err }()
	sessiontest.Until(t, "the burial waits for the renewal", func() bool {
		return count(t, p, "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted") > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-buried; err != nil {
		t.Fatal(err)
	}
	if _, err := s.Renew(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
