package mysqlengine_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/testservers"
)

// rowsRead counts what the server has read along an index.
func rowsRead(t *testing.T, db *sql.DB) (rows int) {
	t.Helper()
	var name string
	if err := db.QueryRow("SHOW GLOBAL STATUS LIKE 'Handler_read_next'").Scan(&name, &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestStepsDoNotReadTheLine: however many wait, a waiter that comes and a hand-over read few
// rows. The server likes to begin a join with the shorter table, and to sort a line that has an order.
func TestStepsDoNotReadTheLine(t *testing.T) {
	const line, steps, most = 300, 20, 40
	admin := database(t, testservers.MariaDB(t).Addr, "root", nil)
	s := sessiontest.Open(t, newEngine(t, admin, nil), time.Minute)
	spec := engine.Spec{Kind: engine.KindLock, Capacity: 2}
	var claims []*engine.Claim
	come := func() {
		id := fmt.Sprintf("%s.%d", s.ID(), len(claims))
		c := &engine.Claim{Spec: spec, Resource: "line", ID: id, Owner: id, Weight: spec.Capacity}
		if grant := sessiontest.Enter(t, s, c); grant.Held() != (len(claims) == 0) {
			t.Fatal(grant)
		}
		claims = append(claims, c)
	}
	for range line {
		come()
	}
	before := rowsRead(t, admin)
	for range steps {
		come()
	}
	after := rowsRead(t, admin)
	if each := (after - before) / steps; each > most {
		t.Errorf("a waiter that comes reads %d rows of a line of %d", each, line)
	}
	for _, c := range claims[:steps] {
		sessiontest.Leave(t, s, c)
	}
	if each := (rowsRead(t, admin) - after) / steps; each > most {
		t.Errorf("a hand-over reads %d rows of a line of %d", each, line)
	}
}
