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

// TestManyDeadAreBuried: a renewal ends many dead sessions, and not one of them each time.
func TestManyDeadAreBuried(t *testing.T) {
	admin := database(t, testservers.MariaDB(t).Addr, "root", nil)
	s := sessiontest.Open(t, newEngine(t, admin, nil), time.Minute)
	id := s.ID() + ".1"
	sessiontest.Hold(t, s, &engine.Claim{Spec: engine.Spec{Kind: engine.KindSemaphore, Capacity: 1000}, Resource: "dead", ID: id, Owner: id, Weight: 1})
	for i := range 300 {
		exec(t, admin, fmt.Sprintf("INSERT INTO pawl_sessions (id, ends, ttl, label, client) VALUES ('dead%d', %d, 15000000, 'x', 'y')", i, i+1),
			fmt.Sprintf(`INSERT INTO pawl_claims (resource, place, session, id, owner, label, weight, token, since, granted, kind, capacity, barging, waits, news, slot)
				SELECT 'dead', %d, 'dead%d', 'c%d', 'o', 'l', 1, %d, 0, 0, 'semaphore', 1000, 0, 0, 0, slot FROM pawl_claims WHERE session = '%s'`, i+2, i, i, i+1, s.ID()))
	}
	count := func(rows string) (n int) {
		t.Helper()
		if err := admin.QueryRow("SELECT COUNT(*) FROM " + rows).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	renew := func() {
		t.Helper()
		if _, err := s.Renew(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	sessiontest.Until(t, "a renewal ends more than one", func() bool { return count("pawl_sessions WHERE id LIKE 'dead%'") <= 298 })
	sessiontest.Until(t, "all have ended", func() bool {
		renew()
		return count("pawl_sessions WHERE id LIKE 'dead%'") == 0
	})
	if n := count("pawl_claims"); n != 1 {
		t.Errorf("%d claims are left, not one", n)
	}
}
