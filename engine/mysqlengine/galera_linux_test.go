package mysqlengine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/engine/mysqlengine"
	"github.com/pawl-go/pawl/internal/testservers"
)

// TestGalera: in a cluster whose servers all take writes each server has locks of its own, of names in lease mode and of rows. So
// both modes are refused, and make no tables.
func TestGalera(t *testing.T) {
	db := database(t, testservers.Galera(t).Addr, "root", nil)
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "wsrep_on") {
			t.Error(err)
		}
	}
	for range 2 {
		_, err := mysqlengine.New(t.Context(), db, nil)
		refused(err)
		_, err = mysqlengine.NewRow(t.Context(), db, nil)
		refused(err)
	}
	var tables int
	if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'pawl'").Scan(&tables); err != nil || tables > 0 {
		t.Errorf("%d tables, %v", tables, err)
	}
}
