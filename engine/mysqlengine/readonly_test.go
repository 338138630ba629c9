package mysqlengine_test

import (
	"database/sql"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestReadOnly: a server that was made read-only, because another has taken over, grants
// and renews nothing, though its procedures may write there. Nor does it grant what a waiter asked for before.
func TestReadOnly(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	root := database(t, addr, "root", nil)
	newEngine(t, root, nil)
	newRow(t, root, "")
	exec(t, root, "UPDATE pawl_row_meta SET version = 3", "DROP PROCEDURE pawl_row_wait")
	newRow(t, root, "") // makes the procedures of this version
	exec(t, root, "CREATE USER app", "GRANT EXECUTE, SELECT ON pawl.* TO app", "GRANT UPDATE ON pawl.pawl_row_meta TO app")
	pool := database(t, addr, "app", nil)
	lease, row := newEngine(t, pool, nil), newRow(t, database(t, addr, "app", nil), "")
	for name, e := range map[string]engine.Engine{"lease mode": lease, "row mode": row} {
		s := sessiontest.Open(t, e, time.Minute)
		held := sessiontest.Whole(t, sessiontest.Fair)
		held.Resource = "held " + name
		sessiontest.Hold(t, s, held)
		w, next := sessiontest.Open(t, e, time.Minute), sessiontest.Whole(t, sessiontest.Fair)
		next.Resource = held.Resource
		sessiontest.Wait(t, w, next)
		exec(t, root, "SET GLOBAL read_only = 1")
		other := sessiontest.Whole(t, sessiontest.Fair)
		other.Resource = "asked " + name
		if g, err := s.Enter(t.Context(), other, false); err == nil || !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("%s grants %v, %v", name, g, err)
		}
		if gone, err := s.Renew(t.Context(), []*engine.Claim{held}); err == nil && len(gone) == 0 {
			t.Errorf("%s renews", name)
		}
		if name == "row mode" { // the renewal has left the row to the waiter
			if g, err := w.Await(sessiontest.Soon(t), next); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("%s grants a waiter %v, %v", name, g, err)
			}
		} else if err := s.Leave(t.Context(), held.Resource, held.ID); !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("%s hands on: %v", name, err)
		}
		exec(t, root, "SET GLOBAL read_only = 0")
		if name == "lease mode" {
			sessiontest.Leave(t, s, held)
			sessiontest.Await(t, w, next)
		}
	}
}

// TestReadOnlyServerIsLeft: a client whose server takes no writes any more closes its connections there, because new ones may lead to another
// server. The client puts no value either.
func TestReadOnlyServerIsLeft(t *testing.T) {
	addr := testservers.MariaDB(t).Addr
	root := database(t, addr, "root", nil)
	newEngine(t, root, nil)
	exec(t, root, "CREATE USER app", "GRANT EXECUTE, SELECT ON pawl.* TO app")
	e := newEngine(t, database(t, addr, "app", nil), nil)
	s := sessiontest.Open(t, e, time.Minute)
	held := sessiontest.Whole(t, sessiontest.Fair)
	sessiontest.Hold(t, s, held)
	if _, err := s.Renew(t.Context(), []*engine.Claim{held}); err != nil {
		t.Fatal(err)
	}
	n, last := connections(t, root, math.MaxInt64)
	if n == 0 {
		t.Fatal("the client has no connection")
	}
	exec(t, root, "SET GLOBAL read_only = 1")
	if v, err := e.(engine.Values).Put(t.Context(), "value", []byte("x"), 0); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("put: version %d, %v", v, err)
	}
	sessiontest.Until(t, "the old connections are closed", func() bool {
		n, _ := connections(t, root, last)
		return n == 0
	})
	exec(t, root, "SET GLOBAL read_only = 0")
	if gone, err := s.Renew(t.Context(), []*engine.Claim{held}); err != nil || len(gone) > 0 {
		t.Errorf("on the next server: %v, %v", gone, err)
	}
}

// connections returns how many connections the user app has up to a number, and the largest number. The server counts connections up.
func connections(t *testing.T, root *sql.DB, upTo int64) (n, largest int64) {
	t.Helper()
	row := root.QueryRowContext(t.Context(), "SELECT COUNT(*), COALESCE(MAX(id), 0) FROM information_schema.processlist WHERE user = 'app' AND id <= ?", upTo)
	if err := row.Scan(&n, &largest); err != nil {
		t.Fatal(err)
	}
	return n, largest
}
