package mysqlengine_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestRowMoved: a replica that takes over has the tables of its primary and none of its locks. So the
// replica grants nothing as long as a holder may believe, and so does the primary when it takes over again. A pool may
// have a connection from before. Another number stands for another server, because a replica has the rows of its primary.
func TestRowMoved(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	root := database(t, addr, "root", nil)
	first := database(t, addr, "root", nil)
	var last uint64
	locks := func(when string, pool *sql.DB, grace bool) {
		t.Helper()
		e := newRow(t, pool, "")
		r, err := e.Show(t.Context(), "x")
		if err != nil || r.Grace.On() != grace || r.Grace.Left > time.Minute {
			t.Errorf("%s: shown %+v, %v; want a grace: %v", when, r, err, grace)
		}
		s, c := sessiontest.Open(t, e, time.Minute), sessiontest.Whole(t, sessiontest.Fair)
		if grace {
			graced(t, when, s, c)
			return
		}
		g, err := s.Enter(t.Context(), c, false)
		if err != nil || uint64(g.Token) <= last {
			t.Errorf("%s: %v, %v; want a token after %d", when, g, err, last)
		}
		last = uint64(g.Token)
		sessiontest.Leave(t, s, c)
	}
	locks("new tables", first, false)
	locks("again", first, false)
	for _, server := range []string{"SET GLOBAL server_id = @@GLOBAL.server_id + 1", "SET GLOBAL server_id = @@GLOBAL.server_id - 1"} {
		exec(t, root, server)
		locks(server+", a connection from before", first, true)
		locks(server+", a new pool", database(t, addr, "root", nil), true)
		locks(server+", again", first, true)
		exec(t, root, "UPDATE pawl_row_meta SET moved = UTC_TIMESTAMP(6)", "UPDATE pawl_row_boot SET ready = UTC_TIMESTAMP(6)")
		first = database(t, addr, "root", nil)
		locks(server+", later", first, false)
	}
}

// graced waits until a server grants nothing. A connection from before looks once a second.
func graced(t *testing.T, when string, s engine.Session, c *engine.Claim) {
	t.Helper()
	sessiontest.Until(t, when+": the server grants nothing", func() bool {
		_, err := s.Enter(t.Context(), c, false)
		if err == nil {
			sessiontest.Leave(t, s, c)
		}
		return errors.Is(err, engine.ErrGrace)
	})
}

// TestRowUpgrade: tables of a version that did not know their server have forgotten nothing, and go on.
func TestRowUpgrade(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	db := database(t, addr, "root", nil)
	newRow(t, db, "")
	exec(t, db, "ALTER TABLE pawl_row_meta DROP COLUMN server, DROP COLUMN moved", "UPDATE pawl_row_meta SET version = 5, ttl = 60000000")
	s, c := sessiontest.Open(t, newRow(t, db, ""), time.Minute), sessiontest.Whole(t, sessiontest.Fair)
	sessiontest.Hold(t, s, c)
	sessiontest.Leave(t, s, c)
	exec(t, db, "SET GLOBAL server_id = @@GLOBAL.server_id + 1")
	graced(t, "after the upgrade", s, c)
}
