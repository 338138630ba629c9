package sqlengine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
	"github.com/pawl-go/pawl/internal/sqlengine"
)

// A waiter that begins to await when it is time to look already looks at once.
func TestAwaitLate(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) server{"PostgreSQL": postgres, "MariaDB": mariadb} {
		t.Run(name, func(t *testing.T) {
			e := start(t, "waiters")
			c := sessiontest.Whole(t, sessiontest.Fair)
			s := sessiontest.Open(t, e, time.Minute)
			sessiontest.Hold(t, sessiontest.Open(t, e, 100*time.Millisecond), sessiontest.Whole(t, sessiontest.Fair))
			sessiontest.Wait(t, s, c)
			sessiontest.Until(t, "who held is dead", func() bool {
				r, err := e.Show(t.Context(), c.Resource)
				return err == nil && len(r.Claims) == 1
			})
			sessiontest.Await(t, s, c)
		})
	}
}

// TestNewsIsNew: a claim that has waited is read again and again only as long as its grant is young. A
// claim that is to try is read until it does.
func TestNewsIsNew(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) server{"PostgreSQL": postgres, "MariaDB": mariadb} {
		t.Run(name, func(t *testing.T) {
			e := start(t, "news")
			s, holder := sessiontest.Open(t, e, time.Hour), sessiontest.Open(t, start(t, "news"), time.Hour)
			ids := make([]string, 2)
			for i, spec := range []engine.Spec{sessiontest.Fair, specs[2]} {
				before, c := sessiontest.Whole(t, spec), sessiontest.Whole(t, spec)
				before.Resource, c.Resource, ids[i] = fmt.Sprint(i), fmt.Sprint(i), c.ID
				sessiontest.Hold(t, holder, before)
				sessiontest.Wait(t, s, c)
				sessiontest.Leave(t, holder, before)
			}
			reads := func(when string, all bool, want ...string) {
				t.Helper()
				if got, err := sqlengine.News(t.Context(), s, all); err != nil || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
					t.Errorf("%s: read %v, %v; want %v", when, got, err, want)
				}
			}
			reads("at once", false, ids...)
			claims := map[string]string{"PostgreSQL": "news.claims", "MariaDB": "news_claims"}[name]
			if _, err := e.db.Exec("UPDATE " + claims + " SET granted = granted - 7200000000 WHERE waits = 0"); err != nil {
				t.Fatal(err)
			}
			reads("later", false, ids[1])
			reads("with the heartbeat", true, ids...)
		})
	}
}
