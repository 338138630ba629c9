package sqlengine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/sessiontest"
)

// TestSharesInGrace: in a restart grace nothing new is given out, and an owner shares what its claims
// hold. An upgrade is refused because of the grace, also if the claim may wait. The owner may have released what the store shows.
func TestSharesInGrace(t *testing.T) {
	for name, start := range map[string]func(*testing.T, string) server{"PostgreSQL": postgres, "MariaDB": mariadb} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "graces")
			boot := map[string]string{"PostgreSQL": "graces.boot", "MariaDB": "graces_boot"}[name]
			grace := func(until time.Time) {
				t.Helper()
				if _, err := s.db.Exec(fmt.Sprintf("UPDATE %s SET grace = %d, since = %d", boot, until.UnixMicro(), time.Now().UnixMicro())); err != nil {
					t.Fatal(err)
				}
			}
			here := sessiontest.Open(t, s, time.Hour)
			claim := func(spec engine.Spec, weight int64, owner string) *engine.Claim {
				c := sessiontest.Claim(t, spec, weight, owner)
				c.Resource = fmt.Sprintf("%s of %d, barging %t", spec.Kind, spec.Capacity, spec.Barging)
				return c
			}
			for _, spec := range specs {
				held, all := []*engine.Claim{claim(spec, 1, "owner"), claim(spec, 2, "owner")}, spec.Capacity
				sessiontest.Hold(t, here, held[0])
				largest := sessiontest.Hold(t, here, held[1])
				grace(time.Now().Add(time.Hour))
				share := func(when string, weight int64, wait bool) {
					t.Helper()
					c := claim(spec, weight, "owner")
					if g, err := here.Enter(t.Context(), c, wait); err != nil || g.Token != largest || !g.Grace.On() {
						t.Errorf("%s: %s: weight %d: %+v, %v; want the token %v", c.Resource, when, weight, g, err, largest)
					}
					held = append(held, c)
				}
				share("a try", 2, false)
				share("a wait", 1, true)
				for _, wait := range []bool{false, true} {
					sessiontest.Refuse(t, here, claim(spec, all, "owner"), wait, engine.ErrGrace)
				}
				sessiontest.Refuse(t, here, claim(spec, 1, "another"), false, engine.ErrGrace)
				waiter := claim(spec, all, "another")
				if g, err := here.Enter(t.Context(), waiter, true); err != nil || g.Held() || !g.Grace.On() {
					t.Errorf("%s: another owner: %+v, %v; want the grace", waiter.Resource, g, err)
				}
				share("before a waiter", 2, true)
				if gone, err := here.Renew(t.Context(), held); err != nil || len(gone) > 0 {
					t.Errorf("%s: renewed: %v gone, %v", waiter.Resource, gone, err)
				}
				grace(time.Unix(1, 0))
				for _, c := range held {
					if err := here.Leave(t.Context(), c.Resource, c.ID); err != nil && !errors.Is(err, engine.ErrGone) {
						t.Fatal(err)
					}
				}
				sessiontest.Await(t, here, waiter)
			}
		})
	}
}
