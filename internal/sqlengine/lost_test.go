package sqlengine_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestLostHandOver: a waiter whose turn the store has lost is granted when it looks, within a heartbeat. A cluster or an operator that takes a
// holder's row away hands nothing on.
func TestLostHandOver(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) server{"PostgreSQL": postgres, "MariaDB": mariadb, "SQLite": sqlite} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "lost")
			claims := map[string]string{"PostgreSQL": "lost.claims", "MariaDB": "lost_claims", "SQLite": "pawl_claims"}[name]
			holder := sessiontest.Open(t, s, time.Hour)
			waiter, err := s.Open(t.Context(), engine.SessionOptions{TTL: time.Hour, Heartbeat: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			sessiontest.Hold(t, holder, sessiontest.Whole(t, sessiontest.Fair))
			next := sessiontest.Whole(t, sessiontest.Fair)
			sessiontest.Wait(t, waiter, next)
			got := sessiontest.Awaiting(t, waiter, next)
			if _, err := s.db.Exec("DELETE FROM " + claims + " WHERE waits = 0"); err != nil {
				t.Fatal(err)
			}
			sessiontest.Granted(t, got)
		})
	}
}
