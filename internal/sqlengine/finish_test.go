package sqlengine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestNamesAreLockedInOrder: the end of a session locks the names of its claims in the order of their slots,
// also where some claims have waited. Else the ends of two sessions wait for one another.
func TestNamesAreLockedInOrder(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) server{"PostgreSQL": postgres, "MariaDB": mariadb} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "ends")
			table, step, waits := "ends.claims", `SELECT * FROM ends.step('poll', '', '%s', '', '', '', 0, '', 0, 0, 0)`,
				`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`
			if name == "MariaDB" {
				table, step, waits = "ends_claims", `SELECT l.id FROM ends_slots l WHERE l.id = CRC32('%s') %% 1024 FOR UPDATE`,
					`SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'SELECT l.id INTO v_slot FROM ends_slots%'`
			}
			before, ends := sessiontest.Open(t, s, time.Hour), sessiontest.Open(t, s, time.Hour)
			claim := func(resource string) *engine.Claim {
				c := sessiontest.Whole(t, specs[0])
				c.Resource = resource
				return c
			}
			for i := range 2 {
				sessiontest.Hold(t, ends, claim(fmt.Sprint("name ", i)))
			}
			var low, high string
			query := `SELECT MIN(resource) FROM ` + table + ` WHERE slot = (SELECT %s(slot) FROM ` + table + `)`
			if err := errors.Join(s.db.QueryRow(fmt.Sprintf(query, "MIN")).Scan(&low), s.db.QueryRow(fmt.Sprintf(query, "MAX")).Scan(&high)); err != nil {
				t.Fatal(err)
			}
			// The claim on the lower slot has waited, because its row says so.
			if _, err := s.db.Exec(`UPDATE ` + table + ` SET news = 1 WHERE resource = '` + low + `'`); err != nil {
				t.Fatal(err)
			}
			tx, err := s.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback() //nolint:errcheck // it is to end
			if _, err := tx.Exec(fmt.Sprintf(step, low)); err != nil {
				t.Fatal(err)
			}
			closed := make(chan error, 1)
			go func() { closed <- ends.Close(context.Background()) }()
			sessiontest.Until(t, "the end of the session waits for the name", func() bool {
				var n int
				return s.db.QueryRow(waits).Scan(&n) == nil && n == 1
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if g, err := before.Enter(ctx, claim(high), false); err != nil || !g.Held() {
				t.Errorf("the name that is to be locked later: %+v, %v", g, err)
			}
			if err := errors.Join(tx.Rollback(), <-closed); err != nil {
				t.Error(err)
			}
		})
	}
}
