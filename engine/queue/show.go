package queue

import (
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Show returns the resource as an operator sees it; now is in µs on the
// store's clock.
func (s State) Show(name string, now int64) engine.Resource {
	r := engine.Resource{Name: name, Spec: s.Spec}
	for _, c := range s.Claims {
		r.Claims = append(r.Claims, engine.ClaimInfo{
			ID: c.ID, Owner: c.Owner, Session: c.Session, Label: c.Label, Weight: c.Weight, Token: c.Token,
			Age: time.Duration(now-c.Since) * time.Microsecond, Held: engine.Unknown, Left: engine.Unknown,
		})
	}
	Sort(r.Claims)
	return r
}

// Sort puts the granted claims first and leaves the order otherwise.
func Sort(claims []engine.ClaimInfo) {
	slices.SortStableFunc(claims, func(a, b engine.ClaimInfo) int {
		switch {
		case a.Token != 0 && b.Token == 0:
			return -1
		case a.Token == 0 && b.Token != 0:
			return 1
		}
		return 0
	})
}
