package queue

import (
	"slices"
	"time"

	"github.com/pawl-go/pawl/engine"
)

// Show returns the resource as an operator sees it. Now, and when a session ends
// unless it is renewed, are in µs on the store's clock.
func (s State) Show(name string, now int64, ends func(session string) int64) engine.Resource {
	r := engine.Resource{Name: name, Spec: s.Spec}
	for _, c := range s.Claims {
		info := engine.ClaimInfo{
			ID: c.ID, Owner: c.Owner, Session: c.Session, Label: c.Label, Weight: c.Weight, Token: c.Token,
			Age: since(c.Since, now), Held: engine.Unknown, Left: since(now, ends(c.Session)),
		}
		if c.Token != 0 {
			info.Held = since(c.Granted, now)
		}
		r.Claims = append(r.Claims, info)
	}
	Sort(r.Claims)
	return r
}

// since is the time from one instant to the other, 0 if the clock was set back.
func since(from, to int64) time.Duration { return time.Duration(max(0, to-from)) * time.Microsecond }

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
