package mysqlengine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/leasetest"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestGalera: in a cluster whose servers all take writes each server has row locks of its own. So row mode is refused, and makes no
// tables. Lease mode has its locks in the tables.
func TestGalera(t *testing.T) {
	db := database(t, testservers.Galera(t).Addr, "root", nil)
	for range 2 {
		_, err := mysqlengine.NewRow(t.Context(), db, nil)
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "wsrep_on") {
			t.Error(err)
		}
	}
	var tables int
	if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'pawl'").Scan(&tables); err != nil || tables > 0 {
		t.Errorf("%d tables, %v", tables, err)
	}
	s, c := sessiontest.Open(t, newEngine(t, db, nil), leasetest.TTL), sessiontest.Whole(t, sessiontest.Fair)
	sessiontest.Hold(t, s, c)
	sessiontest.Leave(t, s, c)
}
