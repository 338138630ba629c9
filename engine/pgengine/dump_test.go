package pgengine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/pgengine"
	"github.com/pawl-go/pawl/fence"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestTokensGrowAfterADump: a dump is restored into the server that made the dump and still runs. The tables are
// others with the old rows, and the sequence is behind.
func TestTokensGrowAfterADump(t *testing.T) {
	restored := func(t *testing.T, p *pgxpool.Pool, schema, boot, tokens string) {
		t.Helper()
		exec(t, p, "CREATE TABLE "+schema+".restored (LIKE "+schema+"."+boot+" INCLUDING ALL)",
			"INSERT INTO "+schema+".restored SELECT * FROM "+schema+"."+boot, "DROP TABLE "+schema+"."+boot,
			"ALTER TABLE "+schema+".restored RENAME TO "+boot, "SELECT setval('"+schema+"."+tokens+"', 17)")
	}
	// granted renews as long as the grace keeps a claim waiting.
	granted := func(t *testing.T, s engine.Session, c *engine.Claim, grace bool, before fence.Token) {
		t.Helper()
		met := false
		sessiontest.Until(t, "the claim is granted", func() bool {
			if _, err := s.Renew(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			g, err := s.Enter(t.Context(), c, false)
			met = met || errors.Is(err, engine.ErrGrace)
			if g.Held() && g.Token <= before {
				t.Errorf("token %d after %d", g.Token, before)
			}
			return g.Held()
		})
		if met != grace {
			t.Errorf("a grace: %v", met)
		}
	}
	for name, opts := range map[string]*pgengine.Options{"logged": {Schema: "dump"}, "unlogged": {Schema: "dump_unlogged", Unlogged: true}} {
		t.Run(name, func(t *testing.T) {
			p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "dump")
			s := sessiontest.Open(t, newEngine(t, p, opts), time.Second)
			first := claimOf("dump", s, 1)
			before := sessiontest.Hold(t, s, first)
			sessiontest.Leave(t, s, first)
			restored(t, p, opts.Schema, "boot", "tokens")
			granted(t, s, claimOf("dump", s, 2), opts.Unlogged, before)
		})
	}
	t.Run("row mode", func(t *testing.T) {
		addr := testservers.SharedPostgres(t).Addr
		p := pool(t, addr, "postgres", "dump")
		s, first := sessiontest.Open(t, newRow(t, p, "dump_row"), time.Second), claim("dump", "dump.1")
		before := sessiontest.Hold(t, s, first)
		sessiontest.Leave(t, s, first)
		restored(t, p, "dump_row", "row_boot", "row_tokens")
		again := sessiontest.Open(t, newRow(t, pool(t, addr, "postgres", "dump"), "dump_row"), time.Second)
		granted(t, again, claim("dump", "dump.2"), true, before)
	})
}

// TestUpgradeInUse: routines of a version with the same tables are replaced while clients use them.
func TestUpgradeInUse(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "in use")
	opts := &pgengine.Options{Schema: "in_use"}
	old := newEngine(t, p, opts)
	s := sessiontest.Open(t, old, leasetest.TTL)
	held, waits := claimOf("in use", s, 1), claimOf("in use", s, 2)
	before := sessiontest.Hold(t, s, held)
	exec(t, p, "ALTER TABLE in_use.boot DROP COLUMN home", "UPDATE in_use.meta SET version = 5")
	other := sessiontest.Open(t, newEngine(t, p, opts), leasetest.TTL)
	if gone, err := s.Renew(t.Context(), []*engine.Claim{held}); err != nil || len(gone) > 0 {
		t.Errorf("%v, %v", gone, err)
	}
	sessiontest.Wait(t, other, waits)
	sessiontest.Leave(t, s, held)
	if after := sessiontest.Await(t, other, waits); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
}

// TestUpgradeBesideADump: an upgrade of tables that are complete waits for no transaction that reads them, such as that of pg_dump. Each claim
// that enters would wait behind such an upgrade.
func TestUpgradeBesideADump(t *testing.T) {
	p := pool(t, testservers.SharedPostgres(t).Addr, "postgres", "beside")
	opts := &pgengine.Options{Schema: "beside_dump"}
	s := sessiontest.Open(t, newEngine(t, p, opts), leasetest.TTL)
	exec(t, p, "UPDATE beside_dump.meta SET version = 7")
	dump, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Rollback(t.Context()) //nolint:errcheck // it has read
	if _, err := dump.Exec(t.Context(), "LOCK TABLE beside_dump.boot IN ACCESS SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e, err := pgengine.New(soon, p, opts)
	if err != nil {
		t.Fatal(err)
	}
	e.Close() //nolint:errcheck // it returns nil
	c := claimOf("beside", s, 1)
	sessiontest.Hold(t, s, c)
	sessiontest.Leave(t, s, c)
}
