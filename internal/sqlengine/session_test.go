package sqlengine_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/sessiontest"
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
