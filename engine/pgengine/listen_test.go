package pgengine_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestListenerAway: a client that opens a session waits for no other that has more time.
func TestListenerAway(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	config, err := pgx.ParseConfig(testservers.PostgresURL(silent.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "away")
	e := newEngine(t, p, &pgengine.Options{Schema: "away", Listener: config})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := e.Open(ctx, engine.SessionOptions{TTL: leasetest.TTL}); ended <- err }()
	first, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	soon, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	start := time.Now()
	time.AfterFunc(leasetest.TTL, cancel)
	if _, err := e.Open(soon, engine.SessionOptions{TTL: leasetest.TTL}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if took := time.Since(start); took > leasetest.TTL/4 {
		t.Errorf("gave up after %v", took)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestListenerAsThePool: it connects as the connections of the pool do, also
// when what they need is known then only.
func TestListenerAsThePool(t *testing.T) {
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(testservers.SharedPostgres(t).Addr))
	if err != nil {
		t.Fatal(err)
	}
	user := config.ConnConfig.User
	config.ConnConfig.User = "nobody"
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.User = user; return nil }
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	sessiontest.Open(t, newEngine(t, p, &pgengine.Options{Schema: "as the pool"}), leasetest.TTL)
}

// TestListenerWithRole: sessions are renewed where the connections of the pool take a role, which the user
// does not have by itself.
func TestListenerWithRole(t *testing.T) {
	addr := testservers.Postgres(t).Addr
	admin := pool(t, addr, "postgres", "admin")
	newEngine(t, admin, nil)
	exec(t, admin, "CREATE ROLE app", "CREATE ROLE login LOGIN NOINHERIT", "GRANT app TO login", "GRANT USAGE ON SCHEMA pawl TO app",
		"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pawl TO app", "GRANT SELECT ON ALL TABLES IN SCHEMA pawl TO app")
	config, err := pgxpool.ParseConfig(testservers.PostgresURL(addr))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.User = "login"
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { _, err := conn.Exec(ctx, "SET ROLE app"); return err }
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	db := stdlib.OpenDB(*config.ConnConfig, stdlib.OptionAfterConnect(config.AfterConnect))
	t.Cleanup(func() { db.Close() })
	ofDB, err := pgengine.NewDB(t.Context(), db, nil)
	for _, e := range []engine.Engine{newEngine(t, p, nil), leasetest.Opened(t, ofDB, err)} {
		s := sessiontest.Open(t, e, leasetest.TTL)
		c := claimOf("role", s, 1)
		sessiontest.Hold(t, s, c)
		if gone, err := s.Renew(t.Context(), []*engine.Claim{c}); err != nil || len(gone) > 0 {
			t.Errorf("%v, %v", gone, err)
		}
		sessiontest.Leave(t, s, c)
	}
}
